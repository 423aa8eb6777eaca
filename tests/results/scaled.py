"""Made-up trials of scaling series."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from benchsuite.results.store.frames import record_frame
from benchsuite.results.store.record import TrialRecord
from tests.results.made import made_record

ENV = {"host": "here", "cores": 8, "cpu": "a cpu", "devices": [], "libraries": {"torch": "2.13.0"}, "scheduler": {}}


def made_spec(ranks: int, **changes: Any) -> dict[str, Any]:
    """Eight samples per rank of a synthetic ResNet-50 under DDP."""
    base = {
        "workload": "resnet50",
        "variant": "tiny",
        "precision": "fp32",
        "parallelism": "ddp",
        "world_size": ranks,
        "batch_size": 8,
        "global_batch_size": None,
        "data": {"source": "synthetic"},
    }
    return base | changes


def made_trial(ranks: int, rate: float | None, repeat: int = 0, **changes: Any) -> TrialRecord:
    """One repeat; without a rate a failed one. `spec`, `env` and `figures` change single values."""
    spec = made_spec(ranks, **changes.pop("spec", {}))
    env = {**ENV, **changes.pop("env", {})}
    whole = spec["global_batch_size"] or 0 if spec["batch_size"] is None else spec["batch_size"] * ranks
    rated = {} if rate is None else {"samples_per_s": rate, "step_s_mean": whole / rate}
    figures = rated | changes.pop("figures", {})
    point = str(hash(repr(sorted(spec.items(), key=str))))
    session = changes.get("session", "default")
    fields: dict[str, Any] = {
        "record_id": f"{point}.{session}.{repeat}",
        "trial_id": f"{point}.{session}.{repeat}",
        "point_id": point,
        "repeat": repeat,
        "status": "failed" if rate is None else "ok",
        "reason": "EIO" if rate is None else None,
        "spec": spec,
        "env": env,
        "figures": figures,
    }
    return made_record(repeat, **(fields | changes))


def made_trials(rates: Mapping[int, Sequence[float | None]], **changes: Any) -> list[TrialRecord]:
    """Repeats by number of ranks."""
    return [made_trial(n, rate, k, **dict(changes)) for n, found in rates.items() for k, rate in enumerate(found)]


def frame(*records: TrialRecord) -> pd.DataFrame:
    """As a store gives them."""
    return record_frame(list(records))
