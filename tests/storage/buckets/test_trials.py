"""Sweeps and trials on a bucket: what they read is what files give, and what fails is recorded."""

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from benchsuite.storage import format_of
from benchsuite.storage.create.convert import Wanted, convert_dataset, generate_dataset
from benchsuite.storage.dataset.manifest import is_dataset
from benchsuite.storage.objects.client import bucket_of
from benchsuite.storage.objects.path import ObjectPath, object_path
from benchsuite.workloads.facts import FACTS
from tests.helpers.commands import ran, written
from tests.helpers.object_store import SECRET, Fault, Proxy, new_bucket

Cli = Callable[..., tuple[int, str, str]]
Sweep = Callable[..., tuple[int, list[dict[str, Any]], str]]
FORMATS = ("files", "webdataset", "tfrecord", "hdf5", "parquet", "mds")
IN_BUCKETS = {
    "files": r"^pillow [0-9.]+, s3torchconnector [0-9.]+$",
    "webdataset": r"^webdataset [0-9.]+, aws-cli [0-9.]+$",
    "hdf5": r"^h5py [0-9.]+, obstore [0-9.]+$",
    "parquet": r"^pyarrow [0-9.]+$",
}


ENDING = {"files": ".jpg", "webdataset": ".tar"}
REASONS = {
    "vanished": "no such object",
    "expired": "not allowed: HTTP 403 ExpiredToken",
    "cut": "the answer ended before it was whole",
    "slow_down": "HTTP 503 SlowDown",
}


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 photographs in a folder, as files."""
    sample, made = FACTS["resnet50"].variants["nano"].sample, tmp_path_factory.mktemp("local")
    generate_dataset(made / "files", Wanted("resnet50", "nano", "files", "image", sample), 48)
    return made


@pytest.fixture
def images(proxy: Proxy, local: Path, found: dict[object, Any]) -> ObjectPath:
    """The same in a bucket, made once: as whole objects, in shards, for ranges, and in two formats that are refused."""
    if "images" not in found:
        found["images"] = object_path(f"s3://{new_bucket(proxy.endpoint)}/images")
        in_formats(local, found["images"], ("files", "webdataset", "hdf5", "mds", "lmdb"))
    return found["images"]


def in_formats(local: Path, root: Path | ObjectPath, formats: Iterable[str]) -> None:
    for name in formats:
        if not is_dataset(root / name):
            convert_dataset(local / "files", root / name, wanted(name))


def wanted(name: str) -> Wanted:
    sample = FACTS["resnet50"].variants["nano"].sample
    return Wanted("resnet50", "nano", name, "image", sample, {"shard_samples": 4} if format_of(name).sequential else {})


@pytest.fixture
def sweep(run_cli: Cli, tmp_path: Path) -> Sweep:
    """Runs a sweep of one sort: exit code, records and messages."""

    def run(
        root: object,
        pairs: dict[str, Any],
        batch_size: int = 1,
        dry: bool = False,
        ceilings: bool = False,
        **data: Any,
    ) -> tuple[int, list[dict[str, Any]], str]:
        file, store = sweep_file(tmp_path, root, pairs, batch_size, ceilings, data), tmp_path / "store"
        code, out, err = run_cli("sweep", file, "--store", store, *(["--dry-run"] if dry else []))
        for path in store.rglob("*"):
            assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
        assert SECRET not in out + err and "AKID" not in out + err
        return code, records_of(store), out + err

    return run


def sweep_file(
    tmp_path: Path, root: object, pairs: dict[str, Any], batch_size: int, ceilings: bool, data: dict[str, Any]
) -> Path:
    base = {
        "workload": "resnet50",
        "variant": "nano",
        "batch_size": batch_size,
        "device": "cpu",
        "parallelism": "none",
        "data": {"root": str(root), "num_workers": 1, "shuffle_buffer": 1, "loader": "threads", **data},
        "measure": {"steps": 2, "warmup_steps": 1, "timeout_s": 120, "repeats": 1, "ceilings": ceilings},
    }
    return written(tmp_path, "sweep.yaml", {"name": "bucket", "base": base, "zip": pairs})


def records_of(store: Path) -> list[dict[str, Any]]:
    """Of trials, in the order in which they were run; the store is left empty for the next sweep."""
    found = []
    for segment in sorted((store / "segments").glob("*.jsonl")):
        if not segment.name.endswith(".samples.jsonl"):
            found += [json.loads(line) for line in segment.read_text().splitlines()]
    shutil.rmtree(store, ignore_errors=True)
    return [record for record in found if record["kind"] == "trial"]


@pytest.mark.full
def test_every_format_is_read_by_threads(images: ObjectPath, local: Path, sweep: Sweep) -> None:
    in_formats(local, images, FORMATS)
    code, records, said = sweep(images, {"data.format": [*FORMATS]}, ceilings=True)
    assert code == 0 and [record["status"] for record in records] == ["ok"] * len(FORMATS), said
    for record in records:
        check_provenance(record, images)


def check_provenance(record: dict[str, Any], images: ObjectPath) -> None:
    assert record["env"]["data"]["file_system"] == "s3" and record["env"]["data"]["server_cache"] == "unknown"
    assert record["figures"]["cache_resident_before"] is None and "cache_unverified" in record["caveats"]
    assert any("what the object store keeps in memory" in said for said in record["caveat_details"])
    assert record["spec"]["data"]["root"] == str(images)


@pytest.mark.full
@pytest.mark.parametrize("formats", [("files",), FORMATS[1:]])
def test_formats_train_as_from_files(images: ObjectPath, local: Path, sweep: Sweep, formats: tuple[str, ...]) -> None:
    """The loss after the same steps on the first batch is the same; with loaders the number of steps may vary.

    That the bytes of samples are the same, test_formats.py shows.
    """
    for root in (images, local):
        in_formats(local, root, formats)
    pairs = {"data.format": 2 * [*formats], "data.root": [str(root) for root in (images, local) for _ in formats]}
    code, records, said = sweep(images, pairs, 8, source="memory")
    assert code == 0 and [record["spec"]["data"]["format"] for record in records] == pairs["data.format"], said
    losses = [record["figures"]["final_loss"] for record in records]
    assert losses[: len(formats)] == losses[len(formats) :] and min(losses) > 0


@pytest.mark.parametrize(
    "formats", [("webdataset",), pytest.param(("files", "hdf5", "parquet"), marks=pytest.mark.full)]
)
def test_stock_readers_ask_by_their_own_clients(
    images: ObjectPath, local: Path, sweep: Sweep, monkeypatch: pytest.MonkeyPatch, formats: tuple[str, ...]
) -> None:
    """What they do not tell is null; the interface's bytes are known. Who asked is in the record with its version."""
    in_formats(local, images, formats)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    code, records, said = sweep(images, {"data.format": [*formats]}, loader="torch")
    assert code == 0 and len(records) == len(formats), said
    for record in records:
        form, figures = record["spec"]["data"]["format"], record["figures"]
        assert re.search(IN_BUCKETS[form], record["env"]["reader"]), record["env"]
        names = ("get_requests", "range_requests", "request_retries", "request_s_p50", "read_call_bytes")
        unknown = (*names, "process_storage_bytes", "first_byte_s_p50", "client_thread_busy_fraction")
        assert {name: figures[name] for name in unknown} == dict.fromkeys(unknown)
        assert figures["mount_counter"] == "net lo" and figures["mount_read_bytes"] > figures["delivered_bytes"] > 0


@pytest.mark.full
def test_staging_from_a_bucket(images: ObjectPath, sweep: Sweep) -> None:
    pairs = {"data.staging": ["copy", "lazy"], "data.loader": ["torch", "threads"]}
    code, (copied, lazy), said = sweep(images, pairs, format="files")
    assert code == 0 and copied["status"] == lazy["status"] == "ok", said
    assert (copied["spec"]["data"]["staging"], lazy["spec"]["data"]["staging"]) == ("copy", "lazy")
    assert copied["figures"]["stage_s"] > 0
    assert not [name for name in os.listdir(os.environ["TMPDIR"]) if "staged" in name]


@pytest.mark.parametrize(
    "faults",
    [
        {"files": "vanished"},
        pytest.param({"files": "expired", "webdataset": "vanished"}, marks=pytest.mark.full),
        pytest.param({"files": "cut", "webdataset": "expired"}, marks=pytest.mark.full),
        pytest.param({"files": "slow_down", "webdataset": "slow_down"}, marks=pytest.mark.full),
        pytest.param({"webdataset": "cut"}, marks=pytest.mark.full),
    ],
)
def test_what_fails_is_recorded_with_its_reason(
    images: ObjectPath, proxy: Proxy, sweep: Sweep, faults: dict[str, str]
) -> None:
    """A store that is slow and refuses now and then is no failure of the trial after them."""
    proxy.faults += [Fault(fault, within=ENDING[name]) for name, fault in faults.items()]
    proxy.faults += [Fault("slow_down", within=".h5", times=3), Fault("slow", within=".h5", seconds=0.2)]
    code, (*failed, passed), said = sweep(images, {"data.format": [*faults, "hdf5"]})
    assert code == 3 and [record["status"] for record in failed] == ["failed"] * len(faults), said
    for record, (name, fault) in zip(failed, faults.items(), strict=True):
        assert REASONS[fault] in record["reason"] and str(images / name) in record["reason"], record["reason"]
    assert passed["status"] == "ok" and proxy.faults[-2].times == 0, said
    check_provenance(passed, images)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"cache": "direct"}, "a bucket has no page cache"),
        ({"loader": "torch", "format": "mds"}, "reader stock of format mds"),
        ({"format": "lmdb", "source": "memory"}, "for data.source: memory copy it first by benchsuite data stage"),
        ({"loader": "dali"}, "of a bucket use loader torch or threads"),
    ],
)
def test_what_a_bucket_cannot_is_said_when_planning(
    images: ObjectPath, sweep: Sweep, data: dict[str, Any], said: str
) -> None:
    code, records, told = sweep(images, {}, **{"format": "files"} | data, dry=True)
    assert code == 4 and said in told and not [record for record in records if record["status"] == "ok"], told


def test_a_trial_is_the_same_point_whatever_its_credentials(images: ObjectPath, sweep: Sweep, tmp_path: Path) -> None:
    """Of another in a process of its own: this one has a client of its first."""
    _, _, first = sweep(images, {}, format="files", dry=True)
    words = ["sweep", str(tmp_path / "sweep.yaml"), "--store", str(tmp_path / "store"), "--dry-run"]
    second = ran(words, {"AWS_ACCESS_KEY_ID": "AKIDOFANOTHER"}).stdout.decode()
    ids = [re.findall(r"\b[0-9a-f]{12}\b", said.replace(images.bucket, "")) for said in (first, second)]
    assert ids[0] == ids[1] and ids[0], first


def test_credentials_come_from_the_files_of_all_clients(
    root: ObjectPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    (tmp_path / "config").write_text(f"[profile lab]\nregion = us-east-1\nendpoint_url = {endpoint}\n")
    (tmp_path / "credentials").write_text("[lab]\naws_access_key_id = A\naws_secret_access_key = B\n")
    for name in ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_PROFILE", "lab")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    bucket_of(root).put("x", b"y")
    assert bytes(bucket_of(root).get("x").data) == b"y"
    ended = ran(["data", "verify", str(root)], {})
    assert ended.returncode == 2 and b"not a dataset: no manifest.json below it" in ended.stderr, ended.stderr
