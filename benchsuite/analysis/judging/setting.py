"""What a verdict depends on beside the figures."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchsuite.analysis.judging.thresholds import SPARED_CORE
from benchsuite.analysis.metrics import MIN_WARM_RESIDENT


@dataclass(frozen=True)
class Setting:
    """What is known of a loop beside its figures; None where it is not known."""

    num_workers: int | None = None
    """Loader workers of one rank."""
    ranks: int | None = None
    """Ranks that share the cores."""
    cores: int | None = None
    threads: int | None = None
    """Threads that compute for one rank."""
    file_per_sample: bool | None = None
    emulated: bool = False
    cache: str = "cold"
    staged: bool = False
    readers_of_a_sample: int = 1
    """Ranks that read the same samples through a cache."""
    hides_communication: bool = False
    """Whether communication runs within compiled code, where it is not timed."""
    reads_told: bool = False
    """Whether readers time their reads themselves."""
    samples_known: bool = True
    """Whether a trial reads the samples of its dataset: a reader of the user's own may read other files."""
    maps_files: bool = False
    watched: bool = False
    """Whether the loop is someone else's."""

    def cached(self, figures: Mapping[str, Any]) -> float:
        """Share of the bytes that came from memory, as far as counters or residency tell.

        Ranks that read the same samples find there what the first of them has read: that is no cache of the trial's.
        """
        share: float | None = figures.get("cache_hit_fraction")
        if share is None:
            return 1.0 if (figures.get("cache_resident_before") or 0.0) >= MIN_WARM_RESIDENT else 0.0
        return float(max(0.0, 1.0 - (1.0 - share) * self.readers_of_a_sample))

    def saturation(self, figures: Mapping[str, Any]) -> float | None:
        """What was read of the files' content over what a plain reader got; None for reads that are not cold."""
        rate, ceiling = figures.get("io_bytes_per_s"), figures.get("storage_ceiling_bytes_per_s")
        return rate / ceiling if self.cache == "cold" and rate and ceiling else None

    def reader_cores(self, figures: Mapping[str, Any]) -> float:
        """Cores that all ranks' readers keep busy."""
        readers = (self.ranks or 1) * max(self.num_workers or 0, 1)
        computing = computing_share(figures)
        busy = figures.get("worker_busy_fraction" if self.watched else "reader_busy_fraction") or 0.0
        return float(readers * busy * (1.0 if computing is None else computing))

    @property
    def has_more_threads_than_cores(self) -> bool:
        """Whether ranks compute with more threads than there are cores for them; False where that is not known."""
        if not (self.ranks and self.cores and self.threads):
            return False
        return self.threads > max(1, self.cores // self.ranks)

    def fitting_threads(self, figures: Mapping[str, Any]) -> int | None:
        """As many threads a rank as leave readers what they use; None where there are no more, or that is not known."""
        ranks, cores, threads = self.ranks, self.cores, self.threads
        if not (ranks and cores and threads):
            return None
        busy = self.reader_cores(figures)
        taken = math.ceil(busy / ranks) if busy / ranks > SPARED_CORE else 0
        fitting = max(1, cores // ranks - taken)
        return fitting if fitting < threads else None


def computing_share(figures: Mapping[str, Any]) -> float | None:
    """Share of the time of reading and decoding in which a core computes; None where the two are not told apart."""
    read, decode = figures.get("read_s_per_sample") or 0.0, figures.get("decode_s_per_sample")
    if decode is None or not read + decode:
        return None
    return float(min(1.0, (decode + (figures.get("read_cpu_s_per_sample") or 0.0)) / (read + decode)))
