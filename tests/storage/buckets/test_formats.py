"""Every format that can be read from a bucket gives there what it gives from files, sample by sample."""

from pathlib import Path

import pytest

from benchsuite.storage import format_of
from benchsuite.storage.create.convert import Wanted, convert_dataset, in_order
from benchsuite.storage.dataset.manifest import Dataset, DatasetError, ReaderShare, is_dataset, open_dataset
from benchsuite.storage.dataset.sample import Recycled, content_digest
from benchsuite.storage.dataset.verify import same_samples, verify_dataset
from benchsuite.storage.objects.file import BLOCK_BYTES
from benchsuite.storage.objects.path import ObjectPath
from benchsuite.storage.staging.lazy import open_lazily
from benchsuite.storage.staging.stage import stage
from tests.helpers.object_store import Fault, Proxy
from tests.storage.buckets.conftest import COUNT
from tests.storage.conftest import Made
from tests.storage.samples import PARAMS, STORED, WORKLOADS, digests, facts, small_shards, some_samples

KINDS_OF = {name: [kind for form, kind in STORED if form == name] for name in dict(STORED)}
ONCE = [(name, kinds[place % len(kinds)]) for place, (name, kinds) in enumerate(KINDS_OF.items())]
"""Each format once, with kinds by turns."""
READABLE = [
    pytest.param(name, kind, marks=() if (name, kind) in ONCE else pytest.mark.full)
    for name, kind in STORED
    if format_of(name).from_buckets
]
VARIANTS = {
    "npz": ("files", "volume", {"array": "npz"}),
    "chunked": ("hdf5", "volume", {"chunk_bytes": 4096, "compression": "gzip"}),
    "many files": ("hdf5", "image", {"file_samples": 4}),
}


def check(dataset: Dataset, kind: str) -> None:
    """All that is read, in order into fresh memory, and shuffled into recycled memory by two readers."""
    written = {sample.key: facts(sample) for sample in some_samples(COUNT, kind)}
    stored = list(in_order(dataset))
    assert [sample.key for sample in stored] == list(written)
    assert all(sample.source.startswith("s3://") for sample in stored)
    form = format_of(dataset.manifest.format)
    shares = [form.read(dataset, ReaderShare(index, 2, 1, 0, True, 3, Recycled())) for index in range(2)]
    assert {sample.key: facts(sample) for share in shares for sample in share} == written


@pytest.mark.parametrize(("name", "kind"), READABLE)
def test_what_was_written_to_a_bucket_is_read(lying: Made, made: Made, name: str, kind: str) -> None:
    dataset, local = lying(name, kind), made(name, kind, small_shards(name), COUNT)
    check(dataset, kind)
    assert dataset.manifest.dataset_id == local.manifest.dataset_id
    same_samples(verify_dataset(dataset.folder), local)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_way_of_storing(lying: Made, variant: str) -> None:
    name, kind, options = VARIANTS[variant]
    dataset = lying(name, kind, options)
    found = {sample.key: facts(sample) for sample in in_order(dataset)}
    assert found == {sample.key: facts(sample) for sample in some_samples(COUNT, kind)}
    verify_dataset(dataset.folder)


@pytest.mark.parametrize(("name", "kind"), ONCE)
def test_every_format_is_staged_whole_and_lazily(lying: Made, tmp_path: Path, name: str, kind: str) -> None:
    """Files are copied; samples are not looked at."""
    dataset = lying(name, kind)
    staged = stage(dataset.folder, tmp_path / "copy")
    assert staged.copied_bytes == staged.num_bytes > 0
    same_samples(verify_dataset(tmp_path / "copy"), dataset)
    lazily = open_lazily(dataset, tmp_path / "lazy")
    for _ in range(2):  # filled, then there
        read = {sample.key: content_digest(sample) for sample in in_order(lazily)}
        assert read == digests(some_samples(COUNT, kind))


def test_a_staging_goes_on_where_it_was_interrupted(lying: Made, proxy: Proxy, tmp_path: Path) -> None:
    dataset = lying("webdataset", "image")
    fault = Fault("expired", within=dataset.manifest.files[-1].path)
    proxy.faults.append(fault)
    with pytest.raises(DatasetError, match="ExpiredToken"):
        stage(dataset.folder, tmp_path / "copy", threads=1)
    assert not (tmp_path / "copy").exists()
    proxy.faults.clear()
    staged = stage(dataset.folder, tmp_path / "copy", threads=1)
    assert 0 < staged.copied_bytes < staged.num_bytes
    verify_dataset(tmp_path / "copy")


def test_a_format_that_maps_its_file_says_to_stage(lying: Made) -> None:
    dataset = lying("lmdb", "image")
    with pytest.raises(DatasetError, match=r"data\.mdb: format lmdb is read from files: make a copy .* data stage"):
        list(in_order(dataset))


def test_conversion_from_bucket_to_bucket(root: ObjectPath, lying: Made) -> None:
    source = lying("files", "mlm")
    wanted = Wanted(WORKLOADS["mlm"], "tiny", "hdf5", "mlm", params=PARAMS["mlm"])
    convert_dataset(source.folder, root / "converted", wanted)
    same_samples(verify_dataset(root / "converted"), source)
    with pytest.raises(DatasetError, match="source and target are the same"):
        convert_dataset(source.folder, source.folder, wanted)
    with pytest.raises(DatasetError, match="no dataset; what else you have is converted from a folder"):
        convert_dataset(root / "nothing", root / "x", wanted)


def test_what_is_no_dataset_says_so(root: ObjectPath) -> None:
    assert not is_dataset(root)
    with pytest.raises(DatasetError, match=f"{root}: not a dataset: no manifest.json below it"):
        open_dataset(root)


def test_the_index_is_fetched_once(lying: Made, proxy: Proxy) -> None:
    folder = lying("files", "image").folder
    open_dataset(folder)
    before = proxy.count("GET", "index.npy")
    for _ in range(3):
        open_dataset(folder)
    assert proxy.count("GET", "index.npy") == before == 1


def test_small_fields_come_together(lying: Made, proxy: Proxy) -> None:
    """Five fields of each sample, and what the library itself reads of the file, by a request for each block."""
    dataset = lying("hdf5", "mlm")
    proxy.begin()
    assert {sample.key: facts(sample) for sample in in_order(dataset)} == {
        sample.key: facts(sample) for sample in some_samples(COUNT, "mlm")
    }
    (info,) = dataset.manifest.files
    assert proxy.count("GET", ".h5") <= 1 + -(-info.bytes // BLOCK_BYTES)
