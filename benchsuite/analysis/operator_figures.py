"""Figures of the operators of a step, where PyTorch's profile was asked for: classes, and the point on a roofline."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchsuite.inside.samples import RankSamples

COMPUTING = ("contraction", "normalisation", "element_wise")
"""Classes of operators that compute anything."""


def operator_figures(values: Mapping[str, Any], results: Sequence[RankSamples]) -> dict[str, Any]:
    """FLOPs and operator-level bytes of a step of all ranks, their ratio, what a device attains, and classes' shares.

    `values`: the trial's other figures. Empty where not every rank has counted its operators.
    """
    ranks = [result.operators for result in results if result.operators is not None]
    if len(ranks) < len(results):
        return {}
    flops, num_bytes = _summed(ranks, "flops"), _summed(ranks, "num_bytes")
    total, moved = sum(flops.values()), sum(num_bytes.values())
    step_s = values.get("ceiling_step_s") or values.get("step_s_mean")
    devices = sum(result.num_devices for result in results)
    found: dict[str, Any] = {
        "operator_flops_per_step": int(total),
        "operator_bytes_per_step": int(moved),
        "arithmetic_intensity": total / moved if moved else None,
        "attained_flops_per_s": total / step_s / devices if step_s else None,
    }
    found |= {f"{name}_flops_fraction": flops[name] / total if total else None for name in COMPUTING}
    if any(one["seconds"] is None for classes in ranks for one in classes.values()):
        return found
    seconds = _summed(ranks, "seconds")
    whole_s = sum(seconds.values())
    return found | {f"{name}_time_fraction": part / whole_s if whole_s else None for name, part in seconds.items()}


def _summed(ranks: Sequence[Mapping[str, Mapping[str, float | None]]], what: str) -> dict[str, float]:
    """Sums of each class over all ranks."""
    return {name: sum(classes[name][what] or 0 for classes in ranks) for name in ranks[0]}
