"""Trials of a sweep as asv's benchmarks see them."""

from typing import Any

from benchsuite.results.store.record import TrialRecord
from tests.results.made import made_record

SPEC: dict[str, Any] = {
    "workload": "unet3d",
    "variant": "tiny",
    "parallelism": "ddp",
    "world_size": 1,
    "device": "cpu",
    "data": {"source": "storage", "format": "files", "root": "/data", "loader": "torch"},
    "measure": {"steps": 8},
}
ENV = {"host": "node1", "os": "Linux-6.1-x86_64-with-glibc2.36", "python": "3.11.7", "cores": 64, "cpu": "a cpu"}


def made_spec(ranks: int = 1, format: str = "files", **changes: Any) -> dict[str, Any]:
    return {
        **SPEC,
        "world_size": ranks,
        **changes,
        "data": {**SPEC["data"], "format": format, **changes.get("data", {})},
    }


def trial(number: int, rate: float | None, ranks: int = 1, format: str = "files", **changes: Any) -> TrialRecord:
    """Trial `number` of the sweep `batch-formats`; without a rate a failed one."""
    figures = {"samples_per_s": rate, "au": 0.75, "peak_memory_bytes": 1000 * ranks}
    fields: dict[str, Any] = {
        "trial_id": f"{format}{ranks}.{number}",
        "sweep": "batch-formats",
        "status": "failed" if rate is None else "ok",
        "reason": "EIO on part-7" if rate is None else None,
        "figures": {} if rate is None else figures,
        "spec": made_spec(ranks, format),
    }
    env = {**ENV, **changes.pop("env", {})}
    return made_record(number, **(fields | {"env": env} | changes))
