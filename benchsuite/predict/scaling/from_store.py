"""Curves to predict from: the scaling series of a store, and tables of ranks and times."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from benchsuite.predict.scaling import curve, exposed_communication, input_wait
from benchsuite.predict.scaling.curve import Curve, Point, volume_and_linear
from benchsuite.predict.scaling.exposed_communication import BUCKET_BYTES
from benchsuite.predict.scaling.input_wait import INPUT_BOUND, figure, input_bytes
from benchsuite.predict.scaling.nodes import placement_of
from benchsuite.predict.scaling.probed_network import comparable
from benchsuite.predict.scaling.series import MIN_SCALES
from benchsuite.predict.scaling.table_input import (
    DISAGREE,
    FOLLOWS_RANKS,
    data_ranks,
    families,
    samples_per_step,
    words,
)
from benchsuite.predict.theory.alpha_beta_fit import MIN_SIZES, AlphaBeta, Key
from benchsuite.predict.theory.arrays import Floats
from benchsuite.predict.theory.collectives import BACKEND, PASSES
from benchsuite.results.render.tables import is_missing
from benchsuite.results.render.words import counted
from benchsuite.results.render.words import rate as in_rate
from benchsuite.results.scaling.efficiency import pooled
from benchsuite.results.scaling.knee import input_knee
from benchsuite.results.scaling.series import Row, ScalingPoint, Series
from benchsuite.results.scaling.series import data_ranks as ranks_with_samples
from benchsuite.results.store.frames import middle

SHARDED = {0: "ddp", 1: "zero1", 2: "zero2", 3: "fsdp"}
"""By zero, of data-parallel ranks."""
ONE = ("tp", "pp", "cp", "ep", "dp_replicate")
UNKNOWN, MIXED = "unknown", "mixed"
SPLIT = {"tp": "heads and widths", "pp": "layers"}
"""What of a model a mode needs as many of as ranks, or a multiple."""
MODELLED = ("none", "data_parallel", "ddp", "tp", "zero1", "zero2", "fsdp", "pp")


def mode_of(series: Series) -> str:
    """The parallelism of the largest point: a name, or `mixed`, or `unknown`."""
    found = [_mode(trial) for point in series.points for trial in point.trials]
    named = [name for name in found if name != "none"]
    return named[-1] if named else (found[-1] if found else UNKNOWN)


def _mode(row: Row) -> str:
    named = row.get("spec.parallelism")
    if isinstance(named, str):
        return named
    given = {name.removeprefix("spec.parallelism."): value for name, value in row.items() if _degree(name, value)}
    if not given:
        return UNKNOWN
    if given.get("engine", "torch") != "torch":
        return UNKNOWN
    split = [name for name in ONE if int(given.get(name, 1)) > 1]
    if not split:
        return SHARDED.get(int(given.get("zero", 0)), UNKNOWN)
    whole = split in (["tp"], ["pp"]) and int(given[split[0]]) == int(row["spec.world_size"])
    return split[0] if whole else MIXED


def _degree(name: str, value: Any) -> bool:
    return name.startswith("spec.parallelism.") and not is_missing(value)


def in_words(mode: str) -> list[str]:
    """What is said of a mode without a model of its communication, or that not every number of ranks can have."""
    if mode in SPLIT:
        return [
            f"{mode}: whether {SPLIT[mode]} of the model divide over so many ranks is not checked; `benchsuite trial "
            "SPEC --validate` tells"
        ]
    if mode in MODELLED:
        return []
    why = "several kinds of parallelism at once" if mode == MIXED else f"parallelism {mode}"
    return [f"{why}: no buckets and no probed collectives are modelled; communication is fitted as it grew"]


COLLECTIVES: Mapping[str, Mapping[str, float]] = {
    "ddp": {"all_reduce": 1},
    "tp": {"all_reduce": 1},
    "zero1": {"all_reduce": 1},
    "zero2": {"all_gather": 1, "reduce_scatter": 1},
    "fsdp": {"all_gather": 2, "reduce_scatter": 1},
}
"""What a mode exchanges: how often the whole array, by collective."""
ALL_REDUCE: Mapping[str, float] = {"all_reduce": 1.0}
CONTENDED = 0.05
"""Share of a step spent runnable but not running, from which on cores are short."""
SATURATED = 0.75
"""Input is limited where its rate grows by less than this share of what ranks grow by."""
FROM_MEMORY = 0.5
"""Share of the bytes from which on the storage is not what limits input."""


def from_series(
    series: Series, title: str, probed: Mapping[Key, AlphaBeta], limit: float | None, staged: bool
) -> Curve:
    """The curve of a store's series; `limit` is what the shared file system gives, bytes/s, where its user knows it.

    Nothing in it is of ranks beyond those of the series: `upto` makes it again from fewer.
    """
    measured = [point for point in series.points if point.trials]
    points = tuple(_point(series, point) for point in measured)
    row, mode = series.example, mode_of(series)
    like, left_out = comparable(series, probed)
    copied = not is_missing(row.get("spec.data.staging")) and row["spec.data.staging"] != "none"
    wire = _middle(measured[-1]) if measured else {}
    share = ranks_with_samples(measured[-1].trials[0]) / measured[-1].ranks if measured else 1.0
    microbatches = row.get("spec.parallelism.microbatches")
    buckets, bucket_s = _overlap(mode, wire, like)
    exchange = None if mode == "ddp" else exchange_of(mode, wire, like)
    probed_between = (exchange or bucket_s) is not None and any(key.nodes > 1 for key in like)
    placement = placement_of([trial for point in measured for trial in point.trials])
    has_input = _reads_storage(row) and any(p.io_bytes_per_s for p in points)
    shown = {point.ranks: _middle(point) for point in measured}
    seen, of_readers = _seen_limit(series, points), bool(measured) and _by_readers(measured[-1])
    of_storage = None if of_readers or staged or copied else seen
    curve = Curve(
        title,
        series.kind,
        series.batch,
        points,
        share,
        pipeline=mode == "pp",
        flushes=row.get("spec.parallelism.schedule") == "gpipe",
        microbatches=None if microbatches is None or is_missing(microbatches) else int(microbatches),
        exchange=exchange,
        placement=replace(placement, probed=probed_between),
        buckets=buckets,
        bucket_s=bucket_s,
        sent_share=sent_share(row) or 1.0,
        has_input=has_input,
        caveats=_caveats(series),
        shared_bytes_per_s=of_storage if limit is None or staged or copied else limit,
        seen_bytes_per_s=of_storage,
        readers_bytes_per_s=seen if of_readers else None,
        staged="trials" if copied else "asked" if staged else None,
        notes=(*in_words(mode), *left_out, *(input_wait.notes(shown) if has_input else ()), *_contention(shown)),
        refit_on_subset=lambda most: from_series(_upto(series, most), title, probed, limit, staged),
    )
    return curve if limit is None else replace(curve, notes=(*curve.notes, *_without_effect(curve, limit)))


def _upto(series: Series, ranks: float) -> Series:
    return replace(series, points=tuple(point for point in series.points if point.ranks <= ranks))


def _reads_storage(row: Mapping[str, Any]) -> bool:
    return is_missing(row.get("spec.data.source")) or row.get("spec.data.source") == "storage"


def _seen_limit(series: Series, points: Sequence[Point]) -> float | None:
    """Of input, bytes/s, as the scales show it."""
    return input_knee(series).limit_bytes_per_s or _saturated(points)


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
    """That computation waited for cores: it grows with the ranks that share them, by no law that is modelled."""
    waited = {ranks: figure(row, "cpu_contention_fraction") or 0.0 for ranks, row in rows.items()}
    most = max(waited, key=lambda ranks: waited[ranks], default=0)
    if not most or waited[most] < CONTENDED:
        return ()
    return (
        f"cores were short: at {most} ranks {waited[most]:.0%} of the step was spent waiting for one; where more ranks "
        "share the same cores computation takes longer than predicted",
    )


def _overlap(
    mode: str, row: Mapping[str, Any], probed: Mapping[Key, AlphaBeta]
) -> tuple[tuple[float, ...], Callable[[Floats], Callable[[Floats], Floats]] | None]:
    """DDP's buckets, and what buckets take by ranks where that was probed."""
    sent, ranks = figure(row, "wire_bytes_per_step"), row.get("spec.world_size")
    if mode != "ddp" or not sent or not ranks or ranks < 2:
        return (), None
    cap, share = figure(row, "spec.bucket_cap_mb"), sent_share(row)
    if share is None:
        return (), None
    gradients = sent / share / (2 * (ranks - 1) / ranks)
    buckets = share * exposed_communication.buckets_of(gradients, cap * 2**20 if cap else None)
    known = _probed_s(ALL_REDUCE, float(buckets[0]), probed) is not None
    return tuple(buckets.tolist()), (lambda sizes: _each_s(sizes, probed)) if known else None


def sent_share(row: Mapping[str, Any]) -> float | None:
    """Bytes that DDP sends of each byte of gradients, which buckets hold; None where their shapes tell."""
    hook = row.get("spec.comm_hook")
    if hook == "powersgd":
        return None
    return 1.0 if is_missing(hook) or row.get("spec.precision") == "pure_bf16" else 0.5


def _each_s(buckets: Floats, probed: Mapping[Key, AlphaBeta]) -> Callable[[Floats], Floats]:
    """Seconds of an all-reduce of each bucket by ranks, (n, buckets), as probed at two numbers of ranks or more."""
    forms = {size: _probed_s(ALL_REDUCE, size, probed) for size in {*buckets.tolist()}}
    each = [form for form in (forms[size] for size in buckets.tolist()) if form is not None]
    return lambda n: np.stack([form(n) for form in each], axis=-1)


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


def _parts(row: Mapping[str, Any], step: Any, load: float, others: float, ranks: int) -> dict[str, float | None] | None:
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


def exchange_of(
    mode: str, row: Mapping[str, Any], probed: Mapping[Key, AlphaBeta]
) -> Callable[[Floats], Floats] | None:
    """Seconds of a mode's collectives by ranks, from probes of one backend at two numbers of ranks or more.

    Between and beyond the probed ranks: A (N - 1)/N + B (N - 1), neither negative; apart for ranks on one node and on
    several, where both were probed.
    """
    sent, ranks = figure(row, "wire_bytes_per_step"), row.get("spec.world_size")
    if mode not in COLLECTIVES or not sent or not ranks or ranks < 2:
        return None
    share = (ranks - 1) / ranks
    whole = sent / sum(times * PASSES[op][0] * share for op, times in COLLECTIVES[mode].items())
    return _probed_s(COLLECTIVES[mode], whole, probed)


def _probed_s(
    wanted: Mapping[str, float], num_bytes: float, probed: Mapping[Key, AlphaBeta]
) -> Callable[[Floats], Floats] | None:
    """Seconds of collectives of an array by ranks: how often each; None with fewer than two probed numbers of ranks."""
    inside: dict[int, float] = {}
    between: dict[int, float] = {}
    for count in sorted({key.ranks for key in probed}):
        fits = {key.op: (key, fit) for key, fit in probed.items() if (key.ranks, *key[1:3]) == (count, BACKEND, "fp32")}
        if {*wanted} <= {*fits}:
            several = all(fits[op][0].nodes > 1 for op in wanted)
            (between if several else inside)[count] = sum(
                times * _buckets_s(fits[op][1], num_bytes) for op, times in wanted.items()
            )
    if len(inside) + len(between) < 2:
        return None
    if not inside or not between:
        return _grown(inside | between)
    most, near, far = max(inside), _grown(inside), _grown(between)
    return lambda n: np.where(n > most, far(n), near(n))


def _grown(seconds: Mapping[int, float]) -> Callable[[Floats], Floats]:
    """Between and beyond probed ranks; of one number of ranks as a ring's volume grows."""
    ((ranks, found), *others) = seconds.items()
    volume, linear = volume_and_linear(seconds) if others else (found * ranks / (ranks - 1), 0.0)
    return lambda n: np.asarray(volume * (n - 1) / n + linear * (n - 1), dtype=np.float64)


def _buckets_s(fit: AlphaBeta, num_bytes: float) -> float:
    size = min(num_bytes, BUCKET_BYTES, fit.max_bytes)
    return num_bytes / size * float(fit.time_s(size))


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


CROWDED = "oversubscribed"


def why(curve: Curve, series: Series, frame: pd.DataFrame, probed: Mapping[Key, AlphaBeta]) -> list[str]:
    """A line where a store has rows of kind comm (`frame`) and a prediction does not use their fits; else nothing."""
    wanted = COLLECTIVES.get(mode_of(series))
    if frame.empty or wanted is None or curve.most_ranks < 2 or (curve.bucket_s or curve.exchange) is not None:
        return []
    dropped = _dropped(frame)
    reason = _reason(wanted, comparable(series, probed)[0], probed)
    return [f"the probed collectives are not used: {reason}{f'; {dropped}' if dropped else ''}"]


def _reason(wanted: Mapping[str, float], like: Mapping[Key, AlphaBeta], probed: Mapping[Key, AlphaBeta]) -> str:
    names = " and ".join(wanted)
    if not probed:
        return f"no probe of them could be fitted, which takes {MIN_SIZES} sizes at least"
    if not like:
        told = sorted({f"{key.backend} on {counted(key.nodes, 'node')}" for key in probed})
        return f"none is of the backend, machine and nodes of these trials ({', '.join(told)} were probed)"
    known = {key.ranks: set[str]() for key in like}
    for key in like:
        known[key.ranks] |= {key.op} if (key.algorithm, key.dtype) == (BACKEND, "fp32") else set()
    ranks = sorted(count for count, ops in known.items() if {*wanted} <= ops)
    if not ranks:
        return f"{names} in fp32 was not among them"
    if len(ranks) < curve.MIN_SCALES:
        wanted_words = "give two, none with more ranks than cores: probe comm --world-size 2,4"
        return f"{names} was probed at {ranks[0]} ranks alone, {wanted_words}"
    return "the trials do not tell how many bytes they exchange"


def _dropped(frame: pd.DataFrame) -> str:
    """What `alphabeta.from_rows` leaves out."""
    crowded = np.array([CROWDED in list(names) for names in frame["caveats"]]) if "caveats" in frame else np.array([])
    failed = int((frame["status"] != "ok").sum())
    counts = {"of more ranks than cores": int(crowded.sum()), "not ok": failed}
    told = [f"{count} {'is' if count == 1 else 'are'} {what}" for what, count in counts.items() if count]
    return f"left out of {len(frame)} probes: {', '.join(told)}" if told else ""
