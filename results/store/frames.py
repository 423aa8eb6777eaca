"""Records as DataFrames: one row per trial, or per point."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from benchsuite.results.store.record import FIGURES, Kind, Record
from benchsuite.results.store.verdicts import VERDICT

Row = dict[str, Any]
Floats = npt.NDArray[np.float64]
MIN_REPEATS_FOR_INTERVAL = 6
FAILED = ("failed", "oom", "timeout")
STEP = (
    "load_s",
    "h2d_s",
    "forward_s",
    "backward_s",
    "communication_s",
    "bubble_s",
    "optimizer_s",
    "other_s",
    "step_s_mean",
)
JUDGED = ("evidence", "alternatives", "remedies", "gains")
NESTED = ("figures", "spec", "dataset", "env", "io_profile", "traces", "wall_time_s", *JUDGED)
"""Fields of a record that are no columns as they are."""
OF_A_TRIAL = ("trial_id", "record_id", "repeat", "caveats", "caveat_details")
IN_WORDS = {*VERDICT, "au_epoch_rule", "flops_convention", "mount_counter", "ceilings_record_id", "roof_source"}
"""Figures that are no numbers."""
ENDS = ("", "_min", "_max", "_low", "_high")
"""What a figure of a point has: its median, the range, and the interval."""
UNSTABLE_SPREAD = 0.10
"""Repeats whose throughput spreads by more than this share of its median are flagged `unstable`."""


def flatten(prefix: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """Nested mappings as dotted keys, below a prefix where one is given."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        name = f"{prefix}.{key}" if prefix else key
        if isinstance(item, dict):
            flat |= flatten(name, item)
        else:
            flat[name] = item
    return flat


DOTTED = ("spec", "dataset", "env", "wall_time_s")
"""Nested fields of a record whose keys are columns: `spec.batch_size`."""


def dotted(record: Record) -> dict[str, Any]:
    """The columns of a record's nested fields."""
    flat: dict[str, Any] = {}
    for name in DOTTED:
        flat |= flatten(name, getattr(record, name) or {})
    return flat


def row(record: Record) -> Row:
    """One flat row: identity and status, figures, then the columns of DOTTED."""
    return {**record.model_dump(exclude=set(NESTED)), **record.figures.model_dump(), **dotted(record)}


def frame_of(rows: list[Row] | Row) -> pd.DataFrame:
    """Return a frame of rows, or of columns by name.

    Its texts are Python's: pyarrow, where it is installed, takes no lone surrogates.
    """
    with pd.option_context("mode.string_storage", "python"):
        return pd.DataFrame(rows)


def record_frame(records: Sequence[Record], kind: Kind = "trial") -> pd.DataFrame:
    """Return one row per record of a kind; columns of the contract are there even when empty."""
    figures = FIGURES[kind].model_fields
    columns = [*Record.model_fields, *figures]
    frame = frame_of([row(record) for record in records])
    missing = [name for name in columns if name not in frame and name not in NESTED]
    frame = frame.reindex(columns=[*frame.columns, *missing])
    numeric = [name for name, field in figures.items() if field.annotation in (float | None, int | None)]
    frame[numeric] = frame[numeric].astype("float64")
    return frame


def median_interval(values: list[float]) -> tuple[float | None, float | None]:
    """A 95 % interval of the median from its order statistics; none below six values.

    The k-th smallest and k-th largest of n values hold the median with probability 1 - 2 P(Binomial(n, 1/2) < k)
    (David & Nagaraja, "Order statistics", 7.1).
    """
    count = len(values)
    if count < MIN_REPEATS_FOR_INTERVAL:
        return None, None
    ordered, skipped = sorted(values), _skipped(count)
    return ordered[skipped], ordered[-1 - skipped]


def _skipped(count: int) -> int:
    """How many values lie beyond an end of the interval of so many; 0 where there is none."""
    return 0 if count < MIN_REPEATS_FOR_INTERVAL else max(_binomial_quantile(0.025, count) - 1, 0)


@cache
def _binomial_quantile(share: float, count: int) -> int:
    """The least k with P(Binomial(count, 1/2) <= k) >= share: scipy.stats.binom.ppf, which takes 0.7 s to import."""
    from scipy.special import bdtr

    return next(k for k in range(count + 1) if bdtr(k, count, 0.5) >= share)


def middle(repeats: list[Row], name: str) -> Row:
    """The repeat with the median of a figure; of two the lower. Repeats that lack it come last."""
    return middles(repeats, name)[0]


def middles(repeats: list[Row], name: str) -> list[Row]:
    """The repeat, or two repeats, whose mean of a figure is its median; of repeats that all lack it the first."""
    known = sorted((row for row in repeats if _known(row[name])), key=lambda row: float(row[name]))
    return known[(len(known) - 1) // 2 : len(known) // 2 + 1] or repeats[:1]


def by_point(trials: pd.DataFrame) -> pd.DataFrame:
    """Median over the ok repeats of each point and session, in the order of the sweep.

    `<figure>_min` and `_max` give their range, `<figure>_low` and `_high` its 95 % interval from six repeats or six
    sessions on. The interval, or where there is none the range, reaches over what other sessions of the point gave, but
    for watched loops: repeats of one session agree too well.
    The step's parts are those of the repeat with the median step, of an even number the means of the middle two, so
    that the parts add up to the median. The verdict is the one that most repeats have, `bottleneck_repeats` of them;
    its evidence is that of the one with the median AU among them, of two the lower. `repeats` counts the ok repeats,
    `repeats_failed` the failed ones, and `caveat_repeats` those that have each caveat. `unstable` flags points whose
    throughput spreads by more than UNSTABLE_SPREAD of its median.
    """
    if trials.empty:
        return trials
    figures = dict.fromkeys(name for kind in FIGURES.values() for name in kind.model_fields if name in trials)
    numeric = [name for name in figures if pd.api.types.is_numeric_dtype(trials[name])]
    groups: dict[tuple[str, str], list[int]] = {}
    for place, key in enumerate(zip(trials["session"], trials["point_id"], strict=True)):
        groups.setdefault(key, []).append(place)
    repeats, status = [*groups.values()], [*trials["status"]]
    ok = [[place for place in places if status[place] == "ok"] for places in repeats]
    shown = [(usable or places)[0] for usable, places in zip(ok, repeats, strict=True)]
    points: dict[str, Any] = {str(name): trials[name].iloc[shown] for name in trials if name not in OF_A_TRIAL}
    values = trials[numeric].to_numpy("float64")
    found = _order_statistics(values, ok)
    unstable, agreed = _unstable(found, numeric), None
    if any(ok) and "au" in numeric:
        steps, judged, agreed = _judged(trials, ok)
        for name in STEP:
            column = values[:, numeric.index(name)]
            found[""][:, numeric.index(name)] = [column[places].mean() if places else math.nan for places in steps]
        given = [one if place is None else place for one, place in zip(shown, judged, strict=True)]
        points |= {name: trials[name].iloc[given] for name in VERDICT}
    _widen_over_sessions(found, points)
    for number, name in enumerate(numeric):
        points |= {f"{name}{end}": of_end[:, number] for end, of_end in found.items()}
    if agreed is not None:
        points["bottleneck_repeats"] = agreed
    points["repeats"] = [*map(len, ok)]
    points["repeats_failed"] = [sum(status[place] in FAILED for place in places) for places in repeats]
    caveats = [*trials["caveats"]]
    borne = [Counter(name for place in places for name in caveats[place]) for places in repeats]
    points["caveats"], points["caveat_repeats"] = [*map(sorted, borne)], [*map(dict, borne)]
    if unstable is not None:
        points["unstable"] = unstable
    by_name = {name: column.array if isinstance(column, pd.Series) else column for name, column in points.items()}
    return frame_of(by_name).sort_values("order", kind="stable").reset_index(drop=True)


def _unstable(found: Mapping[str, Floats], numeric: Sequence[str]) -> "npt.NDArray[np.bool_] | None":
    """Whether the throughput of each point spreads by more than UNSTABLE_SPREAD; None where none is measured."""
    if "samples_per_s" not in numeric:
        return None
    rate, low, high = (found[end][:, numeric.index("samples_per_s")] for end in ("", "_min", "_max"))
    return high - low > UNSTABLE_SPREAD * rate


def _judged(
    trials: pd.DataFrame, ok: Sequence[list[int]]
) -> tuple[list[list[int]], list[int | None], list[int | None]]:
    """Of each point the repeats with the median step, the one whose verdict it has, and how many have that."""
    told = trials[["step_s_mean", "au", "bottleneck"]].assign(place=range(len(trials))).to_dict(orient="records")
    steps, judged, agreed = list[list[int]](), list[int | None](), list[int | None]()
    for places in ok:
        repeats = [{str(name): value for name, value in told[place].items()} for place in places]
        agreeing = _agreeing(repeats) if repeats else []
        steps.append([row["place"] for row in middles(repeats, "step_s_mean")])
        judged.append(middle(agreeing, "au")["place"] if agreeing else None)
        agreed.append(len(agreeing) or None)
    return steps, judged, agreed


def _order_statistics(values: Floats, groups: Sequence[Sequence[int]]) -> dict[str, Floats]:
    """Median, range and interval of the known values of each group of rows, a row per group and a column per figure."""
    found = {end: np.full((len(groups), values.shape[1]), np.nan) for end in ENDS}
    of_size: dict[int, list[int]] = {}
    for number, places in enumerate(groups):
        of_size.setdefault(len(places), []).append(number)
    of_size.pop(0, None)
    for numbers in of_size.values():
        of_groups = values[np.array([groups[number] for number in numbers])]
        ordered = np.sort(of_groups, axis=1)  # unknown values, which are NaN, come last
        for end, of_end in zip(ENDS, _ends(ordered), strict=True):
            found[end][numbers] = of_end
    return found


def _ends(ordered: Floats) -> tuple[Floats, ...]:
    """The figures of `ENDS` along the second axis, in which values are sorted."""
    count = (~np.isnan(ordered)).sum(axis=1)

    def at(rank: Any) -> Floats:
        return np.take_along_axis(ordered, np.maximum(rank, 0)[:, None], axis=1)[:, 0]

    skipped = np.array([_skipped(number) for number in range(ordered.shape[1] + 1)])[count]
    is_enough = count >= MIN_REPEATS_FOR_INTERVAL
    low, high = (np.where(is_enough, at(rank), np.nan) for rank in (skipped, count - 1 - skipped))
    return (at((count - 1) // 2) + at(count // 2)) / 2, at(0 * count), at(count - 1), low, high


def _widen_over_sessions(found: dict[str, Floats], points: Mapping[str, Any]) -> None:
    """Have intervals reach over the medians of a point's sessions; from six sessions on over the interval of theirs.

    Ranges do so where there is no interval. Sessions of a watched loop stay apart: its script may be another in each.
    """
    groups: dict[str, list[int]] = {}
    for number, (point, sweep) in enumerate(zip(points["point_id"], points["sweep"], strict=True)):
        if sweep != "watch":
            groups.setdefault(point, []).append(number)
    several = [numbers for numbers in groups.values() if len(numbers) > 1]
    if not several:
        return
    rows, group = np.concatenate(several), np.repeat(np.arange(len(several)), [*map(len, several)])
    between = {end: of_end[group] for end, of_end in _order_statistics(found[""], several).items()}
    own = {end: of_end[rows] for end, of_end in found.items()}
    is_enough = ~np.isnan(between["_low"])
    is_interval = is_enough | ~np.isnan(own["_low"])
    for end, of_range, furthest in (("_low", "_min", np.fmin), ("_high", "_max", np.fmax)):
        others = np.where(is_enough, between[end], between[of_range])
        found[end][rows] = np.where(is_interval, furthest(own[end], others), own[end])
        reached = furthest(own[of_range], between[of_range])
        found[of_range][rows] = np.where(is_interval | np.isnan(own[of_range]), own[of_range], reached)


def _agreeing(repeats: list[Row]) -> list[Row]:
    """The repeats with the commonest verdict; of verdicts as common the ones with that of the median AU."""
    counts = Counter(str(row["bottleneck"]) for row in repeats)
    median_one = str(middle(repeats, "au")["bottleneck"])
    commonest = max(counts, key=lambda name: (counts[name], name == median_one))
    return [row for row in repeats if str(row["bottleneck"]) == commonest]


def _known(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))
