"""Reader `stock`: the loaders' suite, what its libraries give, and what is refused."""

import os
import pickle
import random
import signal
import tarfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from benchsuite import storage
from benchsuite.storage import FORMATS, format_of, load, reader_problem, stock_reader
from benchsuite.storage.dataset.kinds import random_crop, sample_rng
from benchsuite.storage.dataset.manifest import Dataset, DatasetError, ReaderShare
from benchsuite.storage.dataset.spec import DataSpec
from benchsuite.storage.loaders.reader import LoaderInput
from benchsuite.storage.loaders.torch import TorchLoader
from benchsuite.storage.stock.reader import Stock
from tests.helpers.snapshots import compare_messages
from tests.storage.conftest import Made
from tests.storage.loaders.conformance import COUNT, SEED, LoaderConformance, expected, in_turn
from tests.storage.samples import PARAMS, STORED, check_stock_fields, skip_without_library, some_samples

RESIZED_APART = 0.06
"""What an image may differ by on average, in standard deviations of ImageNet: PIL rounds pixels between its steps."""


class TestStock(LoaderConformance):
    name = "torch"
    reader = "stock"

    def same(self, found: Tensor, wanted: Tensor) -> bool:
        if found.shape[:1] == (3,):
            return found.shape == wanted.shape and float((found - wanted).abs().mean()) < RESIZED_APART
        return torch.equal(found, wanted)

    @pytest.mark.parametrize(
        ("form", "workers"), in_turn(["files", "hdf5", "lmdb", "webdataset", "tfrecord"], [1, 2, 0])
    )
    def test_a_corrupt_sample_names_file_and_key(self, mine: Made, form: str, workers: int) -> None:
        """A library that reads a stream does not say which sample it stumbled over."""
        dataset = mine(form, "image")
        victim = some_samples(4)[3]
        path = next(path for path in dataset.data_files() if bytes(victim.fields["image"]) in path.read_bytes())
        content = path.read_bytes()
        start = content.index(bytes(victim.fields["image"]))
        path.write_bytes(content[:start] + b"no image" * 12 + content[start + 96 :])
        told = self.failing(dataset, workers)
        streams = stock_reader(form).stream is not None
        assert (str(dataset.folder) if streams else f"{path}: sample {victim.key!r}: ") in told
        assert stock_reader(form).library in told or form == "webdataset"

    @pytest.mark.parametrize("value", [-1, PARAMS["mlm"]["vocab_size"]])
    def test_a_word_that_no_table_has_a_row_for_is_refused(self, mine: Made, value: int) -> None:
        import h5py

        dataset = mine("hdf5", "mlm")
        (path,) = dataset.data_files()
        with h5py.File(path, "r+") as file:
            file["input_ids"][3, 5] = value
        assert f"{path}: sample {dataset.key(3)!r}: input_ids holds {value}, needed: 0.." in self.failing(dataset, 1)

    @pytest.mark.parametrize("form", sorted(FORMATS))
    def test_the_library_is_named_with_its_version(self, form: str) -> None:
        skip_without_library(form)
        library, _, version = stock_reader(form).implementation("tokens").partition(" ")
        assert library == stock_reader(form).library and version[0].isdigit()
        assert stock_reader("files").implementation("image").startswith("pillow ")


def test_images_are_made_as_torchvision_makes_them(made: Made) -> None:
    """Written anew from torchvision's documentation: a crop of the PIL image, resized, flipped, scaled, normalised."""
    stock: Stock = stock_reader("files")
    dataset = made("files", "image", None, COUNT)
    assert stock.by_row is not None
    fields = stock.by_row(dataset)[7]
    rng = sample_rng(SEED, 0, dataset.key(7))
    left, top, width, height = random_crop(fields["image"].width, fields["image"].height, rng)
    cut = fields["image"].crop((left, top, left + width, top + height)).resize((16, 16), Image.Resampling.BILINEAR)
    flipped = cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else cut
    pixels = np.asarray(flipped, dtype=np.float32).transpose(2, 0, 1) / 255
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    wanted = (pixels - mean[:, None, None]) / std[:, None, None]
    ours = expected("image", 0, 7)["image"].numpy()
    assert np.abs(wanted - ours).mean() < RESIZED_APART


def test_every_format_of_ours_has_one() -> None:
    assert [name for name in FORMATS if format_of(name).stock is not None] == list(FORMATS)


@pytest.mark.parametrize(("form", "kind"), STORED)
def test_fields_are_those_that_were_stored(made: Made, form: str, kind: str) -> None:
    """Arrays to the bit, and images as PIL decodes the bytes that were stored."""
    skip_without_library(form)
    dataset, stock = made(form, kind, None, COUNT), stock_reader(form)
    if stock.by_row is not None:
        opened = stock.by_row(dataset)
        found = {dataset.key(row): opened[row] for row in random.Random(3).sample(range(COUNT), COUNT)}
    else:
        found = dict(stock.stream(dataset, ReaderShare()))
    check_stock_fields(found, kind, COUNT)


def test_what_a_reader_cannot_is_told_when_planning(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """What our own reading alone can, what goes with one loader, and what reads files alone."""
    monkeypatch.setattr(storage, "_is_installed", lambda module: True)
    manifest = made("files", "image", None, COUNT).manifest
    ours = [
        {"reader": "stock", "loader": "threads"},
        {"reader": "stock", "cache": "direct"},
        {"reader": "stock", "loader": "dali", "format": "hdf5"},
        {"reader": "stock", "loader": "dali", "staging": "lazy"},
    ]
    for changes in ours:
        assert reader_problem(DataSpec(**{**changes, "loader": "threads", "reader": "tuned"}), manifest) is None
    cases = [
        *ours,
        {"reader": "tuned", "loader": "torch"},
        {"reader": "tuned", "loader": "dali"},
        {"reader": "datasets", "format": "hdf5"},
        {"reader": "datasets", "format": "parquet", "loader": "threads"},
        *(
            {"reader": "stock", "root": "s3://bucket/x", "format": name}
            for name in ("lmdb", "mds", "tfrecord", "tokens")
        ),
    ]
    compare_messages("readers", cases, lambda changes: reader_problem(DataSpec.model_validate(changes), manifest))


def test_a_format_without_a_reader_of_its_own_is_our_own_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "format_of", lambda name: replace(format_of(name), name="bare", stock=None))
    monkeypatch.setattr(storage, "names", lambda registry, group="": [])
    told = reader_problem(DataSpec(reader="stock", format="mds"), None)
    assert told == "format mds has no stock reader; set data.loader: threads and data.reader: tuned"


def test_a_library_that_is_not_installed_is_one_line_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_is_installed", lambda module: module != "tfrecord")
    told = reader_problem(DataSpec(reader="stock", format="tfrecord"), None)
    assert told == (
        "reader stock of format tfrecord needs tfrecord, which is not installed: pip install 'benchsuite[formats]'"
    )
    assert reader_problem(DataSpec(reader="stock", format="hdf5"), None) is None


def test_members_that_are_pickles_are_not_loaded(mine: Made, tmp_path: Path) -> None:
    """webdataset unpickles members by their names; ours stay bytes."""

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "struck",))  # type: ignore[return-value]

    dataset = mine("webdataset", "image")
    path = next(path for path in dataset.data_files() if path.suffix == ".tar")
    with tarfile.open(path) as tar:
        first = tar.next()
        assert first is not None
        key = first.name.partition(".")[0]
    content = pickle.dumps(Evil())
    stock = stock_reader("webdataset")
    members = path.read_bytes()
    with tarfile.open(path, "w") as tar:
        info = tarfile.TarInfo(f"{key}.pyd")
        info.size = len(content)
        tar.addfile(info, BytesIO(content))
    head = path.read_bytes()[:1024]
    path.write_bytes(head + members)
    manifest = dataset.manifest
    changed = [
        info.model_copy(update={"bytes": info.bytes + 1024}) if info.path == path.name else info
        for info in manifest.files
    ]
    manifest.files[:] = changed
    with suppress(DatasetError, KeyError, ValueError):
        list(stock.stream(dataset, ReaderShare()))
    assert not (tmp_path / "struck").exists()


@pytest.mark.parametrize(
    ("way", "told"),
    [
        ("link", "image is a link, which is not followed"),
        ("storage", "image leads out of the file"),
        ("virtual", "image leads out of the file"),
    ],
)
def test_what_leads_out_of_an_hdf5_file_is_not_followed(mine: Made, tmp_path: Path, way: str, told: str) -> None:
    import h5py

    dataset = mine("hdf5", "volume")
    key, shape, secret = dataset.key(0), (1, 8, 8, 8), str(tmp_path / "secret.h5")
    with h5py.File(secret, "w") as other:
        other["image"] = np.zeros(shape, np.float32)
    (path,) = dataset.data_files()
    with h5py.File(path, "r+") as file:
        del file[key]["image"]
        if way == "link":
            file[key]["image"] = h5py.ExternalLink(secret, "image")
        elif way == "storage":
            file[key].create_dataset("image", shape, "f4", external=[(secret, 0, 2048)])
        else:
            layout = h5py.VirtualLayout(shape, "f4")
            layout[:] = h5py.VirtualSource(secret, "image", shape)
            file[key].create_virtual_dataset("image", layout)
    dataset.manifest.files[0].bytes = path.stat().st_size
    with pytest.raises(ValueError, match=told):
        stock_reader("hdf5").by_row(dataset)[0]


@pytest.mark.parametrize(("number", "told"), [(signal.SIGKILL, "Killed"), (signal.SIGBUS, "out of shared memory")])
def test_a_worker_that_is_killed_says_by_which_signal(made: Made, number: signal.Signals, told: str) -> None:
    """Too little memory kills by SIGKILL; a small /dev/shm, as containers have, by SIGBUS."""
    dataset, spec = made("files", "image", None, COUNT), DataSpec(reader="stock", num_workers=1, pin_memory=False)

    def dies(_: Dataset) -> None:
        os.kill(os.getpid(), number)

    kind = load(storage.KINDS, "image")
    loader = TorchLoader(LoaderInput(dataset, spec, kind, PARAMS["image"], 4, 0, 1, SEED, own_reader=dies))
    try:
        with pytest.raises(RuntimeError, match=told):
            next(loader)
    finally:
        loader.close()


def _own(made: Made, kind: str, form: str, item: Callable[[int], Any]) -> TorchLoader:
    """A loader of one's own reader, in this process."""

    class Mine:
        def __init__(self, _: Dataset) -> None: ...

        def __getitem__(self, row: int) -> Any:
            return item(row)

    spec = DataSpec(reader="stock", num_workers=0, pin_memory=False)
    dataset = made(form, kind, None, COUNT)
    return TorchLoader(LoaderInput(dataset, spec, load(storage.KINDS, kind), PARAMS[kind], 4, 0, 1, SEED, Mine))


def test_an_own_reader_is_told_what_a_sample_is(made: Made) -> None:
    loader = _own(made, "image", "files", lambda row: (Image.new("RGB", (9, 9)), 1))
    with pytest.raises(DatasetError, match=r"sample '.*': .*a sample is a tuple, needed: a dict of image, label"):
        next(loader)


def test_an_own_reader_is_told_which_field_its_sample_lacks(made: Made) -> None:
    loader = _own(made, "image", "files", lambda row: {"picture": Image.new("RGB", (9, 9)), 0: 1})
    with pytest.raises(DatasetError, match=r"sample '.*': .*lacks image, label; it has picture, 0"):
        next(loader)


def test_an_own_reader_that_draws_anew_is_checked_in_every_epoch(made: Made) -> None:
    """What it gives may be sound in two epochs and of no row of the model's table in the third."""
    seen: Counter[int] = Counter()

    def item(row: int) -> dict[str, Any]:
        seen[row] += 1
        return {"tokens": np.full(PARAMS["tokens"]["seq_len"] + 1, 0 if seen[row] < 3 else 1 << 20)}

    loader = _own(made, "tokens", "tokens", item)
    for _ in range(2 * COUNT // 4):
        next(loader)
    with pytest.raises(DatasetError, match=r"tokens holds 1048576, needed: 0\.\."):
        for _ in range(COUNT // 4):
            next(loader)
