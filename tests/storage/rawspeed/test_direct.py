"""Reads past the page cache: the same bytes, and nothing of them in memory afterwards."""

import os
from pathlib import Path

import numpy as np
import pytest

from benchsuite.storage import FORMATS, load
from benchsuite.storage.create.convert import Wanted, generate_dataset
from benchsuite.storage.dataset.manifest import Format, ReaderShare, open_dataset
from benchsuite.storage.dataset.sample import content_digest, fresh
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.observe.page_cache import evict, residency
from benchsuite.storage.rawspeed.direct import open_direct, read_direct, read_whole_direct
from benchsuite.workloads.facts import FACTS
from tests.storage.samples import file_system

SIZE = 3 * 4096 + 1234


@pytest.fixture
def on_disk(tmp_path: Path) -> Path:
    if file_system(tmp_path) in ("tmpfs", "ramfs"):
        pytest.skip("the temporary folder lies in memory: nothing can be read past it")
    return tmp_path


@pytest.fixture
def file(on_disk: Path) -> Path:
    path = on_disk / "file"
    path.write_bytes(os.urandom(SIZE))
    evict([path])
    return path


@pytest.mark.parametrize(
    ("offset", "length"), [(0, SIZE), (0, 1), (1, 4095), (4095, 2), (4096, 4096), (5000, 7000), (SIZE - 1, 1), (77, 0)]
)
def test_any_part_is_read_and_stays_out_of_the_cache(file: Path, offset: int, length: int) -> None:
    descriptor = open_direct(file)
    try:
        read = read_direct(descriptor, offset, length, "x", fresh, file).tobytes()
    finally:
        os.close(descriptor)
    assert residency([file]).fraction == 0
    assert read == file.read_bytes()[offset : offset + length]


def test_what_is_not_there_is_truncated(file: Path) -> None:
    descriptor = open_direct(file)
    try:
        with pytest.raises(DatasetError, match="11 bytes short: truncated"):
            read_direct(descriptor, SIZE - 9, 20, "x", fresh, file)
    finally:
        os.close(descriptor)


def test_a_missing_file_is_named(on_disk: Path) -> None:
    with pytest.raises(DatasetError, match=r"gone: cannot be read directly .* No such file"):
        read_whole_direct(on_disk / "gone", "x", fresh)


@pytest.mark.parametrize(
    ("name", "workload"),
    [("files", "resnet50"), ("files", "unet3d"), ("files", "gpt_neox"), ("hdf5", "resnet50"), ("hdf5", "unet3d")],
)
def test_formats_give_the_same_samples_directly(on_disk: Path, name: str, workload: str) -> None:
    spec = FACTS[workload]
    generate_dataset(
        on_disk / "set", Wanted(workload, "tiny", name, kind=spec.kind, params=spec.variants["tiny"].sample), 6
    )
    dataset = open_dataset(on_disk / "set")
    form: Format = load(FORMATS, name)
    evict(dataset.data_files())
    read = {}
    for sample in form.read(dataset, ReaderShare(0, 1, 0, 0, True, 1, direct=True)):
        read[sample.index] = content_digest(sample)
    resident = residency(dataset.data_files()).fraction
    assert resident is not None and resident < (0.05 if name == "files" else 0.5)  # headers
    assert [read[row] for row in range(6)] == [digest.decode() for digest in dataset.index["digest"]]


def test_chunked_hdf5_and_archives_cannot(on_disk: Path) -> None:
    spec = FACTS["unet3d"]
    for name, options, word in (("hdf5", {"compression": "gzip"}, "gzip"), ("files", {"array": "npz"}, "npz")):
        folder = on_disk / name
        given: dict[str, int | str] = dict(options)
        generate_dataset(
            folder,
            Wanted("unet3d", "tiny", name, kind=spec.kind, params=spec.variants["tiny"].sample, options=given),
            2,
        )
        form: Format = load(FORMATS, name)
        assert form.direct_problem is not None
        assert word in str(form.direct_problem(open_dataset(folder).manifest))


def test_files_of_a_volume_are_both_of_its_pair(on_disk: Path) -> None:
    spec = FACTS["unet3d"]
    generate_dataset(
        on_disk / "set", Wanted("unet3d", "tiny", "files", kind=spec.kind, params=spec.variants["tiny"].sample), 3
    )
    dataset = open_dataset(on_disk / "set")
    form: Format = load(FORMATS, "files")
    assert form.files_of is not None
    names = [path.name for path in form.files_of(dataset, np.array([1]))]
    assert names == [f"{dataset.key(1)}_x.npy", f"{dataset.key(1)}_y.npy"]
    assert all(path.is_file() for path in form.files_of(dataset, np.arange(3)))
