"""What a process that trains leaves in the run's folder while it trains: one file, valid at any moment."""

import json
import os
import socket
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .files import write_new
from .samples import RankSamples

MOST_STEPS = 1000
"""Single steps that are kept in it."""


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


def exchanges() -> bool:
    """Whether this process is one of several ranks."""
    dist: Any = sys.modules.get("torch.distributed")
    return bool(dist is not None and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)


def identity() -> tuple[int, int, str]:
    """This process's rank, the number of ranks, and what names their training; alone: 0 of 1."""
    alone = f"{socket.gethostname()}-{os.getpid()}"
    if not exchanges():
        return 0, 1, alone
    dist: Any = sys.modules["torch.distributed"]
    rank, ranks = dist.get_rank(), dist.get_world_size()
    where = "-".join(os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"))
    return rank, ranks, where


def thinned(samples: RankSamples) -> RankSamples:
    """The samples with fewer single steps."""
    return replace(samples, blocks=[block.thinned(MOST_STEPS) for block in samples.blocks])
