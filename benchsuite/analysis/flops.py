"""The FLOPs of a sweep's models: kept when a trial has counted them, and told to later trials."""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchsuite.contract.rank_samples import FLOPS_FILE
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.inside.samples import RankSamples
from benchsuite.workloads.flops import Flops
from benchsuite.workloads.spec import ModelSpec

_known: dict[tuple[str, str, ModelSpec], dict[str, Any]] = {}
"""What a sample costs, by workload, variant and sizes; empty where the model cannot be counted without values."""


def write_known_flops(spec: TrialSpec, folder: Path) -> None:
    """Write what an earlier trial of this process has counted into the work folder, for rank 0 to read."""
    model = spec.workload, spec.variant, spec.model
    if model in _known:
        with suppress(OSError):  # it counts for itself then
            (folder / FLOPS_FILE).write_text(json.dumps(_known[model]))


def flops_of(spec: TrialSpec, results: Sequence[RankSamples]) -> Flops | None:
    """Return what a sample of a finished trial cost, and keep it for later trials of the same model."""
    found = results[0].flops
    if found is not None:
        _known[spec.workload, spec.variant, spec.model] = found
    return Flops(**found) if found else None
