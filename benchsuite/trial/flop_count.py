"""The FLOPs of a sweep's models: each counted once, by rank 0 of the first trial that has it; later trials are told.

Counting takes torch and 0.1 to 1.5 s, and the process of a sweep imports no torch.
"""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from benchsuite.contract.rank_samples import FLOPS_FILE, RankIdentity
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.workloads.flops import count
from benchsuite.workloads.spec import Variant

if TYPE_CHECKING:
    from benchsuite.workloads.workload import Workload


def by_rank(spec: TrialSpec, workload: "Workload", me: RankIdentity) -> dict[str, Any] | None:
    """What rank 0 was told, or counts: empty where a model cannot be counted; None of other ranks and emulations."""
    if me.rank or spec.emulated:
        return None
    try:
        told: dict[str, Any] = json.loads((me.folder / FLOPS_FILE).read_text())
        return told
    except (OSError, ValueError):
        return _counted(workload, workload.variants[spec.variant])


def _counted(workload: "Workload", variant: Variant) -> dict[str, Any]:
    try:
        return asdict(count(workload, variant))
    except Exception:  # models need values in many ways, and this one's trial has been measured all the same
        return {}
