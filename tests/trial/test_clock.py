"""The host clock: parts from marks, with made-up times."""

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from benchsuite.inside.samples import PARTS, Block
from benchsuite.trial import clock
from benchsuite.trial.clock import HostClock, clock_for, run_queue_s
from benchsuite.trial.emulated import EmulatedDevice


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the clock will read, one after another."""
    readings: list[float] = []
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: readings.pop(0)))
    return readings


def test_parts_are_the_time_between_marks(times: list[float]):
    times += [100.0, 101.0, 103.0, 104.0, 108.0]
    host = HostClock()
    host.start()
    for part in ("load", "forward", "load", "forward"):
        host.mark(part)
    found = host.stop()
    assert found.parts == {"load": [1.0, 1.0], "forward": [2.0, 4.0]}
    assert (found.start_s, found.end_s) == (100.0, 108.0)


def test_a_part_marked_twice_in_a_step_counts_in_all_and_a_missing_one_is_zero(times: list[float]):
    times += [float(number) for number in range(8)]
    host = HostClock()
    host.start()
    for part in ("load", "forward", "communication", "forward", "load", "forward", "optimizer"):
        host.mark(part)
    found = host.stop().parts
    assert found == {"load": [1.0, 1.0], "forward": [2.0, 1.0], "communication": [1.0, 0.0], "optimizer": [0.0, 1.0]}


def test_parts_add_up_to_the_block(times: list[float]):
    times += [0.0, 0.125, 0.5, 0.75, 1.0, 1.5, 2.25]
    host = HostClock()
    host.start()
    for part in ("load", "h2d", "forward") * 2:
        host.mark(part)
    found = host.stop()
    assert sum(sum(seconds) for seconds in found.parts.values()) == found.end_s - found.start_s == 2.25


def test_parts_keep_their_order(times: list[float]):
    times += [float(number) for number in range(len(PARTS) + 1)]
    host = HostClock()
    host.start()
    for part in PARTS:
        host.mark(part)
    assert tuple(host.stop().parts) == PARTS


def test_times_without_the_first_steps():
    """The first step took 3 of 8 s: of 0.8 s in which the thread waited for a core, 0.5 s are those of the rest."""
    whole = Block("plain", 100.0, 108.0, {"load": [1.0, 1.0], "forward": [2.0, 4.0]}, 0.8)
    assert whole.after(1) == Block("plain", 103.0, 108.0, {"load": [1.0], "forward": [4.0]}, pytest.approx(0.5))
    assert replace(whole, threads_queue_s=1.6).after(1).threads_queue_s == pytest.approx(1.0)
    assert replace(whole, run_queue_s=None).after(1).run_queue_s is None


def test_a_new_block_forgets_the_last(times: list[float]):
    times += [0.0, 1.0, 10.0, 12.0]
    host = HostClock()
    host.start()
    host.mark("load")
    host.stop()
    host.start()
    host.mark("load")
    found = host.stop()
    assert found.parts == {"load": [2.0]}
    assert (found.start_s, found.end_s) == (10.0, 12.0)


def test_a_block_without_steps(times: list[float]):
    times += [5.0]
    host = HostClock()
    host.start()
    found = host.stop()
    assert found.parts == {}
    assert found.start_s == found.end_s == 5.0


def test_run_queue_grows_from_zero():
    before = run_queue_s()
    if before is None:
        pytest.skip("this kernel keeps no /proc/thread-self/schedstat")
    after = run_queue_s()
    assert after is not None and 0.0 <= before <= after


def test_run_queue_of_a_block_is_a_difference(monkeypatch: pytest.MonkeyPatch):
    readings = [3.0, 3.25]
    monkeypatch.setattr(clock, "run_queue_s", lambda: readings.pop(0))
    host = HostClock()
    host.start()
    assert host.stop().run_queue_s == 0.25


@pytest.mark.parametrize("text", [None, "", "123"])
def test_run_queue_is_null_where_it_is_not_kept(monkeypatch: pytest.MonkeyPatch, text: str | None):
    def text_in_proc(_path: str) -> str:
        if text is None:
            raise FileNotFoundError
        return text

    monkeypatch.setattr("benchsuite.inside.processes.text_in_proc", text_in_proc)
    assert run_queue_s() is None
    host = HostClock()
    host.start()
    found = host.stop()
    assert (found.run_queue_s, found.threads_queue_s) == (None, None)


THREADS = """
import os
import threading
from contextlib import suppress

import torch

from benchsuite.host.processes import computing_threads
from benchsuite.trial.clock import HostClock

torch.set_num_threads(3)
threading.Thread(target=threading.Event().wait, daemon=True).start()
square = torch.ones(600, 600)
square @ square
host = HostClock()
for task in os.listdir("/proc/self/task"):
    with suppress(ProcessLookupError):
        os.sched_setaffinity(int(task), {min(os.sched_getaffinity(0))})
for _ in range(2):
    host.start()
    for _ in range(20):
        square @ square
        host.mark("forward")
    block = host.stop()
pythons = {thread.native_id for thread in threading.enumerate()}
print(len(computing_threads()), len(pythons & set(computing_threads())), block.threads_queue_s / block.steps_s)
"""


def test_the_threads_that_compute_are_seen_to_wait_for_a_core():
    """Of three threads on one core at most one runs; Python's own threads are not among them."""
    if run_queue_s() is None:
        pytest.skip("this kernel keeps no /proc/thread-self/schedstat")
    command = [sys.executable, "-c", THREADS]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    number, of_python, crowded = map(float, said)
    assert number >= 2, "OpenMP's, and those of other libraries, which rest"
    assert of_python == 0
    assert crowded > 0.01, "a share of the block: they sleep, too, where they wait for each other"


def test_one_thread_and_an_emulated_device_have_no_others_that_compute(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(clock, "computing_threads", lambda: pytest.fail("they need not be looked for"))
    for threads, device in ((1, HostClock()), (4, EmulatedDevice(step_s=0.001))):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        device.start()
        assert device.stop().threads_queue_s is None


def test_cpu_takes_the_host_clock():
    assert isinstance(clock_for(torch.device("cpu")), HostClock)


def test_ranges_have_the_names_that_parts_had_in_the_step_before(monkeypatch: pytest.MonkeyPatch):
    """By a stub that records calls: the names come from the step before, so the first step's are not known yet."""
    calls: list[str] = []
    monkeypatch.setattr(clock, "_push", calls.append)
    monkeypatch.setattr(clock, "_pop", lambda: calls.append("end"))
    ranges = clock_for(torch.device("cpu"), ranges=True)
    for _ in range(2):
        calls.clear()
        ranges.start()
        for part in ("load", "forward", "optimizer") * 2:
            ranges.mark(part)
        block = ranges.stop()
        assert list(block.parts) == ["load", "forward", "optimizer"] and block.num_steps == 2
    step = ["step", "load", "end", "forward", "end", "optimizer", "end", "end"]
    assert calls == [*step, *step, "step", "load", "end", "end"]
