"""Several small trials side by side: the nodes of an allocation dealt to lanes, each a sweep of its own.

The lanes share the session: claims let each trial be measured once. They share the network and the file system too,
which records say.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from types import FrameType
from typing import IO, Any, Self

from benchsuite.contract.errors import UserError
from benchsuite.contract.exit_codes import CRASH, INTERRUPTED, NOTHING_RAN, OK, REQUEUE, SOME_FAILED, USAGE
from benchsuite.contract.terminal import echo
from benchsuite.host.lane import VARIABLE, Lane
from benchsuite.host.signals import heeded
from benchsuite.launch.allocation import Allocation, Task
from benchsuite.launch.node import package_path
from benchsuite.results.render.words import counted

COMMAND = (sys.executable, "-P", "-m", "benchsuite")
PASSED_ON = {signal.SIGTERM: REQUEUE, signal.SIGUSR1: REQUEUE, signal.SIGHUP: REQUEUE, signal.SIGINT: INTERRUPTED}
"""Signals that lanes are to have, and what a lane ends with that one of them strikes before it can answer."""
WORST_FIRST = (CRASH, INTERRUPTED, REQUEUE, SOME_FAILED, NOTHING_RAN, USAGE, OK)


def planned_nodes(num_nodes: int, lanes: int, lane: Lane | None = None) -> int:
    """The nodes that trials are planned for: as many in all lanes, since threads and ids of trials follow from them.

    Args:
        num_nodes: those that this process has.
        lanes: to how many lanes it is to deal them.
        lane: the one that this process itself is.
    """
    return lane.num_nodes if lane and lane.num_nodes else num_nodes // lanes


def share_of(given: Allocation, lane: Lane | None) -> Allocation:
    """A lane's nodes of an allocation whose hosts are known: as many for each, those left over for the first ones."""
    if lane is None:
        return given
    hosts = given.hosts[lane.number :: lane.count]
    return replace(given, hosts=hosts, num_nodes=len(hosts))


def check_lanes(count: int, num_nodes: int, launcher: str, task: Task | None = None) -> None:
    """Refuse more lanes than nodes, and lanes of what is itself one of a job's tasks: each task would start them.

    Raises:
        UserError: there are fewer nodes, or this process is such a task.
    """
    if count > 1 and task is not None:
        where = f"this process is task {task.rank} of {task.world_size}, which {task.starter} has started"
        raise UserError(f"--lanes {count}: {where}; allowed: one process in the allocation, which starts the lanes")
    if count > num_nodes:
        raise UserError(
            f"--lanes {count}: launcher {launcher} has {counted(num_nodes, 'node')}; a lane is at least one"
        )


def run_lanes(count: int, words: Sequence[str], num_nodes: int) -> list[int]:
    """Run the same sweep once in each lane, what they say behind their number; their exit codes.

    A lane that a signal has killed counts as crashed, but for a signal that this process got and passed on to it.
    Once one has come, no further lane is started.
    """
    lanes = [Lane(number, count, planned_nodes(num_nodes, count)) for number in range(count)]
    said = []
    with _Signals() as signals:
        for lane in lanes:
            if signals.got:
                break
            process = _started(lane, words)
            signals.pass_to(process)
            said.append(threading.Thread(target=_repeat, args=(lane, process.stderr)))
            said[-1].start()
        codes = [signals.code_of(process.wait()) for process in signals.processes]
        for thread in said:
            thread.join()
    return codes + [PASSED_ON[signals.got[0]] for _ in lanes[len(codes) :]]


def worst(codes: Sequence[int]) -> int:
    """The exit code for several lanes: the first of 1, 130, 75, 3, 4, 2, 0 that one of them has; any other is 1.

    But a lane in which nothing could run (4) counts only where no other has done all it was asked for (0).
    """
    known = {code if code in WORST_FIRST else CRASH for code in codes}
    if OK in known:
        known.discard(NOTHING_RAN)
    return min(known, key=WORST_FIRST.index)


def _started(lane: Lane, words: Sequence[str]) -> subprocess.Popen[str]:
    environment = {**os.environ, VARIABLE: f"{lane}/{lane.num_nodes}", "PYTHONPATH": package_path()}
    return subprocess.Popen(
        [*COMMAND, *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        env=environment,
    )


def _repeat(lane: Lane, said: IO[str] | None) -> None:
    for line in said or ():
        echo(f"[lane {lane.number + 1}] {line.rstrip()}", err=True)


class _Signals:
    """Lets every lane have each signal that this process gets, once, those that came while it was started included."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []
        self.got: list[signal.Signals] = []
        self._told: set[tuple[int, int]] = set()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._pass_on) for number in PASSED_ON if heeded(number)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def pass_to(self, process: subprocess.Popen[str]) -> None:
        """Let a lane just started have them, too."""
        self.processes.append(process)
        for number in list(self.got):
            self._tell(process, number)

    def code_of(self, code: int) -> int:
        """A lane's exit code, for which that of the process is negative where a signal has killed it."""
        if -code in self.got:
            return PASSED_ON[signal.Signals(-code)]
        return CRASH if code < 0 else code

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self.got.append(signal.Signals(number))
        for process in self.processes:
            self._tell(process, self.got[-1])

    def _tell(self, process: subprocess.Popen[str], number: signal.Signals) -> None:
        if (process.pid, number) not in self._told:
            self._told.add((process.pid, number))
            process.send_signal(number)
