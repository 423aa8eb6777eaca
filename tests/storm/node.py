"""Nodes made of namespaces: each has its own processes, shared memory and view of one shared folder, and a clock."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.late.mounts import shifted

INIT = """
import os, subprocess, sys, time
view, path, *clock = sys.argv[1:]
subprocess.run(["mount", "--bind", view, path], check=True)
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], check=True)
clock = subprocess.Popen([*clock, "sleep", "infinity"])
print(clock.pid, flush=True)
while True:
    try:
        os.wait()
    except ChildProcessError:
        time.sleep(1)
"""
"""The first process of a node: mounts, keeps the clock's shift, reaps. Arguments: view, path, what shifts the clock."""
COMMAND = [sys.executable, "-m", "benchsuite"]
HEARING = ("env", "--default-signal=HUP,INT")
"""What runs the storm in the background may have them ignored."""
ENTER = ("nsenter", "--pid", "--mount", "--target")
ZYGOTE = "benchsuite.launch.zygote"
STARTERS = ("mpiexec", "mpirun", "orted", "prterun", "prted")
SHIFTING = ("DONT_FAKE", "FAKETIME", "LD_PRELOAD", "PYTHONPATH")
BEGUN_S = 30.0


@dataclass(frozen=True)
class Found:
    """A process of a node and what it is there for."""

    process: psutil.Process
    role: str
    """sweep, zygote (of launcher local), agent (of others), rank, worker, starter, or other."""
    mark: str
    """Which command it belongs to."""


class Node:
    """A host of its own, as its processes see it; all that runs there ends with it."""

    def __init__(self, folder: Path, view: Path, path: Path, offset: str | None = None) -> None:
        """`view` is a mount of the shared folder, seen there as `path`; `offset` is how far its clock is off."""
        self.name, self.temporary = folder.name, folder / "tmp"
        self.temporary.mkdir(parents=True)
        first = [sys.executable, "-c", INIT, str(view), str(path), *(shifted(offset) if offset else [])]
        alone = ["unshare", "--pid", "--mount", "--mount-proc", "--fork", "--kill-child", "--", *first]
        self._keeper = subprocess.Popen(alone, stdout=subprocess.PIPE, text=True)
        assert self._keeper.stdout is not None and self._keeper.stdout.readline(), f"node {self.name} has not begun"
        (self._first,) = psutil.Process(self._keeper.pid).children()
        self._space = os.readlink(f"/proc/{self._first.pid}/ns/pid")
        clock = self._sleeper()
        self._kept = {self._first.pid, *(each.pid for each in self._first.children(recursive=True))}
        self._clock = {name: value for name, value in clock.environ().items() if name.startswith(SHIFTING)}
        assert ("FAKETIME" in self._clock) == (offset is not None), f"the clock of node {self.name} is not as asked for"

    def _sleeper(self) -> psutil.Process:
        """What keeps the clock's shift, once it has been started by all that shifts it."""
        ends_s = time.monotonic() + BEGUN_S
        while time.monotonic() < ends_s:
            for each in self._first.children(recursive=True):
                if each.name() == "sleep":
                    return each
            time.sleep(0.05)
        raise AssertionError(f"the clock of node {self.name} has not begun")

    def start(self, arguments: Sequence[object], mark: str, log: Path) -> subprocess.Popen[bytes]:
        """Run the command line there; all it says goes to `log`."""
        told = self._clock | {"TMPDIR": str(self.temporary), "BENCHSUITE_TEST_MARK": mark}
        told |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        variables = [f"{name}={value}" for name, value in told.items()]
        command = [*HEARING, *ENTER, str(self._first.pid), "--", "env", *variables, *COMMAND, *map(str, arguments)]
        with log.open("ab") as file:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=self.temporary)

    def run(self, arguments: Sequence[object], log: Path, seconds: float = 300) -> tuple[int, str]:
        """Run it to its end: the exit code, and what it said."""
        code = self.start(arguments, "alone", log).wait(timeout=seconds)
        return code, log.read_text(errors="replace")

    def processes(self) -> list[Found]:
        """All that runs there, zombies and what keeps the node aside."""
        found: dict[int, psutil.Process] = {}
        for process in psutil.process_iter():
            try:
                inside = os.readlink(f"/proc/{process.pid}/ns/pid") == self._space
                if inside and process.pid not in self._kept and process.status() != psutil.STATUS_ZOMBIE:
                    found[process.pid] = process
            except (OSError, psutil.Error):
                continue
        return [each for each in (_found(process, found) for process in found.values()) if each is not None]

    def shared_memory(self) -> list[str]:
        """What lies in its /dev/shm, that of the shifted clock aside."""
        return [name for name in os.listdir(f"/proc/{self._first.pid}/root/dev/shm") if "faketime" not in name]

    def close(self) -> None:
        """End it with all its processes."""
        self._keeper.send_signal(signal.SIGKILL)
        self._keeper.wait()


def _found(process: psutil.Process, all_: dict[int, psutil.Process]) -> Found | None:
    try:
        mark = process.environ().get("BENCHSUITE_TEST_MARK", "")
        return Found(process, _role(process, all_), mark)
    except psutil.Error:
        return None


def _role(process: psutil.Process, all_: dict[int, psutil.Process]) -> str:
    """By its command line, which forks share with their parent: a zygote's child is a rank, a rank's a worker."""
    words = process.cmdline()
    parent = all_.get(process.ppid())
    if words[:3] == COMMAND:  # what it has just forked has its command line, too
        return "other" if parent is not None and parent.cmdline()[:3] == COMMAND else "sweep"
    if not _is_zygote(process):
        return "starter" if process.name() in STARTERS else "other"
    depth = 0
    while parent is not None and _is_zygote(parent):
        depth, parent = depth + 1, all_.get(parent.ppid())
    if depth:
        return "rank" if depth == 1 else "worker"
    return "agent" if words[-1] == ZYGOTE else "zygote"


def _is_zygote(process: psutil.Process) -> bool:
    """Or a fork of one; what starts it has its command line as arguments."""
    words = process.cmdline()
    return words[:1] == [sys.executable] and ZYGOTE in words
