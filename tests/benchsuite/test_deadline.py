"""When a sweep has to be over, and which trials still fit."""

import time
from datetime import datetime
from pathlib import Path

import pytest

from benchsuite.deadline import RESERVE_S, Deadline, deadline_of, parse_until
from benchsuite.errors import UserError
from tests.results.made import made_record

NOW = datetime(2026, 3, 1, 22, 0)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("23:15", datetime(2026, 3, 1, 23, 15)),
        ("06:30", datetime(2026, 3, 2, 6, 30)),
        ("06:30:05", datetime(2026, 3, 2, 6, 30, 5)),
        ("2026-03-04T05:06", datetime(2026, 3, 4, 5, 6)),
        ("+90m", datetime(2026, 3, 1, 23, 30)),
        ("+1.5h", datetime(2026, 3, 1, 23, 30)),
        ("+45s", datetime(2026, 3, 1, 22, 0, 45)),
    ],
)
def test_moments(text: str, moment: datetime) -> None:
    assert parse_until(text, NOW) == moment


@pytest.mark.parametrize("text", ["soon", "25:00", "+h", "+2d", "", "6.30"])
def test_what_is_no_moment(text: str) -> None:
    with pytest.raises(UserError, match=r"--until .*: allowed: 06:30, 2026-01-31T06:30, \+90m"):
        parse_until(text, NOW)


def test_a_moment_that_is_over() -> None:
    with pytest.raises(UserError, match="is over; it is 2026-03-01T22:00 now"):
        parse_until("2026-02-28T06:00", NOW)


def test_what_would_not_end_in_time_is_not_started() -> None:
    clock = Deadline(time.time() + 100)
    assert clock.allows("a"), "nothing is known of it"
    clock.learn(made_record(point_id="b", wall_s=1000.0))
    clock.learn(made_record(point_id="c", wall_s=5.0))
    assert (clock.allows("b"), clock.allows("c")) == (False, True)
    assert not clock.allows("a"), "the longest of any is the guess for one that never ran"
    assert Deadline().allows("b")


def test_the_earlier_of_what_is_asked_for_and_the_allocations_end() -> None:
    end = int(time.time()) + 600
    known = [made_record(point_id="b", wall_s=300.0)]
    allocation = deadline_of(None, lambda: known, {"SLURM_JOB_END_TIME": str(end)})
    assert allocation.ends_s == end - RESERVE_S and allocation.estimate_s("b") == 300.0
    asked = deadline_of("+60s", lambda: known, {"SLURM_JOB_END_TIME": str(end)})
    assert asked.ends_s == pytest.approx(time.time() + 60, abs=5) and not asked.allows("b")
    assert deadline_of(None, lambda: known, {}).ends_s is None


def test_slurm_is_asked_where_it_tells_no_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end = int(time.time()) + 900
    squeue = tmp_path / "squeue"
    squeue.write_text(f'#!/bin/sh\n[ "$SLURM_TIME_FORMAT" = %s ] && [ "$3" = 12_3 ] && echo {end} || echo N/A\n')
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    task = {"SLURM_JOB_ID": "15", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3", "PATH": str(tmp_path)}
    assert deadline_of(None, list, task).ends_s == end - RESERVE_S
    assert deadline_of(None, list, {"SLURM_JOB_ID": "15", "PATH": str(tmp_path)}).ends_s is None, "it has no end"
    squeue.unlink()
    assert deadline_of(None, list, task | {"PATH": str(tmp_path)}).ends_s is None
