"""Strong and weak scaling: series of points that differ only in ranks, and their efficiencies."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from statistics import median
from typing import Any, Literal

import pandas as pd

from benchsuite.results.compare.environments import JOB_IDS, allocation_of, differences, facts_of, is_momentary
from benchsuite.results.compare.nights import DISTRUSTED
from benchsuite.results.render.tables import is_missing, rows
from benchsuite.results.scaling.efficiency import UNBOUNDED, Bounds, Rates, bounds, efficiency, losses, pooled
from benchsuite.results.scaling.laws import Fit, amdahl, gustafson, karp_flatt_fit, usl
from benchsuite.results.scaling.staging import like
from benchsuite.results.store.frames import UNSTABLE_SPREAD, middle
from benchsuite.results.store.store import StoreError

Row = Mapping[str, Any]
Kind = Literal["weak", "strong"]
KINDS: tuple[Kind, ...] = ("weak", "strong")
FOLLOWS_RANKS = frozenset(
    {
        "spec.world_size",
        "spec.nodes",
        "spec.ranks_per_node",
        "spec.batch_size",
        "spec.global_batch_size",
        "spec.parallelism.dp",
        "spec.measure.repeats",
        "spec.measure.timeout_s",
        "spec.measure.ceilings",
    }
)
"""What may differ between points of one series, besides what says where the trial ran."""
PLANNED = "env.planned_world_sizes"
ONE_RANK = ("none", "data_parallel")
"""Names of what `ddp` is with a single rank."""
WHOLE_WORLD = ("tp", "pp", "cp")
"""Modes in which all ranks work on the same samples."""
EXCLUDED = frozenset({"oversubscribed"})
"""Caveats that keep a trial out of efficiencies."""


@dataclass(frozen=True)
class ScalingPoint:
    """A number of ranks in a series."""

    ranks: int
    status: str
    """ok; or why there is no rate: failed, oom ..., `left out` by its caveats, `missing` where others have been."""
    reason: str | None = None
    trials: Sequence[Row] = ()
    """The repeats that count."""
    efficiency: float | None = None
    bounds: Bounds = UNBOUNDED
    losses: Mapping[str, float | None] = field(default_factory=dict)
    """Shares of the ideal throughput, by what they went to (`efficiency.losses`)."""
    caveats: tuple[str, ...] = ()
    left_out: int = 0
    """Repeats that do not count as a caveat forbids trust, while others are trustworthy."""

    @cached_property
    def rates(self) -> Rates:
        """Samples per second of the repeats, by allocation."""
        found: dict[str | None, list[float]] = {}
        for trial in self.trials:
            job = allocation_of({name: trial.get(f"env.{name}") for name in JOB_IDS})
            found.setdefault(job, []).append(float(trial["samples_per_s"]))
        return found


@dataclass(frozen=True)
class Series:
    """Points that differ only in their ranks, and in the batch that follows from them."""

    kind: Kind
    batch: int
    """Samples per step: of a data-parallel rank (weak), of all ranks (strong)."""
    points: tuple[ScalingPoint, ...]
    """The points by number of ranks."""
    baseline_ranks: int | None
    """The smallest number of ranks that has a rate; None where none has."""
    example: Row
    """A trial of it, for what its points share."""
    mixed: tuple[str, ...] = ()
    """Facts of the environment that are not the same everywhere, with their values."""
    differing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Facts that may differ, such as the commit or a mount, and do, with their values."""

    @cached_property
    def rates(self) -> dict[int, list[float]]:
        """Samples per second of each repeat, by number of ranks."""
        return {point.ranks: pooled(point.rates) for point in self.points if point.trials}


def data_ranks(row: Row) -> int:
    """Ranks that see samples of their own."""
    ranks, named = int(row["spec.world_size"]), row.get("spec.parallelism")
    if isinstance(named, str):
        return 1 if named in WHOLE_WORLD else ranks
    given = row.get("spec.parallelism.dp")
    others = [row.get(f"spec.parallelism.{name}") for name in WHOLE_WORLD]
    for degree in others:
        ranks //= 1 if is_missing(degree) else int(degree or 1)
    return ranks if is_missing(given) else int(given or 1)


def batches(row: Row) -> dict[Kind, int] | None:
    """Samples per step of a data-parallel rank (weak) and of all (strong); None where the trial does not say."""
    batch, whole = row.get("spec.batch_size"), row.get("spec.global_batch_size")
    if is_missing(row.get("spec.world_size")):
        return None
    if isinstance(batch, int | float) and not is_missing(batch):
        return {"weak": int(batch), "strong": int(batch) * data_ranks(row)}
    if isinstance(whole, int | float) and not is_missing(whole) and whole % data_ranks(row) == 0:
        return {"weak": int(whole) // data_ranks(row), "strong": int(whole)}
    return None


def find_series(trials: pd.DataFrame, mix_environments: bool = False) -> list[Series]:
    """Every weak and strong series among trials (a row each, as `ResultsStore.frame` gives), weak ones first.

    Weak: the batch of a rank is the same at all numbers of ranks; strong: that of all ranks together is. A series has
    at least two numbers of ranks. Trials of watched loops, which do not know their batch, are in none.

    Raises:
        StoreError: unlike environments within a series, and `mix_environments` is not set.
    """
    return series_among(rows(trials), mix_environments)


def series_among(trials: Iterable[Row], mix_environments: bool = False) -> list[Series]:
    """As `find_series`, among rows of trials."""
    alike: dict[object, list[Row]] = {}
    for row in trials:
        if batches(row) is not None:
            alike.setdefault(shared_settings(row), []).append(row)
    found = [candidate for kind in KINDS for group in alike.values() for candidate in _of_kind(kind, group)]
    ranks = _ranks_on_purpose(found)
    return [
        _series(kind, batch, group, _expected(kind, group, ranks), mix_environments) for kind, batch, group in found
    ]


def shared_settings(row: Row) -> object:
    """What the trials of a series have in common, as a key."""
    named = {"spec.parallelism": "ddp"} if row.get("spec.parallelism") in ONE_RANK else {}
    return like({**row, **named}, FOLLOWS_RANKS)


Candidate = tuple[Kind, int, list[Row]]


def _of_kind(kind: Kind, group: Sequence[Row]) -> Iterator[Candidate]:
    """The trials of a group by their batch, where they have several numbers of ranks."""
    by_batch: dict[int, list[Row]] = {}
    for row in group:
        by_batch.setdefault((batches(row) or {})[kind], []).append(row)
    for batch, found in by_batch.items():
        several = len({row["spec.world_size"] for row in found}) > 1
        grows = len({data_ranks(row) for row in found}) > 1
        if several and (grows or kind == "strong"):
            yield kind, batch, found


Sweep = tuple[Kind, str, str]
"""A kind of series of a sweep in a session."""


def _ranks_on_purpose(found: Sequence[Candidate]) -> dict[Sweep, set[int]]:
    """The numbers of ranks of each sweep's series that vary their kind of batch on purpose."""
    ranks: dict[Sweep, set[int]] = {}
    for kind, _, group in found:
        for row in group if _on_purpose(kind, group) else ():
            ranks.setdefault((kind, row["sweep"], row["session"]), set()).add(int(row["spec.world_size"]))
    return ranks


def _expected(kind: Kind, group: Sequence[Row], ranks: Mapping[Sweep, set[int]]) -> set[int]:
    """The numbers of ranks of all series that share a sweep with this one, and vary its kind of batch on purpose.

    And those that the sweep was to run besides, where its trials tell: it may have been interrupted.
    """
    if not _on_purpose(kind, group):
        return set()
    sweeps = {(kind, row["sweep"], row["session"]) for row in group}
    plans = [row.get(PLANNED) for row in group if not _preference(kind, row)[0]]
    planned = {int(count) for plan in plans if isinstance(plan, list) for count in plan}
    return planned.union(*(ranks.get(sweep, ()) for sweep in sweeps))


def _on_purpose(kind: Kind, group: Sequence[Row]) -> bool:
    """Whether trials give the batch that the kind keeps, and do not only happen to have the same."""
    return any(not _preference(kind, row)[0] for row in group)


def _series(kind: Kind, batch: int, group: list[Row], expected: set[int], mix: bool) -> Series:
    ranks_of = sorted(group, key=lambda row: (int(row["spec.world_size"]), _preference(kind, row)))
    by_ranks = {ranks: list(found) for ranks, found in groupby(ranks_of, lambda row: int(row["spec.world_size"]))}
    points = [_point(ranks, by_ranks.get(ranks, [])) for ranks in sorted(expected | {*by_ranks})]
    measured = [point for point in points if point.trials]
    counted = [trial for point in measured for trial in point.trials]
    mixed, differing = _unlike(counted)
    if mixed and not mix:
        raise StoreError(
            f"{kind} series of {group[0]['spec.workload']}, session {group[0]['session']}: its trials ran in unlike "
            f"environments: {mixed[0]}; choose with --where, or compare them nevertheless with --mix-environments"
        )
    if not measured:
        return Series(kind, batch, tuple(points), None, group[0])
    baseline = measured[0]
    judged = tuple(_judged(point, baseline, kind) for point in points)
    return Series(kind, batch, judged, baseline.ranks, baseline.trials[0], tuple(mixed), differing)


def _preference(kind: Kind, row: Row) -> tuple[bool, bool]:
    """Order points alike: first the one that says its batch as the kind does and its mode as the others."""
    given = "spec.batch_size" if kind == "weak" else "spec.global_batch_size"
    return is_missing(row.get(given)), row.get("spec.parallelism") in ONE_RANK


def _point(ranks: int, trials: Sequence[Row]) -> ScalingPoint:
    """One number of ranks, with the trials that count: of the first of its points that has any."""
    rated = [row for row in trials if row["status"] == "ok" and (row.get("samples_per_s") or 0) > 0]
    usable = [row for row in rated if not EXCLUDED & {*row["caveats"]}]
    usable = [row for row in usable if row["point_id"] == usable[0]["point_id"]]
    trusted = [row for row in usable if not DISTRUSTED & {*row["caveats"]}] or usable
    told = _caveats(trusted or rated)
    if usable:
        failed = [row for row in trials if row["point_id"] == usable[0]["point_id"] and row["status"] != "ok"]
        reasons = [f"{len(failed)} of {len(failed) + len(usable)} repeats {failed[0]['status']}"] if failed else []
        reasons += [_why_left_out(usable, trusted)] if len(trusted) < len(usable) else []
        left_out = len(usable) - len(trusted)
        return ScalingPoint(ranks, "ok", "; ".join(reasons) or None, trusted, caveats=told, left_out=left_out)
    if rated:
        return ScalingPoint(ranks, "left out", _why_excluded(rated[0]), caveats=told)
    if not trials:
        return ScalingPoint(ranks, "missing", "not in the store")
    last = trials[-1]
    return ScalingPoint(ranks, "no rate" if last["status"] == "ok" else str(last["status"]), last.get("reason"))


def _why_left_out(usable: Sequence[Row], trusted: Sequence[Row]) -> str:
    names = {name for row in usable for name in DISTRUSTED & {*row["caveats"]}}
    return f"{len(usable) - len(trusted)} of {len(usable)} repeats left out: {', '.join(sorted(names))}"


def _caveats(trials: Sequence[Row]) -> tuple[str, ...]:
    """Caveats of all repeats, and `unstable` where their rates spread by more than UNSTABLE_SPREAD of the median."""
    rates = [float(row["samples_per_s"]) for row in trials]
    unstable = rates and max(rates) - min(rates) > UNSTABLE_SPREAD * median(rates)
    return tuple(sorted({name for row in trials for name in row["caveats"]} | ({"unstable"} if unstable else set())))


def _why_excluded(row: Row) -> str:
    """The caveats that exclude a trial, with their arithmetic where the record has it."""
    names = [name for name in row["caveats"] if name in EXCLUDED]
    details = [detail for detail in row.get("caveat_details") or [] if detail.partition(":")[0] in EXCLUDED]
    return "; ".join(details or names)


def _judged(point: ScalingPoint, baseline: ScalingPoint, kind: Kind) -> ScalingPoint:
    """The point with its efficiency; the baseline's is 1 by definition."""
    if point is baseline:
        return replace(point, efficiency=1.0)
    if not point.trials:
        return point
    found = efficiency(point.rates, baseline.rates, point.ranks, baseline.ranks)
    between = bounds(point.rates, baseline.rates, point.ranks, baseline.ranks)
    row, first = (middle([dict(trial) for trial in p.trials], "step_s_mean") for p in (point, baseline))
    work = _work(row) / _work(first)
    lost = losses(row, first, work, found)
    return replace(point, efficiency=found, bounds=between, losses=lost)


def _work(row: Row) -> float:
    """Samples per rank and step."""
    return (batches(row) or {})["strong"] / float(row["spec.world_size"])


def _unlike(trials: Sequence[Row]) -> tuple[list[str], dict[str, tuple[str, ...]]]:
    """Facts that must be equal and are not, each once, with the first two values; and those that need not be.

    Cores may grow with the ranks, as they do where a job asks for so many per task.
    """
    mixed: dict[str, str] = {}
    differing: dict[str, dict[str, None]] = {}
    facts = [{name: value for name, value in facts_of(trial).items() if not is_momentary(name)} for trial in trials]
    for trial, other in zip(trials[1:], facts[1:], strict=True):
        if other == facts[0]:
            continue
        grown = trial["spec.world_size"] / trials[0]["spec.world_size"]
        for found in differences(facts[0], other):
            if found.identity and not (found.fact == "cores" and found.other == found.one * grown):
                at = _ranks(trials[0]), _ranks(trial)
                mixed.setdefault(found.fact, f"{found.fact} {found.one!r} at {at[0]}, {found.other!r} at {at[1]}")
            elif not found.identity and found.fact != "cores":
                values = ("not told" if value is None else str(value) for value in (found.one, found.other))
                differing.setdefault(found.fact, {}).update(dict.fromkeys(values))
    return [*mixed.values()], {fact: tuple(values) for fact, values in differing.items()}


def _ranks(row: Row) -> str:
    count = int(row["spec.world_size"])
    return f"{count} rank" if count == 1 else f"{count} ranks"


def laws(series: Series) -> list[Fit]:
    """Amdahl and Karp-Flatt of a strong series, Gustafson of a weak one, and USL; those without a result say why."""
    found = {p.ranks: (p.efficiency, p.bounds) for p in series.points if p.efficiency is not None}
    own = (
        [amdahl(series.rates), karp_flatt_fit(series.baseline_ranks or 1, found)]
        if series.kind == "strong"
        else [gustafson(series.rates)]
    )
    return [*own, usl(series.rates)]
