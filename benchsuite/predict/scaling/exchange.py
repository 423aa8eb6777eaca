"""What a series exchanges by its mode, and how long that takes by ranks, as `probe comm` or nccl-tests found it."""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from benchsuite.predict.scaling import exposed_communication
from benchsuite.predict.scaling.curve import Curve
from benchsuite.predict.scaling.exposed_communication import BUCKET_BYTES, ByRanks
from benchsuite.predict.scaling.input_wait import figure
from benchsuite.predict.scaling.nodes import placement_of
from benchsuite.predict.theory.alpha_beta_fit import MIN_SIZES, AlphaBeta, Key, host_of, machine_of
from benchsuite.predict.theory.arrays import Floats
from benchsuite.predict.theory.collectives import BACKEND, PASSES
from benchsuite.results.render import naming
from benchsuite.results.render.tables import is_missing
from benchsuite.results.render.words import counted
from benchsuite.results.scaling.series import Row, Series

SHARDED = {0: "ddp", 1: "zero1", 2: "zero2", 3: "fsdp"}
"""Modes of data-parallel ranks by their ZeRO stage."""
ONE = ("tp", "pp", "cp", "ep", "dp_replicate")
UNKNOWN, MIXED = "unknown", "mixed"
SPLIT = {"tp": "heads and widths", "pp": "layers"}
"""What of a model a mode needs as many of as ranks, or a multiple."""
MODELLED = ("none", "data_parallel", "ddp", "tp", "zero1", "zero2", "fsdp", "pp")
COLLECTIVES: Mapping[str, Mapping[str, float]] = {
    "ddp": {"all_reduce": 1},
    "tp": {"all_reduce": 1},
    "zero1": {"all_reduce": 1},
    "zero2": {"all_gather": 1, "reduce_scatter": 1},
    "fsdp": {"all_gather": 2, "reduce_scatter": 1},
}
"""What a mode exchanges: how often the whole array, by collective."""
ALL_REDUCE: Mapping[str, float] = {"all_reduce": 1.0}
CROWDED = "oversubscribed"
MIN_PROBED = 2
"""Numbers of ranks of probed collectives that tell how they grow."""
BACKENDS = {"cuda": "nccl", "cpu": "gloo"}
Probed = Mapping[Key, AlphaBeta]


def mode_of(series: Series) -> str:
    """The parallelism of the largest point: a name, or `mixed`, or `unknown`."""
    found = [_mode(trial) for point in series.points for trial in point.trials]
    named = [name for name in found if name != "none"]
    return named[-1] if named else (found[-1] if found else UNKNOWN)


def _mode(row: Row) -> str:
    named = row.get("spec.parallelism")
    if isinstance(named, str):
        return named
    prefix = "spec.parallelism."
    told = {name: value for name, value in row.items() if name.startswith(prefix) and not is_missing(value)}
    given = {name.removeprefix(prefix): value for name, value in told.items()}
    if not given or given.get("engine", "torch") != "torch":
        return UNKNOWN
    split = [name for name in ONE if int(given.get(name, 1)) > 1]
    if not split:
        return SHARDED.get(int(given.get("zero", 0)), UNKNOWN)
    whole = split in (["tp"], ["pp"]) and int(given[split[0]]) == int(row["spec.world_size"])
    return split[0] if whole else MIXED


def in_words(mode: str, row: Row) -> list[str]:
    """What is said of a mode without a model of its communication, or that not every number of ranks can have.

    `row`: a trial of it, whose parallelism is named where no mode is.
    """
    if mode in SPLIT:
        return [
            f"{mode}: whether {SPLIT[mode]} of the model divide over so many ranks is not checked; `benchsuite trial "
            "SPEC --validate` tells"
        ]
    if mode in MODELLED:
        return []
    why = "several kinds of parallelism at once" if mode == MIXED else f"parallelism {naming.mode_of(row) or mode}"
    return [f"{why}: no buckets and no probed collectives are modelled; communication is fitted as it grew"]


def comparable(series: Series, probed: Probed) -> tuple[dict[Key, AlphaBeta], list[str]]:
    """The probes that are like the series, and in words those of other machines or hosts that were left out.

    Nodes are those of the series at the same ranks; at ranks that it lacks, as many as they fill (`nodes.Placement`).
    A host of its own kind stands for another where it is the only one probed; so of several nodes, whichever was first.
    """
    rows = [trial for point in series.points for trial in point.trials]
    if not rows or not probed:
        return {}, []
    backend = BACKENDS.get(str(rows[-1].get("spec.device"))) or _only({key.backend for key in probed})
    like = {key: fit for key, fit in probed.items() if key.backend == backend}
    machine, host = machine_of(rows[-1]), host_of(rows[-1])
    own = {key: fit for key, fit in like.items() if not key.machine or not machine or key.machine == machine}
    notes = _told("another machine", {key.machine for key in {*like} - {*own}})
    near, far = ({key: fit for key, fit in own.items() if (key.nodes > 1) == several} for several in (False, True))
    chosen = _of_host(near, host) | _of_host(far, host)
    notes += _told("another host", {key.host for key in {*own} - {*chosen}})
    placement = placement_of(rows)
    return {key: fit for key, fit in chosen.items() if key.nodes == placement.at(key.ranks)}, notes


def _of_host(probed: Probed, host: str) -> dict[Key, AlphaBeta]:
    """Probes of the host; where it has none, those of the only one that has."""
    own = {key: fit for key, fit in probed.items() if key.host == host}
    return own if own or _only({key.host for key in probed}) is None else {**probed}


def _only(names: set[str]) -> str | None:
    return next(iter(names)) if len(names) == 1 else None


def _told(what: str, names: set[str]) -> list[str]:
    return [f"probes of {what} are left out: {', '.join(sorted(names))}"] if names else []


def exchange_of(mode: str, row: Row, probed: Probed) -> ByRanks | None:
    """Seconds of a mode's collectives by ranks, from probes of one backend at two numbers of ranks or more.

    Between and beyond the probed ranks: A (N - 1)/N + B (N - 1), neither negative; apart for ranks on one node and on
    several, where both were probed.
    """
    whole = _array_bytes(mode, row)
    return None if whole is None else _probed_s(COLLECTIVES[mode], whole, probed)


def buckets_of_ddp(row: Row, probed: Probed) -> tuple[tuple[float, ...], Callable[[Floats], ByRanks] | None]:
    """What is sent of DDP's buckets, in bytes, and what buckets take by ranks where that was probed."""
    sent, share = _array_bytes("ddp", row), sent_share(row)
    if sent is None or share is None:
        return (), None
    cap = figure(row, "spec.bucket_cap_mb")
    buckets = share * exposed_communication.buckets_of(sent / share, cap * 2**20 if cap else None)
    known = _probed_s(ALL_REDUCE, float(buckets[0]), probed) is not None
    return tuple(buckets.tolist()), (lambda sizes: _each_s(sizes, probed)) if known else None


def _array_bytes(mode: str, row: Row) -> float | None:
    """Bytes of the array that a mode's collectives exchange, from what a rank sent in a step."""
    sent, ranks = figure(row, "wire_bytes_per_step"), figure(row, "spec.world_size")
    if mode not in COLLECTIVES or not sent or not ranks or ranks < 2:
        return None
    passes = sum(times * PASSES[op][0] for op, times in COLLECTIVES[mode].items())
    return sent / passes * ranks / (ranks - 1)


def sent_share(row: Row) -> float | None:
    """Bytes that DDP sends of each byte of gradients, which buckets hold; None where their shapes tell."""
    hook = row.get("spec.comm_hook")
    if hook == "powersgd":
        return None
    return 1.0 if is_missing(hook) or row.get("spec.precision") == "pure_bf16" else 0.5


def _each_s(buckets: Floats, probed: Probed) -> ByRanks:
    """Seconds of an all-reduce of each bucket by ranks, (n, buckets), as probed at two numbers of ranks or more."""
    forms = {size: _probed_s(ALL_REDUCE, size, probed) for size in {*buckets.tolist()}}
    each = [form for form in (forms[size] for size in buckets.tolist()) if form is not None]
    return lambda n: np.stack([form(n) for form in each], axis=-1)


def _complete(wanted: Iterable[str], probed: Probed) -> dict[int, dict[str, tuple[Key, AlphaBeta]]]:
    """The probes of the wanted collectives in fp32 by ranks, of those numbers of ranks that have them all."""
    found: dict[int, dict[str, tuple[Key, AlphaBeta]]] = {}
    for key, fit in probed.items():
        if key.op in wanted and (key.algorithm, key.dtype) == (BACKEND, "fp32"):
            found.setdefault(key.ranks, {})[key.op] = key, fit
    return {ranks: of for ranks, of in sorted(found.items()) if {*of} == {*wanted}}


def _probed_s(wanted: Mapping[str, float], num_bytes: float, probed: Probed) -> ByRanks | None:
    """Seconds of collectives of an array by ranks: how often each; None with fewer than two probed numbers of ranks."""
    inside: dict[int, float] = {}
    between: dict[int, float] = {}
    for ranks, fits in _complete(wanted, probed).items():
        several = all(key.nodes > 1 for key, _ in fits.values())
        seconds = sum(times * _buckets_s(fits[op][1], num_bytes) for op, times in wanted.items())
        (between if several else inside)[ranks] = seconds
    if len(inside) + len(between) < MIN_PROBED:
        return None
    if not inside or not between:
        return _grown(inside | between)
    most, near, far = max(inside), _grown(inside), _grown(between)
    return lambda n: np.where(n > most, far(n), near(n))


def _grown(seconds: Mapping[int, float]) -> ByRanks:
    """Between and beyond probed ranks; of one number of ranks as a ring's volume grows."""
    ((ranks, found), *others) = seconds.items()
    volume, linear = volume_and_linear(seconds) if others else (found * ranks / (ranks - 1), 0.0)
    return lambda n: np.asarray(volume * (n - 1) / n + linear * (n - 1), dtype=np.float64)


def _buckets_s(fit: AlphaBeta, num_bytes: float) -> float:
    size = min(num_bytes, BUCKET_BYTES, fit.max_bytes)
    return num_bytes / size * float(fit.time_s(size))


def why(curve: Curve, series: Series, frame: pd.DataFrame, probed: Probed) -> list[str]:
    """A line where collectives were probed (`frame`) or given, and a prediction does not use them; else nothing."""
    wanted, is_used = COLLECTIVES.get(mode_of(series)), (curve.bucket_s or curve.exchange) is not None
    if (frame.empty and not probed) or wanted is None or curve.most_ranks < 2 or is_used:
        return []
    dropped = "" if frame.empty else _dropped(frame)
    reason = _reason(wanted, comparable(series, probed)[0], probed)
    return [f"the probed collectives are not used: {reason}{f'; {dropped}' if dropped else ''}"]


def _reason(wanted: Mapping[str, float], like: Probed, probed: Probed) -> str:
    names = " and ".join(wanted)
    if not probed:
        return f"no probe of them could be fitted, which takes {MIN_SIZES} sizes at least"
    if not like:
        told = sorted({f"{key.backend} on {counted(key.nodes, 'node')}" for key in probed})
        return f"none is of the backend, machine and nodes of these trials ({', '.join(told)} were probed)"
    ranks = [*_complete(wanted, like)]
    if not ranks:
        return f"{names} in fp32 was not among them"
    if len(ranks) < MIN_PROBED:
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


def volume_and_linear(seconds: Mapping[int, float]) -> tuple[float, float]:
    """A and B of A (N - 1)/N + B (N - 1), neither negative, from seconds by ranks: least squares of relative errors."""
    ranks, wanted = np.array([*seconds], dtype=np.float64), np.array([*seconds.values()])
    design = np.stack([(ranks - 1) / ranks, ranks - 1], axis=1)
    volume, linear = nnls(design / wanted[:, None], np.ones(len(ranks)))[0]
    return float(volume), float(linear)
