"""Loader `dali`: each sample once an epoch, its own content and class; its queue; what it refuses."""

import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from benchsuite.storage import FORMATS, format_of, loader_of, mixes, reader_problem
from benchsuite.storage.create.convert import Wanted, convert_dataset, generate_dataset, in_order
from benchsuite.storage.dataset.fields import array
from benchsuite.storage.dataset.kinds import IMAGE, IMAGENET_MEAN, IMAGENET_STD, MLM, VOLUME, Kind
from benchsuite.storage.dataset.manifest import Dataset, DatasetError, open_dataset
from benchsuite.storage.dataset.spec import DataSpec
from benchsuite.storage.loaders.dali import DaliLoader
from benchsuite.storage.loaders.reader import LoaderInput

if find_spec("nvidia") is None or find_spec("nvidia.dali") is None:
    pytest.skip("nvidia.dali is not installed", allow_module_level=True)

NUM_IMAGES, NUM_VOLUMES, CLASSES, BATCH, EPOCHS = 37, 11, 4, 5, 3
PARAMS = {"image": {"image_size": 32}, "volume": {"patch_size": 16, "mean_bytes": 60_000, "stdev_bytes": 10_000}}
OF_IMAGES = sorted(name for name in FORMATS if "image" in format_of(name).dali_kinds)
MAX_LEVELS = 3
"""Of 255: what JPEG changes a colour by."""
JOBS = [(1, 0), (1, 2), (2, 1), (4, 1)]
"""Ranks and workers."""
Make = Callable[[str], Dataset]


def colour(number: int) -> tuple[int, int, int]:
    return 20 + 60 * (number % 4), 20 + 60 * (number // 4 % 4), 20 + 60 * (number // 16)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Images of one colour each, of which any part tells which it is, in a format."""
    root = tmp_path_factory.mktemp("colours")
    for number in range(NUM_IMAGES):
        folder = root / "raw" / f"class{number % CLASSES}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (48, 40), colour(number)).save(folder / f"{number:03d}.jpg", quality=95)

    def make(form: str) -> Dataset:
        options = {} if form == "files" else {"shard_samples": 5}
        if not (root / form).exists():
            convert_dataset(root / "raw", root / form, Wanted("resnet50", "tiny", form, options=options))
        return open_dataset(root / form)

    return make


def loader(dataset: Dataset, rank: int = 0, ranks: int = 1, workers: int = 1, **spec: object) -> DaliLoader:
    kind = dataset.manifest.kind
    asked = DataSpec.model_validate(
        {"format": dataset.manifest.format, "loader": "dali", "num_workers": workers, **spec}
    )
    assert reader_problem(asked, dataset.manifest) is None
    kinds = {"image": IMAGE, "volume": VOLUME}
    built = loader_of(asked)(LoaderInput(dataset, asked, kinds[kind], PARAMS[kind], BATCH, rank, ranks, 5))
    assert isinstance(built, DaliLoader) and str(built.implementation).startswith("DALI ")
    return built


def delivered(dataset: Dataset, ranks: int, workers: int, **spec: object) -> list[tuple[int, int, dict[str, Tensor]]]:
    """Row, epoch and tensors of every sample of the first epochs, which come once each."""
    built = [loader(dataset, rank, ranks, workers, **spec) for rank in range(ranks)]
    size = dataset.manifest.num_samples
    found, seen = [], Counter[int]()
    try:
        while any(seen[epoch] < size for epoch in range(EPOCHS)):
            for one in built:
                batch, rows, epochs = next(one)
                for at, (row, epoch) in enumerate(zip(rows, epochs, strict=True)):
                    seen[epoch] += 1
                    found.append((row, epoch, {name: tensor[at].cpu().clone() for name, tensor in batch.items()}))
    finally:
        for one in built:
            one.close()
    return [sample for sample in found if sample[1] < EPOCHS]


def check_each_once(samples: list[tuple[int, int, dict[str, Tensor]]], size: int) -> None:
    places = Counter((epoch, row) for row, epoch, _ in samples)
    assert places == Counter(product(range(EPOCHS), range(size)))


@pytest.mark.parametrize("form", OF_IMAGES)
@pytest.mark.parametrize(("ranks", "workers"), JOBS)
def test_every_epoch_holds_each_image_once_with_its_class(images: Make, form: str, ranks: int, workers: int) -> None:
    dataset = images(form)
    samples = delivered(dataset, ranks, workers)
    check_each_once(samples, NUM_IMAGES)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    for row, _, tensors in samples:
        number = int(dataset.key(row).rpartition("/")[2])
        assert tensors["image"].shape == (3, 32, 32) and tensors["image"].dtype == torch.float32
        levels = (tensors["image"] * std + mean) * 255
        assert (levels - torch.tensor(colour(number)).view(3, 1, 1)).abs().max() < MAX_LEVELS
        assert tensors["label"].dtype == torch.int64
        assert int(tensors["label"]) == number % CLASSES == dataset.index["label"][row]


@pytest.mark.parametrize("form", OF_IMAGES)
def test_shuffling_is_by_the_seed_and_can_be_left_out(images: Make, form: str) -> None:
    dataset = images(form)
    in_turn = [row for row, _, _ in delivered(dataset, 1, 1, shuffle=False)]
    assert in_turn == [*range(NUM_IMAGES)] * EPOCHS
    mixed = delivered(dataset, 1, 1)
    again = delivered(dataset, 1, 1)
    assert [row for row, _, _ in mixed] == [row for row, _, _ in again] != in_turn
    assert all(
        torch.equal(one["image"], other["image"]) for (_, _, one), (_, _, other) in zip(mixed, again, strict=True)
    )


def test_patches_are_cut_by_the_seed(tmp_path: Path) -> None:
    """Which images of one colour could not show."""
    wanted = Wanted("unet3d", "tiny", "files", kind="volume", params=PARAMS["volume"])
    generate_dataset(tmp_path / "files", wanted, NUM_VOLUMES, seed=3, num_workers=1)
    first, second = (delivered(open_dataset(tmp_path / "files"), 1, 1) for _ in range(2))
    for (_, _, one), (_, _, other) in zip(first, second, strict=True):
        assert torch.equal(one["image"], other["image"]) and torch.equal(one["label"], other["label"])


@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (2, 1)])
def test_patches_are_cut_from_the_volume_that_is_named(tmp_path: Path, ranks: int, workers: int) -> None:
    wanted = Wanted("unet3d", "tiny", "files", kind="volume", params=PARAMS["volume"])
    generate_dataset(tmp_path / "files", wanted, NUM_VOLUMES, seed=3, num_workers=1)
    dataset = open_dataset(tmp_path / "files")
    whole = {sample.index: (array(sample, "image"), array(sample, "label")) for sample in in_order(dataset)}
    samples = delivered(dataset, ranks, workers)
    check_each_once(samples, NUM_VOLUMES)
    for row, _, tensors in samples:
        image, label = whole[row]
        assert tensors["label"].dtype == torch.uint8
        assert is_part(tensors["image"].numpy()[0], tensors["label"].numpy()[0], image[0], label[0])


def test_volumes_in_npz_go_with_other_loaders(tmp_path: Path) -> None:
    wanted = Wanted("unet3d", "tiny", "files", kind="volume", params=PARAMS["volume"], options={"array": "npz"})
    generate_dataset(tmp_path / "files", wanted, 2, num_workers=1)
    manifest = open_dataset(tmp_path / "files").manifest
    told = reader_problem(DataSpec(loader="dali"), manifest)
    assert told == "DALI has no reader for .npz files; set data.loader: torch or threads"


@pytest.mark.parametrize("form", OF_IMAGES)
def test_files_outside_the_dataset_are_not_read(images: Make, form: str) -> None:
    """Neither one that the index names, nor a shard that the manifest does."""
    dataset = images(form)
    index, outside = np.array(dataset.index), f"../{form}/{dataset.index['file'][0].decode()}"
    index = index.astype([(n, f"S{len(outside)}" if n == "file" else t) for n, t in index.dtype.descr])
    index["file"][0] = outside
    files = [info.model_copy(update={"path": f"../{form}/{info.path}"}) for info in dataset.manifest.files]
    changed = Dataset(dataset.folder, dataset.manifest.model_copy(update={"files": files}), index)
    with pytest.raises(DatasetError, match="leads out of the dataset"):
        loader(changed)


@pytest.mark.parametrize("form", ["webdataset", "tfrecord"])
def test_a_shard_that_is_cut_is_named(images: Make, tmp_path: Path, form: str) -> None:
    folder = Path(shutil.copytree(images(form).folder, tmp_path / form))
    dataset = open_dataset(folder)
    path = next(path for path in dataset.data_files() if path.suffix in (".tar", ".tfrecord"))
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DatasetError, match=f"{path}: 1000 bytes, the manifest says"):
        loader(dataset)


def test_a_buffer_is_counted_before_a_cold_trial_starts() -> None:
    """DALI fills it from any format before the first step, as readers of shards do."""
    assert mixes(DataSpec(loader="dali")) and not mixes(DataSpec(loader="dali", shuffle=False))
    assert mixes(DataSpec(format="webdataset")) and not mixes(DataSpec())


def is_part(patch: np.ndarray, mask: np.ndarray, volume: np.ndarray, labels: np.ndarray) -> bool:
    """Whether image and label stand at one place of the volume, flipped along any axes."""
    for turned in product((1, -1), repeat=3):
        flip = tuple(slice(None, None, step) for step in turned)
        cut, cut_labels = patch[flip], mask[flip]
        for place in np.argwhere(volume == cut[0, 0, 0]):
            window = tuple(slice(start, start + extent) for start, extent in zip(place, cut.shape, strict=True))
            if np.array_equal(volume[window], cut) and np.array_equal(labels[window], cut_labels):
                return True
    return False


@pytest.mark.parametrize("form", ["webdataset", "tfrecord"])
def test_another_class_than_the_indexs_is_refused(images: Make, form: str) -> None:
    dataset = images(form)
    index = np.array(dataset.index)
    index["label"][3] += 1
    changed = Dataset(dataset.folder, dataset.manifest, index)
    built = loader(changed, workers=0, shuffle=False)
    with pytest.raises(DatasetError, match="stands where the index has"):
        next(built)
    built.close()


def test_what_dali_cannot_decode_names_the_dataset(tmp_path: Path) -> None:
    folder = tmp_path / "raw" / "class0"
    folder.mkdir(parents=True)
    for number in range(6):
        Image.new("RGB", (48, 40), colour(number)).save(folder / f"{number}.jpg")
    convert_dataset(tmp_path / "raw", tmp_path / "files", Wanted("resnet50", "tiny", "files"))
    dataset = open_dataset(tmp_path / "files")
    path = next(path for path in dataset.data_files() if path.suffix == ".jpg")
    path.write_bytes(b"no image" * (path.stat().st_size // 8))
    built = loader(dataset, workers=0)
    with pytest.raises(DatasetError, match=str(dataset.folder)):
        for _ in range(3):
            next(built)
    built.close()


def settled(built: DaliLoader, samples: int) -> bool:
    """Whether it comes to rest at that many samples."""
    deadline = time.monotonic() + 20
    while built.counts().samples < samples and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)
    return built.counts().samples == samples


class TestQueue:
    @pytest.mark.parametrize(("form", "prefetch"), [("files", 3), ("webdataset", 1), ("tfrecord", 2)])
    def test_holds_so_many_batches_at_rest(self, images: Make, form: str, prefetch: int) -> None:
        with closing(loader(images(form), workers=2, prefetch_factor=prefetch)) as built:
            assert built.queue_batches == prefetch
            for consumed in range(3):
                assert settled(built, (consumed + prefetch) * BATCH), (consumed, built.counts())
                next(built)
            for _ in range(6):
                next(built)
            assert settled(built, (9 + prefetch) * BATCH)

    @pytest.mark.parametrize("form", OF_IMAGES)
    def test_holds_none_without_workers_and_counts_the_indexs_bytes(self, images: Make, form: str) -> None:
        dataset = images(form)
        with closing(loader(dataset, workers=0)) as built:
            assert built.queue_batches == 0
            rows = [row for _ in range(3) for row in next(built).rows]
            assert settled(built, 3 * BATCH)
            counts = built.counts()
        assert counts.stored_bytes == dataset.index["bytes"][rows].sum() and counts.decode_s > 0

    def test_counters_are_this_processs(self, images: Make) -> None:
        with closing(loader(images("files"))) as built:
            assert (built.io() is None) == (not os.access("/proc/self/io", os.R_OK))

    def test_a_batch_stays_as_it_is_until_the_next_is_asked_for(self, images: Make) -> None:
        with closing(loader(images("files"), workers=2, prefetch_factor=4)) as built:
            for turn in range(1, 4):
                batch = next(built).batch
                before = {name: tensor.clone() for name, tensor in batch.items()}
                assert settled(built, (turn + 4) * BATCH)
                assert all(torch.equal(batch[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize(("workers", "taken"), [(0, 3), (2, 0), (2, 3)])
def test_closing_twice_does_no_harm(images: Make, workers: int, taken: int) -> None:
    built = loader(images("webdataset"), workers=workers)
    for _ in range(taken):
        next(built)
    built.close()
    built.close()
    with pytest.raises(StopIteration):
        next(built)


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


def test_works_in_processes_forked_after_torch_was_imported(images: Make) -> None:
    subprocess.run([sys.executable, "-c", SCRIPT, images("files").folder], check=True, timeout=60)


class TestRefusals:
    @pytest.mark.parametrize("name", ["tfrecord", "webdataset"])
    def test_more_ranks_than_shards(self, images: Make, name: str) -> None:
        """A rank is one reader, whatever its number of threads."""
        dataset = images(name)
        for rank in range(8):
            loader(dataset, rank, 8, 2).close()
        with pytest.raises(DatasetError, match="8 shards < 9 readers") as raised:
            loader(dataset, 0, 9, 0)
        assert str(dataset.folder) in str(raised.value)

    def build(self, dataset: Dataset, kind: Kind) -> None:
        DaliLoader(LoaderInput(dataset, DataSpec(), kind, PARAMS["image"], BATCH, 0, 1, 5))

    def test_a_kind_that_dali_does_not_decode(self, images: Make) -> None:
        with pytest.raises(DatasetError, match="loader dali decodes image and volume samples, not mlm"):
            self.build(images("files"), MLM)

    def test_without_dali(self, images: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("benchsuite.storage.find_spec", lambda module: None)
        with pytest.raises(DatasetError, match=r"not installed: pip install 'benchsuite\[dali\]'"):
            self.build(images("files"), IMAGE)

    def test_with_a_dali_that_cannot_be_imported(self, images: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "nvidia.dali.pipeline", None)
        with pytest.raises(DatasetError, match=r"pip install 'benchsuite\[dali\]'"):
            self.build(images("files"), IMAGE)
