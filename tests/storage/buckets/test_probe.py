"""`probe storage` of a bucket, against a real server, whose counts and leftovers are looked at."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from benchsuite.storage.objects.apart import apart
from benchsuite.storage.objects.client import bucket_of
from benchsuite.storage.objects.path import ObjectPath
from tests.helpers.object_store import Fault, Proxy

Cli = Callable[..., tuple[int, str, str]]
SMALL = ["--size", "1MiB", "--seconds", "0.1", "--block", "4KiB,64KiB", "--depth", "1,3"]


def left(root: ObjectPath) -> list[str]:
    return apart(lambda: [info.key for info in bucket_of(root).listing(root.key)])


def test_a_probe_measures_and_leaves_nothing(root: ObjectPath, proxy: Proxy, run_cli: Cli, tmp_path: Path) -> None:
    code, out, err = run_cli("probe", "storage", root, *SMALL, "--store", tmp_path / "store", "--format", "json")
    assert code == 0, err
    record = json.loads(out)
    cells = record["samples"]["cells"]
    assert [(cell["operation"], cell["object_bytes"], cell["depth"]) for cell in cells] == [
        (operation, size, depth) for operation in ("put", "get", "range") for size in (4096, 65536) for depth in (1, 3)
    ]
    for cell in cells:
        size = cell["object_bytes"] // (4 if cell["operation"] == "range" else 1)
        for rate, requests in zip(cell["bytes_per_s"], cell["requests_per_s"], strict=True):
            assert rate == pytest.approx(requests * size)
        assert len(cell["bytes_per_s"]) == 3 and cell["latencies_s"] == sorted(cell["latencies_s"])
        assert len(cell["first_bytes_s"]) == (0 if cell["operation"] == "put" else len(cell["latencies_s"]))
        assert all(cost > 0 for cost in cell["cpu_s_per_byte"])
    figures = record["figures"]
    assert figures["storage_ceiling_bytes_per_s"] > 0 and figures["puts_per_s"] > 0 and figures["listed_per_s"] > 0
    assert 0 < figures["first_byte_s_p50"] <= figures["request_s_p99"]
    assert figures["client_cpu_s_per_byte"] > 0 and figures["request_retries"] == 0
    assert record["kind"] == "probe" and record["spec"]["path"] == str(root) and "cache_unverified" in record["caveats"]
    asked = sum(len(cell["latencies_s"]) for cell in cells if cell["operation"] != "put")
    assert proxy.count("GET", "benchsuite-probe") >= asked
    assert left(root) == []


def test_a_table_tells_the_best_of_each(root: ObjectPath, run_cli: Cli) -> None:
    code, out, _ = run_cli("probe", "storage", root, *SMALL[:4], "--block", "64KiB", "--depth", "1")
    assert code == 0 and f"-> {root} gives" in out
    assert "range 64 KiB" in out and "the server's cache cannot be seen" in out


def test_what_fails_in_mid_probe_leaves_nothing(root: ObjectPath, proxy: Proxy, run_cli: Cli) -> None:
    proxy.faults.append(Fault("expired", "GET", "benchsuite-probe", passed=20))
    code, _, err = run_cli("probe", "storage", root, *SMALL)
    assert code == 2 and "HTTP 403" in err
    proxy.faults.clear()
    assert left(root) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--engine", "fio"], "engine fio: it reads files"),
        (["--size", "4KiB"], "need"),
        (["--block", "4"], "objects of 8 bytes and more"),
    ],
)
def test_what_cannot_be_measured_is_refused(root: ObjectPath, run_cli: Cli, options: list[str], said: str) -> None:
    code, _, err = run_cli("probe", "storage", root, *options)
    assert code == 2 and said in err and err.count("\n") == 1
