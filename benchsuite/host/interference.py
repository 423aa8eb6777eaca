"""Whether the devices of this host are clean before a trial, and whether it left nothing behind.

What is found is a caveat of the record, never a refusal; the facts behind it stand in its `env.moment`. A sweep looks
at its own host, agents at theirs.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.host.gpus import Gpu, gpus
from benchsuite.host.load import memory_bytes
from benchsuite.host.processes import PROC, Busy, Process, Table
from benchsuite.inside.clocks import throttle_count
from benchsuite.results.render.words import counted

Finding = tuple[str, str]
"""The name of a caveat, and what it is about."""
UNCLEAN, LEFT_BEHIND = "unclean_devices", "left_behind"
SHARED_MEMORY = Path("/dev/shm")
SETTLING_LOOKS, SETTLING_S = 3, 0.02
"""What is new in shared memory is looked at so often, and so far apart, before it is said to be left behind."""
LAUNCHERS = b"benchsuite.launch."
"""What stands in the command lines of processes that outlive a trial by design."""
MIN_WINDOW_S = 0.05
"""Two readings of CPU time lie at least so far apart; only a sweep's first trial has to wait for it."""
MIN_BUSY_CORES = 0.5
MIN_AVAILABLE_SHARE = 0.1
"""Share of the memory of the host, or of its control group, that should be available."""
MAX_UNOWNED_GPU_BYTES = 1_500_000_000
"""Held on a device without a process to be seen: a driver takes less, a process in another container more."""


@dataclass(frozen=True)
class Look:
    """This host as it was right before a trial."""

    table: Table
    busy: Sequence[Busy]
    gpus: Sequence[Gpu]
    shared: Mapping[str, int]
    """Files of this user in shared memory, with their bytes."""
    throttled: int | None
    memory: tuple[int, int]
    """Bytes available, and in all."""


class Guard:
    """Looks before and after each trial of one sweep."""

    def __init__(self) -> None:
        self._last = Table.now()
        self._look: Look | None = None

    def before(self, uses_gpus: bool) -> Look:
        """Look at the host; who is busy is told of the time since the last look."""
        time.sleep(max(0.0, self._last.at_s + MIN_WINDOW_S - time.monotonic()))
        table = Table.now()
        busy = table.busy_since(self._last, os.getpid(), MIN_BUSY_CORES)
        self._last = table
        self._look = Look(table, busy, gpus() if uses_gpus else [], shared_files(), throttle_count(), memory_bytes())
        return self._look

    def after(self) -> tuple[dict[str, Any], list[Finding]]:
        """Look again: the facts of both looks, and what is to be said of them."""
        look = self._look
        assert look is not None, "before() comes first"
        again = gpus() if look.gpus else []
        throttled = throttle_count()
        found = [(UNCLEAN, text) for text in (*unclean(look), *throttles(look, again, throttled))]
        found += [(LEFT_BEHIND, text) for text in left_behind(look, again)]
        return facts(look, again, throttled), found


def facts(look: Look, again: Sequence[Gpu], throttled: int | None) -> dict[str, Any]:
    """What is kept of two looks, whether it is remarkable or not."""
    meanwhile = None if look.throttled is None or throttled is None else throttled - look.throttled
    found: dict[str, Any] = {
        "busy_processes": [str(busy) for busy in look.busy],
        "busy_cores": sum((busy.cores for busy in look.busy), 0.0),
        "cpu_throttled_meanwhile": meanwhile,
    }
    if look.gpus:
        found["gpus"], found["gpus_after"] = ([gpu.facts() for gpu in each] for each in (look.gpus, again))
    return found


def unclean(look: Look) -> Iterator[str]:
    """What stood in the way before the trial began."""
    for busy in look.busy:
        yield f"CPU: {busy}"
    available, total = look.memory
    if available < MIN_AVAILABLE_SHARE * total:
        yield f"memory: {available / 1e9:.1f} of {total / 1e9:.1f} GB are available"
    for gpu in look.gpus:
        yield from (_holder(gpu, look.table, pid, held) for pid, held in gpu.processes if pid != os.getpid())
        used = gpu.memory_used_bytes or 0
        if not gpu.processes and used > MAX_UNOWNED_GPU_BYTES:
            yield f"GPU {gpu.index}: {used / 1e9:.1f} GB are held, by no process to be seen here"
        if gpu.held_back:
            yield f"GPU {gpu.index}: clocks held back: {', '.join(gpu.held_back)}"


def _holder(gpu: Gpu, table: Table, pid: int, held: int | None) -> str:
    """Who holds how much of a device; processes of other containers have no name here."""
    size = "memory" if held is None else f"{held / 1e9:.1f} GB"
    return f"GPU {gpu.index}: {table.processes.get(pid) or f'process {pid}'} holds {size}"


def throttles(look: Look, again: Sequence[Gpu], throttled: int | None) -> Iterator[str]:
    """Clocks that were held back during the trial."""
    if look.throttled is not None and throttled is not None and throttled > look.throttled:
        yield f"CPU: held back for heat {throttled - look.throttled} times during the trial"
    for before, gpu in zip(look.gpus, again, strict=False):
        new = [why for why in gpu.held_back if why not in before.held_back]
        if new:
            yield f"GPU {gpu.index}: clocks held back at the trial's end: {', '.join(new)}"


def left_behind(look: Look, again: Sequence[Gpu]) -> Iterator[str]:
    """Processes, shared memory and device memory that were not there before the trial."""
    table = Table.now()
    for process in leftover_processes(look.table, table):
        yield str(process)
    yield from (f"{SHARED_MEMORY / name} ({size / 1e6:.1f} MB)" for name, size in _left_shared(look.shared).items())
    for before, gpu in zip(look.gpus, again, strict=False):
        known = {os.getpid(), *(pid for pid, _ in before.processes)}
        yield from (_holder(gpu, table, pid, held) for pid, held in gpu.processes if pid not in known)


def leftover_processes(before: Table, now: Table) -> list[Process]:
    """What has begun since below this process and still runs, launchers aside; orphans of its sessions too."""
    me = os.getpid()
    ours = list(now.ours(me))
    old = {process.key for process in before.processes.values()}
    kept = {me} | _launchers(ours)
    own_session = os.getsid(0)
    sessions = {process.session for process in ours} - {own_session}
    inside = {process.pid for process in ours}
    orphans = [each for each in now.processes.values() if each.session in sessions and each.pid not in inside]
    return [process for process in [*ours, *orphans] if process.pid not in kept and process.key not in old]


def _launchers(ours: Sequence[Process]) -> set[int]:
    """Our children, the processes of launchers, and all between; ranks, forks of these, have their command lines."""
    me, parents = os.getpid(), {process.pid: process.parent for process in ours}
    commands = {process.pid: _command(process.pid) for process in ours}
    found = {pid for pid, parent in parents.items() if parent == me}
    for pid, command in commands.items():
        if LAUNCHERS in command and command != commands.get(parents[pid]):
            while pid in parents and pid != me:
                found.add(pid)
                pid = parents[pid]
    return found


def _command(pid: int) -> bytes:
    try:
        return (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b""


def shared_files(folder: Path = SHARED_MEMORY) -> dict[str, int]:
    """Files of this user in shared memory, with their bytes."""
    found: dict[str, int] = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                known = entry.stat(follow_symlinks=False)
                if known.st_uid == os.getuid():
                    found[entry.name] = known.st_size
    except OSError:
        return found
    return found


def _left_shared(before: Mapping[str, int]) -> dict[str, int]:
    """New files in shared memory that stay, and that no running process has mapped or open.

    Others' semaphores have a name for an instant, and a process may have begun after any one look: several looks.
    """
    left = {name: size for name, size in shared_files().items() if name not in before}
    for _ in range(SETTLING_LOOKS):
        if left:
            used = _files_in_use(Table.now())
            time.sleep(SETTLING_S)
            still = shared_files()
            left = {name: size for name, size in left.items() if name in still and name not in used}
    return left


def _files_in_use(table: Table) -> set[str]:
    """Names in shared memory that a running process has mapped or open."""
    return {name for pid in table.processes for name in (*_mapped(pid), *_opened(pid))}


def _mapped(pid: int) -> Iterator[str]:
    with suppress(OSError):
        for line in (PROC / str(pid) / "maps").read_text(errors="replace").splitlines():
            _, inside, name = line.rpartition(f"{SHARED_MEMORY}/")
            if inside:
                yield name


def _opened(pid: int) -> Iterator[str]:
    with suppress(OSError):
        for descriptor in (PROC / str(pid) / "fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                _, inside, name = os.readlink(descriptor).rpartition(f"{SHARED_MEMORY}/")
                if inside:
                    yield name


MAX_FOREIGN_SHARE = 0.15
"""Other processes may use this share of the cores before figures are flagged."""


def foreign_load(foreign_cores: float | None, cores: int) -> str | None:
    """The arithmetic, where other processes kept more of the cores busy than they may; else None."""
    if foreign_cores is None or foreign_cores <= MAX_FOREIGN_SHARE * cores:
        return None
    return f"other processes kept {foreign_cores:.1f} of {cores} cores busy"


def crowding(spec: TrialSpec, ranks: int, cores: int) -> str | None:
    """The arithmetic, where so many ranks of a resolved trial compute with more threads than cores; else None.

    Ranks that compute elsewhere, or only wait, crowd nobody. Loader workers are told and not counted: how much they
    compute depends on the data, and what they take from the computation is measured (`cpu_contention_fraction`).

    Args:
        spec: of the trial.
        ranks: on the node that is looked at.
        cores: that they may use there.
    """
    threads = spec.threads_per_rank or 1
    if spec.device != "cpu" or ranks * threads <= cores:
        return None
    where = " of a node" if ranks < spec.ranks else ""
    text = f"{ranks} ranks x {counted(threads, 'thread')} > {cores} cores{where}"
    if spec.data.source != "storage" or not spec.data.num_workers:
        return text
    return f"{text}; their {ranks * spec.data.num_workers} loader workers are not counted"
