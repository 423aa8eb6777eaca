"""Which of a sweep's choices is best, by what they were measured to be, and which cannot be told apart.

Choices are compared that differ in nothing but what may be chosen: points of the same workload in the same sizes on as
many ranks of the same device (by cost on any number, by FLOP/s in any sizes). Two are told apart where Welch's t (1947,
Biometrika 34) of the logarithms of their repeats says so at 95 %; how many more repeats would is what that test needs
to find the difference that was seen with probability 0.8.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from benchsuite.results.render.naming import sizes_of
from benchsuite.results.render.tables import Row, is_above_one, is_missing, is_number
from benchsuite.results.render.words import counted
from benchsuite.results.report.readers import choices as choices_of_readers
from benchsuite.results.store.record import MAX_AU

LEVEL, POWER = 0.975, 0.8
MAX_REPEATS_TOLD = 50
"""Choices that even so many more repeats would not tell apart are alike."""
DISTURBING = {
    "foreign_load": "other processes used the cores",
    "not_steady": "the rate changed while it was measured",
    "counters_disagree": "counts of bytes disagree",
    "not_read": "readers handed on bytes that nobody read",
}
"""Caveats of numbers that are shown and get no rank where most repeats have them, as the rest of a sentence."""
RANKS = 2
"""Where ranks stand in what choices have in common."""


COST = "samples/s a device"


class Measure(NamedTuple):
    """What choices are ranked by; more is better."""

    unit: str
    worse: str
    """What a lesser one is by so many per cent."""
    digits: int | None = None
    """Decimals; three digits in all where None."""
    figure: str = "samples_per_s"
    """The figure of a record from which it follows."""

    def of(self, row: Row) -> float | None:
        """The measure of a point or trial; None where it has none."""
        value: Any = row.get(self.figure)
        ranks: Any = row.get("spec.world_size") if self.unit == COST else 1
        if not all(is_number(one) and 0 < one < math.inf for one in (value, ranks)):
            return None
        return None if self.unit == "AU" and value > MAX_AU else float(value) / ranks

    def told(self, value: float) -> str:
        """A value as it is printed."""
        return (
            f"{value:.{self.digits}f}" if self.digits is not None else f"{value:.3g}" if value < 100 else f"{value:.0f}"
        )


MEASURES: Mapping[str, Measure] = {
    "samples_per_s": Measure("samples/s", "slower"),
    "au": Measure("AU", "lower", 2, "au"),
    "cost": Measure(COST, "dearer"),
    "tflops": Measure("TFLOP/s a device", "lower", figure="tflops_per_device"),
}
"""Measures by the values of a sweep file's `rank_by`."""


@dataclass(frozen=True)
class Choice:
    """One point among those it is compared with."""

    row: Row
    value: float | None
    low: float | None
    high: float | None
    values: tuple[float, ...]
    """The value of each repeat."""
    why_unranked: str | None = None
    rank: int | None = None
    """1 is the best; those that cannot be told from it are 1 too."""
    against_best: float | None = None
    told_apart: bool = True
    """Whether it is told apart from the best."""
    more_repeats: int | None = None
    """Repeats that would tell it from the best; None where it is told apart, or MAX_REPEATS_TOLD would not."""

    @property
    def label(self) -> str:
        """The choice's name in tables."""
        return str(self.row["label"])


@dataclass(frozen=True)
class Contest:
    """Choices that may be compared, the best first, those without a rank last."""

    title: str
    measure: Measure
    choices: tuple[Choice, ...]

    @property
    def ranked(self) -> list[Choice]:
        """The choices that have a rank."""
        return [choice for choice in self.choices if choice.rank is not None]


def ranked_rows(points: Sequence[Row], found: Sequence[Contest]) -> list[Row]:
    """Points with their rank among comparable choices: by contest and rank where there are any, others after them."""
    rows: dict[int, Row] = {}
    for contest in found:
        for choice in contest.choices if len(contest.choices) > 1 else ():
            rows[id(choice.row)] = {
                **choice.row,
                "rank": choice.rank,
                "against_best": choice.against_best,
                "told_apart": choice.told_apart,
                "not_ranked": choice.why_unranked,
            }
    places = {place: number for number, place in enumerate(rows)}
    ordered = sorted(points, key=lambda row: places.get(id(row), len(places)))
    return [rows.get(id(row), row) for row in ordered]


def contests(points: Sequence[Row], trials: Sequence[Row], rank_by: str) -> list[Contest]:
    """Every set of comparable choices of a section, in the order of the sweep.

    Args:
        points: of the section.
        trials: their repeats.
        rank_by: a name of MEASURES.
    """
    measure = MEASURES[rank_by]
    ok = [row for row in points if row["status"] == "ok" and not is_missing(row.get("samples_per_s"))]
    reading = [row for row in ok if row.get("spec.data.source") == "storage"]
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in reading or ok:
        groups.setdefault(_alike(row, rank_by), []).append(row)
    repeats: dict[str, list[Row]] = {}
    for row in trials:
        if row["status"] == "ok":
            repeats.setdefault(str(row["point_id"]), []).append(row)
    return [
        _contest(
            _title(key, list(groups)), measure, [_choice(row, measure, repeats) for row in choices_of_readers(rows)]
        )
        for key, rows in groups.items()
    ]


def _alike(row: Row, rank_by: str) -> tuple[Any, ...]:
    """What choices have in common: workload, variant, ranks (but for cost), sizes (but for FLOP/s), and the device."""
    names = ("spec.workload", "spec.variant", *(() if rank_by == "cost" else ("spec.world_size",)))
    common = (row.get(name) for name in names)
    return *common, "" if rank_by == "tflops" else sizes_of(row), row.get("spec.device")


def _title(key: tuple[Any, ...], keys: Sequence[tuple[Any, ...]]) -> str:
    """What tells one set of choices from the others, in words."""
    words = []
    for place, value in enumerate(key):
        if len({other[place] for other in keys}) > 1:
            is_ranks = place == RANKS and is_number(value)
            words.append(counted(int(value), "rank") if is_ranks else str(value))
    return " ".join(words)


def _choice(row: Row, measure: Measure, repeats: Mapping[str, Sequence[Row]]) -> Choice:
    """A point, which has no rank where most of its repeats were disturbed, or where it was not measured at all."""
    value, own = measure.of(row), repeats.get(str(row.get("point_id"))) or [row]
    known = tuple(found for found in map(measure.of, own) if found is not None)
    disturbed = [one for one in own if {*DISTURBING} & {*one["caveats"]}]
    why = [name for name in DISTURBING if name in row["caveats"]] if 2 * len(disturbed) > len(own) else []
    if value is None:
        why = ["AU is not measurable" if is_above_one(row) else f"no {measure.unit}"]
    low, high = (_end(row, measure, end) for end in (("low", "min"), ("high", "max")))
    return Choice(row, value, low, high, known, ", ".join(why) or None)


def _end(row: Row, measure: Measure, ends: Sequence[str]) -> float | None:
    """An end of the interval, of the range where there are too few repeats for one; None with one repeat."""
    value = measure.of(row)
    if value is None or (row.get("repeats") or 1) < 2:
        return None
    name = measure.figure
    found = next((row[f"{name}_{end}"] for end in ends if not is_missing(row.get(f"{name}_{end}"))), None)
    return None if found is None else float(found) / row[name] * value


def _contest(title: str, measure: Measure, choices: Sequence[Choice]) -> Contest:
    """Rank choices: those that cannot be told from the best share its rank, the others follow by their values."""
    trusted = sorted((one for one in choices if not one.why_unranked), key=lambda one: -(one.value or 0.0))
    ranked: list[Choice] = []
    for place, one in enumerate(trusted):
        best = trusted[0]
        apart = place > 0 and are_apart(best.values, one.values)
        rank = 1 if not apart else place + 1
        share = (one.value or 0.0) / (best.value or math.inf)
        more = None if apart or not place else repeats_needed(best.values, one.values)
        ranked.append(replace(one, rank=rank, against_best=share, told_apart=apart or not place, more_repeats=more))
    return Contest(title, measure, (*ranked, *(one for one in choices if one.why_unranked)))


def are_apart(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether Welch's t tells the logarithms of two choices' repeats apart; never with a single repeat of one."""
    if min(len(one), len(other)) < 2:
        return False
    (mean, variance), (other_mean, other_variance) = (_moments(values) for values in (one, other))
    of_mean, of_other = variance / len(one), other_variance / len(other)
    if of_mean + of_other == 0:
        return mean != other_mean
    freedom = (of_mean + of_other) ** 2 / (of_mean**2 / (len(one) - 1) + of_other**2 / (len(other) - 1))
    return abs(mean - other_mean) > _student(freedom, LEVEL) * math.sqrt(of_mean + of_other)


def _student(freedom: float, level: float) -> float:
    """The quantile of Student's t."""
    from scipy.special import stdtrit  # a quarter of a second to import, which a table of single repeats does without

    return float(stdtrit(freedom, level))


def repeats_needed(one: Sequence[float], other: Sequence[float]) -> int | None:
    """How many more repeats of each would tell two choices apart, if they differ as they do; None where too many."""
    fewest = min(len(one), len(other))
    if fewest < 2:
        return 3 - fewest
    (mean, variance), (other_mean, other_variance) = (_moments(values) for values in (one, other))
    for count in range(fewest + 1, fewest + MAX_REPEATS_TOLD + 1):
        freedom = 2 * count - 2
        needed = (_student(freedom, LEVEL) + _student(freedom, POWER)) * math.sqrt((variance + other_variance) / count)
        if abs(mean - other_mean) > needed:
            return count - fewest
    return None


def _moments(values: Sequence[float]) -> tuple[float, float]:
    """Mean and variance of the logarithms."""
    logarithms = [math.log(value) for value in values]
    mean = sum(logarithms) / len(logarithms)
    return mean, sum((value - mean) ** 2 for value in logarithms) / (len(logarithms) - 1)
