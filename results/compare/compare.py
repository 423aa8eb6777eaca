"""A against B: trials of the same points, the ratio of each metric with its interval, and a verdict.

The ratio is the exponential of Hodges & Lehmann's estimate of the shift between the logarithms (the median of all
pairwise differences; 1963, Ann. Math. Stat. 34), its 95 % interval that of the ranks (Moses; Hollander & Wolfe,
"Nonparametric Statistical Methods", 4.3), exact for few repeats, p by Mann & Whitney (1947), and many comparisons are
corrected by Holm (1979, Scand. J. Stat. 6). Nothing is assumed of the distribution but that values are
independent: so where a side has several sessions, their medians are the values.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Literal

import numpy as np
from scipy.stats import mannwhitneyu, norm

from benchsuite.results.compare.environments import Difference, differences
from benchsuite.results.compare.metrics import Metric
from benchsuite.results.compare.nights import (
    NO_RESULT,
    counting,
    doubtful,
    former_key,
    is_result,
    key_without,
    loose_key,
    point_key,
    reader_of,
    was_resized,
)
from benchsuite.results.compare.settings import MOST_TOLD, in_words, settings_apart
from benchsuite.results.render.tables import is_missing
from benchsuite.results.render.words import counted, typed
from benchsuite.results.store.record import READ_BEFORE, Record
from benchsuite.results.store.store import StoreError

Verdict = Literal["better", "worse", "same", "can't tell"]
LEVEL = 0.05
MAX_EXACT = 400
"""Pairs up to which the ranks' distribution is counted; beyond it is nearly normal."""
MAX_REPEATS_TOLD = 200
PATH = "spec.path"
"""What `probe storage` measured: two paths may be chosen to be compared."""
OF_A_PATH, STORED_ON = ("spec.access",), ("data.file_system",)
"""What then may differ, too: how a file system lets itself be read, and which it is."""


@dataclass(frozen=True)
class Compared:
    """One metric of one point."""

    point: str
    """The point's key, the same in both."""
    label: str
    metric: Metric
    one: float
    """Median over the repeats of A."""
    other: float
    """Median over those of B."""
    unit: str
    """What is counted: repeats, or the medians of sessions where a side has several (repeats share their night)."""
    repeats: tuple[int, int]
    """How many of these in A and in B."""
    left_out: int
    """Repeats of both that do not count, as a caveat forbids trust, while others of their side are trustworthy."""
    ratio: float
    """B over A, by Hodges and Lehmann: the median of the ratios of all pairs, which is not that of the medians."""
    low: float | None
    high: float | None
    """95 % interval of the ratio, of this comparison alone; None where there are too few repeats for one."""
    p: float
    """Corrected for the number of comparisons."""
    verdict: Verdict
    why: str | None
    """Why it cannot be told, and what would."""
    caveats: tuple[str, ...]

    @property
    def ratio_of_medians(self) -> float:
        """B over A, by the two medians."""
        return self.other / self.one


@dataclass(frozen=True)
class Comparison:
    """All that was compared, and what was not."""

    compared: Sequence[Compared]
    only_one: Sequence[str]
    only_other: Sequence[str]
    """Labels of points that the other side lacks."""
    refused: Sequence[str]
    """Points whose batch was resized on one side, with the arithmetic, or which others read."""
    environment: Sequence[Difference] = field(default_factory=tuple)
    apart: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Columns of the spec in which A and B were chosen to differ, with what each has."""


def compare(
    one: Sequence[Record],
    other: Sequence[Record],
    metrics: Sequence[Metric],
    apart: Mapping[str, tuple[str, str]] | None = None,
    asked: tuple[str, str] | None = None,
) -> Comparison:
    """Compare the trials of B (`other`) with those of A on the points that both have.

    `apart`: columns of the spec (`spec.data.format`) in which they are to differ; points match on all else.
    `asked`: the filters over one store that chose A and B; without them an error gives none that would do better.

    Raises:
        StoreError: identity facts of their environments differ, or no point can be compared.
    """
    left_out = [*(apart or {}), *(OF_A_PATH if PATH in (apart or {}) else ())]
    first, second = _by_point(one, left_out), _by_point(other, left_out)
    both = [key for key in first if key in second]
    refused = _refused(first, second)
    if not both and refused:
        raise StoreError(f"nothing to compare: {refused[0]}")
    if not both:
        raise StoreError(
            f"A has {counted(len(first), 'point')} and B {len(second)}, and none is in both; points match on "
            f"their whole spec without its paths, and on the dataset's id{_differing(one, other, asked)}"
        )
    differing = _environments([first[key] for key in both], [second[key] for key in both])
    forbidden = [found for found in differing if found.identity and not (PATH in left_out and found.fact in STORED_ON)]
    if forbidden:
        told = "; ".join(f"{found.fact} is {found.one} in A and {found.other} in B" for found in forbidden)
        raise StoreError(f"A and B are not comparable: {told}; choose trials of like environments")
    raw = [found for key in both for metric in metrics if (found := _pair(key, first[key], second[key], metric))]
    if apart:
        raw = [replace(one, label=_both_labels(first[one.point], second[one.point])) for one in raw]
    return Comparison(
        compared=[_verdict(one, p, len(raw)) for one, p in zip(raw, holm([one.p for one in raw]), strict=True)],
        only_one=[_label(first[key]) for key in first if key not in second],
        only_other=[_label(second[key]) for key in second if key not in first],
        refused=refused,
        environment=differing,
        apart=apart or {},
    )


def _by_point(records: Sequence[Record], apart: Sequence[str]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    revised = {former_key(record) for record in records}
    for record in sorted(records, key=lambda record: (record.sweep, record.order)):
        if "traced" not in record.caveats and not (apart and point_key(record) in revised):
            found.setdefault(key_without(record, apart) if apart else point_key(record), []).append(record)
    return found


def _differing(one: Sequence[Record], other: Sequence[Record], asked: tuple[str, str] | None) -> str:
    """Settings in which all of A differs from all of B, and what to add to the filters, so that they are compared."""
    found = settings_apart(one, other)
    if not found:
        return ""
    told = f"; they differ in {in_words(found, ' against ')}"
    keys = [{key_without(record, [*found]) for record in side} for side in (one, other)]
    if asked is None or len(found) > MOST_TOLD or not keys[0] & keys[1]:
        return told
    added = [[f"{name}={sides[at][0]}" for name, sides in found.items()] for at in (0, 1)]
    chosen = [
        ",".join([text, *(each for each in more if each not in text.split(","))])
        for text, more in zip(asked, added, strict=True)
    ]
    return f"{told}: compare {typed(*chosen)}"


def _label(trials: Sequence[Record]) -> str:
    return trials[-1].label or trials[-1].point_id


def _both_labels(one: Sequence[Record], other: Sequence[Record]) -> str:
    """A point's label; what it is called in A and in B where the two are called by what they differ in."""
    return " -> ".join(dict.fromkeys((_label(one), _label(other))))


def _refused(first: Mapping[str, list[Record]], second: Mapping[str, list[Record]]) -> list[str]:
    """Points that would match, were the batch of one side not resized, revised, or read by another reader."""
    others = {loose_key(trials[0]): trials[0] for key, trials in second.items() if key not in first}
    twins = [(trials, others.get(loose_key(trials[0]))) for key, trials in first.items() if key not in second]
    found = [(_label(trials), _why_apart(trials[0], twin)) for trials, twin in twins if twin is not None]
    return [f"{label}: {why}" for label, why in found if why]


def _why_apart(one: Record, other: Record) -> str | None:
    """Why two records that differ in batch, revision or reader alone are not compared; None where they may be."""
    if one.revision != other.revision:
        newer = max(one, other, key=lambda each: (each.revision is not None, each.started_at))
        return f"it measures something else in A than in B: {newer.revision_reason or 'it was revised'}"
    readers = reader_of(one), reader_of(other)
    if readers[0] != readers[1]:
        what = f"read by {readers[0]} in A and by {readers[1]} in B, which is another measurement"
        return what if readers[0] == READ_BEFORE else f"{what}; data.reader: {readers[0]} measures what A did"
    if not was_resized(one) and not was_resized(other):
        return None
    batches = [each.spec.get("batch_size") or each.spec.get("global_batch_size") for each in (one, other)]
    told = [
        f"{'resized to' if was_resized(each) else 'requested:'} {batch}"
        for each, batch in zip((one, other), batches, strict=True)
    ]
    return f"its batch is {told[0]} in A and {told[1]} in B; a resized batch is never compared with another"


def _environments(one: Sequence[list[Record]], other: Sequence[list[Record]]) -> list[Difference]:
    """Facts in which all of A differs from all of B, point by point, each once; identity facts wherever they do."""
    found: dict[str, Difference] = {}
    for trials, others in zip(one, other, strict=True):
        for here, there in _unlike_pairs(trials, others):
            for difference in differences(here.env, there.env):
                found.setdefault(difference.fact, difference)
    return sorted(found.values(), key=lambda difference: (not difference.identity, difference.fact))


def _unlike_pairs(one: Sequence[Record], other: Sequence[Record]) -> Iterator[tuple[Record, Record]]:
    """The newest of each side, and each side's newest with its trials in which an identity fact is another."""
    yield one[-1], other[-1]
    for trials in (one, other):
        for trial in trials[:-1]:
            if any(difference.identity for difference in differences(trial.env, trials[-1].env)):
                yield trial, trials[-1]


def _pair(key: str, one: Sequence[Record], other: Sequence[Record], metric: Metric) -> Compared | None:
    """One comparison, not yet corrected; None where a side has no values."""
    several = any(len({trial.session for trial in trials}) > 1 for trials in (one, other))
    first, second = _values(one, metric, several), _values(other, metric, several)
    if not first or not second:
        return None
    low, high = interval(first, second)
    logs = np.log(first), np.log(second)
    shift = float(np.median(np.subtract.outer(logs[1], logs[0])))
    p = max(float(mannwhitneyu(first, second, alternative="two-sided").pvalue), least_p(len(first), len(second)))
    lost, borne = doubtful(one), doubtful(other)
    return Compared(
        point=key,
        label=_label(other),
        metric=metric,
        one=float(np.median(first)),
        other=float(np.median(second)),
        unit="sessions" if several else "repeats",
        repeats=(len(first), len(second)),
        left_out=sum(len(side) - len(_trusted(side, metric)) for side in (one, other)),
        ratio=math.exp(shift),
        low=low,
        high=high,
        p=p,
        verdict="can't tell",
        why=_no_results(one, other, metric)
        or (None if lost == borne else f"{', '.join(sorted(lost ^ borne))} on one side only"),
        caveats=tuple(sorted({name for trial in (*one, *other) for name in trial.caveats})),
    )


def _no_results(one: Sequence[Record], other: Sequence[Record], metric: Metric) -> str | None:
    """A sentence where every figure of a side is no result; else None."""
    sides = [name for name, side in (("A", one), ("B", other)) if not any(is_result(t, metric.name) for t in side)]
    return f"{NO_RESULT[metric.name]} in every repeat of {' and '.join(sides)}: no result" if sides else None


def _trusted(trials: Sequence[Record], metric: Metric) -> Sequence[Record]:
    """The trials that count; all, where none has a result."""
    return counting(trials, metric.name) or trials


def _values(trials: Sequence[Record], metric: Metric, several: bool) -> list[float]:
    """A value per repeat that counts, or the median of each session."""
    by_session: dict[str, list[float]] = {}
    for trial in _trusted(trials, metric):
        value = trial.figures.get(metric.name)
        if not is_missing(value) and value > 0:
            by_session.setdefault(trial.session, []).append(float(value))
    sessions = by_session.values()
    return [median(values) for values in sessions] if several else [value for values in sessions for value in values]


def interval(one: Sequence[float], other: Sequence[float]) -> tuple[float | None, float | None]:
    """The 95 % interval of the ratio B over A; None, None where the repeats are too few for it."""
    ratios = np.sort(np.divide.outer(np.array(other), np.array(one)).ravel())
    skipped = _skipped(len(one), len(other))
    if skipped < 1:
        return None, None
    return float(ratios[skipped - 1]), float(ratios[-skipped])


def _skipped(first: int, second: int) -> int:
    """The greatest k with P(U < k) <= LEVEL / 2: the k-th smallest and greatest of the pairs bound the interval."""
    pairs = first * second
    if pairs > MAX_EXACT:
        middle, width = pairs / 2, math.sqrt(pairs * (first + second + 1) / 12)
        return int(middle - norm.ppf(1 - LEVEL / 2) * width)
    return int((np.cumsum(rank_sums(first, second)) <= LEVEL / 2).sum())


def rank_sums(first: int, second: int) -> Any:
    """P(U = u) for u = 0 .. first x second under no difference (Mann & Whitney 1947, by their recursion)."""
    counts: dict[tuple[int, int], Any] = {}
    for n in range(first + 1):
        for m in range(second + 1):
            made = np.zeros(first * second + 1)
            if n == 0 or m == 0:
                made[0] = 1
            else:
                made[m:] += counts[n - 1, m][: len(made) - m]
                made += counts[n, m - 1]
            counts[n, m] = made
    return counts[first, second] / counts[first, second].sum()


def least_p(first: int, second: int) -> float:
    """The smallest p that so many repeats can give: all of one side above all of the other."""
    return 2 / math.comb(first + second, first)


def repeats_needed(comparisons: int) -> int:
    """Repeats a side from which one of so many comparisons can be significant."""
    return next(n for n in range(2, MAX_REPEATS_TOLD) if least_p(n, n) * comparisons <= LEVEL)


def holm(values: Sequence[float]) -> list[float]:
    """Holm's corrected p values, in the order given."""
    order = np.argsort(values, kind="stable")
    found, most = [0.0] * len(values), 0.0
    for position, index in enumerate(order):
        most = max(most, min(1.0, (len(values) - position) * values[int(index)]))
        found[int(index)] = most
    return found


def _verdict(one: Compared, p: float, comparisons: int) -> Compared:
    """Worse or better: significant after correction, and at least the practical change. Same: certainly less."""
    verdict: Verdict = "can't tell"
    why = one.why
    margin = math.log1p(one.metric.practical)
    inside = (
        one.low is not None and one.high is not None and math.log(one.low) > -margin and math.log(one.high) < margin
    )
    if why is None and p <= LEVEL and abs(math.log(one.ratio)) >= margin:
        verdict = "better" if (one.ratio > 1) == one.metric.higher_is_better else "worse"
    elif why is None and inside:
        verdict = "same"
    elif why is None and p <= LEVEL:
        why = f"real, but it is not certain that it is less than {one.metric.practical:.1%}"
    elif why is None:
        why = _what_would(one, comparisons, margin)
    return replace(one, p=p, verdict=verdict, why=why)


def _what_would(one: Compared, comparisons: int, margin: float) -> str:
    """What would tell: enough repeats for significance, or else for an interval as narrow as what matters."""
    needed, fewest = repeats_needed(comparisons), min(one.repeats)
    if least_p(*one.repeats) * comparisons > LEVEL:
        has = f"has {one.repeats[0]} and {one.repeats[1]}"
        return f"needs {needed} {one.unit} a side for {comparisons} comparisons, {has}"
    if one.low is None or one.high is None:
        return f"needs more than {fewest} {one.unit} a side"
    width = math.log(one.high / one.low) / 2
    shift = abs(math.log(one.ratio))
    if (one.low > 1 or one.high < 1) and shift >= margin:
        wider = norm.ppf(1 - LEVEL / 2 / comparisons) / norm.ppf(1 - LEVEL / 2)
        wanted = max(fewest + 1, math.ceil(fewest * (wider * width / shift) ** 2))
        return f"not significant among {comparisons} comparisons; {wanted} {one.unit} a side would be, if B / A stays"
    wanted = math.ceil(fewest * (width / margin) ** 2)
    if wanted > MAX_REPEATS_TOLD:
        return f"too noisy: {MAX_REPEATS_TOLD} {one.unit} a side would not tell {one.metric.practical:.1%}"
    return f"about {wanted} {one.unit} a side would tell {one.metric.practical:.1%}"
