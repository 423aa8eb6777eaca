"""A reader's seconds are without those in which it waited for a core."""

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchsuite.storage import KINDS, load
from benchsuite.storage.dataset.spec import DataSpec
from benchsuite.storage.loaders import reader as module
from benchsuite.storage.loaders.reader import (
    MIN_WAIT_S,
    NUM_COUNTERS,
    LoaderInput,
    Reader,
    RunQueue,
    Slot,
    counted,
)
from tests.storage.conftest import Made
from tests.storage.samples import PARAMS


class Kernel:
    """A thread's clocks, and what the kernel says of its waits for a core."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall_s, self.cpu_s, self.queued_s = 100.0, 10.0, 5.0
        self.asked = 0
        monkeypatch.setattr(module.os, "pread", self.pread)

    def pread(self, _file: int, _size: int, _at: int) -> bytes:
        self.asked += 1
        return b"123 %d 7\n" % round(self.queued_s * 1e9)

    def passes(self, computing_s: float, queued_s: float, blocked_s: float) -> None:
        self.wall_s += computing_s + queued_s + blocked_s
        self.cpu_s += computing_s
        self.queued_s += queued_s


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    if not os.path.exists("/proc/thread-self/schedstat"):
        pytest.skip("this kernel keeps no /proc/thread-self/schedstat")
    return Kernel(monkeypatch)


def test_what_was_waited_for_a_core_since_the_last_question(kernel: Kernel):
    queue = RunQueue()
    queue.begin()
    kernel.passes(0.0, 0.25, 0.5)
    assert queue.waited_s(0.75) == pytest.approx(0.25)
    kernel.passes(0.0, 0.0, 0.5)
    assert queue.waited_s(0.5) == 0.0
    kernel.passes(0.0, 3.0, 0.0)  # between two batches
    queue.begin()
    kernel.passes(0.0, 0.1, 0.0)
    assert queue.waited_s(0.05) == pytest.approx(0.05), "never more than the thread did not compute"
    queue.close()


def test_short_stretches_ask_the_kernel_nothing(kernel: Kernel):
    queue = RunQueue()
    queue.begin()
    asked = kernel.asked
    assert queue.waited_s(MIN_WAIT_S * 0.99) == queue.waited_s(-0.1) == 0.0
    assert kernel.asked == asked
    queue.close()


def test_a_kernel_that_keeps_no_run_queue(monkeypatch: pytest.MonkeyPatch):
    def refused(*_args: object) -> int:
        raise FileNotFoundError

    monkeypatch.setattr(module.os, "open", refused)
    queue = RunQueue()
    queue.begin()
    assert queue.waited_s(10.0) == 0.0
    queue.close()


@pytest.mark.parametrize("text", [b"", b"123", b"no number here"])
def test_what_cannot_be_read_is_no_wait(kernel: Kernel, monkeypatch: pytest.MonkeyPatch, text: bytes):
    monkeypatch.setattr(module.os, "pread", lambda *_: text)
    queue = RunQueue()
    queue.begin()
    assert queue.waited_s(10.0) == 0.0
    queue.close()


def test_a_readers_seconds_are_without_its_waits_for_a_core(kernel: Kernel, made: Made, monkeypatch):
    """Two samples: each read computes 1 ms, queues 6 ms and waits 3 ms for storage; decoding 2 ms and queues 5 ms."""
    clock = SimpleNamespace(perf_counter=lambda: kernel.wall_s, thread_time=lambda: kernel.cpu_s)
    monkeypatch.setattr(module, "time", clock)
    dataset, image = made("files", "image", None, 8), load(KINDS, "image")

    def decode(sample, params, rng, row) -> None:
        image.decode(sample, params, rng, row)
        kernel.passes(0.002, 0.005, 0.0)

    spec = DataSpec(num_workers=0, pin_memory=False)
    kind = SimpleNamespace(name="image", tensors=image.tensors, decode=decode)
    reading = LoaderInput(dataset, spec, kind, PARAMS["image"], 2, 0, 1, 0)  # type: ignore[arg-type]
    counters = np.zeros((1, NUM_COUNTERS))
    slot = Slot.empty(reading)
    reader = Reader(reading, 0, counters[0])
    stream = reader._samples

    def slow():
        for item in stream:
            kernel.passes(0.001, 0.006, 0.003)
            yield item

    reader._samples = slow()
    reader.fill(slot)
    reader.close()
    found = counted(counters)
    assert found.samples == 2
    assert (found.read_s, found.read_cpu_s) == (pytest.approx(2 * 0.004), pytest.approx(2 * 0.001))
    assert found.decode_s == pytest.approx(2 * 0.002)
    assert found.needed_s == pytest.approx(2 * 0.017), "the pace of readers is that of the clock on the wall"
    assert torch.isfinite(next(iter(slot.batch.values())).float()).all()


def test_the_file_is_closed(made: Made):
    def opened() -> int:
        return sum(
            os.path.realpath(f"/proc/self/fd/{name}").endswith("schedstat") for name in os.listdir("/proc/self/fd")
        )

    before, queue = opened(), RunQueue()
    queue.begin()
    assert opened() - before == int(Path("/proc/thread-self/schedstat").exists())
    queue.close()
    queue.close()
    assert opened() == before
