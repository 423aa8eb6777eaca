"""What a process that trains leaves in the run's folder while it trains: one file, valid at any moment."""

import json
import os
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .collectives import exchanges
from .files import write_new
from .instruments import Instruments
from .loop import Loop
from .samples import RankSamples
from .wall_time import WallTime

Loader = tuple[str | None, int | None]
"""What kind of loader it is, and its number of workers."""
MOST_STEPS = 1000
"""Single steps that are kept in it."""
FIRST_APART_S, MOST_APART_S = 1.0, 10.0
"""How long after the first report the next one is made, and how long after each other they are later on."""
STEPS_FOR_AN_ANSWER = 30
"""Counted steps after which a report is made at once: it is the first that bears an answer."""


@dataclass(frozen=True)
class LoopFacts:
    """What is known of a loop beside its samples."""

    device: str
    num_passes: int
    num_uncounted: int
    num_replayed: int
    before_s: float
    """Seconds until steps began to count."""
    others_load_share: float
    """Share of its steps in which another watched loop of this thread waited for its input."""
    cores: int
    """Cores that this process may use."""
    loader: str | None
    num_workers: int | None


@dataclass(frozen=True)
class RankReport:
    """Who a process is, and what it has measured so far."""

    script: str
    rank: int
    world_size: int
    group: str
    """What all ranks of one training have in common, and others do not."""
    node: str
    pid: int
    parent: str
    """The `benchsuite run` that it is below."""
    began_at_s: float
    written_at_s: float
    """By the clock of its node, since 1970."""
    ended_by: str | None
    """`end`, or the exception that ended it; None while it runs."""
    loop: LoopFacts
    samples: RankSamples

    def write(self, folder: Path) -> None:
        """Put it in the place of the one before."""
        name = f"rank-{self.rank}-{self.node}-{self.pid}.json"
        write_new(folder / name, json.dumps(self, default=vars))


def identity() -> tuple[int, int, str]:
    """This process's rank, the number of ranks, and what names their training; alone: 0 of 1."""
    alone = f"{socket.gethostname()}-{os.getpid()}"
    if not exchanges():
        return 0, 1, alone
    dist: Any = sys.modules["torch.distributed"]
    rank, ranks = dist.get_rank(), dist.get_world_size()
    where = "-".join(os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"))
    return rank, ranks, where


def _facts_of(loop: Loop, loader: str | None, num_workers: int | None) -> LoopFacts:
    """What is known of a loop beside its samples."""
    return LoopFacts(
        loop.stamps.device,
        loop.num_passes,
        loop.num_uncounted,
        loop.num_replayed,
        loop.before_s,
        loop.others_load_s / (loop.steps.seconds or 1.0),
        len(os.sched_getaffinity(0)),
        loader,
        num_workers,
    )


def _thinned(samples: RankSamples) -> RankSamples:
    """The samples with fewer single steps."""
    return replace(samples, blocks=[block.thinned(MOST_STEPS) for block in samples.blocks])


class Reporter:
    """Writes what one process has measured, now and then: the thread that trains makes reports, the one that looks
    writes them."""

    def __init__(
        self,
        folder: Path,
        parent: str,
        script: str,
        instruments: Instruments,
        loader: Loader,
        wall: WallTime | None = None,
    ) -> None:
        self.folder, self._wall = folder, wall
        self._parent, self._script, self._loader, self._instruments = parent, script, loader, instruments
        self._began_at_s = time.time()
        self._among: tuple[int, int, str] | None = None
        """The rank among several, kept: their group may be gone when the last report is made."""
        self._report: RankReport | None = None
        self._written: RankReport | None = None
        self._due_s, self._apart_s = 0.0, FIRST_APART_S
        self.most_apart_s = MOST_APART_S
        self._has_enough = False

    def note_step(self) -> bool:
        """Renew the report, if it is time; called at the end of each step, in the thread that trains."""
        is_enough = not self._has_enough and self._instruments.loop.steps.num_steps >= STEPS_FOR_AN_ANSWER
        if time.perf_counter() < self._due_s and not is_enough:
            return False
        self._has_enough = self._has_enough or is_enough
        self._report = self._make(None)
        self._due_s = time.perf_counter() + self._apart_s
        self._apart_s = min(self.most_apart_s, 2 * self._apart_s)
        return True

    def write(self, _tally: object = None) -> None:
        """Write the report, if it is a new one. A disk that is full, or a folder that is gone, costs that report."""
        report = self._report
        if report is None or report is self._written:
            return
        looks = report.samples.looks
        if looks is not None:
            looks = replace(looks, inside=self._instruments.seen_inside())
        with suppress(OSError):
            replace(report, samples=replace(report.samples, looks=looks)).write(self.folder)
        self._written = report

    def end(self, ended_by: str) -> None:
        """Write the last report."""
        self._report = self._make(ended_by)
        self.write()

    def _make(self, ended_by: str | None) -> RankReport:
        rank, ranks, group = self._among or identity()
        self._among = (rank, ranks, group) if ranks > 1 else None
        return RankReport(
            script=self._script,
            rank=rank,
            world_size=ranks,
            group=group,
            node=socket.gethostname(),
            pid=os.getpid(),
            parent=self._parent,
            began_at_s=self._began_at_s,
            written_at_s=time.time(),
            ended_by=ended_by,
            loop=_facts_of(self._instruments.loop, *self._loader),
            samples=replace(
                _thinned(self._instruments.samples(rank)), wall_s=None if self._wall is None else self._wall.told()
            ),
        )
