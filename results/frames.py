"""Records as DataFrames: one row per trial, or per point."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from scipy.stats import binom

from results.record import Figures, TrialRecord

MIN_REPEATS_FOR_INTERVAL = 6
FAILED = ("failed", "oom", "timeout")
STEP = (
    "load_s",
    "h2d_s",
    "forward_s",
    "backward_s",
    "exchange_s",
    "bubble_s",
    "update_s",
    "step_s_mean",
)
VERDICT = ("bottleneck", "bottleneck_evidence")
UNSTABLE_SPREAD = 0.10
"""Repeats whose throughput spreads by more than this share of its median are flagged `unstable`."""


def flatten(prefix: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """Nested mappings as dotted keys."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        name = f"{prefix}.{key}"
        flat.update(flatten(name, item) if isinstance(item, Mapping) else {name: item})
    return flat


def row(record: TrialRecord) -> dict[str, Any]:
    """One flat row: identity and status, figures, then spec.*, dataset.* and env.*."""
    own = record.model_dump(exclude={"figures", "spec", "dataset", "env"})
    return {
        **own,
        **record.figures.model_dump(),
        **flatten("spec", record.spec),
        **flatten("dataset", record.dataset or {}),
        **flatten("env", record.env),
    }


def trial_frame(records: list[TrialRecord]) -> pd.DataFrame:
    """One row per record; columns of the contract are there even when empty."""
    columns = [*TrialRecord.model_fields, *Figures.model_fields]
    frame = pd.DataFrame([row(record) for record in records])
    missing = [name for name in columns if name not in frame and name not in ("figures", "spec", "dataset", "env")]
    frame = frame.reindex(columns=[*frame.columns, *missing])
    numeric = [name for name, field in Figures.model_fields.items() if field.annotation in (float | None, int | None)]
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
    skipped = int(binom.ppf(0.025, count, 0.5)) - 1
    ordered = sorted(values)
    return ordered[max(skipped, 0)], ordered[-1 - max(skipped, 0)]


def middle(repeats: pd.DataFrame, name: str) -> "pd.Series[Any]":
    """The repeat with the median of a figure; of two the lower."""
    return repeats.sort_values(name).iloc[(max(int(repeats[name].count()), 1) - 1) // 2]


def by_point(trials: pd.DataFrame, figures: list[str]) -> pd.DataFrame:
    """Median over the ok repeats of each point and session, in the order of the sweep.

    `<figure>_min` and `_max` give their range, `<figure>_low` and `_high` its 95 % interval from six repeats on.
    The step and its parts are those of the repeat with the median step (of two the faster), so that the parts add up;
    the verdict and its evidence are those of the repeat with the median AU. `repeats` counts the ok repeats and
    `repeats_failed` the failed ones. `unstable` flags points whose throughput spreads by more than UNSTABLE_SPREAD of
    its median.
    """
    if trials.empty:
        return trials
    rows = []
    for _, group in trials.groupby(["session", "point_id"], sort=False):
        ok = group[group["status"] == "ok"]
        first = (ok if len(ok) else group).iloc[0]
        entry = first.drop(labels=["trial_id", "record_id", "repeat", "caveats", "caveat_details"]).to_dict()
        entry["repeats"], entry["repeats_failed"] = len(ok), int(group["status"].isin(FAILED).sum())
        entry["caveats"] = sorted({name for names in group["caveats"] for name in names})
        for name in figures:
            if pd.api.types.is_numeric_dtype(trials[name]):
                entry[name] = ok[name].median()
                entry[f"{name}_min"], entry[f"{name}_max"] = ok[name].min(), ok[name].max()
                entry[f"{name}_low"], entry[f"{name}_high"] = median_interval(ok[name].dropna().tolist())
        if len(ok):
            entry |= middle(ok, "step_s_mean")[list(STEP)].to_dict() | middle(ok, "au")[list(VERDICT)].to_dict()
        rate = entry["samples_per_s"]
        spread = (entry["samples_per_s_max"] - entry["samples_per_s_min"]) / rate if rate else 0.0
        entry["unstable"] = bool(spread > UNSTABLE_SPREAD)
        rows.append(entry)
    return pd.DataFrame(rows).sort_values("order", kind="stable").reset_index(drop=True)
