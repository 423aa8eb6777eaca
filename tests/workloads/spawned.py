"""Real processes as the ranks of a test."""

from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import numpy as np


def found_by_ranks(
    task: Callable[[int, Path], None], ranks: int, folder: Path, deadline_s: float
) -> list[dict[str, np.ndarray]]:
    """What each rank left in `rank<N>.npz`, after `task(rank, folder)` has ended well in all of them."""
    context = get_context("spawn")
    children = [context.Process(target=task, args=(rank, folder), daemon=True) for rank in range(ranks)]
    for child in children:
        child.start()
    for child in children:
        child.join(deadline_s)
        if child.is_alive():
            child.kill()
    assert [child.exitcode for child in children] == [0] * ranks
    return [dict(np.load(folder / f"rank{rank}.npz", allow_pickle=False)) for rank in range(ranks)]
