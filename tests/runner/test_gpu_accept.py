"""`make gpu-accept`: its steps, its one file, what it keeps; with stubs in the place of GPUs and of what runs there."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchsuite.contract.version import VERSION
from benchsuite.host.doctor import untested
from benchsuite.host.machine import Machine
from benchsuite.results.report import several_gpus
from tests.gpu import accept
from tests.gpu.accept import LOG, SEVERAL_GPUS, Step

ROOT = Path(__file__).parents[2]
H100 = {"name": "NVIDIA H100", "memory_bytes": 80_000_000_000, "driver": "570"}
NOTES = [
    {"test": "ddp", "outcome": "passed", "properties": {SEVERAL_GPUS: ["ddp"]}},
    {"test": "ddp, bf16", "outcome": "passed", "properties": {SEVERAL_GPUS: ["ddp"]}},
    {"test": "zero bubble", "outcome": "passed", "properties": {SEVERAL_GPUS: ["pp", "schedule zero_bubble"]}},
    {"test": "zero bubble, bf16", "outcome": "failed", "properties": {SEVERAL_GPUS: ["pp", "schedule zero_bubble"]}},
    {"test": "two nodes", "outcome": "skipped", "properties": {}},
]
WRITES_NOTES = f"""
import json, os
with open(os.environ[{LOG!r}], "a") as file:
    for note in {NOTES!r}:
        file.write(json.dumps(note) + "\\n")
"""
WRITES_FINDINGS = """
import json, os
told = {"findings": [{"level": "ok"}], "env": {}, "job": [name for name in os.environ if name.startswith("SLURM_")]}
json.dump(told, open("benchsuite-device-1.json", "w"))
"""
GOES_ON = """
import json, time
try:
    open("begun", "w").close()
    time.sleep(600)
finally:
    json.dump({"findings": [], "interrupted": True}, open("benchsuite-device-1.json", "w"))
"""


@pytest.fixture
def eight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that says it has eight devices, and a user's folder of its own; where the file goes."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SLURM_EXAMPLE", "1")
    monkeypatch.setattr(accept, "this_machine", lambda: Machine(cores=64, cuda_devices=8))
    for module in ("tests.gpu.accept", "benchsuite.host.doctor"):
        monkeypatch.setattr(f"{module}.devices", lambda: [H100] * 8)
    return tmp_path / "out.json"


def python(what: str, code: str) -> Step:
    return Step(what, [sys.executable, "-c", code], until_s=60.0)


class Late(subprocess.Popen[bytes]):
    """A process whose time is up once it has begun, however long it takes to begin."""

    def __init__(self, command: Any, cwd: Path, **more: Any) -> None:
        super().__init__(command, cwd=cwd, **more)
        self.begun = cwd / "begun"

    def wait(self, timeout: float | None = None) -> int:
        if self.begun.is_file() or self.poll() is not None:
            return super().wait(timeout)
        while not self.begun.is_file():
            time.sleep(0.01)
        raise subprocess.TimeoutExpired(self.args, 0.0)


def test_one_file_says_what_ran_and_what_passed_is_kept(
    eight: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        accept, "steps", lambda: [python("several devices", WRITES_NOTES), python("doctor", WRITES_FINDINGS)]
    )
    assert accept.accept(eight) == 3, "a test has failed"
    told = json.loads(eight.read_text())
    assert [one["what"] for one in told["ran"]] == ["ddp"], "all of whose tests passed"
    assert told["ran"][0]["machine"] == "1 node of 8 x NVIDIA H100"
    assert told["failed"] == ["pp", "schedule zero_bubble"]
    assert told["tests"] == NOTES and told["doctor"]["findings"] == [{"level": "ok"}] and told["env"]["cores"]
    assert told["doctor"]["job"] == [], "what is of one node does not know of the job"
    out = capsys.readouterr().out
    assert "tests: 3 passed, 1 failed, 1 skipped" in out and "failed on several GPUs: pp, schedule zero_bubble" in out
    assert out.endswith(f"written: {eight}: send it back\n")
    assert "ddp" not in untested() and "pp" in untested() and "zero1" in untested()


def test_what_has_no_time_left_is_interrupted_and_leaves_what_it_found(
    eight: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(accept, "steps", lambda: [python("doctor", GOES_ON)])
    monkeypatch.setattr(subprocess, "Popen", Late)
    assert accept.accept(eight) == 3
    told = json.loads(eight.read_text())
    assert told["doctor"] == {"findings": [], "interrupted": True} and told["steps"][0]["status"] is None
    assert "not finished in time: doctor" in capsys.readouterr().out


def test_where_a_test_crashed_nothing_has_passed(
    eight: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    crashes = f"{WRITES_NOTES}\nos.abort()"
    monkeypatch.setattr(accept, "steps", lambda: [python("one device", crashes), python("doctor", WRITES_FINDINGS)])
    assert accept.accept(eight) == 3
    assert json.loads(eight.read_text())["ran"] == [] and "ddp" in untested()
    assert "crashed, so nothing has passed: one device" in capsys.readouterr().out


def test_without_devices_it_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(accept, "this_machine", lambda: Machine(cores=2, cuda_devices=0))
    assert accept.main() == 4
    assert capsys.readouterr().err == (
        "error: gpu-accept: no CUDA device that torch can use here; run it on a node of a job with GPUs\n"
    )


def test_every_file_of_gpu_tests_and_the_doctor_are_run_within_twenty_minutes() -> None:
    found = accept.steps()
    assert [step.what for step in found] == ["two nodes", "several devices", "one device", "doctor"]
    ends = [step.until_s for step in found]
    assert ends == sorted(ends) and ends[-1] + accept.GRACE_S <= 20 * 60
    assert [step.what for step in found if step.in_job] == ["two nodes"]
    named = {word.removeprefix("--ignore=") for step in found[:2] for word in step.command if "/" in word}
    ignored = {word.removeprefix("--ignore=") for word in found[2].command if word.startswith("--ignore=")}
    assert {name for name in named if name.startswith("tests/gpu/")} == ignored, "each once"
    assert all((ROOT / name).is_file() for name in ignored)
    assert all(step.command[0] == sys.executable for step in found), "the interpreter that is there"


def test_make_installs_nothing_for_it() -> None:
    """By the Makefile itself: the target needs no other, and runs the interpreter that PYTHON names."""
    (rule,) = [part for part in (ROOT / "Makefile").read_text().split("\n\n") if "\ngpu-accept:" in f"\n{part}"]
    lines = rule.splitlines()[rule.splitlines().index("gpu-accept:") :]
    assert lines == ["gpu-accept:", "\t$(PYTHON) -m tests.gpu.accept"]


def test_a_test_is_noted_as_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv(LOG, str(log))
    report: Callable[..., Any] = lambda **more: SimpleNamespace(  # noqa: E731 - as pytest makes them
        **{"nodeid": "t", "duration": 1.0, "longrepr": None, "longreprtext": "", "user_properties": []} | more
    )
    for made in (
        report(when="setup", passed=True, outcome="passed"),
        report(when="call", passed=True, outcome="passed", user_properties=[(SEVERAL_GPUS, ["ddp"])]),
        report(when="setup", passed=False, outcome="skipped", longrepr=("file", 1, "Skipped: needs 2 devices")),
        report(when="call", passed=False, outcome="failed", longreprtext="x" * 9000),
    ):
        accept.pytest_runtest_logreport(made)
    told = [json.loads(line) for line in log.read_text().splitlines()]
    assert [one["outcome"] for one in told] == ["passed", "skipped", "failed"]
    assert told[0]["properties"] == {SEVERAL_GPUS: ["ddp"]} and told[1]["reason"] == "Skipped: needs 2 devices"
    assert len(told[2]["reason"]) == accept.MAX_REASON


def test_of_another_version_or_on_other_devices_nothing_has_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert several_gpus.passed({"A"}, VERSION) == set()
    several_gpus.keep(several_gpus.Accepted(VERSION, ("A", "B"), "2026-12-01", ("ddp",)))
    assert several_gpus.passed({"A"}, VERSION) == several_gpus.passed(set(), VERSION) == {"ddp"}
    assert several_gpus.passed({"A", "C"}, VERSION) == several_gpus.passed({"A"}, "0.0.1") == set()
    several_gpus.acceptance_path().write_text("{")
    assert several_gpus.passed({"A"}, VERSION) == set(), "what is damaged is none"
