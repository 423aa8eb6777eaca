"""Processes found by their environment, and waiting for what is to come."""

import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

import psutil


def wait_for(condition: Callable[[], object], what: str, seconds: float = 30.0, every_s: float = 0.05) -> None:
    """Wait for a condition, which fails the test when it does not come."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come within {seconds:.0f} s"
        time.sleep(every_s)


def marked(wanted: Callable[[Mapping[str, str]], bool]) -> list[psutil.Process]:
    """Running processes whose environment is wanted, zombies aside; with the steps of Slurm, which hide theirs."""
    found = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if wanted(process.environ()) and process.status() != psutil.STATUS_ZOMBIE:
                parent = process.parent()
                found |= {process, parent} if parent and parent.name() == "slurmstepd" else {process}
    return [*found]


def kill_all(wanted: Callable[[Mapping[str, str]], bool]) -> None:
    """Kill them, and those that they started meanwhile; stopped first, so that none tells of another's end."""

    def gone() -> bool:
        left = [process for process in marked(wanted) if process.pid != os.getpid()]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in left:
                with suppress(psutil.Error):
                    process.send_signal(number)
        return not left

    wait_for(gone, "the end of the processes")
