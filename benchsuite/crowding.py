"""Whether the ranks of a trial have more threads than there are cores: what is counted, and what is told beside it."""

from benchsuite.spec import TrialSpec


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
