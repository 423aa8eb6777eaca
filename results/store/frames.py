"""Records as DataFrames: one row per trial, or per point."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from statistics import median
from typing import Any

import pandas as pd

from benchsuite.results.store.record import FIGURES, VERDICT, Kind, Record

Row = dict[str, Any]
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
NESTED = ("figures", "spec", "dataset", "env", "io_profile", "traces")
"""Fields of a record that are no columns as they are."""
OF_A_TRIAL = ("trial_id", "record_id", "repeat", "caveats", "caveat_details")
IN_WORDS = {*VERDICT, "au_epoch_rule", "flops_convention", "mount_counter", "ceilings_record_id", "roof_source"}
"""Figures that are no numbers."""
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


def row(record: Record) -> Row:
    """One flat row: identity and status, figures, then spec.*, dataset.* and env.*."""
    own = record.model_dump(exclude=set(NESTED))
    return {
        **own,
        **record.figures.model_dump(),
        **flatten("spec", record.spec),
        **flatten("dataset", record.dataset or {}),
        **flatten("env", record.env),
    }


def frame_of(rows: list[Row]) -> pd.DataFrame:
    """Return a frame of rows. Its texts are Python's: pyarrow, where it is installed, takes no lone surrogates."""
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
    skipped = _binomial_quantile(0.025, count) - 1
    ordered = sorted(values)
    return ordered[max(skipped, 0)], ordered[-1 - max(skipped, 0)]


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
    groups: dict[tuple[str, str], list[Row]] = {}
    for entry in trials.to_dict(orient="records"):
        groups.setdefault((entry["session"], entry["point_id"]), []).append({str(k): v for k, v in entry.items()})
    found = [_point(repeats, numeric) for repeats in groups.values()]
    _widen_over_sessions(found, numeric)
    points = frame_of(found)
    return points.sort_values("order", kind="stable").reset_index(drop=True)


def _point(repeats: list[Row], numeric: list[str]) -> Row:
    """One point's row from those of its repeats."""
    ok = [row for row in repeats if row["status"] == "ok"]
    point = {name: value for name, value in (ok or repeats)[0].items() if name not in OF_A_TRIAL}
    for name in numeric:
        values = sorted(float(row[name]) for row in ok if _known(row[name]))
        point[name] = median(values) if values else math.nan
        point[f"{name}_min"], point[f"{name}_max"] = (values[0], values[-1]) if values else (math.nan, math.nan)
        point[f"{name}_low"], point[f"{name}_high"] = median_interval(values)
    if ok and "au" in numeric:
        steps, agreeing = middles(ok, "step_s_mean"), _agreeing(ok)
        judged = middle(agreeing, "au")
        point |= {name: _mean([row[name] for row in steps]) for name in STEP}
        point |= {name: judged[name] for name in VERDICT} | {"bottleneck_repeats": len(agreeing)}
    point["repeats"], point["repeats_failed"] = len(ok), sum(row["status"] in FAILED for row in repeats)
    borne = Counter(name for row in repeats for name in row["caveats"])
    point["caveats"], point["caveat_repeats"] = sorted(borne), dict(borne)
    if "samples_per_s" in numeric:
        rate, low, high = (point[name] for name in ("samples_per_s", "samples_per_s_min", "samples_per_s_max"))
        point["unstable"] = _known(rate) and high - low > UNSTABLE_SPREAD * rate
    return point


def _widen_over_sessions(points: list[Row], numeric: list[str]) -> None:
    """Have intervals reach over the medians of a point's sessions; from six sessions on over the interval of theirs.

    Ranges do so where there is no interval. Sessions of a watched loop stay apart: its script may be another in each.
    """
    groups: dict[str, list[Row]] = {}
    for point in points:
        if point["sweep"] != "watch":
            groups.setdefault(point["point_id"], []).append(point)
    for sessions in (group for group in groups.values() if len(group) > 1):
        for name in numeric:
            medians = [float(point[name]) for point in sessions if _known(point[name])]
            enough = len(medians) >= MIN_REPEATS_FOR_INTERVAL
            ends = median_interval(medians) if enough else (min(medians, default=None), max(medians, default=None))
            for point in sessions:
                known = [float(end) for end in (point[f"{name}_low"], point[f"{name}_high"]) if _known(end)]
                if enough or known:
                    known += [end for end in ends if end is not None]
                    point[f"{name}_low"], point[f"{name}_high"] = min(known), max(known)
                elif _known(point[f"{name}_min"]):
                    of_all = [point[f"{name}_min"], point[f"{name}_max"], *medians]
                    point[f"{name}_min"], point[f"{name}_max"] = min(of_all), max(of_all)


def _agreeing(repeats: list[Row]) -> list[Row]:
    """The repeats with the commonest verdict; of verdicts as common the ones with that of the median AU."""
    counts = Counter(str(row["bottleneck"]) for row in repeats)
    median_one = str(middle(repeats, "au")["bottleneck"])
    commonest = max(counts, key=lambda name: (counts[name], name == median_one))
    return [row for row in repeats if str(row["bottleneck"]) == commonest]


def _mean(values: list[Any]) -> float:
    """NaN where one is missing: sums of means would not be means of sums."""
    return sum(map(float, values)) / len(values) if all(map(_known, values)) else math.nan


def _known(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))
