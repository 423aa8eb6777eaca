"""Devices looked at before and after a trial: CPUs and memory for real, GPUs by a stand-in for NVML."""

import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from benchsuite.analysis.record_builder import new_attempt, with_caveats
from benchsuite.host import gpus, interference
from benchsuite.host.interference import Guard, Look, facts, leftover_processes, throttles, unclean
from benchsuite.host.processes import Busy, Process, Table, parsed
from benchsuite.results.store.store import ResultsStore
from benchsuite.runner.attempt import measure
from tests.results.made import made_record
from tests.runner.test_sweep import Rehearsal, made_plan, run

ROOMY = (50_000_000_000, 64_000_000_000)
ME = os.getpid()


def process(pid: int, parent: int = 1, cpu_s: float = 0.0, born: int = 7, name: str = "python") -> Process:
    return Process(pid, name, "R", parent, pid, cpu_s, born)


def table(*processes: Process, at_s: float = 0.0) -> Table:
    return Table({each.pid: each for each in processes}, at_s)


def look(**changes: Any) -> Look:
    return replace(Look(table(), [], [], {}, None, ROOMY), **changes)


class TestProcesses:
    def test_a_line_of_proc_with_a_name_that_misleads(self) -> None:
        line = "4242 (a) b (c) S 17 4242 99 0 -1 4194560 1 0 0 0 150 50 3 4 20 0 8 0 123456 1000 5 18446744073709551615"
        assert parsed(line) == Process(4242, "a) b (c", "S", 17, 99, 2.0, 123456)

    def test_this_process_is_in_the_table_with_its_parent_and_session(self) -> None:
        mine = Table.now().processes[ME]
        assert (mine.parent, mine.session) == (os.getppid(), os.getsid(0))
        assert mine.cpu_s > 0 and 2 not in Table.now().processes

    def test_who_is_busy(self) -> None:
        before = table(process(10), process(20, cpu_s=5.0), process(30, cpu_s=100.0, born=1), process(50, cpu_s=9.0))
        ours = (process(ME, 50, 9.0), process(40, ME, 9.0))
        now = table(process(10, cpu_s=1.0), process(20, cpu_s=9.0), process(30, cpu_s=3.0), *ours, at_s=2.0)
        found = now.busy_since(before, ME, 0.5)
        # 30 is a new process with an old number: all of its 3 s are of these 2 s; ours are left out; 50 has ended
        assert [(busy.process.pid, busy.cores) for busy in found] == [(20, 2.0), (30, 1.5), (10, 0.5)]
        assert str(found[0]) == "process 20 (python) keeps 2.0 cores busy"

    def test_a_process_on_cores_that_we_may_not_use_is_no_neighbour(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cores = {0: {0, 1}, 10: {2, 3}, 20: {1, 2}}
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cores[pid])
        now = table(process(10, cpu_s=1.0), process(20, cpu_s=1.0), at_s=1.0)
        assert [busy.process.pid for busy in now.busy_since(table(), ME, 0.5)] == [20]


@pytest.fixture
def stranger() -> Iterator[int]:
    """A busy process that is not below this one."""
    burn = [sys.executable, "-c", "import os\nif os.fork(): os._exit(0)\nprint(os.getpid(), flush=True)\nwhile 1: 0"]
    started = subprocess.Popen(burn, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert started.stdout is not None
    pid = int(started.stdout.readline())
    started.wait()
    yield pid
    os.kill(pid, signal.SIGKILL)
    started.stdout.close()


def test_a_stranger_that_keeps_a_core_busy_is_a_caveat(stranger: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interference, "MIN_BUSY_CORES", 0.02)  # this machine may be shared
    guard, began = Guard(), Table.now()
    while Table.now().processes[stranger].cpu_s < began.processes[stranger].cpu_s + 0.1:
        time.sleep(0.01)
    found = guard.before(uses_gpus=False)
    assert stranger in [busy.process.pid for busy in found.busy]
    (text,) = [text for text in unclean(found) if f"process {stranger} " in text]
    assert text.startswith(f"CPU: process {stranger} (python") and text.endswith(" cores busy")
    told = facts(found, [], None)
    assert told["busy_cores"] == sum(busy.cores for busy in found.busy) > 0
    assert str(stranger) in told["busy_processes"][0] or len(told["busy_processes"]) > 1


def test_scarce_memory_and_heat() -> None:
    assert list(unclean(look())) == []
    scarce = look(memory=(3_000_000_000, 64_000_000_000))
    assert list(unclean(scarce)) == ["memory: 3.0 of 64.0 GB are available"]
    assert list(throttles(look(throttled=5), [], 5)) == []
    assert list(throttles(look(throttled=5), [], 17)) == ["CPU: held back for heat 12 times during the trial"]
    assert facts(look(throttled=5), [], 17)["cpu_throttled_meanwhile"] == 12
    assert facts(look(), [], None)["cpu_throttled_meanwhile"] is None


def test_findings_stand_among_the_records_caveats() -> None:
    record = made_record(caveats=["not_steady"], caveat_details=["not_steady: 7 %"])
    found = with_caveats(record, [("unclean_devices", "a"), ("left_behind", "b"), ("unclean_devices", "c")])
    assert found.caveats == ["not_steady", "unclean_devices", "left_behind"]
    assert found.caveat_details == ["not_steady: 7 %", "unclean_devices: a", "left_behind: b", "unclean_devices: c"]
    assert with_caveats(record, []) == record


@pytest.fixture
def below() -> Iterator[Callable[[str], list[int]]]:
    """Start a Python process that prints the ids of those it has begun, itself last."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, *words: str) -> list[int]:
        tail = "\nprint(os.getpid(), flush=True)\ntime.sleep(60)"
        command = [sys.executable, "-c", f"import os, subprocess, sys, time\n{code}{tail}", *words]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True))
        out = started[-1].stdout
        assert out is not None
        pids = [int(out.readline())]
        while pids[-1] != started[-1].pid:
            pids.append(int(out.readline()))
        return pids

    yield start
    for each in started:
        os.killpg(each.pid, signal.SIGKILL)
        each.wait()
        each.stdout.close()  # type: ignore[union-attr]


FORK = "\npid = os.fork()\nif not pid: time.sleep(60)\nprint(pid, flush=True)"
ORPHAN = """
reading, writing = os.pipe()
if not os.fork():
    if os.fork():
        os._exit(0)
    os.write(writing, b"%d" % os.getpid())
    time.sleep(60)
os.wait()
print(int(os.read(reading, 20)), flush=True)
"""
SPAWN = "\nprint(subprocess.Popen(['sleep', '60']).pid, flush=True)"


class TestLeftProcesses:
    def test_the_child_of_a_launcher_is_left_behind_and_the_launcher_is_not(
        self, below: Callable[..., list[int]]
    ) -> None:
        before = Table.now()
        rank, worker, _zygote = below(FORK + SPAWN, "benchsuite.launch.zygote")
        assert {left.pid for left in leftover_processes(before, Table.now())} == {rank, worker}
        assert leftover_processes(Table.now(), Table.now()) == [], "what was there before is none"

    def test_a_launcher_below_another_process_is_none(self, below: Callable[..., list[int]]) -> None:
        code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
        command = f"[sys.executable, '-c', {code!r}, 'benchsuite.launch.zygote']"
        zygote = f"subprocess.Popen({command}, stdout=subprocess.PIPE)"
        # the zygote says its number itself: until it runs, its command line may still be empty
        agent = f"\nprint(int({zygote}.stdout.readline()), flush=True)"
        before = Table.now()
        below(agent, "srun")
        assert leftover_processes(before, Table.now()) == []

    def test_an_orphan_of_a_launchers_session_is_left_behind(self, below: Callable[..., list[int]]) -> None:
        before = Table.now()
        pid, _launcher = below(ORPHAN, "benchsuite.launch.zygote")
        assert [left.pid for left in leftover_processes(before, Table.now())] == [pid]


def left_here(before: Look) -> list[str]:
    """What these tests have left in shared memory; tests that run beside them leave files of their own."""
    return [said for said in interference.left_behind(before, []) if f"benchsuite-test-{ME}" in said]


def test_shared_memory_that_nobody_has_mapped_is_left_behind() -> None:
    before = look(table=Table.now(), shared=interference.shared_files())
    left, used = (Path(f"/dev/shm/benchsuite-test-{ME}-{name}") for name in ("left", "used"))
    try:
        left.write_bytes(bytes(2_500_000))
        used.write_bytes(bytes(4096))
        with used.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
            assert left_here(before) == [f"{left} (2.5 MB)"]
    finally:
        left.unlink()
        used.unlink()


def test_shared_memory_that_a_process_has_open_is_in_use() -> None:
    """Files that another job writes are not mapped."""
    before = look(table=Table.now(), shared=interference.shared_files())
    path = Path(f"/dev/shm/benchsuite-test-{ME}-written")
    try:
        with path.open("wb"):
            assert left_here(before) == []
        assert left_here(before) == [f"{path} (0.0 MB)"]
    finally:
        path.unlink()


def test_a_semaphore_that_vanishes_is_somebody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its maker began after the process table was read, and takes the name away between two looks."""
    before = look(table=Table.now(), shared=interference.shared_files())
    path = Path(f"/dev/shm/sem.benchsuite-test-{ME}")
    path.write_bytes(bytes(32))
    sleeps: list[float] = []

    def unlinked(seconds: float) -> None:
        sleeps.append(seconds)
        if len(sleeps) == interference.SETTLING_LOOKS:
            path.unlink()

    monkeypatch.setattr(interference.time, "sleep", unlinked)
    try:
        assert left_here(before) == []
    finally:
        path.unlink(missing_ok=True)


class Nvml:
    """A stand-in for NVML with two devices."""

    def __init__(self) -> None:
        self.used = [500_000_000, 500_000_000]
        self.processes: list[list[SimpleNamespace]] = [[], []]
        self.reasons = [pynvml.nvmlClocksEventReasonGpuIdle, pynvml.nvmlClocksEventReasonSwPowerCap]

    def held(self, device: int, pid: int, held: int | None) -> None:
        self.processes[device].append(SimpleNamespace(pid=pid, usedGpuMemory=held))

    def install(self, patch: pytest.MonkeyPatch) -> None:
        def unknown(*_: object) -> None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

        patch.setattr(gpus, "_started", lambda: True)
        for name, function in {
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda number: number,
            "nvmlDeviceGetUUID": lambda device: f"GPU-{device}{device}{device}-abc",
            "nvmlDeviceGetMemoryInfo": lambda device: SimpleNamespace(used=self.used[device], total=80_000_000_000),
            "nvmlDeviceGetClockInfo": lambda device, which: 1980 if which == pynvml.NVML_CLOCK_SM else 2619,
            "nvmlDeviceGetTemperature": unknown,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda device: self.reasons[device],
            "nvmlDeviceGetComputeRunningProcesses": lambda device: self.processes[device],
        }.items():
            patch.setattr(pynvml, name, function)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    made = Nvml()
    made.install(monkeypatch)
    return made


class TestGpus:
    def test_clean_devices_have_no_findings_and_facts(self, nvml: Nvml) -> None:
        found = gpus.gpus(None)
        assert list(unclean(look(gpus=found))) == []
        told = facts(look(gpus=found), found, None)
        assert told["gpus"][1] == told["gpus_after"][1]
        assert told["gpus"][1] == {
            "index": 1,
            "memory_used_bytes": 500_000_000,
            "memory_bytes": 80_000_000_000,
            "sm_mhz": 1980,
            "memory_mhz": 2619,
            "temperature_c": None,  # NVML does not say
            "held_back": [],
            "processes": [],
        }

    def test_a_foreign_process_is_named(self, nvml: Nvml) -> None:
        nvml.held(0, 4242, 3_100_000_000)
        nvml.held(1, 4243, None)
        known = look(table=table(process(4242)), gpus=gpus.gpus(None))
        assert list(unclean(known)) == [
            "GPU 0: process 4242 (python) holds 3.1 GB",
            "GPU 1: process 4243 holds memory",  # of another container: its name is not to be seen
        ]

    def test_this_process_is_no_stranger(self, nvml: Nvml) -> None:
        """A trial of one rank may run in the process that looks, which keeps its CUDA context."""
        before = look(table=Table.now(), shared=interference.shared_files(), gpus=gpus.gpus(None))
        nvml.held(0, ME, 2_000_000_000)
        after = gpus.gpus(None)
        assert not [said for said in interference.left_behind(before, after) if "GPU" in said]
        assert list(unclean(look(gpus=after))) == []

    def test_memory_without_a_process(self, nvml: Nvml) -> None:
        nvml.used[1] = 9_000_000_000
        assert list(unclean(look(gpus=gpus.gpus(None)))) == ["GPU 1: 9.0 GB are held, by no process to be seen here"]

    def test_clocks_held_back_before_and_at_the_end(self, nvml: Nvml) -> None:
        nvml.reasons[0] |= pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown
        before = look(gpus=gpus.gpus(None))
        assert list(unclean(before)) == ["GPU 0: clocks held back: short of power (brake)"]
        nvml.reasons[1] |= pynvml.nvmlClocksEventReasonSwThermalSlowdown
        found = list(throttles(before, gpus.gpus(None), None))
        assert found == ["GPU 1: clocks held back at the trial's end: too hot (driver)"], "what was before is said once"

    def test_what_a_trial_leaves_on_a_device(self, nvml: Nvml) -> None:
        nvml.held(0, 4242, 1_000_000_000)
        before = look(table=Table.now(), gpus=gpus.gpus(None), shared=interference.shared_files())
        nvml.held(0, 999_999_999, 2_000_000_000)
        found = [said for said in interference.left_behind(before, gpus.gpus(None)) if "GPU" in said]
        assert found == ["GPU 0: process 999999999 holds 2.0 GB"]

    @pytest.mark.parametrize(
        ("visible", "indices"),
        [(None, [0, 1]), ("1", [1]), ("GPU-000", [0]), ("1,0", [0, 1]), ("", []), ("-1", []), ("GPU-", [0, 1])],
    )
    def test_only_what_cuda_may_use(self, nvml: Nvml, visible: str | None, indices: list[int]) -> None:
        assert [gpu.index for gpu in gpus.gpus(visible)] == indices

    def test_without_nvml_there_are_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gpus, "_started", lambda: False)
        assert gpus.gpus(None) == []


def test_every_trial_of_a_sweep_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep on a host that is not clean runs, and each record says so."""
    busy = Busy(process(4242), 1.5)
    monkeypatch.setattr(Table, "busy_since", lambda *_: [busy])
    monkeypatch.setattr(interference, "left_behind", lambda *_: ["process 77 (python)"])
    store = ResultsStore(tmp_path)
    run(made_plan(), store, Rehearsal())
    records = store.records()
    assert [record.status for record in records] == ["ok"] * 4
    for record in records:
        assert {"unclean_devices", "left_behind"} <= {*record.caveats}
        assert "unclean_devices: CPU: process 4242 (python) keeps 1.5 cores busy" in record.caveat_details
        assert "left_behind: process 77 (python)" in record.caveat_details
        assert record.env["moment"]["busy_processes"] == ["process 4242 (python) keeps 1.5 cores busy"]
        assert record.env["moment"]["busy_cores"] == 1.5 and "gpus" not in record.env["moment"]


def test_a_single_trial_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interference, "left_behind", lambda *_: ["process 77 (python)"])
    (point, *_) = made_plan().points
    attempt = new_attempt(point, "default", 0, "trial", None)
    record, samples = measure(attempt, Rehearsal(), tmp_path, guard=Guard())
    assert record.status == "ok" and record.caveats[-1] == "left_behind"
    assert samples is not None and len(samples["ranks"]) == 1
    assert record.env["moment"].keys() == attempt.env["moment"].keys() | {
        "busy_processes",
        "busy_cores",
        "cpu_throttled_meanwhile",
    }
    assert record.env["cores"] == attempt.env["cores"]
