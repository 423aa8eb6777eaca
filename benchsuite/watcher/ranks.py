"""Ranks of a watched training: what one measured, and how rank 0 hears it, by the key-value store where they met.

No collective is called: a rank that watches alone, or ends early, hangs nobody and disturbs no other message.
"""

import json
import sys
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchsuite.contract.rank_samples import parse_result
from benchsuite.inside.samples import RankSamples

WAIT_S = 10.0
"""How long rank 0 waits for ranks that are still in their loops."""
POLL_S = 0.02
MAX_STEPS_TOLD = 1000
"""Single steps of each of several ranks, which one process and the store of the training must hold."""


@dataclass
class Ranks:
    """This rank among the others; alone where torch.distributed is not in use."""

    rank: int = 0
    world_size: int = 1
    _store: Any = None
    _prefix: str = ""

    def meet(self, name: str) -> None:
        """Find the others, if there are any, and say that this rank watches."""
        dist: Any = sys.modules.get("torch.distributed")
        if self._store is not None or dist is None or not dist.is_available() or not dist.is_initialized():
            return
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        if self.world_size == 1:
            return
        try:
            store = dist.distributed_c10d._get_default_store()
            number = store.add(f"benchsuite-watch/{name}/{self.rank}", 1)
            self._prefix = f"benchsuite-watch/{name}/{number}"
            store.set(f"{self._prefix}/here/{self.rank}", "yes")
            self._store = store
        except (AttributeError, RuntimeError, ValueError):  # a backend without a store, or a group that is gone
            self._store = None

    def gathered(self, mine: RankSamples, wait: bool) -> tuple[list[RankSamples] | None, tuple[int, ...]]:
        """Return what all ranks left, on rank 0 (None on the others), and the ranks that have not told."""
        if self.rank:
            if self._store is not None:
                self._tell(mine)
            return None, ()
        deadline_s = time.monotonic() + (WAIT_S if wait else 0.0)
        found, missing = [_thinned(mine) if self.world_size > 1 else mine], []
        for rank in range(1, self.world_size):
            other = self._heard(rank, deadline_s) if self._store is not None else None
            if other is None:
                missing.append(rank)
            else:
                found.append(other)
        return found, tuple(missing)

    def _tell(self, mine: RankSamples) -> None:
        try:
            self._store.set(f"{self._prefix}/{self.rank}", json.dumps(asdict(_thinned(mine))))
        except RuntimeError:  # rank 0 has ended, and its store with it
            self._store = None

    def _heard(self, rank: int, deadline_s: float) -> RankSamples | None:
        """What another rank has told; None where it does not watch, or not in time."""
        try:
            if not self._store.check([f"{self._prefix}/here/{rank}"]):
                return None
            key = f"{self._prefix}/{rank}"
            while not self._store.check([key]):
                if time.monotonic() > deadline_s:
                    return None
                time.sleep(POLL_S)
            return parse_result(self._store.get(key))
        except RuntimeError:
            return None


def _thinned(samples: RankSamples) -> RankSamples:
    return replace(samples, blocks=[block.thinned(MAX_STEPS_TOLD) for block in samples.blocks])
