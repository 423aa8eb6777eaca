"""Make samples side by side, in order: small ones in processes, large arrays in threads.

Large arrays are filled by calls that release Python's lock, and would take as long to pass between processes as to
make; their memory is used again and again.
"""

import ctypes
import os
import signal
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing import get_context, resource_tracker

from benchsuite.storage.dataset.sample import Allocate, Recycled, Sample, content_digest, fresh
from benchsuite.storage.errors import DatasetError

Make = Callable[[int, Allocate], Sample]
"""Makes the sample of an index. Of what it allocates (once a sample) its arrays may be views."""
_PR_SET_PDEATHSIG = 1


def in_parallel(make: Make, count: int, workers: int, by_threads: bool = False) -> Generator[Sample]:
    """The samples 0 .. count - 1, made by so many processes or threads; arrays hold until the next sample is drawn.

    No more than twice as many samples as workers are under way, however slowly they are taken.
    """
    free = deque[Allocate](Recycled() if by_threads else fresh for _ in range(2 * workers + 1))
    pending = deque[tuple[Future[Sample], Allocate]]()
    indices = iter(range(count))
    pool = ThreadPoolExecutor(workers) if by_threads else _processes(workers)
    try:
        while True:
            while len(free) > 1 and (index := next(indices, None)) is not None:
                memory = free.popleft()
                pending.append((pool.submit(_made, make, index, memory), memory))
            if not pending:
                return
            future, memory = pending.popleft()
            yield future.result()
            free.append(memory)
    except BrokenProcessPool as error:
        what = "a process that makes samples ended early: out of memory, or a script without a main guard"
        raise DatasetError(what) from error
    finally:
        _end(pool)


def _processes(number: int) -> Executor:
    """A pool of so many processes, which end with this one."""
    _outlive_the_terminal()
    return ProcessPoolExecutor(
        number, mp_context=get_context("spawn"), initializer=_end_with_parent, initargs=(os.getpid(),)
    )


def _end(pool: Executor) -> None:
    """Drop what is not begun, and wait for the workers."""
    try:
        pool.shutdown(cancel_futures=True)
    except RuntimeError:  # a signal came while it started the thread that would end its processes
        if not isinstance(pool, ProcessPoolExecutor):
            raise
        for process in pool._processes.values():
            process.kill()


def _outlive_the_terminal() -> None:
    """Start Python's tracker of semaphores out of reach of SIGHUP: should it die before us, the next one complains."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        resource_tracker.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _made(make: Make, index: int, memory: Allocate) -> Sample:
    sample = make(index, memory)
    return replace(sample, digest=content_digest(sample))


def _end_with_parent(parent: int) -> None:
    """Have the kernel end this worker when its parent is killed, which the pool would not notice."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was killed while this worker started
        os._exit(1)
