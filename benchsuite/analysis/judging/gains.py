"""What each remedy would give, by the model of the pipeline."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from benchsuite.analysis.judging.lost_time import Where
from benchsuite.analysis.judging.pipeline import BEGINNINGS, HAND_OVER, READS, Pipeline
from benchsuite.analysis.judging.shares import waits_for_cores
from benchsuite.analysis.judging.thresholds import FULL_SHARE, MAIN_SHARE, MIN_GAIN, MOST_WORKERS
from benchsuite.inside.samples import RankSamples


@dataclass(frozen=True)
class Gain:
    """A remedy, and what a step would take with it."""

    name: str
    step_s: float | None = None
    """None: not known."""
    now_s: float | None = None
    """What it takes now, as measured."""
    at_best: bool = False
    """Whether it is what would be left of the step if the cause were gone: the remedy may take away less of it."""
    workers: int | None = None
    """Workers of a rank that it needs, where these are more than now."""
    workers_now: int | None = None
    cores: float | None = None
    """Cores that the step would keep busy; of so many."""
    of_cores: float | None = None

    def told(self) -> dict[str, float | int | bool]:
        """What a record keeps of it."""
        return {name: value for name, value in asdict(self).items() if name != "name" and value is not None}


class Known(NamedTuple):
    """What a remedy's gain depends on beside the pipeline."""

    figures: Mapping[str, Any]
    rank: RankSamples
    evidence: Mapping[str, float | int | str]
    ranks: int
    """Of the whole training."""

    def share(self, where: Where) -> float:
        """The share of the step that goes to a cause."""
        return float(self.evidence.get(f"{where}_fraction", 0.0))


TAKEN: Mapping[str, float] = {
    "staging": 1.0,
    "faster_storage": 1.0,
    "cheaper_data": 1.0,
    "cheaper_collate": 1.0,
    "fewer_tensors": 1.0,
    "smaller_tensors": 0.75,
    "smaller_buffer": 1.0,
    "staying_workers": 1.0,
    "share_less": 1.0,
    "nearer_service": 1.0,
    "in_process": 1.0,
    "no_sleep": 1.0,
    "rarer_checkpoints": 0.5,
    "background_checkpoints": 1.0,
    "more_memory": 1.0,
}
"""Share of what is lost to its cause that a remedy takes away at best: uint8 has a quarter of float32's bytes, and
half as many checkpoints take half of the time."""


def ranked(remedies: Iterable[tuple[str, Where]], now: Pipeline | None, known: Known) -> tuple[Gain, ...]:
    """Remedies with what they would give, the best first: those whose gain is promised, more cores after what needs
    none; then those of which it is known what they give at best, then those of which nothing is known. One that gains
    nothing is left out.

    Args:
        remedies: their names, each with the cause that it helps against.
        now: the pipeline as it is; None where it is not known, and so no gain is.
        known: what else is known of it.
    """
    found: dict[str, Gain] = {}
    for name, where in remedies:
        gain = Gain(name) if now is None else _gain(name, where, now, known)
        if gain is not None:
            found.setdefault(name, gain)
    return tuple(sorted(found.values(), key=_rank))


def _rank(gain: Gain) -> tuple[bool, bool, bool, float]:
    return gain.step_s is None, gain.at_best, gain.name == "more_cores", gain.step_s or 0.0


def _gain(name: str, where: Where, now: Pipeline, known: Known) -> Gain | None:
    """What one remedy would give; None where that is nothing."""
    if name in TAKEN and not known.share(where):
        return Gain(name)
    then: Pipeline | None = None
    if name in TAKEN:
        then = _without(where, TAKEN[name], now, known)
    elif name in CHANGES:
        then = CHANGES[name](where, now, known)
    if then is None:
        return Gain(name)
    if then.step_s > (1 - MIN_GAIN) * now.step_s:
        return None
    is_more, measured_s = then.workers != now.workers, float(known.figures["step_s_mean"])
    return Gain(
        name,
        step_s=measured_s * then.step_s / now.step_s,
        now_s=measured_s,
        at_best=TAKEN.get(name) == 1.0
        or name == "even_work"
        or (name == "more_workers" and where.verdict == "waiting"),
        workers=then.workers if is_more else None,
        workers_now=now.workers if is_more else None,
        cores=then.used_cores,
        of_cores=then.cores,
    )


def _without(where: Where, part: float, now: Pipeline, known: Known) -> Pipeline:
    """The pipeline without a part of what is lost to a cause."""
    seconds, name = part * known.share(where) * now.step_s, str(where)
    if name in BEGINNINGS:
        cpu_s = max(0.0, now.reading_cpu_s - now.ranks * now.workers * seconds)
        return replace(now, begins_s=max(0.0, now.begins_s - seconds), reading_cpu_s=cpu_s)
    computes = where.verdict == "preprocessing"
    if not _is_of_readers(where, known):
        return replace(now, loop_s=max(0.0, now.loop_s - seconds))
    if name == HAND_OVER:
        seconds = part * now.receiving_s
        loop_s, cpu_s = max(0.0, now.loop_s - seconds), max(0.0, now.loop_cpu_s - now.ranks * seconds)
        now = replace(now, loop_s=loop_s, loop_cpu_s=cpu_s)
    of_readers = known.share(where) - (now.receiving_s / now.step_s if name == HAND_OVER else 0.0)
    handing_s = float(known.evidence.get("hand_over_s", 0.0)) if name == HAND_OVER else 0.0  # timed by the workers
    share = min(1.0, part * max(of_readers / _of_readers(now, known), handing_s / (now.reading_s or 1.0)))
    cpu_s = now.ranks * share * now.reading_s if computes else 0.0
    if where.verdict == "waiting":
        cpu_s = share * _of_others_cpu_s(now, known)
    return replace(
        now,
        reading_s=now.reading_s * (1 - share),
        disk_s=now.disk_s * (1 - part) if name in READS else now.disk_s,
        reading_cpu_s=max(0.0, now.reading_cpu_s - cpu_s),
    )


def _of_others_cpu_s(now: Pipeline, known: Known) -> float:
    """Seconds in which cores compute for a batch in threads that are neither the loop's nor readers', which wait."""
    seen = known.rank.seen_readers
    by_readers = (seen.busy_fraction if seen is not None else None) or 0.0
    return max(0.0, now.reading_cpu_s - now.ranks * now.workers * by_readers * now.step_s) if now.workers else 0.0


def _is_of_readers(where: Where, known: Known) -> bool:
    """Whether readers lose the time, not the loop's body."""
    if where.verdict in ("imbalance", "communication") or where.cause == "checkpoint":
        return False
    return not known.evidence.get("waits_in_body")


def _of_readers(now: Pipeline, known: Known) -> float:
    """The share of the step in which the loop waits for what its readers do."""
    beside_s = now.begins_s + now.receiving_s
    return max(float(known.figures["input_stall_fraction"]) - beside_s / float(known.figures["step_s_mean"]), 0.01)


def _more_workers(where: Where, now: Pipeline, known: Known) -> Pipeline | None:
    """As many workers as it takes until something else sets the pace; None where the disk may give no more."""
    reads = known.share(where) >= MAIN_SHARE * _of_readers(now, known) and where.verdict == "storage"
    if reads and known.evidence.get("saturation") is None:
        return None
    return _fed(now)


def _more_cores(_: Where, now: Pipeline, known: Known) -> Pipeline | None:
    """Twice as many cores, for which nobody waits, and the workers that they can feed; nothing where some are idle."""
    if now.cores is None:
        return None
    if now.used_cores < FULL_SHARE * now.cores:
        return now
    then = replace(_unqueued(now, known), cores=2 * now.cores)
    return _fed(then) if then.workers else then


def _unbind(_: Where, now: Pipeline, known: Known) -> Pipeline | None:
    """The cores that are idle as well."""
    idle = known.evidence.get("idle_cores")
    if now.cores is None or idle is None:
        return None
    return replace(_unqueued(now, known), cores=max(now.cores, now.used_cores + float(idle)))


def _fed(then: Pipeline) -> Pipeline:
    """The pipeline with as many workers as it takes until something else sets the pace."""
    least_s = replace(then, workers=MOST_WORKERS).step_s - then.begins_s
    wanted = math.ceil(then.reading_s / least_s - 0.02) if least_s > 0 else 0
    return replace(then, workers=max(1, then.workers, min(MOST_WORKERS, wanted)))


def _unqueued(now: Pipeline, known: Known) -> Pipeline:
    """The pipeline whose loop and readers wait for no core."""
    seen = known.rank.seen_readers
    queued = ((seen.queued_fraction if seen is not None else None) or 0.0) if now.workers else 0.0
    waited_s = waits_for_cores(known.figures) * now.step_s
    loop_s = max(now.loop_s - waited_s, 0.1 * now.loop_s)
    return replace(now, loop_s=loop_s, reading_s=now.reading_s * (1 - min(0.9, queued)))


def _more_shards(_: Where, now: Pipeline, known: Known) -> Pipeline | None:
    """Readers of which none has ended."""
    ended = float(known.evidence.get("ended_looks_fraction", 0.0))
    return replace(now, reading_s=now.reading_s * (1 - ended)) if ended else None


def _smaller_chunks(where: Where, now: Pipeline, known: Known) -> Pipeline | None:
    """Reads of only what batches need."""
    amplified = float(known.evidence.get("amplification", 0.0))
    return _without(where, 1 - 1 / amplified, now, known) if amplified > 1 else None


def _even_work(where: Where, now: Pipeline, known: Known) -> Pipeline | None:
    """The mean of what ranks do: of n ranks one is slow, and the others wait for it."""
    return _without(where, 1 - 1 / known.ranks, now, known) if known.share(where) else None


CHANGES: Mapping[str, Callable[[Where, Pipeline, Known], Pipeline | None]] = {
    "more_workers": _more_workers,
    "more_cores": _more_cores,
    "unbind": _unbind,
    "more_shards": _more_shards,
    "smaller_chunks": _smaller_chunks,
    "even_work": _even_work,
}
"""Remedies that change more than what is lost."""
