"""Who loads for a watched loop: workers told from other children, the loading thread's time from that of others."""

import itertools
import multiprocessing
import multiprocessing.resource_tracker
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from benchsuite.inside.feeders import Feeders, Living, feeders
from benchsuite.inside.loop import Loop
from benchsuite.inside.readers import LoadTimes
from benchsuite.inside.syscalls import has_ended
from tests.helpers.watching import watched

SAMPLES: Any = torch.arange(8)


@contextmanager
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process below this one that has nothing to do with loading."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        yield process
    finally:
        process.communicate(b"\n")


@contextmanager
def busy_thread() -> Iterator[int]:
    """A thread that computes and does not load; its id."""
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            sum(range(1000))

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        assert thread.native_id is not None
        yield thread.native_id
    finally:
        stop.set()
        thread.join()


class Wrapper:
    """A loader around a loader, as trainers make them."""

    def __init__(self, loader: Any) -> None:
        self.loaders = {"train": loader}

    def __iter__(self) -> "Wrapper":
        self.iterators = {name: iter(loader) for name, loader in self.loaders.items()}
        return self

    def __next__(self) -> dict[str, Any]:
        return {name: next(iterator) for name, iterator in self.iterators.items()}


class Generating(Wrapper):
    """One that yields."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        yield from self.loaders["train"]


def own_loader() -> Iterator[int]:
    yield from range(8)


@pytest.mark.parametrize("began", ["before the watch", "before the loop"])
@pytest.mark.parametrize(
    "made",
    [
        lambda: DataLoader(SAMPLES),
        lambda: Wrapper(DataLoader(SAMPLES)),
        lambda: Generating(DataLoader(SAMPLES)),
        own_loader,
        lambda: [*range(8)],
    ],
)
def test_other_children_are_no_workers(made: Callable[[], Any], began: str):
    """A logger, say, or a helper that a trainer starts: a loop without workers loads in its own process."""
    if began == "before the watch":
        with child():
            loop = looped(made())
    else:
        watch = watched(made())
        with child():
            loop = looped(made(), watch)
    assert loop.readers.num_readers == 0 and not loop.feeders.unseen
    assert loop.loads.seconds > 0


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("wraps", [lambda loader: loader, Wrapper, Generating])
def test_a_dataloaders_workers_are_found_among_other_children(wraps: Callable[[Any], Any], persistent: bool):
    loader = DataLoader(SAMPLES, num_workers=2, persistent_workers=persistent)
    watch = watched(wraps(loader))
    with child() as other:
        for _ in range(2):
            for _ in watch:
                found = watch._ending.loop.readers.tasks
                assert len(found) == 2 and other.pid not in found
    watch.close()
    assert watch._ending.loop.readers.num_readers == 2


class OneShard(IterableDataset[int]):
    """A stream of which all lies in one shard: the first worker has it."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        yield from range(30 if info is None or info.id == 0 else 0)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_worker_that_has_no_shard_is_told_from_one_that_rests(persistent: bool):
    watch = watched(DataLoader(OneShard(), num_workers=3, persistent_workers=persistent))
    for _ in range(2):
        for number, _ in enumerate(watch):
            reading = watch._ending.loop.reading()
            without = {*reading.without_data} | {each for each in reading.processes if has_ended(each)}
            assert number < 8 or (len(reading.processes), len(without)) == (3, 2)
    watch.close()


def test_workers_that_began_before_the_watch_are_found():
    loader = DataLoader(SAMPLES, num_workers=1, persistent_workers=True)
    next(iter(loader))
    assert looped(loader).readers.num_readers == 1


def test_processes_that_a_loader_begins_in_its_calls_load_for_it():
    def loader() -> Iterator[int]:
        process = begun()
        yield from range(8)
        process.communicate(b"\n")

    def begun() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    assert looped(loader()).readers.num_readers == 1


def test_a_program_that_a_loader_names_is_a_worker_only_if_it_is_heard():
    """A server that the loader looks after is none, though it may load; one whose output the loader reads is."""

    def loader(server: subprocess.Popen[bytes]) -> Iterator[int]:
        for number in range(8):
            assert server.poll() is None
            yield number

    with child() as mute:
        loop = looped(loader(mute))
        assert loop.readers.num_readers == 0 and loop.feeders.unseen
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1, stdout=-1) as heard:
        assert looped(loader(heard)).readers.num_readers == 1
        heard.communicate(b"\n")


DECODER = """
import os, time
while True:
    end_s = time.process_time() + 0.02
    while time.process_time() < end_s:
        pass
    os.write(1, b"x")
"""


def test_a_program_that_decodes_into_a_pipe_of_the_loaders_own_is_not_called_storage():
    """The loader holds the program, but not what it writes to: that it computes is seen, what for is not."""
    reads, writes = os.pipe()

    class Decoded:
        def __init__(self) -> None:
            self.program = subprocess.Popen([sys.executable, "-c", DECODER], stdout=writes)

        def __iter__(self) -> Iterator[bytes]:
            while self.program.poll() is None:
                yield os.read(reads, 1)

    loader = Decoded()
    try:
        watch = watched(loader)
        for _ in itertools.islice(watch, 60):
            pass
        watch.close()
    finally:
        loader.program.kill()
        loader.program.wait()
        os.close(reads)
        os.close(writes)
    found = watch.figures["bottleneck"], watch.figures["cause"]
    seen_or_not = (("cannot_tell", None), ("waiting", "child_process"))  # the loop is short: a look may miss it
    assert found in seen_or_not, watch.figures["evidence"]


def test_multiprocessings_own_helpers_are_no_workers():
    """The tracker of semaphores and shared memory begins with the first of them, and stays."""

    def loader() -> Iterator[int]:
        multiprocessing.resource_tracker.ensure_running()
        yield from range(8)

    multiprocessing.resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]
    assert looped(loader()).readers.num_readers == 0


def prefetching(batches: Iterator[int]) -> Iterator[int]:
    """A thread of its own loads ahead."""
    ready: queue.Queue[int | None] = queue.Queue(2)

    def fill() -> None:
        for batch in batches:
            ready.put(batch)
        ready.put(None)

    threading.Thread(target=fill, daemon=True).start()
    while (batch := ready.get()) is not None:
        yield batch


def test_a_thread_that_begins_with_the_loader_loads_for_it_and_others_do_not():
    with busy_thread() as stranger:
        before, loader = Living.now(), prefetching(iter(range(9)))
        next(loader)
        found = feeders(loader, before, Feeders())
        assert len(found.threads) == 1 and not found.unseen
        assert stranger in found.strangers() and not found.threads & found.strangers()


class Producer:
    """Fills a queue, in a thread that began long before the loop."""

    def __init__(self) -> None:
        self.ready: queue.Queue[int] = queue.Queue(2)
        self.thread = threading.Thread(target=self.fill, daemon=True)

    def fill(self) -> None:
        for number in range(40):
            self.ready.put(number)


@pytest.mark.parametrize("how", ["argument", "closure", "object"])
def test_a_thread_that_fills_the_queue_of_a_loop_loads_for_it(how: str):
    producer = Producer()

    def fill(ready: "queue.Queue[int] | None" = None) -> None:
        for number in range(40):
            (ready or producer.ready).put(number)

    arguments = (producer.ready,) if how == "argument" else ()
    thread = threading.Thread(target=fill, args=arguments, daemon=True) if how != "object" else producer.thread
    thread.start()
    ready = producer.ready

    def loader() -> Iterator[int]:
        for _ in range(8):
            yield ready.get()

    with busy_thread() as stranger:
        before, iterator = Living.now(), loader()
        next(iterator)
        found = feeders(iterator, before, Feeders())
        assert found.threads == {thread.native_id} and not found.unseen and stranger in found.strangers()


def put_batches(ready: Any) -> None:
    for number in range(200):
        ready.put(number)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_that_fill_the_queue_of_a_loop_load_for_it(method: str):
    context = multiprocessing.get_context(method)
    ready: Any = context.Queue(2)

    def loader() -> Iterator[int]:
        for _ in range(8):
            yield ready.get()

    with child() as other:
        filler = context.Process(target=put_batches, args=(ready,), daemon=True)
        filler.start()
        ready.get()
        assert looped(loader()).feeders.processes == {filler.pid} and other.pid != filler.pid
        filler.kill()
        filler.join()


def test_a_queue_that_has_no_pipe_or_is_closed_is_passed_over():
    closed: Any = multiprocessing.get_context("fork").Queue()
    closed.close()

    class Own(queue.Queue[int]):
        _reader = None

    for ready in (closed, Own()):
        iterator = (each for each in [1, ready])
        next(iterator)
        assert feeders(iterator, Living.now(), Feeders()).processes == frozenset()


def test_a_queue_that_others_fill_leaves_unknown_who_loads():
    ready: queue.Queue[int] = queue.Queue()
    for number in range(3):
        ready.put(number)

    def loader() -> Iterator[int]:
        while True:
            yield ready.get()

    with busy_thread():
        before, iterator = Living.now(), loader()
        next(iterator)
        found = feeders(iterator, before, Feeders())
        assert found.unseen and not found.strangers()


def test_time_of_a_load_is_told_by_thread():
    """A load that waits until a thread beside it has computed for 50 ms."""
    for left_out, least_s, most_s in ((False, 0.04, 10.0), (True, -0.02, 0.02)):
        with busy_thread() as stranger:
            times, clock = LoadTimes(), ~stranger << 3 | 6
            times.open([stranger] if left_out else [])
            times.begin()
            until_s = time.clock_gettime(clock) + 0.05
            while time.clock_gettime(clock) < until_s:
                time.sleep(0.005)
            times.end()
            times.close()
            assert least_s < times.beside_s < most_s
            assert 0 < times.own_s < times.seconds


def test_a_thread_that_ends_during_a_load_leaves_no_time_behind():
    times = LoadTimes()
    with busy_thread() as stranger:
        while time.clock_gettime(~stranger << 3 | 6) < 0.05:
            time.sleep(0.005)
        times.open([stranger])
        times.begin()
    times.end()
    times.close()
    assert times.beside_s < 0.04


def test_loads_are_taken_whatever_the_one_before_was():
    """Two workers often hand over two batches at once: the loop waits for every other one."""
    times, loads_s = LoadTimes(), list[float]()
    times.open([])
    for number in range(40):
        began_s = time.perf_counter()
        times.begin()
        time.sleep(0.03 if number % 2 else 0.0)
        times.end()
        loads_s.append(time.perf_counter() - began_s)
        time.sleep(0.008)
    times.close()
    assert times.seconds > 0.7 * sum(loads_s), "before, long ones were never taken"


@pytest.mark.weekly
def test_a_loader_that_waits_beside_a_busy_thread_is_not_decoding():
    def loader() -> Iterator[int]:
        for number in range(30):
            time.sleep(0.02)
            yield number

    with busy_thread():
        watch = watched(loader())
        for _ in watch:
            pass
    watch.close()
    assert watch.figures["worker_busy_fraction"] < 0.35
    assert (watch.figures["bottleneck"], watch.figures["cause"]) == ("waiting", "sleep"), watch.figures["evidence"]


@pytest.mark.weekly
def test_threads_that_load_are_seen_to_compute():
    """A thread that begins with the loop decodes, or one from before fills its queue: neither is storage."""

    def decoded() -> Iterator[int]:
        for number in range(80):
            until_s = time.thread_time() + 0.15
            while time.thread_time() < until_s:
                pass
            yield number

    started = prefetching(decoded())
    first = next(started)
    found = []
    for loader in (prefetching(decoded()), started):
        watch = watched(loader)
        for _ in watch:
            pass
        watch.close()
        found.append(watch.figures["bottleneck"])
    assert first == 0
    assert {*found} <= {"preprocessing", "mixed"}  # mixed where others take the core


SPINNING = """
import time, torch
import benchsuite

def loader():
    for number in range(200):
        time.sleep(0.02)
        yield number

weight = torch.rand(400, 400)
watch = benchsuite.watch(loader(), quiet=True)
for _ in watch:
    weight @ weight
watch.close()
print(watch.figures["bottleneck"], watch.figures["cause"])
"""


@pytest.mark.weekly
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs 2 cores: a thread that spins beside another")
def test_threads_of_libraries_that_spin_are_not_called_decoding():
    """Threads of OpenMP that wait for the next operation keep a core busy while the loader sleeps."""
    spin = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "active"}
    found = subprocess.run(
        [sys.executable, "-c", SPINNING], env=os.environ | spin, capture_output=True, text=True, timeout=120, check=True
    )
    assert found.stdout.split() == ["waiting", "sleep"], found.stdout


def looped(loader: Any, watch: Any = None) -> Loop:
    """What a watch of one pass measured."""
    watch = watched(loader) if watch is None else watch
    for _ in watch:
        pass
    watch.close()
    loop: Loop = watch._ending.loop
    return loop
