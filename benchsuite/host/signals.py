"""Ending in good order when a signal asks for it."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


class Terminated(BaseException):
    """SIGTERM, SIGUSR1 or SIGHUP arrived: stop early, to be requeued."""


def heeded(number: int) -> bool:
    """Whether a signal is not ignored from the start, as `nohup` has it for SIGHUP."""
    return signal.getsignal(number) is not signal.SIG_IGN


def ignore_ending() -> None:
    """Ignore the signals that ask for an end: a process that has its exit code would be killed by them on its way out.

    Python takes its handlers away before it has ended.
    """
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def terminable(one_interrupt: bool = False) -> Iterator[None]:
    """Turn SIGTERM, SIGUSR1 (Slurm's early warning) and SIGHUP (a lost terminal) into an exception.

    So a trial in flight is recorded, and what was begun is removed. Processes forked meanwhile die of them as usual.

    Args:
        one_interrupt: SIGINT, too, strikes only once: more would cost a trial that is being ended its cleaning up.
    """
    asked = (*ENDING, signal.SIGINT) if one_interrupt else ENDING
    owner, numbers = os.getpid(), [number for number in asked if heeded(number)]

    def stop(number: int, _frame: FrameType | None) -> None:
        if os.getpid() != owner:
            signal.signal(number, signal.SIG_DFL)
            return os.kill(os.getpid(), number)
        for one in numbers:
            signal.signal(one, signal.SIG_IGN)  # schedulers say it several times: once is enough to be at the end
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated

    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            if heeded(number):
                signal.signal(number, handler)
