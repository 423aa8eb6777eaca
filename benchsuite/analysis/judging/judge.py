"""What holds a loop back, by where the time of its steps goes: a verdict, its cause, and the numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchsuite.analysis.judging import lost_time
from benchsuite.analysis.judging.between_ranks import between_ranks
from benchsuite.analysis.judging.evidence import evidence_of
from benchsuite.analysis.judging.lost_time import COMPUTE, UNSEEN, Shares, Where, num_steps
from benchsuite.analysis.judging.setting import Setting
from benchsuite.analysis.judging.shares import of_step
from benchsuite.analysis.judging.thresholds import (
    COMMUNICATION_SHARE,
    HELD_BACK_AU,
    MAIN_SHARE,
    MOSTLY_KEPT_UP_AU,
    NAMED_STEPS,
)
from benchsuite.inside.samples import RankSamples

BETWEEN_RANKS = frozenset({"communication", "imbalance"})
"""Verdicts of what ranks lose by each other."""


Numbers = Mapping[str, float | int | str]


@dataclass(frozen=True)
class Found:
    """What holds a loop back."""

    where: Where
    evidence: Numbers
    alternatives: tuple[Where, ...] = ()


def judge(figures: Mapping[str, Any], ranks: Sequence[RankSamples], setting: Setting) -> Found:
    """What holds back a loop whose figures are not in doubt.

    Args:
        figures: of the loop.
        ranks: what each of them measured; the one that waits longest for its input is judged.
        setting: what else is known of it.
    """
    rank = lost_time.hungriest([*ranks])
    lost = of_step(figures, rank, setting)
    evidence = evidence_of(figures, rank, ranks, setting, lost)
    if between := between_ranks(figures, ranks):
        return Found(between, evidence)
    error = min(figures.get("au_error") or 0.0, 1 - HELD_BACK_AU)
    found = _chosen(lost, evidence, num_steps(rank, setting), error)
    return replace(found, where=Where("none")) if setting.emulated and found.where.verdict == "compute" else found


def _chosen(lost: Shares, evidence: Numbers, steps: int, error: float) -> Found:
    """The verdict and the cause, by shares of the step; what is lost may be less by `error`."""
    losses = {where: share for where, share in lost.items() if where not in (COMPUTE, UNSEEN)}
    between = sum(share for where, share in losses.items() if where.verdict in BETWEEN_RANKS)
    total, unseen = sum(losses.values()), lost.get(UNSEEN, 0.0)
    if total - between <= 1 - HELD_BACK_AU and between <= COMMUNICATION_SHARE:
        total = total - between
    if unseen > max(total, 1 - MOSTLY_KEPT_UP_AU):
        return Found(UNSEEN, evidence)
    if total - error <= 1 - HELD_BACK_AU:
        return Found(COMPUTE if steps >= NAMED_STEPS else Where("compute"), evidence)
    main = _main(losses)
    if steps < NAMED_STEPS:
        return Found(Where(main.where.verdict), evidence, main.alternatives or (main.where,))
    if total <= 1 - MOSTLY_KEPT_UP_AU:
        return Found(Where("mixed"), evidence, (COMPUTE, main.where))
    return Found(main.where, evidence, main.alternatives)


def _main(losses: Shares) -> Found:
    """The verdict that takes most of what is lost, and its cause; mixed where two take nearly as much."""
    verdicts: dict[str, float] = {}
    for where, share in losses.items():
        verdicts[where.verdict] = verdicts.get(where.verdict, 0.0) + share
    ordered = sorted(losses, key=lambda where: -losses[where])
    total, verdict = sum(losses.values()), max(verdicts, key=lambda name: verdicts[name])
    if verdicts[verdict] < MAIN_SHARE * total:
        second = next(where for where in ordered if where.verdict != ordered[0].verdict)
        return Found(Where("mixed"), {}, (ordered[0], second))
    inside = [where for where in ordered if where.verdict == verdict]
    if losses[inside[0]] >= MAIN_SHARE * verdicts[verdict]:
        return Found(inside[0], {})
    return Found(Where(inside[0].verdict), {}, tuple(where for where in inside[:2] if where.cause))
