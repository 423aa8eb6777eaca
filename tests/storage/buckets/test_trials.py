"""Sweeps and trials on a bucket, as processes: what they read is what files give, and what fails is recorded."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from benchsuite.storage import format_of
from benchsuite.storage.create.convert import Wanted, convert_dataset, generate_dataset
from benchsuite.storage.objects.client import bucket_of
from benchsuite.storage.objects.path import ObjectPath, object_path
from benchsuite.workloads.facts import FACTS
from tests.helpers.commands import ran, written
from tests.helpers.object_store import SECRET, Fault, Proxy, new_bucket

FORMATS = ("files", "webdataset", "tfrecord", "hdf5", "parquet", "mds")
IN_BUCKETS = {
    "files": r"^pillow [0-9.]+, s3torchconnector [0-9.]+$",
    "webdataset": r"^webdataset [0-9.]+, aws-cli [0-9.]+$",
    "hdf5": r"^h5py [0-9.]+, obstore [0-9.]+$",
    "parquet": r"^pyarrow [0-9.]+$",
}


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 photographs in each format, in a folder."""
    sample, made = FACTS["resnet50"].variants["tiny"].sample, tmp_path_factory.mktemp("local")
    generate_dataset(made / "files", Wanted("resnet50", "tiny", "files", "image", sample), 48)
    for name in FORMATS[1:]:
        convert_dataset(made / "files", made / name, wanted(name))
    return made


@pytest.fixture
def images(proxy: Proxy, local: Path, found: dict[object, Any]) -> ObjectPath:
    """The same in a bucket, made once."""
    if "images" not in found:
        root = object_path(f"s3://{new_bucket(proxy.endpoint)}/images")
        for name in (*FORMATS, "lmdb"):
            convert_dataset(local / "files", root / name, wanted(name))
        found["images"] = root
    return found["images"]


def wanted(name: str) -> Wanted:
    sample = FACTS["resnet50"].variants["tiny"].sample
    return Wanted("resnet50", "tiny", name, "image", sample, {"shard_samples": 4} if format_of(name).sequential else {})


def sweep(
    tmp_path: Path,
    root: object,
    grid: dict[str, Any],
    batch_size: int = 1,
    pairs: dict[str, Any] | None = None,
    dry: bool = False,
    **data: Any,
) -> tuple[int, list[dict[str, Any]], str]:
    """Exit code, records and messages of a sweep of one sort."""
    base = {
        "workload": "resnet50",
        "variant": "tiny",
        "batch_size": batch_size,
        "device": "cpu",
        "parallelism": "none",
        "data": {"root": str(root), "num_workers": 1, "shuffle_buffer": 1, "reader": "tuned", **data},
        "measure": {"steps": 2, "warmup_steps": 1, "timeout_s": 120, "repeats": 1},
    }
    file = written(tmp_path, "sweep.yaml", {"name": "bucket", "base": base, "grid": grid, "zip": pairs or {}})
    store = tmp_path / f"store-{len(list(tmp_path.iterdir()))}"
    ended = ran(["sweep", str(file), "--store", str(store), *(["--dry-run"] if dry else [])], {}, timeout=280)
    found = []
    for segment in sorted((store / "segments").glob("*.jsonl")):
        if not segment.name.endswith(".samples.jsonl"):
            found += [json.loads(line) for line in segment.read_text().splitlines()]
    found = [record for record in found if record["kind"] == "trial"]
    said = ended.stdout.decode() + ended.stderr.decode()
    for path in store.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
    assert SECRET not in said and "AKID" not in said
    return ended.returncode, found, said


@pytest.mark.parametrize(
    ("formats", "loaders"),
    [
        (("files", "webdataset", "hdf5"), ("torch", "threads", "torch")),
        pytest.param(FORMATS, ("torch",) * len(FORMATS), marks=pytest.mark.full),
        pytest.param(FORMATS, ("threads",) * len(FORMATS), marks=pytest.mark.full),
    ],
)
def test_every_format_is_read_by_both_loaders(
    images: ObjectPath, tmp_path: Path, formats: tuple[str, ...], loaders: tuple[str, ...]
) -> None:
    pairs = {"data.format": [*formats], "data.loader": [*loaders]}
    code, records, said = sweep(tmp_path, images, {}, pairs=pairs)
    assert code == 0 and [record["status"] for record in records] == ["ok"] * len(formats), said
    for record in records:
        assert record["env"]["data"]["file_system"] == "s3" and record["env"]["data"]["server_cache"] == "unknown"
        assert record["figures"]["cache_resident_before"] is None and "cache_unverified" in record["caveats"]
        assert any("what the object store keeps in memory" in said for said in record["caveat_details"])
        assert record["spec"]["data"]["root"] == str(images)


@pytest.mark.parametrize("formats", [("files",), pytest.param(FORMATS[1:], marks=pytest.mark.full)])
def test_formats_train_as_from_files(images: ObjectPath, local: Path, tmp_path: Path, formats: tuple[str, ...]) -> None:
    """The loss after the same steps on the first batch is the same; with loaders the number of steps may vary."""
    losses = []
    for place in (images, local):
        code, records, said = sweep(tmp_path, place, {"data.format": [*formats]}, 8, source="memory")
        assert code == 0, said
        losses.append({record["spec"]["data"]["format"]: record["figures"]["final_loss"] for record in records})
    assert losses[0] == losses[1] and len(losses[0]) == len(formats) and min(losses[0].values()) > 0


@pytest.mark.parametrize(
    "formats", [("files", "webdataset"), pytest.param(("hdf5", "parquet"), marks=pytest.mark.full)]
)
def test_stock_readers_ask_by_their_own_clients(
    images: ObjectPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, formats: tuple[str, ...]
) -> None:
    """What they do not tell is null; the interface's bytes are known. Who asked is in the record with its version."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    code, records, said = sweep(tmp_path, images, {"data.format": [*formats]}, reader="stock")
    assert code == 0 and len(records) == len(formats), said
    for record in records:
        form, figures = record["spec"]["data"]["format"], record["figures"]
        assert re.search(IN_BUCKETS[form], record["env"]["reader"]), record["env"]
        names = ("get_requests", "range_requests", "request_retries", "request_s_p50", "read_call_bytes")
        unknown = (*names, "process_storage_bytes", "first_byte_s_p50", "client_thread_busy_fraction")
        assert {name: figures[name] for name in unknown} == dict.fromkeys(unknown)
        assert figures["mount_counter"] == "net lo" and figures["mount_read_bytes"] > figures["delivered_bytes"] > 0


@pytest.mark.parametrize(("staging", "reader"), [("copy", "stock"), ("lazy", "tuned")])
def test_staging_from_a_bucket(images: ObjectPath, tmp_path: Path, staging: str, reader: str) -> None:
    code, (record,), said = sweep(tmp_path, images, {}, format="files", staging=staging, reader=reader)
    assert code == 0 and record["status"] == "ok", said
    if staging == "copy":
        assert record["figures"]["stage_s"] > 0
    assert not [name for name in os.listdir(os.environ["TMPDIR"]) if "staged" in name]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("vanished", "no such object"),
        pytest.param("expired", "not allowed: HTTP 403 ExpiredToken", marks=pytest.mark.full),
        pytest.param("cut", "the answer ended before it was whole", marks=pytest.mark.full),
        ("slow_down", "HTTP 503 SlowDown"),
    ],
)
def test_what_fails_is_recorded_with_its_reason(
    images: ObjectPath, proxy: Proxy, tmp_path: Path, fault: str, reason: str
) -> None:
    proxy.faults.append(Fault(fault, within=".jpg"))
    code, (record,), said = sweep(tmp_path, images, {}, format="files")
    assert code == 3 and record["status"] == "failed", said
    assert reason in record["reason"] and str(images / "files") in record["reason"], record["reason"]


def test_a_slow_store_that_refuses_now_and_then_is_no_failure(images: ObjectPath, proxy: Proxy, tmp_path: Path) -> None:
    proxy.faults += [Fault("slow_down", within=".jpg", times=3), Fault("slow", within=".jpg", seconds=0.2)]
    code, (record,), said = sweep(tmp_path, images, {}, format="files")
    assert code == 0 and record["status"] == "ok", said


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"cache": "direct"}, "a bucket has no page cache"),
        ({"reader": "stock", "format": "mds"}, "reader stock of format mds"),
        ({"format": "lmdb", "source": "memory"}, "for data.source: memory copy it first by benchsuite data stage"),
        ({"loader": "dali"}, "of a bucket use loader torch or threads"),
    ],
)
def test_what_a_bucket_cannot_is_said_when_planning(
    images: ObjectPath, tmp_path: Path, data: dict[str, Any], said: str
) -> None:
    code, records, told = sweep(tmp_path, images, {}, **{"format": "files"} | data, dry=True)
    assert code == 4 and said in told and not [record for record in records if record["status"] == "ok"], told


def test_a_trial_is_the_same_point_whatever_its_credentials(
    images: ObjectPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, first = sweep(tmp_path, images, {}, format="files", dry=True)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDOFANOTHER")
    _, _, second = sweep(tmp_path, images, {}, format="files", dry=True)
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
