"""Checkpoints in a bucket: streams of parts, and both probes against a real server, faults included."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchsuite.storage.errors import DatasetError
from benchsuite.storage.objects import client
from benchsuite.storage.objects.apart import apart
from benchsuite.storage.objects.client import PART_BYTES, Request, bucket_of
from benchsuite.storage.objects.path import ObjectPath
from benchsuite.storage.objects.writer import ObjectWriter
from tests.helpers.object_store import SECRET, Fault, Proxy

Cli = Callable[..., tuple[int, str, str]]
CONTENT = np.random.default_rng(7).bytes(2 * PART_BYTES + 12_345)
LLM = ["--model", "nano_llama", "--ranks", "4", "--subset", "2", "--repeats", "1"]
TRAINED = ["--workload", "gpt_neox", "--variant", "nano", "--world-size", "2", "--repeats", "1"]
FULL = pytest.mark.full
"""Their files are tested in folders; how files become objects is one way for all."""


def left(root: ObjectPath) -> list[str]:
    return apart(lambda: [info.key for info in bucket_of(root).listing(root.key)])


class TestWriter:
    def test_parts_are_sent_while_more_is_written(self, root: ObjectPath, proxy: Proxy) -> None:
        def written() -> tuple[bool, list[Request]]:
            client.watcher = (seen := list[Request]()).append
            path = root / "object"
            with ObjectWriter(path) as out:
                for start in range(0, len(CONTENT), 1_000_003):
                    out.write(memoryview(CONTENT)[start : start + 1_000_003])
                assert out.tell() == len(CONTENT)
            return bytes(bucket_of(path).get(path.key).data) == CONTENT, seen

        equal, seen = apart(written)
        assert equal and [(request.kind, request.num_bytes) for request in seen] == [
            ("put", len(CONTENT)),
            ("get", len(CONTENT)),
        ]
        assert proxy.count("PUT", "partNumber=") == 3 and proxy.count("POST", "uploadId=") == 1

    def test_an_error_of_the_writer_leaves_no_object(self, root: ObjectPath, proxy: Proxy) -> None:
        def written() -> None:
            with ObjectWriter(root / "object") as out:
                out.write(CONTENT)
                raise KeyError("of its own")

        with pytest.raises(KeyError, match="of its own"):
            apart(written)
        assert left(root) == [] and proxy.count("DELETE", "uploadId=") == 1

    def test_what_a_store_refuses_is_told_in_time(self, root: ObjectPath, proxy: Proxy) -> None:
        proxy.faults.append(Fault("expired", "PUT", "partNumber="))

        def written() -> None:
            with ObjectWriter(root / "object") as out:
                for _ in range(20):
                    out.write(CONTENT)

        with pytest.raises(DatasetError, match=r"some/prefix/object: not allowed: HTTP 403 ExpiredToken"):
            apart(written)


@pytest.mark.parametrize(
    ("framework", "refused"),
    [("fsdp", 2), *(pytest.param(name, 0, marks=FULL) for name in ("fsdp", "megatron", "deepspeed"))],
)
def test_files_of_an_llm_are_objects(
    root: ObjectPath, proxy: Proxy, run_cli: Cli, tmp_path: Path, framework: str, refused: int
) -> None:
    """Answers that fail are tried again, and counted."""
    store = tmp_path / "store"
    proxy.faults.append(Fault("slow_down", "GET", "distcp", times=refused))
    words = ["probe", "checkpoint", root, *LLM, "--repeats", 2, "--framework", framework, "--store", store]
    code, out, err = run_cli(*words, "--format", "json")
    assert code == 0, err
    record = json.loads(out)
    found, ranks = record["figures"], record["samples"]["ranks"]
    shares = [share for rank in ranks for share in rank["written"]]
    num_files = {"fsdp": 1, "megatron": 2, "deepspeed": 2}[framework]
    assert [share["num_files"] for share in shares] == [num_files] * 4
    for share in shares:
        assert share["requests"]["put"]["count"] == num_files
        assert share["requests"]["put"]["bytes"] == share["num_bytes"] and share["resident_before_read"] is None
    here = sum(record["samples"]["computed"]["by_rank"][:2])
    assert here < found["checkpoint_bytes"] < 2 * here
    assert found["put_requests"] == 4 * num_files and (found["request_retries"], found["failed_requests"]) == (
        refused,
        0,
    )
    assert found["range_requests"] >= 4 and found["checkpoint_durable_s"] > 0
    assert "cache_unverified" in record["caveats"] and record["spec"]["path"] == str(root)
    assert proxy.count("PUT", "benchsuite-checkpoint") >= 4 * num_files and left(root) == []
    kept = b"".join(path.read_bytes() for path in store.rglob("*") if path.is_file())
    assert SECRET.encode() not in kept and SECRET not in out + err


@pytest.mark.parametrize("mode", ["sharded", *(pytest.param(name, marks=FULL) for name in ("rank0", "async"))])
def test_a_model_that_trains(root: ObjectPath, proxy: Proxy, run_cli: Cli, mode: str) -> None:
    code, out, err = run_cli("probe", "checkpoint", root, *TRAINED, "--save", mode, "--format", "json")
    assert code == 0, err
    record = json.loads(out)
    ((one),) = record["samples"]["checkpoints"]
    assert one["num_files"] == (1 if mode == "rank0" else 3), "DCP writes its metadata beside the data"
    assert one["num_bytes"] == record["figures"]["checkpoint_bytes"] > 500_000
    assert one["requests"]["put"]["bytes"] >= one["num_bytes"] and record["figures"]["put_requests"] >= one["num_files"]
    assert left(root) == []


def test_a_changed_bit_is_noticed(root: ObjectPath, proxy: Proxy, run_cli: Cli) -> None:
    proxy.faults.append(Fault("flipped", "GET", "optim_states"))  # one flat tensor lies in the middle
    code, _, said = run_cli("probe", "checkpoint", root, *LLM, "--framework", "deepspeed")
    assert code == 3 and "is not what it wrote" in said and str(root) in said and SECRET not in said
    assert said.startswith("error: rank ") and said.count("\n") == 1, said
    proxy.faults.clear()
    assert left(root) == []


@pytest.mark.full
@pytest.mark.parametrize("words", [LLM, TRAINED], ids=["llm", "trained"])
def test_what_a_bucket_refuses_is_one_line(root: ObjectPath, proxy: Proxy, run_cli: Cli, words: list[str]) -> None:
    proxy.faults.append(Fault("expired", "PUT", "distcp"))
    code, _, said = run_cli("probe", "checkpoint", root, *words)
    assert code == 3 and "not allowed: HTTP 403 ExpiredToken" in said and SECRET not in said
    assert said.startswith("error: rank ") and said.count("\n") == 1, said
