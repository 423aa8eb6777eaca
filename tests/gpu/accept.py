"""`make gpu-accept`: does this suite work on several GPUs of this machine, and on two nodes of them?

Runs `tests/gpu`, then `benchsuite doctor --device`, in 20 minutes and with the interpreter that is there. Writes one
file to send back, and keeps what passed for this machine. It is pytest's plugin, too, which notes each test as it ends:
what is ended early has left what it found.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from benchsuite.contract.errors import UserError
from benchsuite.contract.exit_codes import NOTHING_RAN, OK, SOME_FAILED
from benchsuite.contract.terminal import echo
from benchsuite.contract.version import VERSION
from benchsuite.host.doctor import untested
from benchsuite.host.environment import devices, environment
from benchsuite.host.machine import this_machine
from benchsuite.launch.allocation import allocation
from benchsuite.results.render.words import counted
from benchsuite.results.report import several_gpus
from benchsuite.results.store.replacing import write_whole

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[2]
SEVERAL_GPUS = "several_gpus"
"""The property of a test that names what it tests on several GPUs, as `benchsuite list` does."""
LOG = "BENCHSUITE_TEST_GPU_LOG"
"""Names the file that the plugin appends to."""
TOTAL_S = 20 * 60.0
OF_JOBS = ("SLURM_", "PBS_")
"""Beginnings of what tells of a job; what needs one node alone is run without, so that ranks are forked here."""
TWO_NODES = "tests/gpu/test_two_nodes.py"
MAX_REASON = 4000
"""Characters of a failure that are kept, its last ones."""
GRACE_S = 20.0


def pytest_runtest_logreport(report: "pytest.TestReport") -> None:
    """Append what came of a test; a set-up that went well is none yet, nor is an end that did."""
    if LOG not in os.environ or (report.when != "call" and report.passed):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    told = {
        "test": report.nodeid,
        "outcome": report.outcome,
        "seconds": report.duration,
        "reason": reason[-MAX_REASON:] or None,
        "properties": dict(report.user_properties),
    }
    with Path(os.environ[LOG]).open("a") as file:
        file.write(json.dumps(told) + "\n")


@dataclass(frozen=True)
class Step:
    """A command, what it is for, and by when it must have ended, in seconds after all began."""

    what: str
    command: Sequence[str]
    until_s: float
    in_job: bool = False
    """Whether it may use all nodes of the job that this process is in."""


@dataclass(frozen=True)
class Ended:
    """How a step ended: its exit status, None where its time was up."""

    what: str
    status: int | None
    seconds: float

    @property
    def has_crashed(self) -> bool:
        """Whether it ended otherwise than pytest does that has run tests, or had none to run."""
        return self.what != "doctor" and self.status not in (None, 0, 1, 5)


def _pytest(*more: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "tests.gpu.accept", *more]


def steps() -> list[Step]:
    """What is run, one after another: two nodes, then several devices, then one, each as long as there is time."""
    several = ("tests/gpu/test_several_devices.py", "tests/gpu/test_comm.py")
    others = ("tests/gpu", *(f"--ignore={path}" for path in (TWO_NODES, *several)))
    return [
        Step("two nodes", _pytest(TWO_NODES), 5 * 60.0, in_job=True),
        Step("several devices", _pytest(*several), 11 * 60.0),
        Step("one device", _pytest(*others), 15 * 60.0),
        Step("doctor", [sys.executable, "-m", "benchsuite", "doctor", "--device"], TOTAL_S - GRACE_S),
    ]


def run_step(step: Step, began_s: float, folder: Path) -> Ended:
    """Run a command until its time is up; it is then interrupted, so that it writes what it has, and killed at last."""
    left_out = () if step.in_job else OF_JOBS
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    kept |= {"PYTHONPATH": str(ROOT), LOG: str(folder / "tests.jsonl")}
    where = folder if step.what == "doctor" else ROOT
    from_s = time.monotonic()
    process = subprocess.Popen(step.command, cwd=where, env=kept, start_new_session=True)
    status: int | None = None
    try:
        status = process.wait(max(1.0, began_s + step.until_s - from_s))
    except subprocess.TimeoutExpired:
        echo(f"{step.what}: its time is up", err=True)
    finally:
        _end(process)
    return Ended(step.what, status, time.monotonic() - from_s)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a command and what it started; nothing where it has ended."""
    for number in (signal.SIGINT, signal.SIGKILL):
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)


def noted(folder: Path) -> list[dict[str, Any]]:
    """What the plugin has noted of each test."""
    log = folder / "tests.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []


def examined(folder: Path) -> dict[str, Any] | None:
    """What `doctor --device` has written; None where it did not come to that."""
    written = sorted(folder.glob("benchsuite-device-*.json"))
    return json.loads(written[-1].read_text()) if written else None


def by_outcome(tests: Iterable[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """What tests on several GPUs have passed, all of those of it that ran; and what has failed in any."""
    outcomes: dict[str, set[str]] = {}
    for test in tests:
        for name in test["properties"].get(SEVERAL_GPUS, ()):
            outcomes.setdefault(name, set()).add(test["outcome"])
    failed = [name for name, found in outcomes.items() if "failed" in found]
    return [name for name, found in outcomes.items() if "passed" in found and name not in failed], failed


def machine_in_words(nodes: int) -> str:
    """Such as `2 nodes of 8 x NVIDIA H100 80GB HBM3`."""
    names = Counter(str(device["name"]) for device in devices())
    told = " and ".join(f"{count} x {name}" for name, count in names.items())
    return f"{counted(nodes, 'node')} of {told}"


def accept(out: Path) -> int:
    """Run all steps and write what came of them to `out`; the exit status.

    Raises:
        UserError: there is no CUDA device here, or no pytest.
    """
    if find_spec("pytest") is None:
        raise UserError(f"gpu-accept: {sys.executable} has no pytest; name one that has: make gpu-accept PYTHON=...")
    if not this_machine().cuda_devices:
        raise UserError("gpu-accept: no CUDA device that torch can use here; run it on a node of a job with GPUs")
    began_s, date = time.monotonic(), f"{datetime.now():%Y-%m-%d}"
    with TemporaryDirectory(prefix="benchsuite-") as name:
        ended = [run_step(step, began_s, Path(name)) for step in steps()]
        tests, doctor = noted(Path(name)), examined(Path(name))
    passed, failed = by_outcome(tests)
    passed = [] if any(step.has_crashed for step in ended) else passed  # what crashed has left no note of itself
    given = allocation()
    nodes = given.num_nodes if given is not None and several_gpus.SEVERAL_NODES in passed else 1
    machine = machine_in_words(nodes)
    told = {
        "benchsuite": VERSION,
        "date": date,
        "machine": machine,
        "steps": [asdict(step) for step in ended],
        "ran": [asdict(several_gpus.Ran(what, date, machine)) for what in passed],
        "failed": failed,
        "tests": tests,
        "doctor": doctor,
        "env": environment(),
    }
    write_whole(out, json.dumps(told, indent=1, default=str))
    names = tuple(dict.fromkeys(str(device["name"]) for device in devices()))
    several_gpus.keep(several_gpus.Accepted(VERSION, names, date, tuple(passed)))
    return _tell(tests, ended, doctor, passed, failed, out)


def _tell(
    tests: Sequence[Mapping[str, Any]],
    ended: Sequence[Ended],
    doctor: Mapping[str, Any] | None,
    passed: Sequence[str],
    failed: Sequence[str],
    out: Path,
) -> int:
    """Print what came of it, and return the exit status."""
    outcomes = Counter(test["outcome"] for test in tests)
    levels = Counter(finding["level"] for finding in (doctor or {}).get("findings", ()))
    late = [step.what for step in ended if step.status is None]
    crashed = [step.what for step in ended if step.has_crashed]
    echo(f"tests: {', '.join(f'{count} {name}' for name, count in outcomes.items()) or 'none ran'}")
    echo(f"doctor: {', '.join(f'{count} {name}' for name, count in levels.items()) or 'it found nothing'}")
    echo(f"passed on several GPUs: {', '.join(passed) or 'nothing'}")
    echo(*([f"failed on several GPUs: {', '.join(failed)}"] if failed else []))
    echo(*([f"not finished in time: {', '.join(late)}"] if late else []))
    echo(*([f"crashed, so nothing has passed: {', '.join(crashed)}"] if crashed else []))
    echo(*([f"{several_gpus.UNTESTED}: {', '.join(left)}"] if (left := untested()) else []))
    echo(f"written: {out}: send it back")
    return SOME_FAILED if outcomes["failed"] or levels["fail"] or late or crashed or doctor is None else OK


def main() -> int:
    """The exit status of a run in this folder."""
    try:
        return accept(Path(f"benchsuite-gpu-accept-{datetime.now():%Y%m%d-%H%M%S}.json"))
    except UserError as error:
        echo(f"error: {error}", err=True)
        return NOTHING_RAN


if __name__ == "__main__":
    sys.exit(main())
