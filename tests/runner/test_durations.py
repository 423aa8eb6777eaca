"""How long trials take, by how long they have taken."""

import pytest

from benchsuite.results.store.outcomes import Ended, alike_of
from benchsuite.runner.durations import Durations, cost, describe_cost, durations_of
from tests.runner.test_sweep import made_plan


def learned(**taken_s: float) -> Durations:
    known = Durations()
    for point, seconds in taken_s.items():
        known.learn(point, seconds)
    return known


def test_a_point_takes_as_long_as_it_ever_has_and_another_the_median() -> None:
    known = learned(b=1000.0, c=5.0, d=7.0)
    for seconds in (9.0, 8.0):
        known.learn("d", seconds)
    assert known.estimate_s("d") == 9.0, "the longest of its own"
    assert known.estimate_s("a") == 9.0
    known.learn("e", 2000.0)
    known.learn("f", 2000.0)
    assert known.estimate_s("a") == 1000.0
    assert known.total_s(["a", "d", "d"]) == 1018.0


def test_where_nothing_is_known_nothing_is_told() -> None:
    assert Durations().estimate_s("a") is None and Durations().total_s(["a"]) is None
    assert Durations().total_s([]) == 0


def test_only_trials_of_the_plans_points_or_its_sweep_that_ran_tell_how_long_one_takes() -> None:
    plan = made_plan()
    first, second = (point.point_id for point in plan.points)
    spec = plan.points[0].spec.model_dump()
    alike, whole = alike_of(spec), {**spec, "measure": {**spec["measure"], "epochs": 1}}
    ended = [
        Ended(f"{first}.first.0", "ok", "", wall_s=20.0, sweep="other"),
        Ended(f"{first}.second.1", "timeout", "", wall_s=30.0),
        Ended("b.first.0", "ok", "", wall_s=90000.0, sweep="other"),
        Ended("c.first.0", "ok", "", wall_s=80000.0, sweep="s", kind="probe"),
        Ended("d.first.0", "skipped", "", wall_s=0.0, sweep="s"),
        Ended("e.first.0", "interrupted", "", wall_s=1.0, sweep="s"),
        Ended("f.first.0", "ok", "", sweep="s"),
        Ended("g.first.0", "ok", "", wall_s=40.0, sweep="s", alike=alike),
        Ended("h.first.0", "ok", "", wall_s=70000.0, sweep="s", alike=("bert", *alike[1:])),
        Ended("i.first.0", "ok", "", wall_s=60000.0, sweep="s", alike=alike_of(whole)),
    ]
    known = durations_of(ended, plan)
    assert [known.estimate_s(point) for point in (first, second, "b", "c", "g")] == [30.0, 35.0, 35.0, 35.0, 40.0]


def test_what_a_sweep_costs() -> None:
    first, second = made_plan().points
    known = learned(**{first.point_id: 1800.0, second.point_id: 5400.0})
    found = cost([first, second, second], known)
    assert found is not None and (found.time_s, found.device_s) == (12600.0, 12600.0)
    assert describe_cost([first, second, second], known) == "about 3.5 h, 3.5 device-hours"
    some = describe_cost([first, first], learned(b=60.0))
    assert some.startswith("about 2 min, ")
    assert some.endswith("(1 point has no trial yet: it is taken to last as long as others of this sweep)")
    assert describe_cost([first] * 246, known).endswith("120 device-hours")
    assert describe_cost([first, second, second], known, sweeps=3) == "about 70 min, 3.5 device-hours"


@pytest.mark.parametrize(("sweeps", "said"), [(1, "30 min at most"), (2, "15 min at most for each of 2 sweeps")])
def test_before_the_first_trials_only_their_limit_is_known(sweeps: int, said: str) -> None:
    point = made_plan().points[0]
    told = describe_cost([point, point], Durations(), sweeps)
    assert told == f"not known before the first trials; measure.timeout_s allows {said} (0.5 device-hours in all)"


def test_before_the_first_trials_the_end_is_told_where_it_comes_first() -> None:
    points = [*made_plan().points]
    assert "30 min at most" in describe_cost(points, Durations())
    assert (
        describe_cost(points, Durations(), left_s=60)
        == "not known before the first trials; 60 s are left until the end"
    )
