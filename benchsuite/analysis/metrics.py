"""From raw step samples to the reported figures: pure functions.

Ranks' clocks are compared directly: all ranks of a trial share one host's monotonic clock.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from benchsuite.analysis.device_peaks import peak_flops
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.inside.samples import Block, RankSamples, UsedCores

if TYPE_CHECKING:
    from benchsuite.workloads.flops import Flops

MAX_COLD_RESIDENT = 0.01
MIN_WARM_RESIDENT = 0.99
MIN_WAIT = 0.2
"""A step that waits for its input for more than this share of it found the queue empty."""
COMMUNICATION = ("communication_s", "communication_min_s", "imbalance_s", "imbalance_mean_s", "slowest_rank")
ALIKE_STEPS, OUT_OF_STEP = 30, 0.2
"""Fewer kept steps of ranks are not compared one by one, nor such as differ by more than this share of their time."""
MIN_WALL_S = 0.5
"""The kernel counts CPU time in ticks of 10 ms: of a shorter loop it is not told who else kept cores busy."""


@dataclass(frozen=True)
class Window:
    """One loader (or plain) block over all ranks: latest end minus earliest start."""

    seconds: float
    consumed: float | None
    """Samples that the ranks took; None where one of them cannot tell."""
    lasting: float
    """Share of them that the pipeline could give for ever: what was taken, less what the queues lost meanwhile."""
    blocks: tuple[Block, ...]

    @property
    def sustained(self) -> float | None:
        """Samples that the pipeline could have given for ever."""
        return None if self.consumed is None else self.consumed * self.lasting

    @property
    def is_in_step(self) -> bool:
        """Whether ranks' single steps can be compared: every one was kept."""
        return all(block.totals is None for block in self.blocks)


def steps_alike(blocks: Sequence[Block]) -> int:
    """How many of the kept steps of ranks can be compared one by one: the same ones, which took about as long on all.

    Ranks that exchange go in step; where their steps of one number do not take as long, it is not the same step.
    """
    kept = min(len(block.step_s()) for block in blocks)
    if len({block.every for block in blocks}) > 1 or kept < ALIKE_STEPS:
        return 0
    times = np.array([block.step_s()[:kept] for block in blocks])
    return kept if np.ptp(times, axis=0).mean() <= OUT_OF_STEP * times.mean() else 0


def windows(results: Sequence[RankSamples], kind: str) -> list[Window]:
    """The blocks of one kind, each over all ranks; none where a rank of a watched loop has none."""
    per_rank = [_blocks(result, kind) for result in results]
    if not all(per_rank):
        return []
    return [_window(tuple(blocks)) for blocks in zip(*per_rank, strict=True)]


def _blocks(result: RankSamples, kind: str) -> list[Block]:
    return [block for block in result.blocks if block.kind == kind]


def _window(blocks: tuple[Block, ...]) -> Window:
    seconds = max(block.end_s for block in blocks) - min(block.start_s for block in blocks)
    consumed = total(block.consumed_samples for block in blocks)
    if blocks[0].kind != "loader":
        return Window(seconds, consumed, 1.0, blocks)
    # The slowest rank's pipeline sets the pace of all ranks in step.
    return Window(seconds, consumed, min(1.0, *(_lasting_share(block) for block in blocks)), blocks)


def _lasting_share(block: Block) -> float:
    """What the readers can give for ever, over what a rank took from them and their queue; above 1 they rest at times.

    From a step that waits for its input to another one the queue loses nothing. Else it is what readers give when none
    waits for room in the queue: their number over the time that a sample needs. A loader that does not tell those times
    has its samples counted instead, with up to a sample a reader in error; one that tells nothing is taken at its word.
    """
    if not block.consumed_samples or block.produced_samples is None:
        return 1.0
    found = block.produced_samples / block.consumed_samples
    if block.paced_s and block.paced_samples:
        pace = block.readers * block.paced_samples / block.paced_s
        found = pace * (block.end_s - block.start_s) / block.consumed_samples
    starved = _starved_share(block)
    return starved + (1 - starved) * found


def _starved_share(block: Block) -> float:
    """Share of a block's steps from the first that waits for its input to the last one; 0 where none is known."""
    steps = block.step_s() if block.totals is None else []
    loads = block.parts.get("load", [])
    waiting = [place for place, (load, step) in enumerate(zip(loads, steps, strict=False)) if load > MIN_WAIT * step]
    return (waiting[-1] - waiting[0] + 1) / len(steps) if len(waiting) > 1 else 0.0


def slowest_rank(results: Sequence[RankSamples], kind: str) -> int:
    """Position of the rank whose counted steps take longest, waiting for others left out: they wait for it."""
    return int(np.argmax([_busy_s_per_step(_blocks(result, kind)) for result in results]))


def _busy_s_per_step(blocks: Sequence[Block]) -> float:
    waiting = sum(block.parts_s().get(name, 0.0) for block in blocks for name in ("communication", "bubble"))
    return (sum(block.steps_s for block in blocks) - waiting) / sum(block.num_steps for block in blocks)


def part_means(blocks: Sequence[Block]) -> dict[str, float]:
    """Mean seconds per step of each part; the means add up to the mean step."""
    names = list(dict.fromkeys(name for block in blocks for name in block.parts_s()))
    steps = sum(block.num_steps for block in blocks)
    return {f"{name}_s": sum(block.parts_s().get(name, 0.0) for block in blocks) / steps for name in names}


def step_figures(blocks: Sequence[Block]) -> dict[str, float]:
    """Mean and percentiles of the step time; percentiles over the steps that were kept."""
    p50, p95, p99 = np.percentile([step for block in blocks for step in block.step_s()], [50, 95, 99])
    return {
        "step_s_mean": _mean_step_s(blocks),
        "step_s_p50": float(p50),
        "step_s_p95": float(p95),
        "step_s_p99": float(p99),
    }


def noise_of_steps(results: Sequence[RankSamples], kind: str = "loader") -> float:
    """Half of a 95 % interval of the slowest rank's mean step, over that step; 0 where single steps were not kept.

    Readers deliver in turn, so that some steps wait for all of a turn: whole turns are compared. What drifts from one
    block to the next is in their spread; that neighbours are alike is not allowed for.
    """
    from scipy.special import stdtrit  # Student's t; scipy.stats takes long to import

    turns = []
    for block in _blocks(results[slowest_rank(results, kind)], kind):
        steps, readers = block.step_s(), max(1, block.readers)
        turns += [float(np.mean(steps[at : at + readers])) for at in range(0, len(steps) - readers + 1, readers)]
    if len(turns) < 2:
        return 0.0
    errors = float(stdtrit(len(turns) - 1, 0.975))
    return errors * float(np.std(turns, ddof=1) / np.mean(turns)) / math.sqrt(len(turns))


def whole_epoch_utilization(results: Sequence[RankSamples], step_s: float | None) -> float | None:
    """AU of an epoch that was taken to its end in steps of a known time, from the start of its readers; None of others.

    The first batch is taken before the first step that is timed: its own step is added.
    """
    if step_s is None or not _blocks(results[0], "rest"):
        return None
    slowest = results[slowest_rank(results, "loader")]
    steps = [seconds for block in slowest.blocks for seconds in (*block.uncounted_step_s, *block.step_s())]
    return (len(steps) + 1) * step_s / ((slowest.first_batch_s or 0.0) + step_s + sum(steps))


def _mean_step_s(blocks: Sequence[Block]) -> float:
    return sum(block.steps_s for block in blocks) / sum(block.num_steps for block in blocks)


def ceiling_step_s(results: Sequence[RankSamples]) -> float | None:
    """Mean step with its input in memory, over the ceiling blocks, each as long as its slowest rank took."""
    ceilings = windows(results, "ceiling")
    return sum(_longest_step_s(window) for window in ceilings) / len(ceilings) if ceilings else None


def _longest_step_s(window: Window) -> float:
    """A step of the rank that took longest.

    Ranks begin and end a block one after another, which is no part of a step: in a block of few steps it would be a
    good part of each.
    """
    return max((block.end_s - block.start_s) / block.num_steps for block in window.blocks)


def utilization(results: Sequence[RankSamples], ceiling_s: float) -> float:
    """AU: the time the steps need with input in memory, over the time they take at the sustained rate.

    Of a watched loop only the steps that lie between two ceilings are compared with them.
    """
    loader = windows(results, "between") or windows(results, "loader")
    taken_s = sum(_longest_step_s(window) * window.blocks[0].num_steps for window in loader)
    return ceiling_s * sum(window.lasting * window.blocks[0].num_steps for window in loader) / taken_s


def utilization_error(results: Sequence[RankSamples], au: float | None, known: bool) -> float | None:
    """How far AU may be off: half of a 95 % interval, by the spread of the steps on either side of it.

    None where single steps were not kept. A step that is `known` has no spread.
    """
    if au is None:
        return None
    noises = [noise_of_steps(results, kind) for kind in (("loader",) if known else ("loader", "ceiling"))]
    return au * math.hypot(*noises) if all(noises) else None


def utilization_mlperf(results: Sequence[RankSamples], step_s: float) -> float | None:
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


def asks_loader(rank: RankSamples) -> bool:
    """Whether the steps of a rank ask a loader for batches; a loop's own function may make them in its body."""
    return any("load" in block.parts_s() for block in rank.blocks)


def input_stall_fraction(results: Sequence[RankSamples]) -> float | None:
    """Share of the steps that is waiting for input: of each what its hungriest rank waits, as others wait for it.

    Where not every step was kept it is the share of the hungriest rank. None where no loader is asked.
    """
    if not all(map(asks_loader, results)):
        return None
    waited_s = steps_s = 0.0
    for window in windows(results, "loader"):
        if window.is_in_step:
            waited_s += float(np.max([block.parts["load"] for block in window.blocks], axis=0).sum())
            steps_s += float(np.max([block.step_s() for block in window.blocks], axis=0).sum())
        else:
            hungriest = max(window.blocks, key=lambda block: block.parts_s().get("load", 0.0) / block.steps_s)
            waited_s += hungriest.parts_s().get("load", 0.0)
            steps_s += hungriest.steps_s
    return waited_s / steps_s


def _exchanges(results: Sequence[RankSamples], kind: str) -> "np.ndarray[Any, np.dtype[np.float64]] | None":
    """Exchange by rank and step; where steps cannot be compared, of each rank its mean. None where one tells none."""
    blocks, found = [_blocks(result, kind) for result in results], list[list[float]]()
    counted = windows(results, kind)
    if all(window.is_in_step for window in counted):
        found = [[s for block in each for s in block.parts.get("communication", [])] for each in blocks]
    elif len(counted) == 1 and len(results) > 1 and (alike := steps_alike(counted[0].blocks)):
        found = [block.parts.get("communication", [])[:alike] for block in counted[0].blocks]
    else:
        found = [
            [part_means(each)["communication_s"]] if "communication_s" in part_means(each) else [] for each in blocks
        ]
    return np.array(found) if all(found) else None


def communication_figures(results: Sequence[RankSamples], kind: str) -> dict[str, float | int]:
    """The wire, and how long ranks wait for a slower one in the exchange.

    `communication_min_s` is the mean over steps of the least of any rank. The slowest rank is the one that waits least.
    """
    waits = _exchanges(results, kind)
    if waits is None:
        return {}
    least = np.min(waits, axis=0)
    found: dict[str, float | int] = {"communication_min_s": float(least.mean())}
    if len(results) < 2:
        return found
    waited = (waits - least).mean(axis=1)
    return found | {
        "imbalance_s": float(waited.max()),
        "imbalance_mean_s": float(waited.mean()),
        "slowest_rank": results[int(waited.argmin())].rank,
    }


def profiled_communication_figures(results: Sequence[RankSamples], kind: str) -> dict[str, float | None]:
    """The same of steps whose marks do not see it, by ranks' profiles; None without these, and what none of them has.

    The parts of a step then hold it: forward and backward passes that wait within compiled code.
    """
    known = [result.exposed_s for result in results if result.exposed_s is not None]
    if len(known) < len(results):
        return dict.fromkeys(COMMUNICATION)
    found: dict[str, float | None] = {"communication_s": known[slowest_rank(results, kind)]}
    return dict.fromkeys(COMMUNICATION) | found | {"communication_min_s": min(known)}


def load_mean_s(results: Sequence[RankSamples], kind: str) -> float | None:
    """Seconds per step of waiting for input, mean over ranks; None for one."""
    if len(results) < 2:
        return None
    loads = [part_means(_blocks(result, kind)) for result in results]
    return float(np.mean([parts["load_s"] for parts in loads])) if all("load_s" in parts for parts in loads) else None


def loop_figures(
    results: Sequence[RankSamples], kind: str = "loader", copies: int = 1, known_step_s: float | None = None
) -> dict[str, Any]:
    """Every figure that the steps of a loop give, of a trial or a watched one; what they do not give is None.

    Args:
        results: one for each rank.
        kind: of the blocks that count.
        copies: ranks that take the same samples.
        known_step_s: what a step needs with its input in memory, where that is no question of measuring.
    """
    counted = windows(results, kind)
    blocks = _blocks(results[slowest_rank(results, kind)], kind)
    seconds = sum(window.seconds for window in counted)
    samples = total(window.sustained for window in counted)
    steps, parts = step_figures(blocks), part_means(blocks)
    queued, threads = (total(getattr(block, name) for block in blocks) for name in ("run_queue_s", "threads_queue_s"))
    hosts = [result.host_memory_bytes for result in results]
    losses = [result.final_loss for result in results if result.final_loss is not None]
    ceiling_s = (known_step_s or ceiling_step_s(results)) if kind == "loader" else None
    return {
        "samples_per_s": None if samples is None else samples / seconds / copies,
        "au": None if ceiling_s is None else utilization(results, ceiling_s),
        "ceiling_step_s": ceiling_s,
        "input_stall_fraction": input_stall_fraction(results) if kind == "loader" else None,
        "cpu_contention_fraction": None if queued is None else queued / sum(block.steps_s for block in blocks),
        "threads_contention_fraction": None if threads is None else threads / sum(block.steps_s for block in blocks),
        **parts,
        **steps,
        "bubble_fraction": parts["bubble_s"] / steps["step_s_mean"] if "bubble_s" in parts else None,
        **communication_figures(results, kind),
        "load_mean_s": load_mean_s(results, kind),
        "peak_memory_bytes": most(result.peak_memory_bytes or None for result in results),
        "reserved_memory_bytes": most(result.reserved_memory_bytes for result in results),
        "device_memory_bytes": most(result.device_memory_bytes for result in results),
        **counted_figures(results, kind, samples),
        "host_memory_bytes": total(hosts),
        "first_batch_s": most(result.first_batch_s for result in results),
        "startup_s": most(result.startup_s for result in results),
        "final_loss": float(np.mean(losses)) if losses else None,
        "skipped_steps": most(result.skipped_steps for result in results),
        "overhead_fraction": most(overhead(result, kind) for result in results),
    }


HOT = ("power_brake_s", "too_hot_driver_s", "too_hot_hardware_s")
NVLINK = ("nvlink_sent_bytes", "nvlink_received_bytes")


def counted_figures(results: Sequence[RankSamples], kind: str, samples: float | None) -> dict[str, float | None]:
    """What devices counted over the counted steps, in which all of them took so many samples.

    A driver's clock and ours differ by a percent, so shares of the time are held at 1.
    """
    ranks = [_counted(_blocks(result, kind)) for result in results]
    energies = [rank["energy_j"] for rank in ranks if "energy_j" in rank]  # on cpu one rank of a node tells it
    busy = [rank["busy"] for rank in ranks if "busy" in rank]
    energy_j = sum(energies) if energies else None
    return {
        "energy_j": energy_j,
        "energy_j_per_sample": energy_j / samples if energy_j is not None and samples else None,
        "gpu_busy_fraction": float(np.mean(busy)) if busy else None,
        "power_capped_fraction": most(min(rank["capped"], 1.0) for rank in ranks if "capped" in rank),
        "too_hot_fraction": most(min(rank["hot"], 1.0) for rank in ranks if "hot" in rank),
        "nvlink_bytes_per_s": most(rank.get("nvlink") for rank in ranks),
    }


def _counted(blocks: Sequence[Block]) -> dict[str, float]:
    """What the device of one rank counted in all of some blocks: joules, and the rest over their seconds."""
    names = set.intersection(*(set(block.counted) for block in blocks)) if blocks else set()
    seconds = sum(block.end_s - block.start_s for block in blocks)
    rates = {"busy": ("busy_s",), "capped": ("power_capped_s",), "hot": HOT, "nvlink": NVLINK}
    found = {
        rate: sum(block.counted[name] for block in blocks for name in parts) / seconds
        for rate, parts in rates.items()
        if names.issuperset(parts)
    }
    return found | ({"energy_j": sum(block.counted["energy_j"] for block in blocks)} if "energy_j" in names else {})


def overhead(result: RankSamples, kind: str = "loader") -> float | None:
    """The harness's own share of a rank's step: what its clock and heartbeat, or watching, take."""
    own_s = result.instrument_s_per_step
    return None if own_s is None else own_s / _mean_step_s(_blocks(result, kind))


def total(values: Iterable[float | None]) -> float | None:
    """The sum, where all are known."""
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)


def most(values: Iterable[float | None]) -> float | None:
    """The largest of those that are known."""
    return max((value for value in values if value is not None), default=None)


def loader_figures(spec: TrialSpec, results: Sequence[RankSamples]) -> dict[str, Any]:
    """Figures that only the real pipeline has: bytes, readers, utilization."""
    loader = windows(results, "loader")
    blocks = [block for window in loader for block in window.blocks]
    seconds = sum(window.seconds for window in loader)
    sustained = (total(window.sustained for window in loader) or 0.0) / (total(w.consumed for w in loader) or 1.0)
    produced = sum(block.produced_samples or 0 for block in blocks)
    read_s, decode_s = sum(block.read_s for block in blocks), sum(block.decode_s for block in blocks)
    readers = spec.data.readers * spec.ranks
    copies = spec.ranks // spec.data_ranks
    computed, collate_s, unpack_s = (
        total(getattr(block, name) for block in blocks) for name in ("read_cpu_s", "collate_s", "unpack_s")
    )
    # DALI's readers and decoders run as one; without the kernel's run-queue times both hold waiting for a core.
    told_apart = spec.data.loader != "dali" and all(block.run_queue_s is not None for block in blocks)
    plain = [result.storage_ceiling for result in results if result.storage_ceiling]
    known_s = spec.emulated_step_s
    return {
        "au_mlperf": utilization_mlperf(results, known_s) if known_s else None,
        "io_bytes_per_s": sum(block.consumed_bytes for block in blocks) * sustained / seconds / copies,
        "read_s_per_sample": read_s / produced if produced and told_apart else None,
        "read_cpu_s_per_sample": computed / produced if produced and computed is not None else None,
        "decode_s_per_sample": decode_s / produced if produced and told_apart else None,
        "collate_s_per_sample": collate_s / produced if produced and collate_s is not None else None,
        "unpack_s_per_sample": unpack_s / produced if produced and unpack_s is not None else None,
        "reader_busy_fraction": (read_s + decode_s) / (readers * seconds),
        "client_thread_busy_fraction": most(_client_busy_fraction(result) for result in results),
        **{name: _over_nodes(results, name) for name in OVER_NODES},
        "storage_ceiling_bytes_per_s": sum(ceiling["bytes_per_s"] for ceiling in plain) if plain else None,
    }


def _client_busy_fraction(result: RankSamples) -> float | None:
    """Share of the loader's blocks in which the busiest thread of a bucket's client computed."""
    blocks = _blocks(result, "loader")
    used_s = total(block.client_thread_s for block in blocks)
    return None if used_s is None else used_s / sum(block.end_s - block.start_s for block in blocks)


def _staging_figures(results: Sequence[RankSamples]) -> dict[str, float | None]:
    """Seconds of the slowest node, and bytes per second of all nodes."""
    seconds = most(result.stage_s or None for result in results)
    if seconds is None:
        return {}
    return {"stage_s": seconds, "stage_bytes_per_s": sum(result.stage_bytes or 0 for result in results) / seconds}


OVER_NODES = ("cache_resident_before", "cache_resident_after", "cache_measured_fraction")


def _over_nodes(results: Sequence[RankSamples], name: str) -> float | None:
    """The mean of what each node's first rank measured."""
    known = [getattr(result, name) for result in results if getattr(result, name) is not None]
    return float(np.mean(known)) if known else None


def engine_figures(spec: TrialSpec, results: Sequence[RankSamples], samples_per_s: float) -> dict[str, Any]:
    """What only the engine could tell: the busiest server's bytes, how stale gradients were, the rate of a process."""
    told = [result.engine for result in results if result.engine is not None]
    found: dict[str, Any] = {}
    for name in {name for one in told for name in one}:
        known = [value for one in told if (value := one.get(name)) is not None]
        found[name] = float(np.mean(known)) if known and name.endswith("_mean") else max(known, default=None)
    if not spec.layout.num_servers:
        return found
    return found | {"samples_per_s_per_process": samples_per_s / (spec.ranks + spec.layout.num_servers)}


def compute_figures(
    spec: TrialSpec, results: Sequence[RankSamples], samples_per_s: float, flops: "Flops | None"
) -> dict[str, Any]:
    """Figures of computation: FLOPs over time and peak, what one rank holds in memory, and what it sends.

    mfu is the model's FLOPs over the device's dense peak (Chowdhery et al., "PaLM", 2022, appendix B); hfu counts
    recomputed blocks as well (Korthikanti et al. 2022); mfu_causal leaves out what causal attention computes behind its
    mask, as FlashAttention and Megatron-LM count.
    """
    copies = [result.gradient_copy_s for result in results if result.gradient_copy_s is not None]
    found: dict[str, Any] = {"gradient_copy_s": max(copies, default=None)}
    found |= engine_figures(spec, results, samples_per_s)
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
        "mfu_causal": rate * (model - flops.masked_flops) / peak if peak and flops.masked_flops else None,
        "hfu": rate * (model + again) / peak if peak else None,
    }


def figures(spec: TrialSpec, results: Sequence[RankSamples], flops: "Flops | None" = None) -> dict[str, Any]:
    """Every figure of an ok trial that its raw samples give; what they do not give is absent.

    `flops`: of a sample.
    """
    kind = "loader" if spec.data.source == "storage" else "plain"
    copies = spec.ranks // spec.data_ranks  # ranks of a pipeline or of tensor parallelism share their samples
    found = loop_figures(results, kind, copies, spec.emulated_step_s)
    rate, decoded, tokens = found["samples_per_s"], results[0].decoded_sample_bytes, results[0].tokens_per_sample
    return {
        **found,
        **(profiled_communication_figures(results, kind) if spec.hides_communication else {}),
        "au_error": utilization_error(results, found["au"], spec.emulated),
        "tokens_per_s": rate * tokens if tokens else None,
        "decoded_bytes_per_s": rate * decoded if decoded else None,
        **compute_figures(spec, results, rate, flops),
        **(loader_figures(spec, results) if kind == "loader" else {}),
        **_staging_figures(results),
    }


def watched_figures(results: Sequence[RankSamples], reads_counted: bool | None, all_heard: bool) -> dict[str, Any]:
    """Every figure that a watched loop's ranks give. What a loop that is not ours cannot tell stays None.

    Args:
        results: one for each rank that was heard of.
        reads_counted: whether the data's file system adds to the counters of processes; None where it was not named.
        all_heard: whether no rank is missing, so that what theirs keep busy is not taken for others'.
    """
    found, slowest = loop_figures(results), results[slowest_rank(results, "loader")]
    seen = slowest.seen_readers
    assert seen is not None, "every watched loop has"
    others = foreign_cores(results) if all_heard else None
    return {
        **found,
        **_counted_reads(results, reads_counted),
        "worker_busy_fraction": most(one.seen_readers.busy_fraction for one in results if one.seen_readers),
        "refill_fraction": most(_refill_share(result) for result in results),
        "foreign_cpu_cores": others and others[0],
        "foreign_of_cores": others and others[1],
        "loading_thread_busy_fraction": seen.loading_thread_busy_fraction,
        "num_readers": seen.num_readers,
        "fed_cores": seen.fed_cores,
        "beside_cores": seen.beside_cores,
    }


def _refill_share(result: RankSamples) -> float:
    """Share of a rank's waiting for input that is the beginning of passes."""
    load_s = sum(block.parts_s().get("load", 0.0) for block in _blocks(result, "loader"))
    return result.seen_readers.refill_s / load_s if result.seen_readers and load_s else 0.0


def _counted_reads(results: Sequence[RankSamples], reads_counted: bool | None) -> dict[str, float | None]:
    """Bytes read by the ranks and their workers. Where none came from storage, that may be for want of counting."""
    reads = [result.reads for result in results if result.reads is not None]
    seconds = most(entry.seconds for entry in reads)
    read = total(entry.read_call_bytes for entry in reads)
    stored = None if reads_counted is False else total(entry.storage_bytes for entry in reads)
    if not stored and not reads_counted:
        stored = None
    share = stored / read if reads_counted and stored is not None and read else None
    return {  # without seconds the first counters are still to be read
        "read_call_bytes_per_s": read / seconds if seconds and read is not None else None,
        "storage_bytes_per_s": stored / seconds if seconds and stored is not None else None,
        **storage_shares(share),
    }


def storage_shares(share: float | None) -> dict[str, float | None]:
    """Return the cache's hits and the amplification of reads; `share`: bytes from storage over bytes read."""
    known = {"cache_hit_fraction": None if share is None else max(0.0, 1.0 - share)}
    return known | {"read_amplification": share if share is not None and share > 1 else None}


def foreign_cores(results: Sequence[RankSamples]) -> tuple[float, int] | None:
    """Cores that others than the ranks of a watched loop kept busy, and of how many, on the node where it is most.

    None where a rank does not know, and for loops too short for the kernel's counters.
    """
    nodes: dict[str, list[UsedCores]] = {}
    for result in results:
        used = result.used_cores
        if used is None or not used.cpus or used.seconds < MIN_WALL_S:
            return None
        nodes.setdefault(used.node, []).append(used)
    return max(_foreign_of_node(here) for here in nodes.values())


def _foreign_of_node(ranks: Sequence[UsedCores]) -> tuple[float, int]:
    """Return the foreign load of one node; ranks that may use the same cores see the same load."""
    busy: dict[tuple[int, ...], float] = {}
    for used in ranks:
        busy[used.cpus] = max(busy.get(used.cpus, 0.0), used.everyone_cpu_s / used.seconds)
    own = sum(used.own_cpu_s / used.seconds for used in ranks)
    return max(0.0, sum(busy.values()) - own), len({cpu for cpus in busy for cpu in cpus})
