"""A copy of a store that tells no host, user, job or path, and all else as it was."""

import json
from pathlib import Path

import pytest

from benchsuite.results.store.redact import HIDDEN, redacted
from benchsuite.results.store.store import ResultsStore
from tests.results.made import made_record

SECRETS = ("gpu17", "cluster.example", "alice", "/scratch/alice/photos", "/home/alice", "proj42")


def test_nothing_that_must_not_be_told_is_in_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "gpu17.cluster.example")  # where the copy is written
    store = ResultsStore(tmp_path / "store")
    env = {
        "host": "gpu17.cluster.example",
        "moment": {"users": ["alice"], "load_average_5min": 1.5},
        "scheduler": {"SLURM_JOB_ACCOUNT": "proj42"},
        "nodes": [{"host": "gpu18.cluster.example", "ranks": [1]}],
    }
    for number in range(2):
        spec = {"workload": "resnet50", "data": {"root": "/scratch/alice/photos", "format": "files"}}
        reason = "rank 0 on gpu18: /scratch/alice/photos/a.jpg: no such file; see /home/alice/log"
        command = ["benchsuite", "sweep", "/home/alice/mine.yaml", "-o", "data.root=/scratch/alice/photos"]
        made = made_record(number, status="failed", reason=reason, env=env, spec=spec, command=command)
        store.append(made, {"ranks": []})
    copy = redacted(store, tmp_path / "copy")
    text = "".join(path.read_text() for path in (tmp_path / "copy").rglob("*.jsonl") if "samples" not in path.name)
    told = json.dumps([record.model_dump(mode="json") for record in copy.records()])
    for secret in SECRETS:
        assert secret not in told, secret
    assert "gpu17" not in text and "alice" not in text
    first, second = copy.records()
    assert first.spec["data"] == second.spec["data"] and first.spec["data"]["root"].startswith("path-")
    assert first.env["host"] == second.env["host"] != first.env["nodes"][0]["host"]
    assert first.env["moment"] == {"users": ["user-1"], "load_average_5min": 1.5}
    assert first.reason is not None and "no such file" in first.reason
    assert [record.trial_id for record in copy.records()] == [record.trial_id for record in store.records()]


def test_relative_names_in_a_command_are_hidden(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path / "store")
    words = ["advise", "holiday", "--minutes", "2", "-o", "batch_size=8", "-o", "data.root=holiday", "--until", "+30s"]
    store.append(made_record(0, command=["benchsuite", *words]), None)
    (record,) = redacted(store, tmp_path / "copy").records()
    hidden = ["advise", HIDDEN, "--minutes", "2", "-o", "batch_size=8", "-o", HIDDEN, "--until", "+30s"]
    assert record.command == ["benchsuite", *hidden]


def test_what_is_no_secret_stays(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path / "store")
    store.append(made_record(0, env={"host": "root", "moment": {"users": ["root"]}}, spec={"data": {"root": "data/x"}}))
    (record,) = redacted(store, tmp_path / "copy").records()
    assert record.spec == {"data": {"root": "data/x"}}, "a field may have the name of a user"


def test_other_peoples_programs_have_no_name(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path / "store")
    busy = "process 1061 (secret (v2)) keeps 0.7 cores busy"
    details = [f"unclean_devices: CPU: {busy}", "unclean_devices: GPU 0: process 7 (secret) holds 2.0 GB"]
    details += ["left_behind: process 8 (secret)", "left_behind: GPU 0: process 9 holds memory"]
    store.append(made_record(0, env={"moment": {"busy_processes": [busy]}}, caveat_details=details))
    (record,) = redacted(store, tmp_path / "copy").records()
    assert record.caveat_details == [
        "unclean_devices: CPU: process 1061 (program) keeps 0.7 cores busy",
        "unclean_devices: GPU 0: process 7 (program) holds 2.0 GB",
        "left_behind: process 8 (program)",
        "left_behind: GPU 0: process 9 holds memory",
    ]
    assert record.env["moment"]["busy_processes"] == ["process 1061 (program) keeps 0.7 cores busy"]


def test_buckets_are_paths(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path / "store")
    env = {"data": {"file_system": "s3", "mount": "s3://secret-project"}}
    reason = "rank 0: s3://secret-project/raw/a.jpg: no such object"
    store.append(made_record(0, env=env, reason=reason, spec={"data": {"root": "s3://secret-project/raw"}}))
    (record,) = redacted(store, tmp_path / "copy").records()
    assert "secret-project" not in json.dumps(record.model_dump(mode="json"))
    assert record.reason is not None and record.reason.endswith(": no such object")
