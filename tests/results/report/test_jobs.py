"""Where the wall time of jobs went, by the rows of their records."""

from typing import Any

from benchsuite.results.report.jobs import lines


def run(record: str, began: str, job: str | None = None, **parts: float) -> dict[str, Any]:
    told = {f"wall_time_s.{part}": seconds for part, seconds in parts.items()}
    return {"record_id": record, "started_at": f"2026-11-20T{began}+00:00", "label": "train.py", "job": job, **told}


def test_runs_of_one_name_are_one_job_with_the_time_between_them() -> None:
    first = run("a", "10:00:00", "llama", start_up=600.0, training=3000.0)
    second = run("b", "11:30:00", "llama", start_up=600.0, training=3000.0)
    other, plain = run("c", "10:00:00", start_up=40.0, training=60.0), {"record_id": "d"}
    assert lines([first, other, second, plain]) == [
        "where the 2.0 h of 2 runs of train.py went: training 83 %, start-up 17 %; another 30 min lay between the runs",
        "where the 2 min of train.py went: training 60 %, start-up 40 %",
    ]
