"""Why a trial's figures must not be trusted blindly: caveats, by name and with the arithmetic."""

from collections.abc import Sequence

import numpy as np

from benchsuite.analysis.byte_reconciliation import in_bucket
from benchsuite.analysis.failure import is_peer_failure
from benchsuite.analysis.memory_growth import memory_caveats
from benchsuite.analysis.metrics import MAX_COLD_RESIDENT, MIN_WARM_RESIDENT, most, windows
from benchsuite.contract.rank_samples import ENDED_COUNTING
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.grid.blocks import LOADER_BLOCKS, layout, steady_steps
from benchsuite.host.interference import crowding, foreign_load
from benchsuite.inside.samples import STEADY_TURNS, RankSamples
from benchsuite.results.store.record import MAX_AU

MAX_QUEUE_LOSS = 0.10
"""A loader block whose queue lost more than this share of what it delivered is not steady."""
MAX_BLOCK_SPREAD = 0.20
"""Loader blocks, or ceiling blocks, whose rates differ by more than this share of their mean are not steady."""
MAX_LATE_S, MAX_LATE_SHARE = 0.0002, 0.05
"""Ranks that wake later from emulated steps, and by more than this share of a step, are flagged."""
MAX_COPY_SHARE = 1.5
"""Readers that give more than so many times what a core copies have not copied."""
MAX_BUFFERED_BYTES = 64 << 20
"""Bytes that may have been read before they were asked for: more than readers and archives hold in their buffers."""
OF_A_STORE = "what the object store keeps in memory cannot be seen from here"
MAX_DIRECT_RESIDENT = 0.05
"""Headers and tables that libraries read may stay in the page cache after direct reads."""


def caveats(
    spec: TrialSpec,
    results: Sequence[RankSamples],
    cores: int,
    cache_visible: bool,
    foreign_cores: float | None = None,
    ranks_on_node: int | None = None,
) -> list[tuple[str, str]]:
    """Why figures must not be trusted blindly: (name, the arithmetic)."""
    found: list[tuple[str, str]] = []
    ranks = ranks_on_node or spec.ranks
    if crowd := crowding(spec, ranks, cores):
        found.append(("oversubscribed", crowd))
    if foreign := foreign_load(foreign_cores, cores):
        found.append(("foreign_load", foreign))
    if spec.data.source == "storage":
        found += _cache_caveats(spec, results, cache_visible) + _steadiness_caveats(spec, results)
        found += _copying_caveats(spec, results)
    return found + _staging_caveats(spec, results) + memory_caveats(results)


def _copying_caveats(spec: TrialSpec, results: Sequence[RankSamples]) -> list[tuple[str, str]]:
    """Where readers gave more than a core copies: then they handed on, mapped, what nobody has read.

    How long DALI's readers read, DALI does not tell. What a bucket's client holds it has received, mostly before it
    is asked for; and so little that buffers may hold it was read before the block began.
    """
    if spec.data.loader == "dali" or in_bucket(spec):
        return []
    for result in results:
        blocks = [block for block in result.blocks if block.kind == "loader"]
        produced, read_s = sum(block.produced_bytes for block in blocks), sum(block.read_s for block in blocks)
        copies = result.copy_bytes_per_s
        if copies is not None and produced > max(MAX_COPY_SHARE * copies * read_s, MAX_BUFFERED_BYTES):
            rate = f"{produced / read_s / 1e9:.1f} GB/s" if read_s else "any rate"
            said = f"a reader of rank {result.rank} gives {rate} while it reads, a core copies {copies / 1e9:.1f} GB/s"
            return [("not_read", f"{said}: bytes were handed on that nobody has read")]
    return []


def _staging_caveats(spec: TrialSpec, results: Sequence[RankSamples]) -> list[tuple[str, str]]:
    """Where stage_s may be no cold read though the trial is."""
    nodes = [result for result in results if result.stage_s]
    if spec.data.cache == "warm" or not nodes:
        return []
    resident = [result.stage_source_resident for result in nodes]
    if None in resident:
        why = OF_A_STORE if in_bucket(spec) else "the kernel hides from this user how much of the source was in memory"
        return [("cache_unverified", f"stage_s: {why}")]
    share = most(resident) or 0.0
    if share > MAX_COLD_RESIDENT:
        return [("not_cold", f"stage_s: {share:.0%} of the source stayed in the page cache")]
    return []


def utilization_caveats(spec: TrialSpec, au: float | None, ceiling_s: float | None) -> list[tuple[str, str]]:
    """The caveat of a utilization above 1 by more than its noise: (name, the arithmetic)."""
    if spec.emulated or au is None or ceiling_s is None or au <= MAX_AU:
        return []
    arithmetic = f"AU {au:.2f} = {ceiling_s * 1e3:.4g} ms a step with its input in memory / {ceiling_s / au * 1e3:.4g}"
    why = "the ceiling was measured in a slower stretch than the steps: measure again on an idle machine"
    return [("au_above_one", f"{arithmetic} ms with the loader, above {MAX_AU}: {why}")]


def uncounted_caveats(results: Sequence[RankSamples]) -> list[tuple[str, str]]:
    """The caveat of a trial of which something is missing that ranks count after their steps."""
    told = [(result.not_counted, result.rank) for result in results if result.not_counted]
    if not told:
        return []
    why, rank = min(told, key=lambda one: (one[0] == ENDED_COUNTING, is_peer_failure(one[0]), one[1]))
    return [("not_counted", f"rank {rank}, when its steps were done: {why}")]


def _cache_caveats(spec: TrialSpec, results: Sequence[RankSamples], visible: bool) -> list[tuple[str, str]]:
    known = [r.cache_resident_before for r in results if r.cache_resident_before is not None]
    if not known or not visible:
        hidden = OF_A_STORE if in_bucket(spec) else "its file system's cache cannot be seen from here"
        why = hidden if not visible else "the kernel hides it from this user"
        return [("cache_unverified", f"{spec.data.cache} asked for, residency unknown: {why}")]
    most, least = max(known), min(known)  # over nodes
    if spec.data.cache in ("cold", "direct") and most > MAX_COLD_RESIDENT:
        return [(f"not_{spec.data.cache}", f"{most:.0%} of the trial's files stayed in the page cache")]
    if spec.data.cache == "warm" and least < MIN_WARM_RESIDENT:
        return [("not_warm", f"only {least:.0%} of the trial's files fitted the page cache")]
    nodes = [r for r in results if r.cache_resident_before is not None or r.cache_measured_fraction is not None]
    after = [r.cache_resident_after for r in nodes if r.cache_resident_after is not None]
    if spec.data.cache == "direct" and max(after, default=0.0) > MAX_DIRECT_RESIDENT:
        return [("not_direct", f"{max(after):.0%} of the trial's files went through the page cache")]
    told = min(len(known), len(after)) if spec.data.cache == "direct" else len(known)
    if told < len(nodes):
        hidden = f"residency unknown on {len(nodes) - told} of {len(nodes)} nodes"
        return [("cache_unverified", f"{spec.data.cache} asked for, {hidden}: the kernel hides it from this user")]
    return []


def _steadiness_caveats(spec: TrialSpec, results: Sequence[RankSamples]) -> list[tuple[str, str]]:
    name, found = "not_steady", []
    steps, needed = layout(spec).loader_steps, steady_steps(spec)
    if LOADER_BLOCKS * steps < needed:
        found.append(
            (
                name,
                f"{steps} steps a block cover the queue of {spec.data.queue_batches} batches fewer than "
                f"{STEADY_TURNS} times: measure.steps {needed} would",
            )
        )
    loader = windows(results, "loader")
    lost = max(1 - window.lasting for window in loader)
    if lost > MAX_QUEUE_LOSS:
        found.append((name, f"the queue lost {lost:.0%} of what a block delivered"))
    steady = [] if spec.measure.epochs else ["loader"]  # what a whole epoch gives may change through it
    for kind in [*steady, *([] if spec.emulated else ["ceiling"])]:
        rates = [(window.sustained or 0.0) / window.seconds for window in windows(results, kind)]
        spread = (max(rates) - min(rates)) / float(np.mean(rates)) if max(rates) > 0 else 1.0
        if spread > MAX_BLOCK_SPREAD:
            found.append((name, f"{kind} blocks differ by {spread:.0%}"))
    late = max((block.late_s or 0.0 for result in results for block in result.blocks), default=0.0)
    if late > max(MAX_LATE_S, MAX_LATE_SHARE * (spec.emulated_step_s or 0.0)):
        found.append(("emulation_late", f"ranks woke {late * 1e3:.1f} ms late from their steps: cores were busy"))
    if not all(block.queue_full for window in windows(results, "ceiling") for block in window.blocks):
        found.append((name, "readers still filled the queue during a ceiling block"))
    return found
