"""Several small trials side by side: the nodes of an allocation dealt to lanes, each a sweep of its own.

The lanes share the session: claims let each trial be measured once. They share the network and the file system too,
which records say.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import IO

import typer

from benchsuite.errors import UserError
from benchsuite.launch.allocation import Allocation

VARIABLE = "BENCHSUITE_LANE"
COMMAND = (sys.executable, "-P", "-c", "from benchsuite.cli import main; main()")
PASSED_ON = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


@dataclass(frozen=True)
class Lane:
    """One of so many shares of an allocation's nodes."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def this_lane(environment: Mapping[str, str] = os.environ) -> Lane | None:
    """The lane that this process is; None where it has all nodes."""
    number, _, count = environment.get(VARIABLE, "").partition("/")
    return Lane(int(number), int(count)) if number.isdigit() and count.isdigit() else None


def share_of(given: Allocation, lane: Lane | None) -> Allocation:
    """A lane's nodes of an allocation whose hosts are known: as many for each, those left over for the first ones."""
    if lane is None:
        return given
    hosts = given.hosts[lane.number :: lane.count]
    return replace(given, hosts=hosts, num_nodes=len(hosts))


def check_lanes(count: int, num_nodes: int, launcher: str) -> None:
    """Refuse more lanes than nodes.

    Raises:
        UserError: there are fewer nodes.
    """
    if count > num_nodes:
        has = f"{num_nodes} node{'s' if num_nodes > 1 else ''}"
        raise UserError(f"--lanes {count}: launcher {launcher} has {has}; a lane is at least one")


def run_lanes(count: int, words: Sequence[str]) -> list[int]:
    """Run the same sweep once in each lane, what they say behind their number; their exit codes."""
    lanes = [Lane(number, count) for number in range(count)]
    processes = [_started(lane, words) for lane in lanes]
    with _passing_on(processes):
        said = [
            threading.Thread(target=_repeat, args=(lane, process.stderr))
            for lane, process in zip(lanes, processes, strict=True)
        ]
        for thread in said:
            thread.start()
        codes = [process.wait() for process in processes]
        for thread in said:
            thread.join()
    return codes


def _started(lane: Lane, words: Sequence[str]) -> subprocess.Popen[str]:
    root = str(Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), root]))
    environment = {**os.environ, VARIABLE: str(lane), "PYTHONPATH": path}
    return subprocess.Popen(
        [*COMMAND, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    )


def _repeat(lane: Lane, said: IO[str] | None) -> None:
    for line in said or ():
        typer.echo(f"[lane {lane.number + 1}] {line.rstrip()}", err=True)


@contextmanager
def _passing_on(processes: Sequence["subprocess.Popen[str]"]) -> Iterator[None]:
    """Let every lane have the signals that this process gets."""

    def pass_on(number: int, _frame: FrameType | None) -> None:
        for process in processes:
            process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in PASSED_ON}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
