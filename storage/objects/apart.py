"""Asking an object store from a process that is going to fork."""

import gc
import os
import pickle
from collections.abc import Callable
from typing import TypeVar

from benchsuite.storage.errors import DatasetError
from benchsuite.storage.objects.client import in_use

T = TypeVar("T")


def apart(call: Callable[[], T]) -> T:
    """Call it in a process of its own, so that this one may fork readers; here where the client is in use already.

    What it returns is pickled.

    Raises:
        DatasetError: as the call did, or the process ended without a word.
    """
    if in_use():
        return call()
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        _answer(call, writing)
    os.close(writing)
    with open(reading, "rb") as file:
        said = file.read()
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if not said:
        raise DatasetError(f"the process that asked the object store ended without an answer (exit status {ended})")
    found: T | BaseException = pickle.loads(said)
    if isinstance(found, BaseException):
        raise found
    return found


def _answer(call: Callable[[], object], writing: int) -> None:
    """Write what the call gives, or raises, to a pipe, and end this process."""
    gc.disable()  # what the parent left behind is not finalised here: native libraries without their threads crash
    try:
        try:
            said = pickle.dumps(call())
        except Exception as error:
            said = pickle.dumps(error)
        except BaseException as error:  # the library's panics cannot be pickled
            said = pickle.dumps(DatasetError(f"the object store's client failed: {type(error).__name__}"))
        with open(writing, "wb") as file:
            file.write(said)
        os._exit(0)
    finally:
        os._exit(1)
