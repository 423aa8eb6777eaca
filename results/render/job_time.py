"""Where the wall time of jobs under `benchsuite run` went, in words: of a run, of runs that are one job, by rank."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from statistics import median

from benchsuite.results.render.words import duration

Seconds = Mapping[str, float]
"""Of each part of the wall time (`benchsuite.inside.wall_time.WALL_PARTS`)."""
IN_WORDS = {
    "start_up": "start-up",
    "training": "training",
    "input": "waiting for input",
    "validation": "validation",
    "checkpoints": "checkpoints",
    "logging": "logging",
    "other": "between passes",
    "end": "after the last step",
}
HIDDEN_SHARE = 0.005
"""A part that takes less is not printed."""
DIFFERING_SHARE = 0.05
"""A rank that spends so much more of its time on a part than other ranks do is told."""


def where_it_went(*runs: Seconds, name: str | None = None) -> str:
    """Where the time of a job went, over all of its runs, the most first."""
    total_s = sum(seconds for parts in runs for seconds in parts.values())
    shares = {part: sum(parts.get(part, 0.0) for parts in runs) / total_s for part in IN_WORDS}
    ordered = sorted(shares, key=lambda part: -shares[part])
    told = [f"{IN_WORDS[part]} {_percent(shares[part])}" for part in ordered if shares[part] >= HIDDEN_SHARE]
    of = f" of {len(runs)} runs" if len(runs) > 1 else ""
    whose = f" of {name}" if name else ""
    return f"where the {duration(total_s)}{of}{whose} went: {', '.join(told)}"


def of_job(runs: Sequence[tuple[str, Seconds]], name: str | None = None) -> str:
    """Where the time of a job went, and how long lay between its runs, by when each began (ISO 8601) and its parts."""
    parts = [each for _, each in runs]
    began = [datetime.fromisoformat(started_at).timestamp() for started_at, _ in runs]
    took = [sum(each.values()) for each in parts]
    between_s = max(map(sum, zip(began, took, strict=True))) - min(began) - sum(took)
    text = where_it_went(*parts, name=name)
    return f"{text}; another {duration(between_s)} lay between the runs" if len(runs) > 1 and between_s > 0 else text


def differing_rank(ranks: Mapping[int, Seconds]) -> str | None:
    """The rank that spends the most more of its time on one part than other ranks do; None where none differs."""
    shares = {rank: _shares(parts) for rank, parts in ranks.items() if parts}
    beyond = {
        (rank, part): of_rank[part] - _of_others(shares, rank, part)
        for rank, of_rank in shares.items()
        for part in IN_WORDS
        if len(shares) > 1 and part != "training"  # those who wait for the rank seem to train
    }
    if not beyond or max(beyond.values()) < DIFFERING_SHARE:
        return None
    rank, part = max(beyond, key=lambda key: beyond[key])
    mine, others = _percent(shares[rank][part]), _percent(_of_others(shares, rank, part))
    return f"rank {rank} spent {mine} of its time on {IN_WORDS[part]}, other ranks {others}"


def _of_others(shares: Mapping[int, Seconds], rank: int, part: str) -> float:
    return median(each[part] for number, each in shares.items() if number != rank)


def _shares(parts: Seconds) -> Seconds:
    total_s = sum(parts.values())
    return {part: parts.get(part, 0.0) / total_s for part in IN_WORDS}


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"
