"""What a comparison and the gate say, as lines, tables and plain values."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchsuite.results.compare.compare import Compared, Comparison
from benchsuite.results.compare.environments import Difference, told_facts
from benchsuite.results.gate.alarms import MIN_NIGHTS
from benchsuite.results.gate.baseline import Check, Regression
from benchsuite.results.gate.cause import Cause, Changed
from benchsuite.results.gate.halved import Halved
from benchsuite.results.render.tables import ABSENT, Column, Row, is_missing
from benchsuite.results.render.words import and_, counted

UNITS = {"_s": (1e3, "ms"), "_bytes": (1e-6, "MB"), "_bytes_per_s": (1e-6, "MB/s"), "_j": (1, "J")}
COLUMNS = (
    Column("point", lambda row: str(row["label"]), right=False),
    Column("metric", lambda row: str(row["metric"]), right=False),
    Column("good is", lambda row: str(row["good"]), right=False),
    Column("A median", lambda row: in_unit(row["metric"], row["a"])),
    Column("B median", lambda row: in_unit(row["metric"], row["b"])),
    Column("B / A [95 %]", lambda row: _ratio(row)),
    Column("n", lambda row: f"{row['repeats_a']}+{row['repeats_b']}"),
    Column("verdict", lambda row: str(row["verdict"]), right=False),
    Column("why, caveats", lambda row: _remark(row), right=False, footnote=True),
)
METHOD = (
    "B / A: the median of the ratios of all pairs, a value of B over one of A (Hodges-Lehmann), not the ratio of the "
    "two medians beside it; [ ] its 95 % interval by ranks, [-] where values are too few. p: Mann-Whitney, by Holm "
    "corrected for {count} comparisons. worse, better: significant and beyond the practical threshold of the metric; "
    "same: certainly within it. Several sessions on a side count by their medians; repeats of one session share its "
    "night, and `check` knows by what nights differ."
)


def in_unit(metric: str, value: float) -> str:
    """A figure as it is printed."""
    if metric.endswith("_per_s") and not metric.endswith("_bytes_per_s"):
        return f"{value:.4g}"
    for ending in ("_bytes_per_s", "_bytes", "_s", "_j"):
        if metric.endswith(ending) or f"{ending}_" in metric:
            scale, unit = UNITS[ending]
            return f"{value * scale:.4g} {unit}"
    return f"{value:.4g}"


def comparison_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """One flat row for each metric of each point."""
    return [_row(one) for one in comparison.compared]


def _row(one: Compared) -> dict[str, Any]:
    return {
        "point": one.point,
        "label": one.label,
        "metric": one.metric.name,
        "good": "up" if one.metric.higher_is_better else "down",
        "a": one.one,
        "b": one.other,
        "unit": one.unit,
        "repeats_a": one.repeats[0],
        "repeats_b": one.repeats[1],
        "left_out": one.left_out,
        "ratio": one.ratio,
        "ratio_of_medians": one.ratio_of_medians,
        "ratio_low": one.low,
        "ratio_high": one.high,
        "p_corrected": one.p,
        "practical": one.metric.practical,
        "verdict": one.verdict,
        "why": one.why,
        "caveats": list(one.caveats),
    }


def _ratio(row: Row) -> str:
    ends = "[-]" if is_missing(row["ratio_low"]) else f"[{row['ratio_low']:.3f} {row['ratio_high']:.3f}]"
    return f"{row['ratio']:.3f} {ends}"


def _remark(row: Row) -> str:
    """Why it cannot be told, where the medians say something else than the pairs, and caveats."""
    apart = abs(math.log(row["ratio_of_medians"] / row["ratio"])) >= math.log1p(row["practical"])
    medians = f"the medians' ratio is {row['ratio_of_medians']:.3f}" if apart else None
    left_out = f"{counted(row['left_out'], 'doubtful repeat')} left out" if row["left_out"] else None
    return "; ".join(filter(None, [row["why"], medians, left_out, " ".join(row["caveats"])]))


def comparison_head(comparison: Comparison) -> str:
    """The sentence first: how many of each verdict."""
    verdicts = [one.verdict for one in comparison.compared]
    told = [f"{verdicts.count(name)} {name}" for name in ("worse", "better", "same", "can't tell")]
    points = len({one.point for one in comparison.compared})
    text = f"B against A: {', '.join(told)} ({counted(len(verdicts), 'comparison')} on {counted(points, 'point')})"
    apart = [f"{column.removeprefix('spec.')} is {a} in A and {b} in B" for column, (a, b) in comparison.apart.items()]
    return "; ".join([text, *apart])


def comparison_foot(comparison: Comparison) -> list[str]:
    """What differs in the environments, what was not compared, and how it was done."""
    lines = [f"environments: {facts(comparison.environment) or 'no fact differs'}"]
    for side, labels in (("A", comparison.only_one), ("B", comparison.only_other)):
        lines += [f"only in {side}: {', '.join(labels)}"] if labels else []
    lines += [f"refused: {text}" for text in comparison.refused]
    return [*lines, METHOD.format(count=len(comparison.compared))]


def facts(found: Sequence[Difference]) -> str:
    """Facts that differ, as `name one -> other`."""
    return ", ".join(told_facts([(one.fact, f"{_plain(one.one)} -> {_plain(one.other)}") for one in found]))


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Everything, for programs."""
    return {
        "comparisons": comparison_rows(comparison),
        "environment": [asdict(one) for one in comparison.environment],
        "only_in_a": list(comparison.only_one),
        "only_in_b": list(comparison.only_other),
        "refused": list(comparison.refused),
        "apart": {column: list(values) for column, values in comparison.apart.items()},
    }


def check_lines(check: Check) -> list[str]:
    """What the gate says: one line where nothing happened."""
    several = f"{len(check.sessions)} sessions, the newest {check.session}"
    named = several if len(check.sessions) > 1 else f"session {check.session}"
    series = f"{check.num_judged or 'no'} series of {named}, {counted(check.num_nights, 'night')}"
    if check.reason:
        head = f"nothing judged: {check.reason}"
    elif check.regressions:
        head = f"regression: {len(check.regressions)} of {series}"
        head += f"; besides, {_fallen(check)}, which rests on {_few_nights(check)}" if check.halved else ""
    elif check.halved:
        where = "" if check.num_judged else f" in {named}"
        head = f"{_fallen(check)}{where}, which rests on {_few_nights(check)}"
        head += f"; no regression in {series}" if check.num_judged else ""
    elif not check.num_judged and check.too_young and len(check.begun_anew) >= len(check.too_young):
        head = f"nothing judged: the baseline of {counted(len(check.begun_anew), 'point')} begins anew"
    elif not check.num_judged and check.too_young:
        before = counted(check.num_nights - 1, "night")
        worse = f"{len(check.compared)} series worse" if check.compared else "nothing is worse"
        head = (
            f"compared with {before} before: {worse}; judged alone after {counted(check.nights_missing, 'more night')}"
        )
    elif not check.num_judged and check.doubtful and not check.missing:
        points = counted(len(check.doubtful), "point")
        head = (
            f"nothing judged: {points} of {named} cannot be trusted; measure again, on nodes with nothing else running"
        )
    elif not check.num_judged:
        head = f"nothing judged: {series}"
    elif check.missing:
        have = f"{counted(len(check.missing), 'point')} {'has' if len(check.missing) == 1 else 'have'}"
        head = f"{have} no ok trial; no regression in {series}"
    else:
        head = f"ok: no regression in {series}"
    lines = [head]
    for found in check.regressions:
        lines += regression_lines(found)
        lines += [f"  judged in session {found.session}"] if found.session not in ("", check.session) else []
    for half in check.halved:
        lines += halved_lines(half)
        lines += [f"  judged in session {half.session}"] if half.session != check.session else []
    young = () if not check.num_judged and not check.alarms else check.too_young
    notes = (
        ("baseline begins anew, as what is measured is not what it was", _by_reason(check.begun_anew)),
        (f"not judged, needs {MIN_NIGHTS} sessions in the baseline, or more than a week old", young),
        ("worse than in so few nights, which is no alarm yet: look at it, or measure again", check.compared),
        ("not judged, doubtful", check.doubtful),
        ("no ok trial in this session", check.missing),
        ("sweep not run since the baseline", check.not_run),
        ("far outside its nights, one night so far", check.far),
    )
    told = [f"  {what}: {', '.join(labels)}" for what, labels in notes if labels]
    return [*lines, *told, *([f"  {check.replaced}"] if check.replaced else [])]


def _fallen(check: Check) -> str:
    whose = "its" if len(check.halved) == 1 else "their"
    return f"{counted(len(check.halved), 'point')} fell to half {whose} rate or less"


def _few_nights(check: Check) -> str:
    """How many nights the alarms of halved rates rest on at most."""
    return "one night" if max(found.nights_since for found in check.halved) == 1 else "few nights"


def _by_reason(points: Sequence[tuple[str, str]]) -> list[str]:
    """Labels of points, each reason once behind those that have it."""
    labels: dict[str, list[str]] = {}
    for label, reason in points:
        labels.setdefault(reason, []).append(label)
    return [f"{', '.join(found)} ({reason})" for reason, found in labels.items()]


def regression_lines(found: Regression) -> list[str]:
    """What, how much, since when, the likely layer, and what changed with it."""
    before, now = (in_unit(found.metric, value) for value in (found.before, found.now))
    lines = [
        f"{found.label}: {found.metric} {before} -> {now}, {found.worse:.1%} worse "
        f"[{found.worse_low:.1%} {found.worse_high:.1%}] since {found.since}{_day(found)}; "
        f"nights vary by {found.noise:.1%}"
    ]
    return [*lines, *_cause_lines(found.cause)]


def halved_lines(found: Halved) -> list[str]:
    """The same of a point at half its rate or less, with the nights that this rests on."""
    before, now = (in_unit(found.metric, value) for value in (found.before, found.now))
    line = (
        f"{found.label}: {found.metric} {before} -> {now}, {found.worse:.0%} worse in every repeat since "
        f"{found.since}{_day(found)}; this rests on {counted(found.nights_since, 'night')}, compared with "
        f"{counted(found.nights_before, 'night')} before"
    )
    return [line, *_cause_lines(found.cause)]


def _cause_lines(cause: Cause) -> list[str]:
    lines = []
    if cause.layer:
        parts = ", ".join(
            f"{one.part.removesuffix('_s')} {one.before_s * 1e3:.1f} -> {one.after_s * 1e3:.1f} ms"
            for one in cause.grown
        )
        lines.append(f"  likely layer: {cause.layer}: {parts} a step")
    if cause.verdict_before or cause.verdict_after:
        lines.append(f"  verdict: {cause.verdict_before or ABSENT} before, {cause.verdict_after or ABSENT} since")
    if cause.hosts:
        lines.append(f"  slow on {and_(cause.hosts)} only")
    ours = [one for one in cause.changed if one.fact in OURS]
    told = "; ".join(told_facts([(one.fact, _change(one)) for one in cause.changed if one.fact not in OURS]))
    lines.append(f"  changed with it: {told or 'no fact of the site that is recorded'}")
    if ours:
        changes = "; ".join(f"{one.fact} {_change(one)}" for one in ours)
        lines.append(
            f"  benchsuite itself changed: {changes}: measure with the version before to tell it from the site"
        )
    return lines


OURS = ("benchsuite", "commit")
"""Facts that are of this program and not of the site."""


def _day(found: Regression | Halved) -> str:
    day = found.since_date[:10]
    return "" if day == found.since else f" ({day})"


def _change(one: Changed) -> str:
    where = f", {and_(one.hosts)} only" if one.hosts else ""
    return f"{_plain(one.before)} -> {_plain(one.after)}{where}"


def _plain(value: Any) -> str:
    return "not told" if value is None else str(value)


def check_json(check: Check) -> dict[str, Any]:
    """Everything, for programs."""
    return {"regression": bool(check.alarms), **asdict(check)}


REGRESSION_COLUMNS = (
    Column("point", lambda row: str(row["label"]), right=False),
    Column("metric", lambda row: str(row["metric"]), right=False),
    Column("before", lambda row: in_unit(row["metric"], row["before"])),
    Column("now", lambda row: in_unit(row["metric"], row["now"])),
    Column("worse by [95 %]", lambda row: _worse(row)),
    Column("since", lambda row: _since(row), right=False),
    Column("likely layer", lambda row: str(row["cause"]["layer"] or ABSENT), right=False),
)


def regression_rows(check: Check) -> list[Row]:
    """A row for each regression, then one for each halved rate, which has the nights that it rests on."""
    of_few = [asdict(found) | {"worse_low": None, "worse_high": None, "noise": None} for found in check.halved]
    known = [asdict(found) | {"nights_since": None, "nights_before": None} for found in check.regressions]
    return [*known, *of_few]


def _worse(row: Row) -> str:
    ends = "[-]" if is_missing(row["worse_low"]) else f"[{row['worse_low']:.1%} {row['worse_high']:.1%}]"
    return f"{row['worse']:.1%} {ends}"


def _since(row: Row) -> str:
    """The session of the step; of a halved rate also the nights that this rests on."""
    nights = row["nights_since"]
    return str(row["since"]) if nights is None else f"{row['since']}, rests on {counted(nights, 'night')}"
