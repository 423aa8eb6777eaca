"""Three sweeps on one store by way of two late mounts, whose processes are struck by a seeded storm, and then an audit.

Two nodes made of namespaces see one folder through a mount each; the clock of the second is hours ahead. The sweeps
share sessions; whichever ends is begun again, as a job script would. Choices follow from the seed alone, moments do
not: a strike waits until there is a process of the role that it is meant for.
"""

import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchsuite.storage.create.convert import Wanted, convert_dataset, generate_dataset
from tests.late.mounts import LateMounts
from tests.late.mounts import missing as missing_mounts
from tests.storm.node import Found, Node
from tests.storm.seen import Seen

SAMPLES, SHARD_SAMPLES = 32, 8
CLOCK_OFFSET = "+7h"
LATENESSES_PER_LEASE = 2.25
ROLES = {"sweep": 3, "zygote": 3, "rank": 3, "worker": 3, "all": 1}
"""How often each is chosen; `all` is all of a sweep."""
ALIKE = {"zygote": ("zygote", "agent", "starter")}
"""What starts ranks: one process by launcher `local`, agents and what starts them by another."""
SIGNALS = {signal.SIGKILL: 5, signal.SIGTERM: 2, signal.SIGINT: 2, signal.SIGHUP: 1, signal.SIGSTOP: 3}
GAP_S, STOP_S = (1.0, 4.0), (0.5, 8.0)
OUTLASTING = 0.1
"""So many of the stopped sweeps sleep longer than their lease."""
WAIT_FOR_ROLE_S = 5.0
OVER_S = 600.0
"""What no command needs, however busy the machine is."""
DONE = (0, 3)
LAST_WORDS = ("written: ", "nothing left to do", "stopped early")
"""What a sweep says at its end: from there a signal ends it as the system does."""


def missing() -> str | None:
    """Why there can be no storm here; None where there can."""
    if os.geteuid() != 0:
        return "needs root, for namespaces and mounts"
    lacking = [name for name in ("unshare", "nsenter", "mount") if shutil.which(name) is None]
    return f"{', '.join(lacking)} not installed" if lacking else missing_mounts()


@dataclass(frozen=True)
class Strike:
    """One signal to one process."""

    at_s: float
    mark: str
    role: str
    number: signal.Signals
    pid: int
    stopped_s: float = 0.0
    at_an_end: bool = False
    """Its command had said nothing yet, or all."""


@dataclass
class Run:
    """One start of a sweep."""

    mark: str
    session: str
    log: Path
    process: subprocess.Popen[bytes]
    began_s: float
    code: int | None = None


@dataclass
class Sweep:
    """A sweep that is begun again whenever it ends."""

    name: str
    node: Node
    arguments: tuple[object, ...]
    sessions: int = 0
    runs: list[Run] = field(default_factory=list)

    @property
    def now(self) -> Run:
        return self.runs[-1]


def sweep_of(root: Path, grid: dict[str, list[Any]], world_size: int) -> dict[str, Any]:
    """Small real trials of about a second."""
    base = {
        "workload": "resnet50",
        "variant": "nano",
        "data": {"root": str(root), "cache": "warm", "num_workers": 1},
        "parallelism": "ddp",
        "world_size": world_size,
        "batch_size": 2,
        "threads_per_rank": 1,
        "device": "cpu",
        "measure": {"steps": 6, "warmup_steps": 1, "repeats": 2, "ceilings": False, "timeout_s": 60},
    }
    return {"name": "storm", "base": base, "grid": grid}


GRIDS = {
    "left": ({"data.format": ["files", "webdataset"], "data.staging": ["none", "copy", "lazy"]}, 2),
    "right": ({"data.staging": ["none", "lazy"], "world_size": [1, 2], "data.format": ["files"]}, 2),
}
TRIALS = (6 + 2) * 2
"""Of a session: two points of `right` are also in `left`."""


class Storm:
    """The nodes, the sweeps on them, and what was done to them."""

    def __init__(self, folder: Path, seed: int, late_s: int, say: Callable[[str], None]) -> None:
        self.folder, self.seed, self.say = folder, seed, say
        self.random = random.Random(seed)
        self.late_s, self.lease_s = late_s, late_s * LATENESSES_PER_LEASE
        self.mounts = LateMounts(folder / "late", late_s)
        self.shared, self.logs = folder / "shared", folder / "logs"
        self.shared.mkdir()
        self.logs.mkdir()
        self.source = self.mounts.source
        self.seen = Seen(self.source / "store")
        self.nodes: list[Node] = []
        self.strikes: list[Strike] = []
        self.asleep: list[tuple[float, psutil.Process]] = []
        self.sweeps: list[Sweep] = []
        self.wrong: list[str] = []

    def prepare(self) -> None:
        """Datasets, sweep files, nodes."""
        data = self.source / "data"
        generate_dataset(data / "files", Wanted("resnet50", "nano", "files"), SAMPLES, seed=3)
        convert_dataset(
            data / "files",
            data / "webdataset",
            Wanted("resnet50", "nano", "webdataset", options={"shard_samples": SHARD_SAMPLES}),
        )
        for name, (grid, world_size) in GRIDS.items():
            value = sweep_of(self.shared / "data", grid, world_size)
            (self.source / f"{name}.yaml").write_text(yaml.safe_dump(value))
        here = Node(self.folder / "here", self.mounts.first, self.shared)
        self.nodes.append(here)
        there = Node(self.folder / "there", self.mounts.second, self.shared, CLOCK_OFFSET)
        self.nodes.append(there)
        agents = ("--launcher", "mpiexec") if shutil.which("mpiexec") else ()
        self.sweeps = [
            Sweep("left-here", here, self._asked("left")),
            Sweep("left-there", there, self._asked("left")),
            Sweep("right-here", here, (*self._asked("right"), *agents)),
        ]

    def _asked(self, name: str) -> tuple[object, ...]:
        return "sweep", self.shared / f"{name}.yaml", "--store", self.shared / "store", "--lease", self.lease_s

    def begin(self, sweep: Sweep, session: str) -> None:
        """Start a sweep, once more."""
        mark = f"{sweep.name}-{len(sweep.runs)}"
        log = self.logs / f"{mark}.log"
        process = sweep.node.start((*sweep.arguments, "--session", session), mark, log)
        sweep.runs.append(Run(mark, session, log, process, time.monotonic()))

    def keep_going(self) -> None:
        """Begin again what has ended, wake what has slept long enough, note records."""
        self.seen.look()
        for until_s, process in list(self.asleep):
            if time.monotonic() >= until_s:
                self.asleep.remove((until_s, process))
                _send(process, signal.SIGCONT)
        for sweep in self.sweeps:
            if sweep.runs:
                sweep.now.process.send_signal(signal.SIGCONT)  # nsenter stops with what it has started
            if sweep.runs and (code := sweep.now.process.poll()) is not None:
                sweep.now.code = code
                if code in DONE:
                    behind = min(other.sessions for other in self.sweeps)
                    sweep.sessions = min(sweep.sessions + 1, behind + 1)
                self.begin(sweep, f"s{sweep.sessions}")
            elif sweep.runs and time.monotonic() - sweep.now.began_s > OVER_S:
                self.wrong.append(f"{sweep.now.mark} did not end in {OVER_S:.0f} s, see {sweep.now.log}")
                self._strike_all(sweep)

    def rage(self, minutes: float) -> None:
        """Strike until the time is over."""
        for sweep in self.sweeps:
            self.begin(sweep, "s0")
        ends_s = time.monotonic() + 60 * minutes
        while time.monotonic() < ends_s:
            gap_s = self.random.uniform(*GAP_S)
            sweep, role, number = self.random.choice(self.sweeps), _drawn(self.random, ROLES), self._signal()
            which, stopped_s = self.random.random(), self.random.uniform(*STOP_S)
            if self.random.random() < OUTLASTING and role == "sweep":
                stopped_s += 1.2 * self.lease_s
            self._pass(gap_s)
            self._strike(sweep, role, number, which, stopped_s)
        for _, process in self.asleep:
            _send(process, signal.SIGCONT)
        self.asleep.clear()

    def _signal(self) -> signal.Signals:
        return _drawn(self.random, SIGNALS)

    def _pass(self, seconds: float) -> None:
        ends_s = time.monotonic() + seconds
        while time.monotonic() < ends_s:
            self.keep_going()
            time.sleep(0.1)

    def _strike(self, sweep: Sweep, role: str, number: signal.Signals, which: float, stopped_s: float) -> None:
        if role == "all":
            return self._strike_all(sweep)
        targets = self._await(sweep, role) or self._await(sweep, "sweep")
        if targets:
            self._send(sweep, targets[int(which * len(targets))], number, stopped_s)

    def _await(self, sweep: Sweep, role: str) -> list[Found]:
        """Processes of a role, as soon as there are some."""
        ends_s, roles = time.monotonic() + WAIT_FOR_ROLE_S, ALIKE.get(role, (role,))
        while True:
            found = [each for each in self._of(sweep) if each.role in roles]
            if found or time.monotonic() > ends_s:
                return sorted(found, key=lambda each: each.process.pid)
            self._pass(0.05)

    def _of(self, sweep: Sweep) -> list[Found]:
        return [each for each in sweep.node.processes() if each.mark == sweep.now.mark]

    def _strike_all(self, sweep: Sweep) -> None:
        """As when a node is reset: nothing of a sweep goes on, and the sweep itself sees none of the others end."""
        for each in sorted(self._of(sweep), key=lambda each: each.role != "sweep"):
            self._send(sweep, each, signal.SIGKILL, 0.0)

    def _send(self, sweep: Sweep, target: Found, number: signal.Signals, stopped_s: float) -> None:
        stopped = stopped_s if number == signal.SIGSTOP else 0.0
        said = sweep.now.log.read_text(errors="replace")
        at_an_end = not said or any(words in said for words in LAST_WORDS)
        if not _send(target.process, number):
            return
        if stopped:
            self.asleep.append((time.monotonic() + stopped, target.process))
        self.strikes.append(
            Strike(time.time(), target.mark, target.role, number, target.process.pid, stopped, at_an_end)
        )

    def calm(self) -> None:
        """Let the sweeps end by themselves, and run what is left of each session until all of it is done."""
        ends_s = time.monotonic() + OVER_S
        for sweep in self.sweeps:
            while (code := sweep.now.process.poll()) is None and time.monotonic() < ends_s:
                self.seen.look()  # while they run: a record counts from when it is seen, not from when all is over
                time.sleep(0.2)
            sweep.now.code = code
            if sweep.now.code is None:
                self.wrong.append(f"{sweep.now.mark} did not end in {OVER_S:.0f} s, see {sweep.now.log}")
                self._strike_all(sweep)
            self.seen.look()
        for number in range(max(sweep.sessions for sweep in self.sweeps) + 1):
            self._complete(f"s{number}")

    def _complete(self, session: str) -> None:
        """Each of two sweeps has its file's share; then what has failed is asked for again."""
        for sweep in self.sweeps[1:]:
            for retry in ((), ("--retry", "failed,oom,timeout")):
                state = self.seen.session(session)
                if len(state) == TRIALS and (not retry or set(state.values()) == {"ok"}):
                    continue
                self.end(sweep, session, *retry)

    def end(self, sweep: Sweep, session: str, *more: object) -> None:
        """Run a sweep undisturbed to its end."""
        log = self.logs / f"{sweep.name}-undisturbed-{session}{'-retry' if more else ''}.log"
        code, said = sweep.node.run((*sweep.arguments, "--session", session, *more), log, OVER_S)
        self.seen.look()
        if code != 0 and (more or code != 3):
            self.wrong.append(f"{sweep.name} {session} {' '.join(map(str, more))}: exit code {code}: {said[-500:]}")

    def close(self) -> None:
        """End all of it."""
        for node in self.nodes:
            node.close()
        self.mounts.close()


@contextmanager
def storm(folder: Path, seed: int, late_s: int, say: Callable[[str], None]) -> Iterator[Storm]:
    """Prepared, and ended with all its processes."""
    made = Storm(folder, seed, late_s, say)
    try:
        made.prepare()
        yield made
    finally:
        made.close()


def _drawn(chance: random.Random, weights: dict[Any, int]) -> Any:
    return chance.choices([*weights], [*weights.values()])[0]


def _send(process: psutil.Process, number: signal.Signals) -> bool:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return False
    return True


def counts(strikes: list[Strike]) -> Counter[str]:
    """Strikes by role and signal."""
    return Counter(f"{strike.role} {strike.number.name}" for strike in strikes)
