"""Made-up records."""

from typing import Any

from benchsuite.results.store.record import ANY_RECORD, TrialRecord


def made_record(number: int = 0, **changes: Any) -> TrialRecord:
    """The record of repeat `number` of one point, finished `number` seconds after midnight."""
    moment = f"2026-01-01T00:{number // 60:02d}:{number % 60:02d}.000000+00:00"
    fields: dict[str, Any] = {
        "record_id": f"record-{number}",
        "trial_id": f"point.default.{number}",
        "point_id": "point",
        "session": "default",
        "repeat": number,
        "sweep": "made",
        "status": "ok",
        "label": "files",
        "started_at": moment,
        "finished_at": moment,
        "spec": {"workload": "resnet50", "data": {"source": "storage", "cache": "cold", "root": None}},
        "env": {"host": "here", "cores": 2, "devices": [], "libraries": {"torch": "2.13.0"}},
        "figures": {"samples_per_s": 100.0},
    }
    found: TrialRecord = ANY_RECORD.validate_python(fields | changes)  # type: ignore[assignment]  # as tests name its figures
    return found
