"""Whether ranks have more threads than there are cores, or share their cores with others, and how that is told."""

from benchsuite.spec import TrialSpec

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
    text = f"{ranks} ranks x {threads} thread{'s' if threads > 1 else ''} > {cores} cores{where}"
    if spec.data.source != "storage" or not spec.data.num_workers:
        return text
    return f"{text}; their {ranks * spec.data.num_workers} loader workers are not counted"
