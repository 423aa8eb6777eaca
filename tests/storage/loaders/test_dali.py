"""Loader `dali`: the other loaders' samples, each exactly once an epoch; pixels differ by the interpolation alone."""

import io
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from benchsuite.storage.create.convert import Wanted, convert_dataset, generate_dataset, in_order
from benchsuite.storage.dataset.kinds import IMAGE, VOLUME, decode_one, sample_rng
from benchsuite.storage.dataset.manifest import Dataset, open_dataset
from benchsuite.storage.dataset.spec import DataSpec
from benchsuite.storage.loaders.dali import DaliLoader
from benchsuite.storage.loaders.reader import LoaderInput
from tests.storage.samples import jpeg

if find_spec("nvidia") is None or find_spec("nvidia.dali") is None:
    pytest.skip("nvidia.dali is not installed", allow_module_level=True)

FORMATS = ("files", "hdf5", "lmdb", "tfrecord", "webdataset")
KINDS = {"image": IMAGE, "volume": VOLUME}
WORKLOADS = {"image": "resnet50", "volume": "unet3d"}
PARAMS = {"image": {"image_size": 32}, "volume": {"patch_size": 16, "mean_bytes": 60_000, "stdev_bytes": 10_000}}
NUM_SAMPLES = {"image": 48, "volume": 20}
SHARD_SAMPLES = {"image": 6, "volume": 2}
BATCH = 5
"""Divides nothing, so batches straddle epochs."""
SEED = 5
EPOCHS = 2
FULL = pytest.mark.full
JOBS = list(product((1, 2, 4), (0, 1, 2)))
"""Ranks and workers."""
MAX_MEAN_DIFFERENCE, MIN_CORRELATION = (0.05, 0.99) if torch.cuda.is_available() else (0.01, 0.999)
"""Of normalised pixels, whose standard deviation is about 1, within an image; 0.005 is the most that was seen without a
GPU, whose decoder enlarges colours otherwise."""

Made = dict[tuple[str, str], Dataset]
Delivered = dict[tuple[int, int], dict[str, Tensor]]
"""A sample's tensors by (epoch, row of the index)."""
every_format = pytest.mark.parametrize("name", FORMATS)
every_format_once = pytest.mark.parametrize(
    ("name", "workers"),
    [
        pytest.param(name, workers, marks=() if workers == place % 2 else FULL)
        for place, name in enumerate(FORMATS)
        for workers in (0, 1)
    ],
)
"""Without and with workers by turns; the rest is `full`."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A dataset of each kind in each format; nobody may change it."""
    root, datasets = tmp_path_factory.mktemp("dali"), {}
    for kind, workload in WORKLOADS.items():
        first = root / kind / "files"
        generate_dataset(
            first,
            Wanted(workload, "tiny", "files", kind=kind, params=PARAMS[kind]),
            NUM_SAMPLES[kind],
            seed=3,
            num_workers=1,
        )
        for name in FORMATS:
            if name != "files":
                options = {"shard_samples": SHARD_SAMPLES[kind]} if name in ("tfrecord", "webdataset") else {}
                convert_dataset(first, root / kind / name, Wanted(workload, "tiny", name, kind=kind, options=options))
            datasets[kind, name] = open_dataset(root / kind / name)
    return datasets


@pytest.fixture
def mine(made: Made, tmp_path: Path) -> Callable[[str], Dataset]:
    """A copy of the images in a format, to be damaged."""

    def copy(name: str) -> Dataset:
        options = {"shard_samples": SHARD_SAMPLES["image"]} if name in ("tfrecord", "webdataset") else {}
        convert_dataset(
            made["image", "files"].folder, tmp_path / name, Wanted("resnet50", "tiny", name, options=options)
        )
        return open_dataset(tmp_path / name)

    return copy


@contextmanager
def loaders(
    dataset: Dataset, ranks: int = 1, workers: int = 1, seed: int = SEED, **spec: object
) -> Iterator[list[DaliLoader]]:
    """One loader per rank, as a job of that many ranks would build them."""
    kind, built = dataset.manifest.kind, []
    asked = DataSpec.model_validate({"num_workers": workers, **spec})
    try:
        for rank in range(ranks):
            built.append(DaliLoader(LoaderInput(dataset, asked, KINDS[kind], PARAMS[kind], BATCH, rank, ranks, seed)))
        yield built
    finally:
        for loader in built:
            loader.close()


def deliver(dataset: Dataset, ranks: int, workers: int) -> Delivered:
    """All samples of the first epochs, asserting that none came twice with the same epoch."""
    delivered: Delivered = {}
    size = dataset.manifest.num_samples
    seen: Counter[int] = Counter()
    with loaders(dataset, ranks, workers) as built:
        for _ in range(4 * EPOCHS * size // (ranks * BATCH)):
            for loader in built:
                batch, rows, epochs = next(loader)
                assert len(rows) == len(epochs) == BATCH
                for number, place in enumerate(zip(epochs, rows, strict=True)):
                    assert place not in delivered, f"(epoch, row) {place} came twice"
                    delivered[place] = {name: tensor[number].clone() for name, tensor in batch.items()}
                    seen[place[0]] += 1
            if all(seen[epoch] == size for epoch in range(EPOCHS)):
                return {place: value for place, value in delivered.items() if place[0] < EPOCHS}
    raise AssertionError(f"samples by epoch: {seen}, expected {size}")


def expected(dataset: Dataset) -> Iterator[tuple[tuple[int, int], dict[str, Tensor]]]:
    """What the other loaders deliver."""
    kind = dataset.manifest.kind
    for sample in in_order(dataset):
        for epoch in range(EPOCHS):
            yield (
                (epoch, sample.index),
                decode_one(KINDS[kind], sample, PARAMS[kind], sample_rng(SEED, epoch, sample.key)),
            )


def alike(image: Tensor, other: Tensor) -> bool:
    """Whether two images differ by interpolation at most."""
    correlation = float(np.corrcoef(image.flatten(), other.flatten())[0, 1])
    return float((image - other).abs().mean()) < MAX_MEAN_DIFFERENCE and correlation > MIN_CORRELATION


def check(dataset: Dataset, delivered: Delivered) -> None:
    wanted = dict(expected(dataset))
    assert delivered.keys() == wanted.keys()
    for place, sample in wanted.items():
        found = delivered[place]
        assert {name: (tensor.dtype, tensor.shape) for name, tensor in found.items()} == {
            name: (tensor.dtype, tensor.shape) for name, tensor in sample.items()
        }
        assert torch.equal(found["label"].cpu(), sample["label"]), place
        if dataset.manifest.kind == "volume":
            assert torch.equal(found["image"].cpu(), sample["image"]), place
        else:
            assert alike(found["image"].cpu(), sample["image"]), place


def in_turn() -> list[Any]:
    """Each format with each kind, and each of both with each number of ranks; the rest is `full`."""
    found = []
    for (place, name), (turn, kind) in product(enumerate(FORMATS), enumerate(sorted(KINDS))):
        for number, (ranks, workers) in enumerate([(1, 1), (2, 0), (4, 2)]):
            marks = () if number == (place + turn) % 3 else FULL
            found.append(pytest.param(name, kind, ranks, workers, marks=marks))
    return found


class TestExactlyOnce:
    @pytest.mark.parametrize(("name", "kind", "ranks", "workers"), in_turn())
    def test_every_epoch_holds_each_sample_once_and_as_others_deliver_it(
        self, made: Made, name: str, kind: str, ranks: int, workers: int
    ) -> None:
        check(made[kind, name], deliver(made[kind, name], ranks, workers))

    @pytest.mark.full
    @every_format
    @pytest.mark.parametrize("kind", sorted(KINDS))
    @pytest.mark.parametrize(("ranks", "workers"), JOBS)
    def test_whatever_the_numbers_of_ranks_and_workers(
        self, made: Made, name: str, kind: str, ranks: int, workers: int
    ) -> None:
        check(made[kind, name], deliver(made[kind, name], ranks, workers))

    @pytest.mark.parametrize(
        ("name", "kind", "shard_samples", "last"),
        [
            ("tfrecord", "image", 5, 3),
            ("webdataset", "image", 47, 1),
            ("webdataset", "volume", 3, 2),
            ("tfrecord", "volume", 19, 1),
            pytest.param("webdataset", "image", 5, 3, marks=FULL),
            pytest.param("tfrecord", "image", 47, 1, marks=FULL),
            pytest.param("tfrecord", "volume", 3, 2, marks=FULL),
            pytest.param("webdataset", "volume", 19, 1, marks=FULL),
        ],
    )
    def test_with_a_short_last_shard(
        self, made: Made, tmp_path: Path, name: str, kind: str, shard_samples: int, last: int
    ) -> None:
        """Two ranks, of which one has more samples of an epoch than the other."""
        options = {"shard_samples": shard_samples}
        convert_dataset(
            made[kind, "files"].folder,
            tmp_path / name,
            Wanted(WORKLOADS[kind], "tiny", name, kind=kind, options=options),
        )
        dataset = open_dataset(tmp_path / name)
        assert [info.num_samples for info in dataset.manifest.files if info.num_samples][-1] == last < shard_samples
        check(dataset, deliver(dataset, 2, 2))


class TestPixels:
    def test_of_grey_and_cmyk_and_turned_and_png_images(self, tmp_path: Path) -> None:
        """Exif's orientation is left alone, as the other loaders do."""
        folder, exif = tmp_path / "images" / "class", Image.Exif()
        folder.mkdir(parents=True)
        exif[0x0112] = 6
        photograph = Image.open(io.BytesIO(jpeg(1, 64, 96)))
        photograph.convert("L").save(folder / "grey.jpg")
        photograph.convert("CMYK").save(folder / "cmyk.jpg")
        photograph.save(folder / "turned.jpg", exif=exif)
        photograph.save(folder / "progressive.jpg", progressive=True)
        photograph.save(folder / "colour.png")
        photograph.convert("LA").save(folder / "transparent.png")
        convert_dataset(folder.parent, tmp_path / "set", Wanted("resnet50", "tiny", "files"))
        dataset = open_dataset(tmp_path / "set")
        assert dataset.manifest.num_samples == 6
        check(dataset, deliver(dataset, 1, 1))


class TestOrder:
    def taken(self, dataset: Dataset, seed: int = SEED, **spec: object) -> list[tuple[int, int]]:
        """(epoch, row) of the first two epochs' worth of samples, in the order of delivery."""
        number = 2 * dataset.manifest.num_samples
        with loaders(dataset, seed=seed, **spec) as (loader,):
            batches = [next(loader) for _ in range(-(-number // BATCH))]
        return [place for batch in batches for place in zip(batch.epochs, batch.rows, strict=True)][:number]

    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            pytest.param(name, kind, marks=() if place % 2 == turn else FULL)
            for (place, name), (turn, kind) in product(enumerate(FORMATS), enumerate(sorted(KINDS)))
        ],
    )
    def test_is_the_same_for_the_same_seed_and_new_for_each_seed_and_epoch(
        self, made: Made, name: str, kind: str
    ) -> None:
        dataset = made[kind, name]
        first = self.taken(dataset)
        assert first == self.taken(dataset, workers=2)
        assert first != self.taken(dataset, seed=6)
        epochs = [[row for epoch, row in first if epoch == number] for number in range(EPOCHS)]
        assert epochs[0] != epochs[1] and sorted(epochs[0]) == sorted(epochs[1]) != epochs[0]

    @every_format
    @pytest.mark.smoke
    def test_is_that_of_the_index_when_nothing_is_shuffled(self, made: Made, name: str) -> None:
        dataset = made["image", name]
        size = dataset.manifest.num_samples
        taken = self.taken(dataset, shuffle=False)
        assert taken == [(number // size, number % size) for number in range(2 * size)]


def settled(loader: DaliLoader, samples: int) -> bool:
    """Whether it comes to rest at that many samples."""
    deadline = time.monotonic() + 20
    while loader.counts().samples < samples and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)
    return loader.counts().samples == samples


class TestQueue:
    @pytest.mark.parametrize(
        ("kind", "name", "prefetch"),
        [
            ("image", "files", 3),
            ("image", "webdataset", 1),
            ("volume", "hdf5", 3),
            pytest.param("image", "files", 1, marks=FULL),
            pytest.param("image", "webdataset", 3, marks=FULL),
            pytest.param("volume", "hdf5", 1, marks=FULL),
        ],
    )
    def test_holds_so_many_batches_at_rest(self, made: Made, kind: str, name: str, prefetch: int) -> None:
        with loaders(made[kind, name], workers=2, prefetch_factor=prefetch) as (loader,):
            assert loader.queue_batches == prefetch
            for consumed in range(3):
                assert settled(loader, (consumed + prefetch) * BATCH), (consumed, loader.counts())
                next(loader)
            for _ in range(6):
                next(loader)
            assert settled(loader, (9 + prefetch) * BATCH)

    @every_format
    def test_holds_none_without_workers(self, made: Made, name: str) -> None:
        with loaders(made["image", name], workers=0) as (loader,):
            assert loader.queue_batches == 0
            next(loader)
            assert settled(loader, BATCH)

    @every_format
    def test_stored_bytes_are_those_of_the_index(self, made: Made, name: str) -> None:
        dataset = made["image", name]
        with loaders(dataset, workers=0) as (loader,):
            rows = [row for _ in range(3) for row in next(loader).rows]
            counts = loader.counts()
        assert counts.stored_bytes == dataset.index["bytes"][rows].sum()
        assert counts.read_s > 0 and counts.decode_s > 0

    def test_counters_are_this_processs(self, made: Made) -> None:
        with loaders(made["image", "files"]) as (loader,):
            assert (loader.io() is None) == (not os.access("/proc/self/io", os.R_OK))

    @pytest.mark.parametrize("kind", sorted(KINDS))
    def test_a_batch_stays_as_it_is_until_the_next_is_asked_for(self, made: Made, kind: str) -> None:
        with loaders(made[kind, "files"], workers=2, prefetch_factor=4) as (loader,):
            for turn in range(1, 4):
                batch = next(loader).batch
                before = {name: tensor.clone() for name, tensor in batch.items()}
                assert settled(loader, (turn + 4) * BATCH)
                assert all(torch.equal(batch[name], tensor) for name, tensor in before.items())


class TestClose:
    @pytest.mark.parametrize(("workers", "taken"), [(0, 3), (2, 0), (2, 3), pytest.param(0, 0, marks=FULL)])
    def test_twice_does_no_harm(self, made: Made, workers: int, taken: int) -> None:
        with loaders(made["image", "webdataset"], workers=workers) as (loader,):
            for _ in range(taken):
                next(loader)
            loader.close()
            loader.close()
            with pytest.raises(StopIteration):
                next(loader)


SCRIPT = """
import os, sys
from pathlib import Path
import torch
from benchsuite.storage.dataset.manifest import open_dataset
from benchsuite.storage.dataset.kinds import IMAGE
from benchsuite.storage.loaders.dali import DaliLoader
from benchsuite.storage.loaders.reader import LoaderInput
from benchsuite.storage.dataset.spec import DataSpec

assert "nvidia.dali" not in sys.modules
for _ in range(2):
    child = os.fork()
    if not child:
        dataset = open_dataset(Path(sys.argv[1]))
        loader = DaliLoader(LoaderInput(dataset, DataSpec(), IMAGE, {"image_size": 32}, 5, 0, 1, 0))
        next(loader)
        loader.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def test_works_in_processes_forked_after_torch_was_imported(made: Made) -> None:
    subprocess.run([sys.executable, "-c", SCRIPT, made["image", "files"].folder], check=True, timeout=60)
