"""A step of a training as a pipeline: readers fill a queue beside a loop that empties it, on so many cores.

`docs/method.md`, "What a remedy would gain", says the same in words.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchsuite.analysis.judging.setting import Setting
from benchsuite.analysis.judging.shares import idle_share, share_of
from benchsuite.analysis.judging.thresholds import FITTING_MODEL, MAIN_SHARE, MOSTLY_KEPT_UP_AU, QUOTA_SHARE
from benchsuite.inside.samples import RankSamples

BEGINNINGS = ("waiting/worker_start", "preprocessing/shuffle_buffer")
"""What a pass begins with, while nothing else goes on."""
HAND_OVER = "preprocessing/hand_over"
"""What workers do to hand on a batch, and the loop's own thread to receive it."""
READS = ("storage/reads", "storage/mapped_pages", "storage/amplification")


@dataclass(frozen=True)
class Pipeline:
    """What a step needs of each part of the pipeline."""

    loop_s: float
    """Seconds of a step in which the loop does not wait for its readers."""
    reading_s: float
    """Seconds that one reader needs for a batch."""
    receiving_s: float
    """Of `loop_s`: those in which it receives a batch that is ready."""
    begins_s: float
    """Seconds of the beginnings of passes, for each step."""
    workers: int
    """0: the loop reads by itself."""
    disk_s: float
    """Seconds that the disk needs at least for a batch."""
    loop_cpu_s: float
    """Seconds in which cores compute for a step without its input, of all ranks that share these cores."""
    reading_cpu_s: float
    """The same for a batch."""
    cores: float | None
    """Cores for these ranks; None where that is not known."""
    ranks: int = 1
    """Ranks that share them."""

    @property
    def cpu_s(self) -> float:
        """Seconds in which cores compute for a step."""
        return self.loop_cpu_s + self.reading_cpu_s

    @property
    def step_s(self) -> float:
        """Seconds of a step: the slowest part sets the pace."""
        in_turn = self.loop_s + self.reading_s
        beside = max(self.loop_s, self.reading_s / self.workers, self.disk_s) if self.workers else in_turn
        return max(beside, self.cpu_s / self.cores if self.cores else 0.0) + self.begins_s

    @property
    def used_cores(self) -> float:
        """Cores that it keeps busy."""
        return self.cpu_s / self.step_s if self.step_s else 0.0


def pipeline_of(
    figures: Mapping[str, Any], rank: RankSamples, setting: Setting, evidence: Mapping[str, float | int | str]
) -> Pipeline | None:
    """The pipeline of a rank, as it was measured; None where it is not known, or does not give the measured step.

    Args:
        figures: of the loop.
        rank: the one that is judged.
        setting: what else is known of it.
        evidence: the numbers of its verdict: shares of the step by cause.
    """
    seen, step_s, stall = rank.seen_readers, figures["step_s_mean"], figures.get("input_stall_fraction")
    if seen is None or stall is None:
        return None
    workers = seen.num_readers if setting.watched else setting.num_workers or 0
    if not workers and rank.looks is not None and share_of(rank.looks.load, "waits_for_readers") >= MAIN_SHARE:
        return None  # threads read, of which it is not known how many
    if setting.watched and workers and not seen.queue_batches:
        return None  # processes of the user's own, of which it is not known whether there may be more
    begins, handing, reads = (
        sum(float(evidence.get(f"{name}_fraction", 0.0)) for name in names)
        for names in (BEGINNINGS, (HAND_OVER,), READS)
    )
    of_loop = min(handing, stall * share_of(rank.looks.load, "hand_over")) if rank.looks is not None else 0.0
    waits = max(0.0, stall - begins - of_loop)
    begins_s, loop_s = begins * step_s, (1 - max(stall, begins + of_loop) + of_loop) * step_s
    if not workers:
        reading_s = waits * step_s
    elif waits >= 1 - MOSTLY_KEPT_UP_AU:
        reading_s = workers * (step_s - begins_s) * (1 - idle_share(rank))
    else:
        reading_s = workers * min(step_s * (seen.busy_fraction or 0.0), step_s - begins_s)
    of_disk = min(1.0, reads / waits) if waits else 0.0
    ranks, loop_cpu_s = setting.ranks or 1, (seen.body_cores or 0.0) * loop_s
    reading_cpu_s = max(0.0, _cores(figures, rank, setting) * step_s - loop_cpu_s)
    found = Pipeline(
        loop_s=loop_s,
        reading_s=reading_s,
        receiving_s=of_loop * step_s,
        begins_s=begins_s,
        workers=workers,
        disk_s=of_disk * reading_s / max(workers, 1) * (setting.saturation(figures) or 1.0),
        loop_cpu_s=ranks * loop_cpu_s,
        reading_cpu_s=ranks * reading_cpu_s,
        cores=_available(figures, rank, setting),
        ranks=ranks,
    )
    return found if abs(found.step_s - step_s) <= FITTING_MODEL * step_s else None


def _cores(figures: Mapping[str, Any], rank: RankSamples, setting: Setting) -> float:
    """Cores that a rank and its readers keep busy while it steps with its input."""
    used, seen = rank.used_cores, rank.seen_readers
    if setting.watched and used is not None and used.seconds:
        return used.own_cpu_s / used.seconds
    of_loop = (1 - (figures.get("input_stall_fraction") or 0.0)) * ((seen.body_cores if seen else None) or 0.0)
    return of_loop + setting.reader_cores(figures) / (setting.ranks or 1)


def _available(figures: Mapping[str, Any], rank: RankSamples, setting: Setting) -> float | None:
    """Cores that others leave to the ranks that share them; under a quota that is used up, what it gives."""
    used = rank.used_cores
    if used is not None and used.seconds and (used.throttled_fraction or 0.0) >= QUOTA_SHARE:
        return (setting.ranks or 1) * used.own_cpu_s / used.seconds
    return None if setting.cores is None else max(1.0, setting.cores - (figures.get("foreign_cpu_cores") or 0.0))
