"""Processes below others."""

import os
from contextlib import suppress

import psutil

from benchsuite.inside.processes import children


def below(pid: int | None = None, recursive: bool = False) -> list[psutil.Process]:
    """The living processes that one has started, of this one without `pid`; `recursive`: and those that they have.

    By the kernel's lists: `psutil.Process.children` compares when processes began by the clock of the day, and misses
    some where that is set meanwhile.
    """
    parent = os.getpid() if pid is None else pid
    found = []
    for each in children(parent):
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            process = psutil.Process(each)
            found += [process] if recursive or process.ppid() == parent else []
    return found
