"""The FLOPs of a sweep's models: each counted once, by rank 0 of the first trial that has it; later trials are told.

Counting takes torch and 0.1 to 1.5 s, and the process of a sweep imports no torch.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchsuite.ranks import RankIdentity, RankResult
from benchsuite.spec import TrialSpec
from workloads.flops import Flops, count
from workloads.spec import Variant

if TYPE_CHECKING:
    from workloads.workload import Workload

FILE = "flops.json"
_known: dict[tuple[str, str], dict[str, Any]] = {}
"""By workload and variant, what a sample costs; empty where the model cannot be counted without values."""


def tell(spec: TrialSpec, folder: Path) -> None:
    """Leave for rank 0, in its trial's work folder, what an earlier trial of this process has counted."""
    model = spec.workload, spec.variant
    if model in _known:
        with suppress(OSError):  # it counts for itself then
            (folder / FILE).write_text(json.dumps(_known[model]))


def by_rank(spec: TrialSpec, workload: "Workload", me: RankIdentity) -> dict[str, Any] | None:
    """What rank 0 was told, or counts: empty where a model cannot be counted; None of other ranks and emulations."""
    if me.rank or spec.emulated:
        return None
    try:
        told: dict[str, Any] = json.loads((me.folder / FILE).read_text())
        return told
    except (OSError, ValueError):
        return _counted(workload, workload.variants[spec.variant])


def _counted(workload: "Workload", variant: Variant) -> dict[str, Any]:
    try:
        return asdict(count(workload, variant))
    except Exception:  # models need values in many ways, and this one's trial has been measured all the same
        return {}


def flops_of(spec: TrialSpec, results: Sequence[RankResult]) -> Flops | None:
    """What a sample of a finished trial cost, kept for `tell`."""
    found = results[0].flops
    if found is not None:
        _known[spec.workload, spec.variant] = found
    return Flops(**found) if found else None
