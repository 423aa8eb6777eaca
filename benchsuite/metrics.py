"""From raw step samples to the reported figures: pure functions.

Ranks' clocks are compared directly: all ranks of a trial share one host's monotonic clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from benchsuite.blocks import STEADY_TURNS, layout, steady_steps
from benchsuite.peaks import peak_flops
from benchsuite.ranks import Block, RankResult
from benchsuite.spec import TrialSpec

if TYPE_CHECKING:
    from workloads.flops import Flops

MAX_QUEUE_LOSS = 0.10
"""A loader block whose queue lost more than this share of what it delivered is not steady."""
MAX_BLOCK_SPREAD = 0.20
"""Loader blocks, or ceiling blocks, whose rates differ by more than this share of their mean are not steady."""
MAX_FOREIGN_SHARE = 0.15
"""Other processes may use this share of the cores before figures are flagged."""
MIN_COLD_SHARE = 0.75
MAX_WARM_SHARE = 0.05
"""Shares of the bytes read that must come from storage when cold, and may when warm."""
MAX_COLD_RESIDENT = 0.01
MIN_WARM_RESIDENT = 0.99


@dataclass(frozen=True)
class Window:
    """One loader (or plain) block over all ranks: latest end minus earliest start."""

    seconds: float
    consumed: int
    """Samples that the ranks took."""
    sustained: int
    """Samples the pipeline could have given for ever: what was taken, less what the queues lost meanwhile."""
    blocks: tuple[Block, ...]

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
    share = min(block.produced_samples / block.consumed_samples for block in blocks)
    return Window(seconds, consumed, round(consumed * min(1.0, share)), blocks)


def slowest_rank(results: Sequence[RankResult], kind: str) -> int:
    """Position of the rank whose counted steps took longest in all."""
    totals = [sum(sum(block.step_s()) for block in result.blocks if block.kind == kind) for result in results]
    return int(np.argmax(totals))


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
    return sum(window.seconds for window in ceilings) / sum(window.blocks[0].num_steps for window in ceilings)


def utilization(results: Sequence[RankResult], global_batch: int) -> float:
    """AU: the time the steps need with input in memory, over the time they take at the sustained rate."""
    loader = windows(results, "loader")
    rate = sum(window.sustained for window in loader) / sum(window.seconds for window in loader)
    return ceiling_step_s(results) * rate / global_batch


def input_stall_fraction(results: Sequence[RankResult]) -> float:
    """Share of its steps that the hungriest rank waits for input; the others wait for that rank in the exchange."""
    blocks = [[block for block in result.blocks if block.kind == "loader"] for result in results]
    return max(
        sum(sum(block.parts["load"]) for block in of_rank) / sum(sum(block.step_s()) for block in of_rank)
        for of_rank in blocks
    )


def exchange_min_s(results: Sequence[RankResult], kind: str) -> float | None:
    """Mean over steps of the least exchange of any rank: the wire, without waiting for stragglers."""
    ranks = [
        [s for block in result.blocks if block.kind == kind for s in block.parts.get("exchange", [])]
        for result in results
    ]
    return float(np.min(np.array(ranks), axis=0).mean()) if ranks[0] else None


def storage_figures(loader: Sequence[Window]) -> dict[str, float | None]:
    """What came from storage against what the readers read, in the same windows."""
    blocks = [block for window in loader for block in window.blocks]
    seconds = sum(window.seconds for window in loader)
    known = [block.storage_bytes for block in blocks if block.storage_bytes is not None]
    read = sum(block.produced_bytes for block in blocks)
    if len(known) < len(blocks) or not read:
        return {}
    share = sum(known) / read
    return {
        "storage_bytes_per_s": sum(known) / seconds,
        "cache_hit_fraction": max(0.0, 1.0 - share),
        "read_amplification": share if share > 1 else None,
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
    return {
        "au": utilization(results, spec.global_batch * copies),
        "ceiling_step_s": ceiling_step_s(results),
        "io_bytes_per_s": sum(block.consumed_bytes for block in blocks) * sustained_share / seconds / copies,
        "read_s_per_sample": read_s / produced if produced else None,
        "decode_s_per_sample": decode_s / produced if produced else None,
        "reader_busy_fraction": (read_s + decode_s) / (readers * seconds),
        "cache_resident_before": next(
            (result.cache_resident_before for result in results if result.cache_resident_before is not None), None
        ),
    }


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


def figures(
    spec: TrialSpec, results: Sequence[RankResult], reads_counted: bool = True, flops: "Flops | None" = None
) -> dict[str, Any]:
    """Every figure of an ok trial that its raw samples give; what they do not give is absent.

    `reads_counted`: the dataset's file system adds its reads to the counters of processes. `flops`: of a sample.
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
        "exchange_min_s": exchange_min_s(results, kind),
        "peak_memory_bytes": max((r.peak_memory_bytes for r in results if r.peak_memory_bytes), default=None),
        "host_memory_bytes": sum(hosts) if len(hosts) == len(results) else None,
        "first_batch_s": max(first_batches, default=None),
        "startup_s": max((r.startup_s for r in results if r.startup_s is not None), default=None),
        "final_loss": float(np.mean([r.final_loss for r in results if r.final_loss is not None])),
        "skipped_steps": max((r.skipped_steps for r in results if r.skipped_steps is not None), default=None),
        **(loader_figures(spec, results) if kind == "loader" else {}),
        **(storage_figures(windows(results, kind)) if kind == "loader" and reads_counted else {}),
    }


def caveats(
    spec: TrialSpec,
    results: Sequence[RankResult],
    cores: int,
    cache_visible: bool,
    foreign_cores: float | None = None,
) -> list[tuple[str, str]]:
    """Why figures must not be trusted blindly: (name, the arithmetic)."""
    found: list[tuple[str, str]] = []
    threads = spec.ranks * (spec.threads_per_rank or 1)
    if spec.device == "cpu" and threads > cores:
        found.append(("oversubscribed", f"{spec.ranks} ranks x {spec.threads_per_rank} threads > {cores} cores"))
    if foreign_cores is not None and foreign_cores > MAX_FOREIGN_SHARE * cores:
        found.append(("foreign_load", f"other processes kept {foreign_cores:.1f} of {cores} cores busy"))
    if spec.data.source == "storage":
        found += _cache_caveats(spec, results, cache_visible) + _steadiness_caveats(spec, results)
    return found


def counter_caveats(spec: TrialSpec, values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Residency and the kernel's counters must tell the same story."""
    resident, rate = values.get("cache_resident_before"), values.get("storage_bytes_per_s")
    if resident is None or rate is None:
        return []
    # Ranks of a pipeline or of tensor parallelism read the same samples, the first of them from storage.
    share = (1.0 - values["cache_hit_fraction"]) * (spec.ranks // spec.data_ranks)
    if spec.data.cache == "cold" and resident <= MAX_COLD_RESIDENT and share < MIN_COLD_SHARE:
        return [
            ("counters_disagree", f"cold, yet the counters saw only {share:.0%} of the bytes read come from storage")
        ]
    if spec.data.cache == "warm" and resident >= MIN_WARM_RESIDENT and share > MAX_WARM_SHARE:
        return [("counters_disagree", f"warm, but counters saw {share:.0%} of the bytes read come from storage")]
    return []


def _cache_caveats(spec: TrialSpec, results: Sequence[RankResult], visible: bool) -> list[tuple[str, str]]:
    resident = next((r.cache_resident_before for r in results if r.cache_resident_before is not None), None)
    if resident is None or not visible:
        why = (
            "its file system's cache cannot be seen from here" if not visible else "the kernel hides it from this user"
        )
        return [("cache_unverified", f"{spec.data.cache} asked for, residency unknown: {why}")]
    if spec.data.cache == "cold" and resident > MAX_COLD_RESIDENT:
        return [("not_cold", f"{resident:.0%} of the dataset stayed in the page cache")]
    if spec.data.cache == "warm" and resident < MIN_WARM_RESIDENT:
        return [("not_warm", f"only {resident:.0%} of the dataset fitted the page cache")]
    return []


def _steadiness_caveats(spec: TrialSpec, results: Sequence[RankResult]) -> list[tuple[str, str]]:
    name, found = "not_steady", []
    steps, needed = layout(spec).loader_steps, steady_steps(spec)
    if spec.measure.steps < needed:
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
    for kind in ("loader", "ceiling"):
        rates = [window.samples_per_s for window in windows(results, kind)]
        spread = (max(rates) - min(rates)) / float(np.mean(rates)) if max(rates) > 0 else 1.0
        if spread > MAX_BLOCK_SPREAD:
            found.append((name, f"{kind} blocks differ by {spread:.0%}"))
    if not all(block.queue_full for window in windows(results, "ceiling") for block in window.blocks):
        found.append((name, "readers still filled the queue during a ceiling block"))
    return found
