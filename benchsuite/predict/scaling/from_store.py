"""Curves to predict from: the scaling series of a store, and tables of ranks and times."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from benchsuite.predict.scaling import exchange, input_wait
from benchsuite.predict.scaling.curve import Curve, Point
from benchsuite.predict.scaling.exchange import Probed
from benchsuite.predict.scaling.input_wait import INPUT_BOUND, figure, input_bytes
from benchsuite.predict.scaling.nodes import placement_of
from benchsuite.predict.scaling.series import MIN_SCALES
from benchsuite.predict.scaling.table_input import (
    DISAGREE,
    FOLLOWS_RANKS,
    data_ranks,
    families,
    samples_per_step,
    words,
)
from benchsuite.results.render.tables import is_missing
from benchsuite.results.render.words import counted
from benchsuite.results.render.words import rate as in_rate
from benchsuite.results.scaling import knee
from benchsuite.results.scaling.efficiency import pooled
from benchsuite.results.scaling.series import ScalingPoint, Series
from benchsuite.results.scaling.series import data_ranks as ranks_with_samples
from benchsuite.results.store.frames import middle

CONTENDED = 0.05
"""Share of a step spent runnable but not running, from which on cores are short."""
SATURATED = 0.75
"""Input is limited where its rate grows by less than this share of what ranks grow by."""
FROM_MEMORY = 0.5
"""Share of the bytes from which on the storage is not what limits input."""


def from_series(series: Series, title: str, probed: Probed, limit: float | None, staged: bool) -> Curve:
    """The curve of a store's series; `limit` is what the shared file system gives, bytes/s, where its user knows it.

    Nothing in it is of ranks beyond those of the series: `upto` makes it again from fewer.
    """
    measured = [point for point in series.points if point.trials]
    points = tuple(_point(series, point) for point in measured)
    row, mode, copied = series.example, exchange.mode_of(series), knee.staged(series)
    like, left_out = exchange.comparable(series, probed)
    wire = _middle(measured[-1]) if measured else {}
    share = ranks_with_samples(measured[-1].trials[0]) / measured[-1].ranks if measured else 1.0
    microbatches = figure(row, "spec.parallelism.microbatches")
    buckets, bucket_s = exchange.buckets_of_ddp(wire, like) if mode == "ddp" else ((), None)
    collectives = None if mode == "ddp" else exchange.exchange_of(mode, wire, like)
    probed_between = (collectives or bucket_s) is not None and any(key.nodes > 1 for key in like)
    placement = placement_of([trial for point in measured for trial in point.trials])
    has_input = knee.reads_source(series) and any(p.io_bytes_per_s for p in points)
    shown = {point.ranks: _middle(point) for point in measured}
    seen = knee.input_knee(series).limit_bytes_per_s or _saturated(points)
    of_readers = bool(measured) and _by_readers(measured[-1])
    of_storage = None if of_readers or staged or copied else seen

    def upto(most: float) -> Curve:
        fewer = tuple(point for point in series.points if point.ranks <= most)
        return from_series(replace(series, points=fewer), title, probed, limit, staged)

    curve = Curve(
        title,
        series.kind,
        series.batch,
        points,
        share,
        pipeline=mode == "pp",
        flushes=row.get("spec.parallelism.schedule") == "gpipe",
        microbatches=None if microbatches is None else int(microbatches),
        exchange=collectives,
        placement=replace(placement, probed=probed_between),
        buckets=buckets,
        bucket_s=bucket_s,
        sent_share=exchange.sent_share(row) or 1.0,
        has_input=has_input,
        caveats=_caveats(series),
        shared_bytes_per_s=of_storage if limit is None or staged or copied else limit,
        seen_bytes_per_s=of_storage,
        readers_bytes_per_s=seen if of_readers else None,
        staged="trials" if copied else "asked" if staged else None,
        notes=(
            *exchange.in_words(mode, row),
            *left_out,
            *(input_wait.notes(shown) if has_input else ()),
            *_contention(shown),
        ),
        refit_on_subset=upto,
    )
    return curve if limit is None else replace(curve, notes=(*curve.notes, *_without_effect(curve, limit)))


def _by_readers(point: ScalingPoint) -> bool:
    """Whether cores that read and decode limit input: by the verdicts of most trials, or as memory gave the bytes."""
    client = sum(
        trial.get("bottleneck") in ("preprocessing", "client_cpu")
        or (figure(trial, "cache_hit_fraction") or 0.0) > FROM_MEMORY
        for trial in point.trials
    )
    return bool(2 * client > len(point.trials))


def _without_effect(curve: Curve, limit: float) -> list[str]:
    """Why a limit that its user gave changes nothing."""
    if curve.staged:
        return [f"the limit of {in_rate(limit)} changes nothing: input comes from copies on each node"]
    if not input_bytes(curve):
        return [f"the limit of {in_rate(limit)} changes nothing: no bytes of samples were counted"]
    return []


def _caveats(series: Series) -> tuple[str, ...]:
    """What trials that count are marked with, and numbers of ranks that do not count, in words."""
    trials = [trial for point in series.points for trial in point.trials]
    marks = Counter(str(name) for trial in trials for name in trial.get("caveats") or ())
    found = [f"{name} in {count} of {len(trials)} trials" for name, count in marks.most_common()]
    unstable = [str(point.ranks) for point in series.points if point.trials and "unstable" in point.caveats]
    without = [point for point in series.points if not point.trials]
    return (
        *found,
        *([f"unstable at {', '.join(unstable)} ranks"] if unstable else []),
        *(f"{point.ranks} ranks {point.status}{f' ({point.reason})' if point.reason else ''}" for point in without),
    )


def _contention(rows: Mapping[int, Mapping[str, Any]]) -> Sequence[str]:
    """Say that computation waited for cores: it grows with the ranks that share them, by no law that is modelled."""
    kept = ("cpu_contention_fraction", "threads_contention_fraction")
    waited = {ranks: max(figure(row, name) or 0.0 for name in kept) for ranks, row in rows.items()}
    most = max(waited, key=lambda ranks: waited[ranks], default=0)
    if not most or waited[most] < CONTENDED:
        return ()
    return (
        f"cores were short: at {counted(most, 'rank')} {waited[most]:.0%} of the step was spent waiting for one; where "
        "more ranks share the same cores computation takes longer than predicted",
    )


def _point(series: Series, point: ScalingPoint) -> Point:
    """Seconds per step are samples over the rate, as efficiencies count."""
    samples = series.batch if series.kind == "strong" else series.batch * ranks_with_samples(point.trials[0])
    row = _middle(point)
    step = row.get("step_s_mean")
    seconds = tuple(samples / rate for rate in pooled(point.rates))
    load = figure(row, "load_mean_s", "load_s") or 0.0
    others = input_wait.late_s(row) or 0.0
    parts = _parts(row, step, load, others, point.ranks)
    read, backward = figure(row, "io_bytes_per_s"), figure(row, "backward_s")
    return Point(point.ranks, seconds, load + others, parts, read, backward, figure(row, "au"))


def _middle(point: ScalingPoint) -> Mapping[str, Any]:
    """The repeat with the median step."""
    return middle([dict(trial) for trial in point.trials], "step_s_mean")


def _parts(row: Mapping[str, Any], step: Any, load: float, others: float, ranks: int) -> dict[str, float] | None:
    """Tell a step's parts apart; computation is what is left: copies, optimizer and bubbles too.

    `others`: the imbalance that is the input's.
    """
    wire = figure(row, "communication_min_s", "communication_s")
    waiting = figure(row, "imbalance_mean_s")
    if ranks == 1:
        wire, waiting = 0.0, 0.0
    if wire is None or is_missing(step):
        return None
    waiting = max((figure(row, "communication_s") or wire) - wire, 0.0) if waiting is None else waiting
    compute = max(float(step) - load - wire - waiting, 0.0)
    return {"compute": compute, "communication": wire, "imbalance": waiting - others}


def _saturated(points: Sequence[Point]) -> float | None:
    """The rate at which input gave out, bytes/s; None where it was not seen to."""
    known = [point for point in points if point.io_bytes_per_s]
    if len(known) < 2 or known[-1].load_s < INPUT_BOUND * known[-1].middle_s:
        return None
    before, last = known[-2], known[-1]
    grown = (last.io_bytes_per_s or 0.0) / (before.io_bytes_per_s or 1.0) - 1
    return last.io_bytes_per_s if grown < SATURATED * (last.ranks / before.ranks - 1) else None


def from_table(frame: pd.DataFrame, name: str) -> list[Curve]:
    """A curve for each set of rows that differ in ranks and the batch that follows; strong where that of all stays."""
    kept = frame.assign(samples=samples_per_step(frame), data_ranks=data_ranks(frame)).reset_index(drop=True)
    layouts = [kept.loc[rows.index] for _, rows in kept.groupby(families(frame).to_numpy())]
    return [_table_curve(kept, *part, name) for rows in layouts for part in _of_one_batch(rows)]


def _of_one_batch(rows: pd.DataFrame) -> list[tuple[pd.DataFrame, str]]:
    """A layout's rows by their batch, of all ranks or of each, which is told where some differ.

    Those with neither like another scale's are alone: they predict nothing.
    """
    per_rank = rows["samples"] / rows["data_ranks"]
    if rows["samples"].nunique() == 1 or per_rank.max() <= (1 + DISAGREE) * per_rank.min():
        return [(rows, "")]
    batches = {"in all": rows["samples"], "per rank": per_rank}
    found = [
        (part, f"· {batch:g} {of}")
        for of, by in batches.items()
        for batch, part in rows.groupby(by)
        if part["ranks"].nunique() >= MIN_SCALES
    ]
    alone = rows.drop(index=[place for part, _ in found for place in part.index], errors="ignore")
    return [*found, *((part, f"· {batch:g} in all") for batch, part in alone.groupby("samples"))]


def _table_curve(frame: pd.DataFrame, rows: pd.DataFrame, batch: str, name: str) -> Curve:
    told = frame.drop(columns=["samples", "data_ranks"])
    several = rows["ranks"].nunique() > 1
    strong = several and rows["samples"].nunique() == 1
    by_ranks = rows.groupby(rows["ranks"].astype(int))["step_s"].agg(tuple)
    points = tuple(Point(ranks, seconds) for ranks, seconds in zip(by_ranks.index.tolist(), by_ranks, strict=True))
    share = float((rows["data_ranks"] / rows["ranks"]).iloc[-1])
    per_rank = float((rows["samples"] / rows["data_ranks"]).iloc[0])
    others = [column for column in told if column not in FOLLOWS_RANKS]
    title = words(told, int(rows.index[0]), range(len(told))) if others else ""
    kind = "strong" if strong else "weak"
    whole = " ".join(filter(None, (name, title, batch)))
    return Curve(whole, kind, float(rows["samples"].iloc[0]) if strong else per_rank, points, share)
