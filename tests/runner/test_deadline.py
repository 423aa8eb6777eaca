"""When a sweep has to be over, and which trials still fit."""

import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
import yaml

from benchsuite.cli import sweep
from benchsuite.contract.errors import UserError
from benchsuite.host.machine import this_machine
from benchsuite.results.store.store import ResultsStore
from benchsuite.runner import sweep as sweeping
from benchsuite.runner.claims import Claims, Holding
from benchsuite.runner.deadline import RESERVE_S, Deadline, deadline_of, parse_until
from benchsuite.runner.durations import Durations
from tests.results.made import made_record
from tests.runner.test_sweep import Rehearsal, Silence, made_plan

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


@pytest.mark.parametrize("text", ["soon", "25:00", "+h", "+2d", "", "6.30", "+²h", "+99999999999999h", "+1.2.3h"])
def test_what_is_no_moment(text: str) -> None:
    with pytest.raises(UserError, match=r"--until .*: allowed: 06:30, 2026-01-31T06:30, \+90m"):
        parse_until(text, NOW)


def test_a_moment_that_is_over() -> None:
    with pytest.raises(UserError, match="is past: it is 2026-03-01T22:00 now"):
        parse_until("2026-02-28T06:00", NOW)


def test_what_would_not_end_in_time_is_not_started() -> None:
    clock = Deadline(time.time() + 100)
    assert clock.allows("a") and clock.durations.estimate_s("a") is None, "nothing is known of it"
    clock.durations.learn("b", 1000.0)
    clock.durations.learn("c", 5.0)
    assert (clock.allows("b"), clock.allows("c")) == (False, True)
    assert Deadline().allows("b")


def test_a_point_that_has_not_run_comes_before_repeats(tmp_path: Path) -> None:
    """The first point takes long: the usual time leaves no room for the third, though a repeat of the second fits."""
    clock, plan = Deadline(time.time() + 40), made_plan(1, grid={"batch_size": [1, 2, 3]})
    first, second, third = (point.point_id for point in plan.points)
    clock.durations.learn(first, 60.0)
    clock.durations.learn(second, 25.0)
    assert clock.durations.estimate_s(third) == 42.5
    assert [clock.allows(name) for name in (first, second, third)] == [False, True, True]


def test_what_is_said_where_nothing_fits() -> None:
    clock = Deadline(time.time() + 20.4)
    clock.durations.learn("a", 300.0)
    clock.durations.learn("b", 45.2)
    assert clock.explain_no_fit(["a", "b"]) == "no trial can end in time: the shortest takes about 45 s, 20 s are left"
    assert Deadline(1.0).explain_no_fit(["a"]) == "no trial can end in time: 0 s are left"


def swept(store: ResultsStore, clock: Deadline, launcher: Rehearsal) -> sweeping.SweepResult:
    plan, claims = made_plan(1, grid={"batch_size": [1, 2, 3]}), Claims.of(store.path, "default")
    todo = sweeping.shared_status(plan, store, "default", frozenset(), claims).todo
    return sweeping.run(plan, todo, store, launcher, "default", Silence(), claims, clock)


def test_a_trial_that_is_not_started_is_not_claimed(tmp_path: Path) -> None:
    store, clock, launcher = ResultsStore(tmp_path), Deadline(time.time() + 50), Rehearsal()
    clock.durations.learn("another", 60.2)
    ran = swept(store, clock, launcher)
    assert (ran.records, ran.out_of_time, launcher.launched) == ([], 3, [])
    assert ran.no_time_reason is not None and "the shortest takes about 60 s" in ran.no_time_reason
    assert not list((tmp_path / "claims").rglob("*.*"))


def test_what_another_sweep_is_at_or_has_done_is_not_out_of_time(tmp_path: Path) -> None:
    store, clock = ResultsStore(tmp_path), Deadline(time.time() + 50)
    plan, other = made_plan(1, grid={"batch_size": [1, 2, 3]}), Claims.of(tmp_path, "default")
    first, second, _ = (point.point_id for point in plan.points)
    claims = Claims.of(tmp_path, "default", lease_s=0.4)
    todo = sweeping.shared_status(plan, store, "default", frozenset(), claims).todo
    clock.durations.learn("another", 60.0)
    other.lease_s = 0.4
    done, at_it = (other.take(sweeping.trial_id(name, "default", 0)) for name in (first, second))
    assert isinstance(done, Holding) and isinstance(at_it, Holding)
    done.finish()
    with at_it:
        ran = sweeping.run(plan, todo, store, Rehearsal(), "default", Silence(), claims, clock)
    assert (len(ran.held), ran.out_of_time) == (1, 1)


def test_the_time_of_a_trial_is_that_of_all_that_is_measured_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record knows its own time, not that of the ceilings trial after it: 0.3 s here, until which it is kept."""

    def with_ceilings(*_: object) -> dict[str, object]:
        time.sleep(0.3)
        return {}

    monkeypatch.setattr(sweeping, "_find_ceilings", with_ceilings)
    clock = Deadline(time.time() + 1000)
    ran = swept(ResultsStore(tmp_path), clock, Rehearsal())
    for record in ran.records:
        taken_s = clock.durations.estimate_s(record.point_id)
        assert taken_s is not None and record.wall_s is not None and taken_s >= 0.3
    assert ran.no_time_reason is None and ran.out_of_time == 0


@pytest.mark.parametrize(("left", "taken_s", "code"), [("+60s", 3600.0, 4), ("+2h", 3600.0, 0)])
def test_a_sweep_that_can_start_nothing_is_not_to_be_queued_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run_cli: Callable[..., tuple[int, str, str]],
    left: str,
    taken_s: float,
    code: int,
) -> None:
    file, store = tmp_path / "s.yaml", ResultsStore(tmp_path / "store")
    base = {"workload": "resnet50", "variant": "tiny", "data": {"source": "synthetic"}, "measure": {"repeats": 1}}
    file.write_text(yaml.safe_dump({"name": "s", "base": base, "grid": {"batch_size": [1, 2]}}))
    device = "cuda" if this_machine().cuda_devices else "cpu"
    alike = {"workload": "resnet50", "variant": "tiny", "device": device, "world_size": 1}
    store.append(made_record(1, trial_id="other.before.0", sweep="s", session="before", wall_s=taken_s, spec=alike))
    launcher = Rehearsal()
    monkeypatch.setattr(sweep, "load_launcher", lambda name: launcher)
    found, _, err = run_cli("sweep", file, "--store", store.path, "--until", left)
    assert found == code, err
    assert len(launcher.launched) == (0 if code else 2)
    assert ("no trial can end in time: the shortest takes about 3600 s, " in err) == (code == 4)


def test_the_earlier_of_what_is_asked_for_and_the_allocations_end() -> None:
    end = int(time.time()) + 600
    known = Durations()
    known.learn("b", 300.0)
    allocation = deadline_of(None, known, {"SLURM_JOB_END_TIME": str(end)})
    assert allocation.ends_s == end - RESERVE_S and allocation.durations is known
    asked = deadline_of("+60s", known, {"SLURM_JOB_END_TIME": str(end)})
    assert asked.ends_s == pytest.approx(time.time() + 60, abs=5) and not asked.allows("b")
    assert deadline_of(None, known, {}).ends_s is None


def test_slurm_is_asked_where_it_tells_no_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end = int(time.time()) + 900
    squeue = tmp_path / "squeue"
    squeue.write_text(f'#!/bin/sh\n[ "$SLURM_TIME_FORMAT" = %s ] && [ "$3" = 12_3 ] && echo {end} || echo N/A\n')
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    task = {"SLURM_JOB_ID": "15", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3", "PATH": str(tmp_path)}
    assert deadline_of(None, None, task).ends_s == end - RESERVE_S
    assert deadline_of(None, None, {"SLURM_JOB_ID": "15", "PATH": str(tmp_path)}).ends_s is None, "it has no end"
    squeue.unlink()
    assert deadline_of(None, None, task | {"PATH": str(tmp_path)}).ends_s is None
