"""Lines for people while a sweep runs."""

import pytest

from benchsuite.analysis.record_builder import new_attempt
from benchsuite.runner import progress
from benchsuite.runner.progress import SweepDisplay, finished_line, format_clock
from tests.results.made import made_record
from tests.runner.test_sweep import made_plan


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (5.4, "0:05"), (65, "1:05"), (3599.6, "1:00:00"), (7205, "2:00:05")]
)
def test_clock(seconds: float, text: str):
    assert format_clock(seconds) == text


def test_an_ok_trial():
    figures = {
        "samples_per_s": 99.6,
        "au": 0.5,
        "io_bytes_per_s": 2e6,
        "cache_hit_fraction": 0.25,
        "bottleneck": "mixed",
    }
    line = finished_line(made_record(figures=figures, wall_s=65.0, caveats=["not_cold"]))
    assert line == "files · AU 0.50 · 100 samples/s · 2.0 MB/s · 75% from storage · mixed · 1:05 · not_cold"


def test_staging_is_told():
    line = finished_line(made_record(figures={"samples_per_s": 99.6, "stage_s": 3.21}, wall_s=65.0))
    assert line == "files · 100 samples/s · staged in 3.2 s · 1:05"


def test_what_was_not_measured_is_left_out():
    assert finished_line(made_record(wall_s=1.0)) == "files · 100 samples/s · 0:01"


def test_a_trial_that_failed():
    line = finished_line(made_record(status="timeout", reason="killed at its time limit", figures={}, wall_s=9.0))
    assert line == "files · timeout: killed at its time limit · 0:09"


def test_the_time_left_only_falls_while_a_trial_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It waits for a trial that takes longer than expected."""
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    attempt = new_attempt(made_plan().points[0], "default", 0, "s", None)
    with SweepDisplay() as display:
        display.started(attempt, 0, 3, None, None)
        assert display._eta() == "--:--", "nothing is known before the first trial"
        display.finished(made_record(wall_s=20.0), 40.0)
        display.started(attempt, 1, 3, 20.0, 20.0)
        seen = []
        for now[0] in (1000.0, 1005.0, 1020.0, 1045.0):
            seen.append(display._eta())
        display.finished(made_record(wall_s=45.0), 20.0)
    assert seen == ["0:40", "0:35", "0:20", "0:20"]
    assert [line.rpartition("ETA ")[2] for line in capsys.readouterr().err.splitlines()] == ["0:40", "0:20"]
