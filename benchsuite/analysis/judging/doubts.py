"""Why no verdict can rest on what was measured: it was measured wrong, or others took what the loop waits for."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchsuite.analysis.byte_reconciliation import NOISE_BYTES
from benchsuite.analysis.judging.setting import Setting
from benchsuite.analysis.judging.thresholds import (
    CONTENTION_SHARE,
    FULL_SHARE,
    IDLE_CORES,
    MAIN_SHARE,
    MAX_OVERHEAD,
    MAX_SHARE,
    OTHERS_SHARE,
    QUOTA_SHARE,
)
from benchsuite.analysis.metrics import loop_figures, overhead
from benchsuite.host.interference import foreign_load
from benchsuite.inside.samples import RankSamples, UsedCores
from benchsuite.results.store.record import MAX_AU

Numbers = Mapping[str, float | int | str]


@dataclass(frozen=True)
class Doubt:
    """A reason not to judge, by its name, and the numbers that show it."""

    name: str
    numbers: Numbers

    def evidence(self) -> dict[str, float | int | str]:
        """What a record keeps of it."""
        return {"doubt": self.name, **self.numbers}


def doubt(figures: Mapping[str, Any], setting: Setting, samples: Sequence[RankSamples]) -> Doubt | None:
    """Why the figures cannot be right; None where they can.

    Shares are told as they were measured: what is above 1 was measured wrong, and nothing is cut to fit.
    """
    for rank in samples:
        kinds = {block.kind for block in rank.blocks}
        if found := _of_rank(rank, "loader" if "loader" in kinds else "plain"):
            return Doubt(found.name, {**found.numbers, **({"rank": rank.rank} if len(samples) > 1 else {})})
    au = figures.get("au")
    if au is not None and au > MAX_AU and not setting.emulated:
        return Doubt("au_above_1", {"au": au})
    return _disturbance(figures, setting, samples)


def _of_rank(rank: RankSamples, kind: str) -> Doubt | None:
    alone = loop_figures([rank], kind)
    share = overhead(rank, kind)
    if share is not None and share > MAX_OVERHEAD:
        return Doubt("overhead", {"overhead_fraction": share, "step_s_mean": alone["step_s_mean"]})
    for name, measured in _shares(rank, alone):
        if measured is not None and not 1 - MAX_SHARE <= measured <= MAX_SHARE:
            return Doubt("no_share", {"what": name, "fraction": measured})
    return None


def _shares(rank: RankSamples, figures: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    """What is measured by a clock of its own, as shares of a rank's time."""
    yield "input_stall_fraction", figures["input_stall_fraction"]
    yield "cpu_contention_fraction", figures["cpu_contention_fraction"]
    if seen := rank.seen_readers:
        yield ("worker_busy_fraction" if seen.num_readers else "loading_thread_busy_fraction"), seen.busy_fraction
        yield "loading_thread_busy_fraction", seen.loading_thread_busy_fraction
        yield "reader_queue_fraction", seen.queued_fraction
    if used := rank.used_cores:
        yield "throttled_fraction", used.throttled_fraction
        yield "memory_stall_fraction", used.memory_stall_fraction


def _disturbance(figures: Mapping[str, Any], setting: Setting, samples: Sequence[RankSamples]) -> Doubt | None:
    """What other processes took from the loop; None where they left it the cores that it wants.

    Readers that wait for a core look like readers that wait for their reads: beside a crowd no cause is the job's own.
    """
    cores, others = figures.get("foreign_of_cores") or setting.cores or 1, figures.get("foreign_cpu_cores")
    if foreign_load(others, cores) is None or any(_held_by_itself(rank.used_cores) for rank in samples):
        return None
    assert others is not None, "else it would be no load"
    waits, crowd = figures.get("cpu_contention_fraction") or 0.0, {"foreign_cpu_cores": others, "cores": cores}
    if waits >= CONTENTION_SHARE:
        return Doubt("foreign_load", crowd | {"cpu_contention_fraction": waits})
    if others + _own_cores(figures, setting, samples) >= FULL_SHARE * cores:
        return Doubt("foreign_load", crowd)
    return None


def _held_by_itself(used: UsedCores | None) -> bool:
    """Whether who waits for a core does so for a quota, or beside an idle one: others have not taken it."""
    if used is None:
        return False
    return (used.throttled_fraction or 0.0) >= QUOTA_SHARE or (used.idle_cores or 0.0) >= IDLE_CORES


def _own_cores(figures: Mapping[str, Any], setting: Setting, samples: Sequence[RankSamples]) -> float:
    """Cores that the loop keeps busy on its node: by the kernel's count, else by what its ranks and readers do."""
    counted = [rank.used_cores for rank in samples if rank.used_cores and rank.used_cores.seconds]
    if counted:
        return sum(used.own_cpu_s / used.seconds for used in counted if used.node == counted[0].node)
    computing = 0.0 if setting.emulated else 1 - (figures.get("input_stall_fraction") or 0.0)
    return (setting.ranks or 1) * computing + setting.reader_cores(figures)


def others_read(figures: Mapping[str, Any], setting: Setting) -> Doubt | None:
    """What others read from the disk that the loop reads; None where that is little, or cannot be told."""
    names = ("mount_counter", "process_storage_bytes", "mount_read_bytes")
    counter, own, read = (figures.get(name) for name in names)
    if own is None or read is None or not str(counter).startswith("diskstats"):
        return None
    if own < NOISE_BYTES or setting.cached(figures) > MAIN_SHARE or read - own < OTHERS_SHARE * read:
        return None
    return Doubt("others_read", {"others_read_bytes": read - own, "mount_read_bytes": read})
