"""Real processes as the ranks of a test."""

from collections.abc import Callable
from multiprocessing import forkserver, get_context
from pathlib import Path

import numpy as np

IMPORTED = ["torch.distributed", "benchsuite.workloads.parallel.apply", "benchsuite.workloads.parallel.check"]
"""What takes ranks seconds to import is imported once, by the process that they are forked from."""


def found_by_ranks(
    task: Callable[[int, Path], None], ranks: int, folder: Path, deadline_s: float
) -> list[dict[str, np.ndarray]]:
    """What each rank left in `rank<N>.npz`, after `task(rank, folder)` has ended well in all of them."""
    context = get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    children = [context.Process(target=task, args=(rank, folder), daemon=True) for rank in range(ranks)]
    for child in children:
        child.start()
    for child in children:
        child.join(deadline_s)
        if child.is_alive():
            child.kill()
    forkserver._forkserver._stop()  # type: ignore[attr-defined]  # else other tests had a child that is not theirs
    assert [child.exitcode for child in children] == [0] * ranks
    return [dict(np.load(folder / f"rank{rank}.npz", allow_pickle=False)) for rank in range(ranks)]
