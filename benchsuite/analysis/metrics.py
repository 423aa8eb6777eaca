"""From raw step samples to the reported figures: pure functions.

Ranks' clocks are compared directly: all ranks of a trial share one host's monotonic clock.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from benchsuite.analysis.device_peaks import peak_flops
from benchsuite.contract.rank_samples import Block, RankResult
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.grid.blocks import LOADER_BLOCKS, STEADY_TURNS, layout, steady_steps
from benchsuite.host.interference import crowding, foreign_load
from benchsuite.results.store.record import MAX_AU

if TYPE_CHECKING:
    from benchsuite.workloads.flops import Flops

MAX_QUEUE_LOSS = 0.10
"""A loader block whose queue lost more than this share of what it delivered is not steady."""
MAX_BLOCK_SPREAD = 0.20
"""Loader blocks, or ceiling blocks, whose rates differ by more than this share of their mean are not steady."""
MAX_LATE_S, MAX_LATE_SHARE = 0.0002, 0.05
"""Ranks that wake later from emulated steps, and by more than this share of a step, are flagged."""
MAX_COLD_RESIDENT = 0.01
MIN_WARM_RESIDENT = 0.99
MAX_DIRECT_RESIDENT = 0.05
"""Headers and tables that libraries read may stay in the page cache after direct reads."""


@dataclass(frozen=True)
class Window:
    """One loader (or plain) block over all ranks: latest end minus earliest start."""

    seconds: float
    consumed: int
    """Samples that the ranks took."""
    sustained: float
    """Samples the pipeline could have given for ever: what was taken, less what the queues lost meanwhile."""
    blocks: tuple[Block, ...]

    @property
    def longest_s(self) -> float:
        """Of the rank that took longest.

        Ranks begin and end a block one after another, which is no part of a step: in a block of few steps it would be
        a good part of each.
        """
        return max(block.end_s - block.start_s for block in self.blocks)

    @property
    def samples_per_s(self) -> float:
        return self.sustained / self.seconds


def windows(results: Sequence[RankResult], kind: str) -> list[Window]:
    """The blocks of one kind, each over all ranks."""
    per_rank = [[block for block in result.blocks if block.kind == kind] for result in results]
    return [_window(tuple(blocks)) for blocks in zip(*per_rank, strict=True)]


def _window(blocks: tuple[Block, ...]) -> Window:
    seconds = max(block.end_s for block in blocks) - min(block.start_s for block in blocks)
    consumed = sum(block.consumed_samples for block in blocks)
    if blocks[0].kind != "loader":
        return Window(seconds, consumed, consumed, blocks)
    # The slowest rank's pipeline sets the pace of all ranks in step.
    return Window(seconds, consumed, consumed * min(1.0, *(_lasting_share(block) for block in blocks)), blocks)


def _lasting_share(block: Block) -> float:
    """What the readers can give for ever, over what a rank took from them and their queue; above 1 they rest at times.

    That is what they give when none waits for room in the queue: their number over the time that a sample needs. A
    loader that does not tell those times has its samples counted instead, with up to a sample a reader in error.
    """
    if block.paced_s and block.paced_samples:
        pace = block.readers * block.paced_samples / block.paced_s
        return pace * (block.end_s - block.start_s) / block.consumed_samples
    return block.produced_samples / block.consumed_samples


def slowest_rank(results: Sequence[RankResult], kind: str) -> int:
    """Position of the rank whose counted steps took longest in all, waiting for others left out: they wait for it."""
    return int(np.argmax([_busy_s(result, kind) for result in results]))


def _busy_s(result: RankResult, kind: str) -> float:
    blocks = [block for block in result.blocks if block.kind == kind]
    waiting = sum(sum(block.parts.get(name, [])) for block in blocks for name in ("communication", "bubble"))
    return sum(sum(block.step_s()) for block in blocks) - waiting


def part_means(blocks: Sequence[Block]) -> dict[str, float]:
    """Mean seconds per step of each part; the means add up to the mean step."""
    names = list(dict.fromkeys(name for block in blocks for name in block.parts))
    return {f"{name}_s": float(np.mean([s for block in blocks for s in block.parts[name]])) for name in names}


def step_figures(blocks: Sequence[Block]) -> dict[str, float]:
    """Mean and percentiles of the step time."""
    steps = np.array([step for block in blocks for step in block.step_s()])
    p50, p95, p99 = np.percentile(steps, [50, 95, 99])
    return {
        "step_s_mean": float(steps.mean()),
        "step_s_p50": float(p50),
        "step_s_p95": float(p95),
        "step_s_p99": float(p99),
    }


def ceiling_step_s(results: Sequence[RankResult]) -> float:
    """Mean step with its input in memory, over the ceiling blocks, each as long as its slowest rank took."""
    ceilings = windows(results, "ceiling")
    return sum(window.longest_s for window in ceilings) / sum(window.blocks[0].num_steps for window in ceilings)


def utilization(results: Sequence[RankResult], global_batch: int, step_s: float | None = None) -> float:
    """AU: the time the steps need with input in memory, over the time they take at the sustained rate."""
    loader = windows(results, "loader")
    rate = sum(window.sustained for window in loader) / sum(window.longest_s for window in loader)
    return (step_s or ceiling_step_s(results)) * rate / global_batch


def utilization_mlperf(results: Sequence[RankResult], step_s: float) -> float | None:
    """AU as MLPerf Storage defines it: computation over elapsed time of all steps but the first, the mean of all ranks.

    Nothing is left out or corrected for: steps that empty the queue count. None where only one step was taken.
    """
    of_ranks = []
    for result in results:
        steps = [s for block in result.blocks for s in (*block.uncounted_step_s, *block.step_s())][1:]
        if not steps:
            return None
        of_ranks.append(step_s * len(steps) / sum(steps))
    return float(np.mean(of_ranks))


def input_stall_fraction(results: Sequence[RankResult]) -> float:
    """Share of the steps that is waiting for input: of each what its hungriest rank waits, as others wait for it."""
    loads, steps = [], []
    for window in windows(results, "loader"):
        loads.append(np.max([block.parts["load"] for block in window.blocks], axis=0))
        steps.append(np.max([block.step_s() for block in window.blocks], axis=0))
    return float(np.concatenate(loads).sum() / np.concatenate(steps).sum())


def communication_min_s(results: Sequence[RankResult], kind: str) -> float | None:
    """Mean over steps of the least exchange of any rank: the wire, without waiting for stragglers."""
    ranks = [
        [s for block in result.blocks if block.kind == kind for s in block.parts.get("communication", [])]
        for result in results
    ]
    return float(np.min(np.array(ranks), axis=0).mean()) if ranks[0] else None


def load_mean_s(results: Sequence[RankResult], kind: str) -> float | None:
    """Seconds per step of waiting for input, mean over ranks; None for one."""
    if len(results) < 2:
        return None
    loads = [part_means([block for block in result.blocks if block.kind == kind]) for result in results]
    return float(np.mean([parts["load_s"] for parts in loads])) if all("load_s" in parts for parts in loads) else None


def imbalance(results: Sequence[RankResult], kind: str) -> dict[str, float | int]:
    """How long ranks wait for a slower one in the exchange, and for which: the one that waits least itself."""
    waits = [
        [s for block in result.blocks if block.kind == kind for s in block.parts.get("communication", [])]
        for result in results
    ]
    if len(waits) < 2 or not all(waits):
        return {}
    waited = (np.array(waits) - np.min(np.array(waits), axis=0)).mean(axis=1)
    return {
        "imbalance_s": float(waited.max()),
        "imbalance_mean_s": float(waited.mean()),
        "slowest_rank": results[int(waited.argmin())].rank,
    }


def loader_figures(spec: TrialSpec, results: Sequence[RankResult]) -> dict[str, Any]:
    """Figures that only the real pipeline has: bytes, readers, utilization."""
    loader = windows(results, "loader")
    blocks = [block for window in loader for block in window.blocks]
    seconds = sum(window.seconds for window in loader)
    sustained_share = sum(window.sustained for window in loader) / sum(window.consumed for window in loader)
    produced = sum(block.produced_samples for block in blocks)
    read_s, decode_s = sum(block.read_s for block in blocks), sum(block.decode_s for block in blocks)
    readers = spec.data.readers * spec.ranks
    copies = spec.ranks // spec.data_ranks
    computed = total(block.read_cpu_s for block in blocks)
    told_apart = spec.data.loader != "dali"  # its readers and decoders run as one
    plain = [result.storage_ceiling for result in results if result.storage_ceiling]
    known_s = spec.emulated_step_s
    step_s = known_s or ceiling_step_s(results)
    return {
        "au": utilization(results, spec.global_batch * copies, step_s),
        "au_mlperf": utilization_mlperf(results, known_s) if known_s else None,
        "ceiling_step_s": step_s,
        "io_bytes_per_s": sum(block.consumed_bytes for block in blocks) * sustained_share / seconds / copies,
        "read_s_per_sample": read_s / produced if produced and told_apart else None,
        "read_cpu_s_per_sample": computed / produced if produced and computed is not None else None,
        "decode_s_per_sample": decode_s / produced if produced and told_apart else None,
        "reader_busy_fraction": (read_s + decode_s) / (readers * seconds),
        **{name: _over_nodes(results, name) for name in OVER_NODES},
        "storage_ceiling_bytes_per_s": sum(ceiling["bytes_per_s"] for ceiling in plain) if plain else None,
    }


def total(values: Iterable[float | None]) -> float | None:
    """The sum, where all are known."""
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)


OVER_NODES = ("cache_resident_before", "cache_resident_after", "cache_measured_fraction")


def _over_nodes(results: Sequence[RankResult], name: str) -> float | None:
    """The mean of what each node's first rank measured."""
    known = [getattr(result, name) for result in results if getattr(result, name) is not None]
    return float(np.mean(known)) if known else None


def overhead_fraction(results: Sequence[RankResult], step_s: float) -> float | None:
    """The harness's own share of a step: of the rank on which its clock and heartbeat take longest."""
    own = [result.instrument_s_per_step for result in results if result.instrument_s_per_step is not None]
    return max(own) / step_s if own else None


def compute_figures(
    spec: TrialSpec, results: Sequence[RankResult], samples_per_s: float, flops: "Flops | None"
) -> dict[str, Any]:
    """Figures of computation: FLOPs over time and peak, what one rank holds in memory, and what it sends.

    mfu is the model's FLOPs over the device's dense peak (Chowdhery et al., "PaLM", 2022, appendix B); hfu counts
    recomputed blocks as well (Korthikanti et al. 2022).
    """
    found: dict[str, Any] = {}
    accounts = [result.account for result in results if result.account is not None]
    if len(accounts) == len(results):
        names = ("weights_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes", "wire_bytes")
        known = {name: [a[name] for a in accounts if a[name] is not None] for name in names}
        found |= {name.replace("wire_bytes", "wire_bytes_per_step"): max(known[name], default=None) for name in names}
    if flops is None:
        return found
    model = flops.forward_flops + flops.backward_flops
    again = flops.blocks_forward_flops if spec.activation_checkpointing == "full" else 0
    peak = peak_flops(results[0].device_name, spec.precision)
    rate = samples_per_s / sum(result.num_devices for result in results)
    return found | {
        "parameters": flops.parameters,
        "flops_per_sample": model,
        "flops_convention": flops.convention,
        "tflops_per_device": rate * model / 1e12,
        "peak_tflops_per_device": peak / 1e12 if peak else None,
        "mfu": rate * model / peak if peak else None,
        "hfu": rate * (model + again) / peak if peak else None,
    }


def figures(spec: TrialSpec, results: Sequence[RankResult], flops: "Flops | None" = None) -> dict[str, Any]:
    """Every figure of an ok trial that its raw samples give; what they do not give is absent.

    `flops`: of a sample.
    """
    kind = "loader" if spec.data.source == "storage" else "plain"
    counted = windows(results, kind)
    blocks = [block for block in results[slowest_rank(results, kind)].blocks if block.kind == kind]
    copies = spec.ranks // spec.data_ranks  # ranks of a pipeline or of tensor parallelism share their samples
    rate = sum(window.sustained for window in counted) / sum(window.seconds for window in counted) / copies
    steps = step_figures(blocks)
    total = steps["step_s_mean"] * sum(block.num_steps for block in blocks)
    queued = [block.run_queue_s for block in blocks if block.run_queue_s is not None]
    parts = part_means(blocks)
    decoded = results[0].decoded_sample_bytes
    first_batches = [result.first_batch_s for result in results if result.first_batch_s is not None]
    hosts = [result.host_memory_bytes for result in results if result.host_memory_bytes is not None]
    losses = [result.final_loss for result in results if result.final_loss is not None]
    return {
        "samples_per_s": rate,
        "tokens_per_s": rate * tokens if (tokens := results[0].tokens_per_sample) else None,
        "decoded_bytes_per_s": rate * decoded if decoded else None,
        "input_stall_fraction": input_stall_fraction(results) if kind == "loader" else None,
        "cpu_contention_fraction": sum(queued) / total if len(queued) == len(blocks) else None,
        **parts,
        **steps,
        **compute_figures(spec, results, rate, flops),
        "bubble_fraction": parts["bubble_s"] / steps["step_s_mean"] if "bubble_s" in parts else None,
        "communication_min_s": communication_min_s(results, kind),
        "load_mean_s": load_mean_s(results, kind),
        **imbalance(results, kind),
        "peak_memory_bytes": max((r.peak_memory_bytes for r in results if r.peak_memory_bytes), default=None),
        "host_memory_bytes": sum(hosts) if len(hosts) == len(results) else None,
        "first_batch_s": max(first_batches, default=None),
        "startup_s": max((r.startup_s for r in results if r.startup_s is not None), default=None),
        "final_loss": float(np.mean(losses)) if losses else None,
        "skipped_steps": max((r.skipped_steps for r in results if r.skipped_steps is not None), default=None),
        "overhead_fraction": overhead_fraction(results, steps["step_s_mean"]),
        **(loader_figures(spec, results) if kind == "loader" else {}),
    }


def caveats(
    spec: TrialSpec,
    results: Sequence[RankResult],
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
    return found


def utilization_caveats(spec: TrialSpec, au: float | None, ceiling_s: float | None) -> list[tuple[str, str]]:
    """The caveat of a utilization above 1 by more than its noise: (name, the arithmetic)."""
    if spec.emulated or au is None or ceiling_s is None or au <= MAX_AU:
        return []
    arithmetic = f"AU {au:.2f} = {ceiling_s * 1e3:.4g} ms a step with its input in memory / {ceiling_s / au * 1e3:.4g}"
    why = "the ceiling was measured in a slower stretch than the steps: measure again on an idle machine"
    return [("au_above_one", f"{arithmetic} ms with the loader, above {MAX_AU}: {why}")]


def _cache_caveats(spec: TrialSpec, results: Sequence[RankResult], visible: bool) -> list[tuple[str, str]]:
    known = [r.cache_resident_before for r in results if r.cache_resident_before is not None]
    if not known or not visible:
        why = (
            "its file system's cache cannot be seen from here" if not visible else "the kernel hides it from this user"
        )
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


def _steadiness_caveats(spec: TrialSpec, results: Sequence[RankResult]) -> list[tuple[str, str]]:
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
    lost = max(1 - window.sustained / window.consumed for window in loader)
    if lost > MAX_QUEUE_LOSS:
        found.append((name, f"the queue lost {lost:.0%} of what a block delivered"))
    for kind in ("loader",) if spec.emulated else ("loader", "ceiling"):
        rates = [window.samples_per_s for window in windows(results, kind)]
        spread = (max(rates) - min(rates)) / float(np.mean(rates)) if max(rates) > 0 else 1.0
        if spread > MAX_BLOCK_SPREAD:
            found.append((name, f"{kind} blocks differ by {spread:.0%}"))
    late = max((block.late_s or 0.0 for result in results for block in result.blocks), default=0.0)
    if late > max(MAX_LATE_S, MAX_LATE_SHARE * (spec.emulated_step_s or 0.0)):
        found.append(("emulation_late", f"ranks woke {late * 1e3:.1f} ms late from their steps: cores were busy"))
    if not all(block.queue_full for window in windows(results, "ceiling") for block in window.blocks):
        found.append((name, "readers still filled the queue during a ceiling block"))
    return found
