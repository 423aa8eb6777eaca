"""What the frames of threads that really are somewhere say of them."""

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import pytest
from torch.multiprocessing import Queue
from torch.utils.data import DataLoader, Dataset, IterableDataset

from benchsuite.inside.frames import frame_of, is_users, role_of, user_line, waits_on
from benchsuite.watcher.run_folder import HOOK

LONG_S = 3.0


@contextmanager
def frame_in(wait: Callable[[], Any], begun: threading.Event | None = None) -> Iterator[FrameType]:
    """The innermost frame of a thread that runs this, in a moment in which it waits; after `begun`."""

    def run() -> None:
        with suppress(queue.Empty):
            wait()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert begun is None or begun.wait(60)
    time.sleep(0.2)
    frame = frame_of(thread.ident or 0)
    assert frame is not None
    yield frame


class Read(Dataset[int]):
    """Samples that take long."""

    def __init__(self, sample_s: float) -> None:
        self.sample_s = sample_s

    def __len__(self) -> int:
        return 4

    def __getitem__(self, row: int) -> int:
        time.sleep(self.sample_s)
        return row


def put_together(samples: list[int]) -> list[int]:
    time.sleep(LONG_S)
    return samples


def test_a_dataset_and_a_collate_function_are_told_apart():
    with frame_in(lambda: next(iter(DataLoader(Read(LONG_S), 2)))) as frame:
        assert role_of(frame) == "sample"
        assert str(user_line(frame)).startswith("Read.__getitem__ (test_frames.py:")
    with frame_in(lambda: next(iter(DataLoader(Read(0.0), 2, collate_fn=put_together)))) as frame:
        assert role_of(frame) == "collate"


def test_a_loop_that_waits_for_workers():
    with frame_in(lambda: next(iter(DataLoader(Read(LONG_S), 1, num_workers=1)))) as frame:
        assert role_of(frame) == "waits_for_readers"
    empty = queue.Queue[int]()
    with frame_in(lambda: empty.get(timeout=LONG_S)) as frame:
        assert role_of(frame) == "waits_for_readers"


def test_a_reader_that_waits_for_a_command_of_its_own():
    with frame_in(lambda: subprocess.run(["sleep", str(LONG_S)], check=False)) as frame:
        assert role_of(frame) == "child"


class Shuffled(IterableDataset[int]):
    """A shuffle over a stream that a thread reads, as streams of Hugging Face do."""

    def __iter__(self) -> Iterator[int]:
        with ThreadPoolExecutor(1) as pool:
            buffer = [pool.submit(time.sleep, LONG_S).result() for _ in range(2)]
            yield len(buffer)


def test_a_worker_that_waits_for_threads_which_fill_its_buffer():
    seen: Any = Queue()

    def look(_worker: int) -> None:
        ident = threading.get_ident()

        def tell() -> None:
            frame = frame_of(ident)
            seen.put(None if frame is None else role_of(frame))

        threading.Timer(0.5, tell).start()

    loader = iter(DataLoader(Shuffled(), batch_size=None, num_workers=1, worker_init_fn=look))
    assert seen.get(timeout=60) == "fills"
    del loader


def test_a_loop_that_fills_the_buffer_of_a_library():
    """It waits for a thread that reads one sample after the other; a queue in a class of the user's own is none."""
    datasets = pytest.importorskip("datasets", reason="it is needed here: pip install datasets")
    begun = threading.Event()

    def slow() -> Iterator[dict[str, int]]:
        begun.set()
        time.sleep(LONG_S)
        yield {"number": 1}

    stream = datasets.IterableDataset.from_generator(slow).shuffle(seed=1, buffer_size=100)
    with frame_in(lambda: next(iter(stream)), begun) as frame:
        assert role_of(frame) == "fills"

    class ShuffledQueue:
        def __init__(self) -> None:
            self.waiting = queue.Queue[int]()

        def __iter__(self) -> Iterator[int]:
            yield self.waiting.get(timeout=LONG_S)

    with frame_in(lambda: next(iter(ShuffledQueue()))) as frame:
        assert role_of(frame) == "waits_for_readers"


def test_a_lock_is_named_by_its_line():
    lock = threading.Lock()
    lock.acquire()

    def guarded() -> None:
        if lock.acquire(timeout=LONG_S):
            lock.release()

    with frame_in(guarded) as frame:
        assert waits_on(frame) == "lock"
    with frame_in(lambda: threading.Event().wait(LONG_S)) as frame:
        assert waits_on(frame) == "thread"


def test_a_line_that_writes_is_one():
    reads, writes = os.pipe()

    def stored() -> None:
        with open(writes, "wb", 0) as file:
            file.write(bytes(1 << 20))

    with frame_in(stored) as frame:
        assert role_of(frame) == "save"
    os.set_blocking(reads, False)
    with suppress(BlockingIOError):
        while os.read(reads, 1 << 16):
            time.sleep(0.01)
    os.close(reads)


def test_lines_of_libraries_are_nobodys():
    assert is_users(__file__) and not is_users(os.__file__) and not is_users(pytest.__file__)


COLLECTING = """
import _thread, gc, threading
from benchsuite.inside.frames import frame_of

class Garbage:
    def __init__(self):
        self.me = self
    def __del__(self):
        _thread.start_new_thread(int, ())

def look():
    gc.disable()
    for _ in range(3):
        Garbage()
    held = [[] for _ in range(2000)]
    free = [{} for _ in range(200)]
    del free
    gc.enable()
    return frame_of(threading.get_ident())

for _ in range(200):
    assert look().f_code.co_name == "frame_of"
"""


def test_a_collection_of_garbage_blocks_no_thread():
    done = subprocess.run([sys.executable, "-c", COLLECTING], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_hook_in_peoples_jobs_is_no_line_of_theirs() -> None:
    """It is loaded as `sitecustomize`, not under a name of ours."""
    names = {"__name__": "sitecustomize", "sys": sys}
    exec(compile("def hook():\n    return sys._getframe()", str(HOOK / "sitecustomize.py"), "exec"), names)
    assert user_line(names["hook"]()) is None
