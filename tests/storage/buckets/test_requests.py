"""Requests to a real server: counted by kind in every process that asks, with bytes, latencies and retries."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchsuite.storage.create.convert import Wanted, generate_dataset
from benchsuite.storage.dataset.manifest import open_dataset
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.objects.apart import apart
from benchsuite.storage.objects.client import bucket_of
from benchsuite.storage.objects.file import MOST_TOGETHER, OBJECTS_AHEAD
from benchsuite.storage.objects.path import ObjectPath
from benchsuite.storage.observe.io_slots import quantile
from benchsuite.storage.observe.requests import Counted, Requests, counted
from benchsuite.workloads.facts import FACTS
from tests.helpers.commands import ran, written
from tests.helpers.object_store import Fault, Proxy

Cli = Callable[..., tuple[int, str, str]]
SIZE = 300_000
BATCH, STEPS = 1, 70
UNDER_WAY = (OBJECTS_AHEAD + 1) * MOST_TOGETHER + 4 * BATCH
"""Samples that a reader has asked for and not handed on, and those that it may hand on between the readings of the two
counters, as many as its queue and its own batch hold, at both ends."""


def ask(root: ObjectPath) -> int:
    """Every kind of request; the process that asked."""
    here, content, key = bucket_of(root), os.urandom(SIZE), (root / "one").key
    here.put(key, content)
    assert bytes(here.get(key).data) == content
    for start in range(0, 30_000, 10_000):
        assert bytes(here.get_range(key, start, start + 10_000).data) == content[start : start + 10_000]
    assert here.head(key).num_bytes == SIZE
    assert [info.key for info in here.listing(root.key)] == [key]
    with pytest.raises(DatasetError, match="no such object"):
        here.get((root / "none").key)
    here.delete([key])
    return os.getpid()


def counts_of(root: ObjectPath, times: int = 1) -> tuple[Counted, list[int], list[int]]:
    """What was counted while processes of their own asked; who asked, and who is said to have."""
    requests = Requests(threads=4).start()
    try:
        before = requests.now()
        pids = [apart(lambda: ask(root)) for _ in range(times)]
        return counted(before, requests.now()), pids, requests.pids()
    finally:
        requests.stop()


def test_requests_of_forked_processes_are_counted_by_kind(root: ObjectPath) -> None:
    found, pids, noted = counts_of(root, 2)
    assert {*pids} == {*noted}  # one process where the client is in use already
    numbers = {kind: each["count"] for kind, each in found.items()}
    assert numbers == {"get": 4, "get_range": 6, "head": 2, "list": numbers["list"], "put": 2, "delete": 2}
    assert numbers["list"] >= 2
    moved = {kind: each["bytes"] for kind, each in found.items() if each["bytes"]}
    assert moved == {"get": 2 * SIZE, "get_range": 60_000, "put": 2 * SIZE}
    assert {kind: each["failed"] for kind, each in found.items() if each["failed"]} == {"get": 2}
    assert not any(each["retries"] for each in found.values())


def test_tries_are_counted_beside_requests(root: ObjectPath, proxy: Proxy) -> None:
    proxy.faults.append(Fault("slow_down", "GET", "/one", times=2))
    found, _, _ = counts_of(root)
    assert (found["get"]["count"], found["get"]["retries"], found["get"]["bytes"]) == (2, 2, SIZE)


def test_an_answer_that_begins_late_is_seen_to(root: ObjectPath, proxy: Proxy) -> None:
    proxy.faults.append(Fault("slow", "GET", "/one", times=1, seconds=0.5))
    found, _, _ = counts_of(root)
    whole, ranges = found["get"], found["get_range"]
    slowest, quick = (quantile({int(at): n for at, n in one["first_bytes"].items()}, 1.0) for one in (whole, ranges))
    assert 0.45e9 < slowest < 5e9 and quick < 0.45e9
    assert sum(ranges["latencies"].values()) == sum(ranges["first_bytes"].values()) == 3
    assert whole["ns"] > 0.45e9


def test_nothing_is_counted_once_it_is_stopped(root: ObjectPath) -> None:
    requests = Requests(threads=4).start()
    requests.stop()
    apart(lambda: ask(root))
    assert not requests.pids()


def trial(root: ObjectPath, run_cli: Cli, tmp_path: Path) -> dict[str, Any]:
    """The record of a trial on 80 photographs below `root`, whose I/O is profiled."""
    sample = FACTS["resnet50"].variants["tiny"].sample
    generate_dataset(root / "files", Wanted("resnet50", "tiny", "files", "image", sample), 80, num_workers=1)
    base = {
        "workload": "resnet50",
        "variant": "tiny",
        "batch_size": BATCH,
        "device": "emulated:5ms",
        "data": {"root": str(root), "loader": "threads", "num_workers": 1, "prefetch_factor": 1},
        "measure": {"steps": STEPS, "warmup_steps": 1, "timeout_s": 120, "repeats": 1, "profile": "io"},
    }
    file = written(tmp_path, "sweep.yaml", {"name": "bucket", "base": base, "grid": {}})
    code, _, err = run_cli("sweep", file, "--store", tmp_path / "store")
    assert code == 0, err
    (segment,) = (path for path in (tmp_path / "store" / "segments").glob("*.jsonl") if "samples" not in path.name)
    (record,) = (json.loads(line) for line in segment.read_text().splitlines() if '"kind":"trial"' in line)
    return dict(record)


def test_a_record_has_what_its_bucket_was_asked_for(
    root: ObjectPath, proxy: Proxy, run_cli: Cli, tmp_path: Path
) -> None:
    record = trial(root, run_cli, tmp_path)
    figures, profile = record["figures"], record["io_profile"]
    assert figures["get_requests"] > 0 and figures["list_requests"] == figures["put_requests"] == 0
    assert figures["request_retries"] == figures["failed_requests"] == 0
    assert 0 < figures["first_byte_s_p50"] <= figures["request_s_p50"] <= figures["request_s_p99"] < 30
    received, delivered = figures["process_storage_bytes"], figures["delivered_bytes"]
    sizes = open_dataset(root / "files").index["bytes"]
    assert sizes.min() <= received / figures["get_requests"] <= sizes.max(), "each request brings one whole sample"
    assert min(received, delivered) >= (BATCH * STEPS - UNDER_WAY) * sizes.min()
    assert abs(received - delivered) <= UNDER_WAY * sizes.max(), (
        "what came is what was handed on, but for samples under way"
    )
    assert figures["mount_counter"] == "net lo" and figures["mount_read_bytes"] > received
    assert "counters_disagree" not in record["caveats"] and "cache_unverified" in record["caveats"]
    assert 0 <= figures["client_thread_busy_fraction"] <= 1.05
    assert figures["storage_ceiling_bytes_per_s"] > 0
    asked = profile["requests"]["get"]
    assert asked["count"] >= figures["get_requests"] and asked["bytes"] <= profile["bytes"]["seen"]
    _, shown, _ = run_cli("results", "profile", "--store", tmp_path / "store")
    assert "the server's cache cannot be seen" in shown and "first byte p50" in shown


@pytest.mark.full
def test_no_bucket_no_requests(tmp_path: Path) -> None:
    sample = FACTS["resnet50"].variants["tiny"].sample
    generate_dataset(tmp_path / "data" / "files", Wanted("resnet50", "tiny", "files", "image", sample), 64)
    base = {
        "workload": "resnet50",
        "variant": "tiny",
        "batch_size": 2,
        "device": "emulated:5ms",
        "data": {"root": str(tmp_path / "data"), "num_workers": 1, "prefetch_factor": 1},
        "measure": {"steps": 6, "warmup_steps": 1, "timeout_s": 120, "repeats": 1, "ceilings": False},
    }
    file = written(tmp_path, "sweep.yaml", {"name": "folder", "base": base, "grid": {}})
    assert ran(["sweep", str(file), "--store", str(tmp_path / "store")], {}).returncode == 0
    (segment,) = (path for path in (tmp_path / "store" / "segments").glob("*.jsonl") if "samples" not in path.name)
    figures = json.loads(segment.read_text())["figures"]
    names = ("get_requests", "request_retries", "request_s_p50", "first_byte_s_p99", "client_thread_busy_fraction")
    assert {name: figures[name] for name in names} == dict.fromkeys(names)
