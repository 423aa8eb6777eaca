"""Scaling efficiency of two points, how sure it is, and what the lost part went to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchsuite.results.render.tables import is_missing
from benchsuite.results.store.frames import MIN_REPEATS_FOR_INTERVAL

Rates = Mapping[str | None, Sequence[float]]
"""Samples per second of each repeat, by the allocation it ran in."""
Floats = NDArray[np.float64]
RESAMPLES = 4000
SEED = 20260101
PARTS = ("load", "communication", "imbalance", "rest")


@dataclass(frozen=True)
class Bounds:
    """Between what an efficiency lies."""

    low: float | None
    high: float | None
    kind: str | None
    """`95 %`: a confidence interval; `range`: of all pairs of repeats, too few for one; None: a single pair."""


UNBOUNDED = Bounds(None, None, None)


def pooled(rates: Rates) -> list[float]:
    """The repeats of all allocations."""
    return [rate for repeats in rates.values() for rate in repeats]


def efficiency(rates: Rates, baseline: Rates, ranks: int, baseline_ranks: int) -> float:
    """P(N) / (P(N0) N / N0), with P the median over repeats of samples_per_s.

    samples_per_s is that of all ranks together: global batch x steps over the counted windows, from the first rank's
    start to the last one's end, less what the prefetch queue lost meanwhile. So the definition is the same for weak
    scaling, where N ranks do N / N0 times the work per step, and for strong scaling, where they do the same work.
    """
    return float(np.median(pooled(rates)) / np.median(pooled(baseline))) * baseline_ranks / ranks


def bounds(rates: Rates, baseline: Rates, ranks: int, baseline_ranks: int) -> Bounds:
    """A 95 % interval of the efficiency from six repeats of both points on, in six allocations each, or where no
    allocation is named; below that its range, as few jobs do not tell by what jobs differ: over all pairs of repeats,
    or those of one allocation where both points were measured in the same ones.

    Percentiles of a two-stage bootstrap of the ratio of medians: allocations are drawn with replacement, and repeats
    within each (Davison & Hinkley, "Bootstrap Methods and their Application", 1997, 3.8), because repeats in one batch
    job share its nodes. Where both points were measured in the same allocations, the same ones are drawn for both, so
    that what an allocation does to both cancels; else each point's are drawn on their own. The seed is fixed.
    """
    here, there = pooled(rates), pooled(baseline)
    ideal = baseline_ranks / ranks
    names, same = list(rates), {*rates} == {*baseline}
    unnamed = same and {*rates} == {None}
    enough = unnamed or min(len(rates), len(baseline)) >= MIN_REPEATS_FOR_INTERVAL  # what nodes do differs by job
    if enough and min(len(here), len(there)) >= MIN_REPEATS_FOR_INTERVAL:
        generator = np.random.default_rng(SEED)
        first = _chosen(len(rates), generator)
        second = first if same else _chosen(len(baseline), generator)
        others = [baseline[name] for name in (names if same else baseline)]
        ratios = _medians([*rates.values()], first, generator) / _medians(others, second, generator)
        low, high = np.percentile(ratios, [2.5, 97.5]) * ideal
        return Bounds(float(low), float(high), "95 %")
    if len(here) * len(there) == 1:
        return UNBOUNDED
    pairs = [(rates[name], baseline[name]) for name in rates] if same else [(here, there)]
    found = [ratio for one, other in pairs for ratio in (min(one) / max(other), max(one) / min(other))]
    whole = float(np.median(here) / np.median(there))
    return Bounds(min(*found, whole) * ideal, max(*found, whole) * ideal, "range")


def _chosen(num_allocations: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Allocations drawn with replacement: (RESAMPLES, num_allocations)."""
    return generator.integers(num_allocations, size=(RESAMPLES, num_allocations))


def _medians(allocations: list[Sequence[float]], chosen: NDArray[np.int64], generator: np.random.Generator) -> Floats:
    """The median of each resample, (RESAMPLES,): of the chosen allocations, as many repeats of each as it has."""
    sizes = np.array([len(repeats) for repeats in allocations])
    values = np.full((len(allocations), sizes.max()), np.nan)
    for number, repeats in enumerate(allocations):
        values[number, : len(repeats)] = repeats
    wanted = sizes[chosen][..., None]
    picks = (generator.random((*chosen.shape, sizes.max())) * wanted).astype(np.int64)
    drawn = np.where(np.arange(sizes.max()) < wanted, values[chosen[..., None], picks], np.nan)
    return np.asarray(np.nanmedian(drawn.reshape(RESAMPLES, -1), axis=1), dtype=np.float64)


def losses(row: Mapping[str, Any], baseline: Mapping[str, Any], work: float, found: float) -> dict[str, float | None]:
    """What the lost share of the ideal throughput, 1 - `found` efficiency, went to; the parts add up to it.

    `row` and `baseline` are trials; `work` is the samples per rank and step of `row` over those of `baseline`: 1 in
    weak scaling, N0 / N in strong. Each part of the step should take `work` times as long as at the baseline; what it
    takes longer, over the step, is lost to it:

    load           waiting for input
    communication  what the least waiting rank has too: the wire
    imbalance      waiting for slower ranks, the mean over all
    rest           what is left: computation, copies, optimizer, bubbles, and what the rates of the windows have beyond
                   the mean step (samples that the prefetch queue lost). Also communication, where it was not measured

    None where a part was not measured; a single rank exchanges nothing.
    """
    step = row["step_s_mean"]
    parts: dict[str, float | None] = {}
    for name, cost in (("load", _load), ("communication", _wire), ("imbalance", _waiting)):
        here, there = cost(row), cost(baseline)
        parts[name] = None if not step or here is None or there is None else (here - work * there) / step
    if parts["communication"] is None and step:
        parts["communication"], parts["imbalance"] = _whole_exchange(row, baseline, work), None
    return parts | {"rest": 1 - found - sum(part for part in parts.values() if part is not None)}


def _load(row: Mapping[str, Any]) -> float | None:
    mean, slowest = row.get("load_mean_s"), row.get("load_s")
    return slowest if is_missing(mean) else mean


def _exchange(row: Mapping[str, Any]) -> float | None:
    value: float | None = row.get("communication_s")
    return 0.0 if value is None and row.get("spec.world_size") == 1 else value


def _wire(row: Mapping[str, Any]) -> float | None:
    """Exchange without waiting for stragglers."""
    value: float | None = row.get("communication_min_s")
    return 0.0 if value is None and row.get("spec.world_size") == 1 else value


def _waiting(row: Mapping[str, Any]) -> float | None:
    mean: float | None = row.get("imbalance_mean_s")
    if not is_missing(mean):
        return mean
    whole, wire = _exchange(row), _wire(row)
    return None if whole is None or wire is None else whole - wire


def _whole_exchange(row: Mapping[str, Any], baseline: Mapping[str, Any], work: float) -> float | None:
    """Exchange with the waiting in it, where the two cannot be told apart."""
    here, there = _exchange(row), _exchange(baseline)
    return None if here is None or there is None else (here - work * there) / float(row["step_s_mean"])
