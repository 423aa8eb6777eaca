"""Scaling in words and tables: a series is headed by what its points share, and followed by what they rest on."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchsuite.results.compare.environments import told_facts
from benchsuite.results.compare.nights import DISTRUSTED
from benchsuite.results.render import job_time
from benchsuite.results.render.naming import PARALLELISM, WORKLOAD, mode_of, short_workloads
from benchsuite.results.render.tables import ABSENT, Column, Row, as_markdown, inline, is_missing, number, whole
from benchsuite.results.render.words import and_, counted
from benchsuite.results.report.jobs import parts_of
from benchsuite.results.scaling.efficiency import PARTS, pooled
from benchsuite.results.scaling.knee import input_knee, knee_line
from benchsuite.results.scaling.laws import Estimate, Fit
from benchsuite.results.scaling.series import FOLLOWS_RANKS, ScalingPoint, Series, laws
from benchsuite.results.store.frames import MIN_REPEATS_FOR_INTERVAL

IN_TITLE = (
    "workload",
    "variant",
    "data.source",
    "data.format",
    "data.loader",
    "data.cache",
    "data.staging",
    "precision",
)
LAST_TOLD = ("spec.measure.", "spec.data.root", "spec.data.staging_dir")
UNNAMED = (f"{PARALLELISM}.", "dataset.dataset_id")
"""What stands in a title only where nothing else tells two series apart."""
HIDDEN_IN_TITLE = ("storage", "none")
"""Words of a title that go without saying."""
IN_WORDS = {"rest": "computation and all else", "communication": "exposed communication", "load": "waiting for input"}
MAX_VALUES = 4
"""Values of a differing fact that are told."""
NOTICEABLE_SHARE = 0.005
"""The least share of the ideal rate that prints as 1 %."""


def titles(found: Sequence[Series]) -> list[str]:
    """Each series' kind, what its points share, and, where series differ in more, that as well.

    Where data lie and how long was measured only where nothing else tells series apart, and degrees of parallelism
    that the mode does not name only where that does not either.
    """
    whole, named = _apart(found), list[str]()
    for hidden in ((*LAST_TOLD, *UNNAMED), UNNAMED, ()):
        keys = [key for key in whole if not key.startswith(hidden)]
        named = [_title(series, found, keys) for series in found]
        if len({*named}) == len(named):
            break
    return named


def _apart(found: Sequence[Series]) -> list[str]:
    """Settings in which series differ, that no other word of their titles tells."""
    told = {*(f"spec.{name}" for name in IN_TITLE), PARALLELISM, *FOLLOWS_RANKS}
    keys = dict.fromkeys(key for one in found for key in one.example)
    named = [key for key in keys if (key.startswith("spec.") or key in ("session", *UNNAMED)) and key not in told]
    return [key for key in named if len({_comparable(one.example.get(key)) for one in found if _has(one, key)}) > 1]


def _has(series: Series, key: str) -> bool:
    """Whether a setting means something there: those of data where data are read."""
    return not key.startswith("spec.data.") or series.example.get("spec.data.source") == "storage"


def _comparable(value: Any) -> str:
    return repr(None if is_missing(value) else value)


def _title(series: Series, found: Sequence[Series], apart: Sequence[str]) -> str:
    batch = f"{series.batch} per rank" if series.kind == "weak" else f"{series.batch} in all"
    return " · ".join([series.kind, _shared_words(series, found, apart), batch])


def _shared_words(series: Series, found: Sequence[Series], apart: Sequence[str]) -> str:
    row = {**series.example, **_short_workload(series, found)}
    source = row.get("spec.data.source")
    names = [name for name in IN_TITLE if source == "storage" or not name.startswith("data.") or name == "data.source"]
    words = [str(row[f"spec.{name}"]) for name in names if not is_missing(row.get(f"spec.{name}"))]
    words = [word for word in words if word not in HIDDEN_IN_TITLE]
    words.append(_mode(series))
    for key in apart:
        if _has(series, key) and not is_missing(row.get(key)):
            words.append(f"{key.rpartition('.')[2]} {whole(row[key])}")
    return " ".join(filter(None, words))


def _short_workload(series: Series, found: Sequence[Series]) -> Row:
    known = [name for one in found if isinstance(name := one.example.get(WORKLOAD), str)]
    named = series.example.get(WORKLOAD)
    return {WORKLOAD: short_workloads(known)[named]} if isinstance(named, str) else {}


def _mode(series: Series) -> str:
    """The parallelism of most points in words; a single rank's `none` is its series' mode with one rank."""
    named = [mode_of(trial) for point in series.points for trial in point.trials]
    words = [word for word in named if word not in ("", "none")]
    return words[-1] if words else mode_of(series.example)


def basis(series: Series) -> str:
    """The baseline, why it is not a smaller one, and how often was measured."""
    if series.baseline_ranks is None:
        return "no baseline: no point has a rate"
    smaller = [point for point in series.points if point.ranks < series.baseline_ranks]
    words = f"baseline {counted(series.baseline_ranks, 'rank')}"
    if smaller:
        words += f" ({', '.join(counted(point.ranks, 'rank') + ': ' + point.status for point in smaller)})"
    measured = [point for point in series.points if point.trials]
    repeats = sorted({len(point.trials) for point in measured})
    words += f" · {counted(repeats[0], 'repeat')}" if len(repeats) == 1 else f" · {repeats[0]} to {repeats[-1]} repeats"
    allocations = {name for point in measured for name in point.rates if name is not None}
    return words + (f" in {counted(len(allocations), 'allocation')}" if allocations else "")


def answer(series: Series) -> str:
    """What a series says, in a sentence; and another where all repeats that it rests on are doubtful."""
    judged = [point for point in series.points if point.efficiency is not None and point.losses]
    if not judged:
        return "No efficiency: fewer than two numbers of ranks have a rate."
    text = _sentence(series, judged[-1])
    baseline = next(point for point in series.points if point.ranks == series.baseline_ranks)
    doubts = {str(point.ranks): found for point in (baseline, judged[-1]) if (found := _doubts(point))}
    if not doubts:
        return text
    names = ", ".join(sorted({name for found in doubts.values() for name in found}))
    return f"{text} Every repeat on {and_([*doubts])} ranks is doubtful: {names}."


def _doubts(point: ScalingPoint) -> frozenset[str]:
    """Caveats that forbid trust, where no repeat is free of them."""
    borne = [DISTRUSTED & {*trial["caveats"]} for trial in point.trials]
    return frozenset(name for names in borne for name in names) if all(borne) else frozenset()


def _sentence(series: Series, last: ScalingPoint) -> str:
    text = f"Efficiency {efficiency_cell(_point_row(series, last))} at {counted(last.ranks, 'rank')}"
    known = {name: share for name, share in last.losses.items() if share is not None}
    worst = max(known, key=lambda name: known[name])
    left = sum(point.left_out for point in series.points if point is last or point.ranks == series.baseline_ranks)
    text += f", without {counted(left, 'doubtful repeat')}" if left else ""
    if known[worst] < NOTICEABLE_SHARE:
        return f"{text}."
    if (last.efficiency or 0.0) >= 1:
        return f"{text}; nothing is lost."
    if set(known) == {"rest"}:
        return f"{text}; what is lost was not split: the parts of steps were not measured."
    return f"{text}; most of what is lost goes to {IN_WORDS.get(worst, worst)} ({known[worst] * 100:.0f} %)."


def point_rows(series: Series, title: str) -> list[dict[str, Any]]:
    """A flat row for each number of ranks; null for what is missing."""
    shared = {
        "series": title,
        "kind": series.kind,
        "session": series.example["session"],
        "batch": series.batch,
        "baseline_ranks": series.baseline_ranks,
    }
    return [shared | _point_row(series, point) for point in series.points]


def _point_row(series: Series, point: ScalingPoint) -> dict[str, Any]:
    rates = sorted(pooled(point.rates))
    ends = {"": point.efficiency, "_low": point.bounds.low, "_high": point.bounds.high}
    own = {f"{series.kind}_efficiency{end}": value for end, value in ends.items()}
    middle = len(rates) // 2
    return {
        "ranks": point.ranks,
        "status": point.status,
        "reason": point.reason,
        "samples_per_s": (rates[middle] + rates[-middle - 1]) / 2 if rates else None,
        "samples_per_s_min": rates[0] if rates else None,
        "samples_per_s_max": rates[-1] if rates else None,
        "repeats": len(rates),
        "allocations": len([name for name in point.rates if name is not None]) or None,
        **{f"{kind}_efficiency{end}": None for kind in ("strong", "weak") for end in ("", "_low", "_high")},
        **own,
        "interval": point.bounds.kind,
        **{f"lost_{name}": point.losses.get(name) for name in PARTS},
        "caveats": list(point.caveats),
    }


def efficiency_cell(row: Row) -> str:
    """The efficiency, its interval in brackets; in parentheses where it is only the range over repeats."""
    name = next(
        (f"{kind}_efficiency" for kind in ("strong", "weak") if not is_missing(row[f"{kind}_efficiency"])), None
    )
    if name is None:
        return ABSENT
    text = f"{row[name]:.2f}"
    if row["interval"] is None:
        return text
    ends = f"{row[f'{name}_low']:.2f} {row[f'{name}_high']:.2f}"
    return f"{text} [{ends}]" if row["interval"] == "95 %" else f"{text} ({ends})"


def _lost(name: str) -> Column:
    def cell(row: Row) -> str:
        share = row[f"lost_{name}"]
        return ABSENT if is_missing(share) else f"{share * 100 + 0.0:.0f} %".replace("-0 %", "0 %")

    return Column(f"lost to {name}" if name == PARTS[0] else name, cell)


def remark(row: Row) -> str:
    """Why there is no figure, and why one must not be trusted blindly."""
    status = "" if row["status"] == "ok" else row["status"]
    reason = row["reason"] or ""
    return " · ".join(filter(None, [": ".join(filter(None, [status, reason])), " ".join(row["caveats"])]))


COLUMNS = (
    Column("ranks", lambda row: str(row["ranks"])),
    Column("samples/s", lambda row: number(row, "samples_per_s", digits=1)),
    Column("efficiency", efficiency_cell),
    *map(_lost, PARTS),
    Column("remark", remark, right=False, footnote=True),
)


def fit_line(fit: Fit) -> str:
    """A law and its parameters with their intervals, or why there are none."""
    if fit.problem:
        return fit.problem
    words = ", ".join(_estimate(estimate) for estimate in fit.estimates)
    return f"{fit.law}: {words}" + (
        f" (misses by {fit.relative_error * 100:.1f} %)" if fit.relative_error is not None else ""
    )


def _estimate(estimate: Estimate) -> str:
    if estimate.name == "peak ranks" and estimate.value is None:
        return "no peak" + (f" below {estimate.low:.0f} ranks" if estimate.low else "")
    if estimate.value is None:
        return f"{estimate.name} {ABSENT}"
    value, low, high = (None if end is None else f"{end:.3g}" for end in (estimate.value, estimate.low, estimate.high))
    if low is None and high is None:
        return f"{estimate.name} {value}"
    ends = f"{low or '-inf'} {high or 'inf'}"
    return f"{estimate.name} {value} " + (f"[{ends}]" if estimate.kind == "95 %" else f"({ends})")


def notes(series: Series) -> list[str]:
    """What a series' figures rest on, and the laws fitted to them."""
    left_out = any(point.left_out for point in series.points)
    jobs = [item for point in series.points for item in point.rates.items()]
    shared = any(name is not None and len(repeats) > 1 for name, repeats in jobs)
    differing = told_facts([(fact, ", ".join(values[:MAX_VALUES])) for fact, values in series.differing.items()])
    fits = laws(series)
    return [
        *_certainty(series),
        *(["repeats left out as a caveat forbids trust: the others are free of it"] if left_out else []),
        *(f"mixed environments: {fact}" for fact in series.mixed),
        *([f"environments differ: {'; '.join(differing)}"] if differing else []),
        *_wall_time(series),
        *filter(None, [knee_line(series)]),
        *map(fit_line, fits),
        *([INDEPENDENT] if shared and any(fit.relative_error is not None for fit in fits) else []),
    ]


def _wall_time(series: Series) -> list[str]:
    """Where the time of the jobs of each number of ranks went, of commands under `benchsuite run`."""
    jobs = {point.ranks: [*filter(None, map(parts_of, point.trials))] for point in series.points}
    return [f"{counted(ranks, 'rank')}: {job_time.where_it_went(*runs)}" for ranks, runs in jobs.items() if runs]


def _certainty(series: Series) -> list[str]:
    """What stands in the brackets of its efficiencies."""
    kinds = {point.bounds.kind for point in series.points if point.efficiency is not None and point.losses}
    return [
        *(["[ ] 95 % interval of the ratio of medians, allocations and repeats resampled"] if "95 %" in kinds else []),
        *([f"( ) range over repeats{_within(series)}"] if "range" in kinds else []),
        *(["one repeat: nothing is said about how sure an efficiency is"] if None in kinds else []),
    ]


def caption(series: Series, title: str) -> str:
    """What a table's caption says: what was measured, and what its signs mean."""
    spread = ["± farthest repeat"] if any(len(point.trials) > 1 for point in series.points) else []
    return f"{title} · {basis(series)}. {'; '.join(['samples/s: median', *spread, *_certainty(series)])}."


INDEPENDENT = "laws: their intervals take repeats as independent, which those of one job are not: they are too narrow"


def _within(series: Series) -> str:
    """The number of jobs, where they are known and too few, and what an interval takes."""
    jobs = [{name for name in point.rates if name is not None} for point in series.points if point.trials]
    fewest = min(map(len, jobs), default=0)
    if 0 < fewest < MIN_REPEATS_FOR_INTERVAL:
        return f" within {counted(fewest, 'job')}, no interval: it takes {MIN_REPEATS_FOR_INTERVAL} jobs"
    return f", no interval: it takes {MIN_REPEATS_FOR_INTERVAL}, of as many jobs or the same"


LEGEND = (
    "efficiency = P(N) / (P(N0) N / N0), P the median of samples/s (± farthest repeat), N0 the baseline · lost: shares "
    "of the ideal rate, which add up to 1 - efficiency (below 0: gained)\n"
    "load: waiting for input · communication: exposed exchange of the rank that waits least for others · imbalance: "
    "waiting for slower ranks · rest: computation and all else, what is left over"
)


def markdown(found: Sequence[Series]) -> str:
    """All series as Markdown."""
    parts = []
    for series, title in zip(found, titles(found), strict=True):
        table = as_markdown(point_rows(series, title), COLUMNS)
        lines = "\n".join(f"- {inline(line)}" for line in (basis(series), *notes(series)))
        parts += [f"## {inline(title)}", inline(answer(series)), table, lines]
    return "\n\n".join([*parts, "\n".join(f"- {inline(line)}" for line in LEGEND.split("\n"))])


def as_objects(found: Sequence[Series]) -> list[Mapping[str, Any]]:
    """All series as plain nested values, for JSON."""
    return [
        {
            "series": title,
            "kind": series.kind,
            "session": series.example["session"],
            "batch": series.batch,
            "baseline_ranks": series.baseline_ranks,
            "mixed_environments": list(series.mixed),
            "differing_environments": {fact: list(values) for fact, values in series.differing.items()},
            "points": [_point_row(series, point) for point in series.points],
            "fits": [asdict(fit) for fit in laws(series)],
            "knee": asdict(input_knee(series)),
        }
        for series, title in zip(found, titles(found), strict=True)
    ]
