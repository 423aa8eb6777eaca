"""Questions asked in a process of their own: what comes back, and what is said when nothing does."""

import os
import signal
from collections.abc import Callable

import pytest

from benchsuite.storage.errors import DatasetError
from benchsuite.storage.objects.apart import apart


class Native:
    """In place of an object of a native library, which a process without its threads may not finalise."""

    def __init__(self) -> None:
        self.itself, self.pid = self, os.getpid()

    def __del__(self) -> None:
        if os.getpid() != self.pid:
            os.abort()


def cycles(count: int) -> int:
    """Make so much that is collected that a collector looks through all generations."""
    for _ in range(count):
        each: list[object] = []
        each.append(each)
    return os.getpid()


def test_it_is_another_process_that_answers() -> None:
    assert apart(os.getpid) != os.getpid() and apart(lambda: [1, b"2"]) == [1, b"2"]


def test_its_error_is_raised_here() -> None:
    with pytest.raises(DatasetError, match="no such bucket"):
        apart(lambda: (_ for _ in ()).throw(DatasetError("no such bucket")))


@pytest.mark.parametrize(
    ("end", "status"), [(lambda: os._exit(3), 3), (lambda: os.kill(os.getpid(), signal.SIGKILL), -9)]
)
def test_a_process_that_dies_is_told_with_how(end: Callable[[], None], status: int) -> None:
    with pytest.raises(DatasetError, match=rf"without an answer \(exit status {status}\)$"):
        apart(end)


def test_what_the_asking_process_left_behind_is_not_finalised() -> None:
    Native()
    assert apart(lambda: cycles(200_000)) != os.getpid()
