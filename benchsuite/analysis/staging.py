"""A trial's staging as figures and caveats."""

from collections.abc import Sequence

from benchsuite.analysis.metrics import MAX_COLD_RESIDENT
from benchsuite.contract.rank_samples import RankResult
from benchsuite.contract.trial_spec import TrialSpec


def figures(results: Sequence[RankResult]) -> dict[str, float | None]:
    """Seconds of the slowest node, and bytes per second of all nodes."""
    known = [(result.stage_s, result.stage_bytes) for result in results if result.stage_s]
    if not known:
        return {}
    seconds = max(seconds for seconds, _ in known if seconds)
    return {"stage_s": seconds, "stage_bytes_per_s": sum(size or 0 for _, size in known) / seconds}


def caveats(spec: TrialSpec, results: Sequence[RankResult]) -> list[tuple[str, str]]:
    """Where stage_s may be no cold read though the trial is."""
    nodes = [result for result in results if result.stage_s]
    if spec.data.cache == "warm" or not nodes:
        return []
    resident = [result.stage_source_resident for result in nodes]
    if None in resident:
        return [("cache_unverified", "stage_s: the kernel hides from this user how much of the source was in memory")]
    most = max(share for share in resident if share is not None)
    if most > MAX_COLD_RESIDENT:
        return [("not_cold", f"stage_s: {most:.0%} of the source stayed in the page cache")]
    return []
