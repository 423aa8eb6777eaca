"""Made-up specs, blocks and results of ranks."""

from typing import Any

from benchsuite.contract.trial_spec import TrialSpec, parse_trial
from benchsuite.inside.samples import Block, RankSamples


def made_spec(**changes: Any) -> TrialSpec:
    """A small resolved trial on the CPU; nested values replace nested values."""
    base: dict[str, Any] = {
        "workload": "resnet50",
        "variant": "tiny",
        "device": "cpu",
        "batch_size": 4,
        "world_size": 1,
        "threads_per_rank": 1,
        "data": {"num_workers": 1, "prefetch_factor": 1},
        "measure": {"steps": 8},
    }
    for key, value in changes.items():
        base[key] = {**base.get(key, {}), **value} if isinstance(value, dict) else value
    return parse_trial(base)


def made_block(kind: str, start: float, step: dict[str, float], steps: int = 4, **changes: Any) -> Block:
    """Equal steps of the given parts, one after another from `start` on; the readers kept up."""
    samples = steps * 4
    fields: dict[str, Any] = {
        "kind": kind,
        "start_s": start,
        "end_s": start + steps * sum(step.values()),
        "parts": {name: [seconds] * steps for name, seconds in step.items()},
        "run_queue_s": 0.0,
        "consumed_samples": samples,
    }
    if kind == "loader":
        fields |= {
            "consumed_bytes": samples * 1000,
            "produced_samples": samples,
            "produced_bytes": samples * 1000,
        }
    return Block(**(fields | changes))


CEILING = {"load": 0.0, "h2d": 0.0, "forward": 0.01, "backward": 0.02, "optimizer": 0.01}
"""40 ms of computation."""
LOADER = {**CEILING, "load": 0.04}
"""The same after 40 ms of waiting: AU is 0.5."""


def made_result(rank: int = 0, blocks: list[Block] | None = None, **changes: Any) -> RankSamples:
    """A finished rank; without blocks of its own, C L C L C with AU 0.5."""
    if blocks is None:
        kinds = ("ceiling", "loader", "ceiling", "loader", "ceiling")
        blocks = [made_block(kind, 10.0 * n, LOADER if kind == "loader" else CEILING) for n, kind in enumerate(kinds)]
    fields: dict[str, Any] = {
        "phase": "done",
        "peak_memory_bytes": 1000,
        "host_memory_bytes": 500,
        "first_batch_s": 0.1,
        "startup_s": 0.2,
        "decoded_sample_bytes": 3000,
        "cache_resident_before": 0.0,
        "final_loss": 2.0,
    }
    return RankSamples(rank, "ok", blocks=blocks, **(fields | changes))
