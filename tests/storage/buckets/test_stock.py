"""Stock readers on a bucket: what each library gives is what was stored, and what it stumbles over ends the reading."""

import random
import re
from pathlib import Path

import pytest

from benchsuite.storage import FORMATS, KINDS, OURS, format_of, load, loader_of, reader_problem, stock_reader
from benchsuite.storage.create.convert import Wanted, convert_dataset
from benchsuite.storage.dataset.manifest import Dataset, DatasetError, ReaderShare, open_dataset
from benchsuite.storage.dataset.spec import DataSpec
from benchsuite.storage.loaders.reader import LoaderInput
from benchsuite.storage.objects.path import ObjectPath
from benchsuite.storage.objects.profile import SITE_VARIABLE
from benchsuite.storage.stock.reader import Fields
from tests.helpers.object_store import SECRET, Fault, Proxy
from tests.storage.buckets.conftest import COUNT
from tests.storage.buckets.test_formats import ONCE
from tests.storage.conftest import Made
from tests.storage.samples import PARAMS, STORED, check_stock_fields

IN_BUCKETS = [name for name in FORMATS if (stock := format_of(name).stock) and stock.bucket]
READ = [
    pytest.param(name, kind, marks=() if name == "files" or (name, kind) in ONCE else pytest.mark.full)
    for name, kind in STORED
    if name in IN_BUCKETS
]
DATA = {"files": ".jpg", "webdataset": ".tar", "hdf5": ".h5", "parquet": ".parquet"}
NEEDS = {"files": "s3torchconnector", "webdataset": "aws", "hdf5": "obstore", "parquet": "pyarrow"}


@pytest.fixture(autouse=True)
def with_aws(monkeypatch: pytest.MonkeyPatch, proxy: Proxy) -> None:
    """Clients of others that try again soon; the AWS CLI lies beside this Python, which may not be on the PATH."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")


def read(dataset: Dataset) -> dict[str, Fields]:
    """All that the format's library gives, in another order where it has a choice."""
    stock = stock_reader(dataset.manifest.format)
    if stock.by_row is None:
        return dict(stock.stream(dataset, ReaderShare(shuffle=True, shuffle_buffer=3)))
    opened = stock.by_row(dataset)
    return {dataset.key(row): opened[row] for row in random.Random(3).sample(range(COUNT), COUNT)}


@pytest.mark.parametrize(("name", "kind"), READ)
def test_fields_are_those_that_were_stored(lying: Made, name: str, kind: str) -> None:
    check_stock_fields(read(lying(name, kind, {"shard_samples": 4} if name == "webdataset" else None)), kind, COUNT)


def test_arrays_in_archives(lying: Made) -> None:
    check_stock_fields(read(lying("files", "volume", {"array": "npz"})), "volume", COUNT)


def test_names_of_objects_are_no_words_of_a_shell(root: ObjectPath, lying: Made, tmp_path: Path) -> None:
    folder = root / "it's $(touch mark) `touch mark`; touch mark"
    source, options = lying("webdataset", "image", {"shard_samples": 4}), {"shard_samples": 4}
    convert_dataset(source.folder, folder, Wanted("resnet50", "tiny", "webdataset", options=options))
    check_stock_fields(read(open_dataset(folder)), "image", COUNT)
    assert not Path("mark").exists()


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        pytest.param(name, fault, marks=() if place % 2 == turn else pytest.mark.full)
        for place, name in enumerate(DATA)
        for turn, fault in enumerate(("expired", "cut"))
    ],
)
def test_what_lasts_ends_the_reading(
    lying: Made, proxy: Proxy, name: str, fault: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """In one line, which repeats no key that the server says."""
    # of a shard of four, the first half holds all samples, the second nothing but zeros
    dataset = lying(name, "image", {"shard_samples": COUNT} if name == "webdataset" else None)
    struck = Fault(fault, within=DATA[name])
    before = struck.times
    proxy.faults.append(struck)
    spec = DataSpec(root=str(dataset.folder), format=name, reader="stock", num_workers=0)
    loader = loader_of(spec)(LoaderInput(dataset, spec, load(KINDS, "image"), PARAMS["image"], 4, 0, 1, 5))
    with pytest.raises(DatasetError) as caught:
        for _ in range(COUNT):  # a stream may give what came before the cut
            next(loader)
        pytest.fail(f"{before - struck.times} requests were struck, and nothing was said of it")
    loader.close()
    said = str(caught.value)
    assert said.startswith(str(dataset.folder)) and "\n" not in said
    told = f"{said} {caught.value.__cause__!r} {capfd.readouterr()}"
    assert SECRET not in told and "AKID" not in told


@pytest.mark.parametrize("name", [*NEEDS, "lmdb", "mds", "tfrecord", "tokens"])
def test_what_is_missing_is_said_when_planning(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchsuite.storage._is_installed", lambda module: module != NEEDS.get(name))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    said = reader_problem(DataSpec(root="s3://bucket/x", format=name, reader="stock"), None)
    if name in NEEDS:
        assert said is not None and re.search(
            f"needs {NEEDS[name]}( to read a bucket)?, which is not installed: ", said
        )
    else:
        assert said == (
            f"reader stock of format {name} reads files, no buckets; {OURS}, or set data.staging: copy or lazy"
        )
    staged = reader_problem(DataSpec(root="s3://bucket/x", format=name, reader="stock", staging="copy"), None)
    assert staged is None or name == "parquet", "whose library reads files by the same module"


def test_libraries_that_verify_whom_they_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SITE_VARIABLE, '{"lab": {"verify_tls": false}}')
    problems = {
        name: reader_problem(DataSpec(root="s3://lab/x", format=name, reader="stock"), None) for name in IN_BUCKETS
    }
    assert [name for name, problem in problems.items() if problem] == ["files", "parquet"]
    assert "cannot leave out verify_tls" in str(problems["files"])
