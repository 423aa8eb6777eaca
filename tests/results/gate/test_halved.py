"""Points at half their rate or less: an alarm from the second night on, counted apart from regressions."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from junitparser import Failure, JUnitXml

from benchsuite.results.export.junit import junit
from benchsuite.results.gate.baseline import check, set_baseline
from benchsuite.results.gate.halved import nights_halved
from benchsuite.results.gate.step_detection import NIGHTS
from benchsuite.results.report.compare import check_json, check_lines
from benchsuite.results.store.store import ResultsStore
from tests.results.gate.test_comm_nights import cell
from tests.results.nightly import Change, fill, night_name, trial

HALVED = 1.4
"""Of a step of 76 ms: the rate is 42 % of what it was."""


def since(first: int, slower: float = HALVED, point: int = 1, **fields: Any) -> Change:
    """One point is slower from a night on."""
    return lambda night, one: {"slower": slower, **fields} if night >= first and one == point else {}


@pytest.mark.parametrize(
    ("rates", "nights"),
    [
        ([100, 50], 1),
        ([100, 51], 0),
        ([100, 45, 45], 2),
        ([100, 101, 99, 45, 45, 45], 3),
        ([100, 45, 100], 0),
        ([100, 45, 100, 45], 1),
        ([100, 70, 49], 0),
        ([100, math.nan, 50], 1),
        ([100, 50, math.nan], 0),
        ([math.nan, 50], 0),
        ([50], 0),
        ([100] * 20 + [45] * NIGHTS, NIGHTS),
        ([100] + [45] * (NIGHTS + 1), 0),
    ],
)
def test_nights_with_half_the_rate(rates: list[float], nights: int):
    values = -np.log(rates)
    assert nights_halved(values, values, first=0) == nights


def test_one_good_repeat_is_enough_for_none():
    values, best = -np.log([100.0, 45.0]), -np.log([100.0, 60.0])
    assert (nights_halved(values, values, 0), nights_halved(values, best, 0)) == (1, 0)


def test_nights_that_were_taken_to_be_good_are_not_judged():
    values = -np.log([100.0, 45.0, 45.0])
    assert [nights_halved(values, values, first) for first in (0, 1, 2)] == [2, 2, 0]


@pytest.mark.parametrize("num_nights", [2, 3, 6, 7, 20])
def test_one_night_is_enough(tmp_path: Path, num_nights: int):
    found = check(fill(tmp_path, num_nights, num_points=2, change=since(num_nights - 1)))
    (one,) = found.halved
    assert (one.label, one.metric, one.since) == ("point 1", "samples_per_s", night_name(num_nights - 1))
    assert (one.nights_since, one.nights_before, one.cause.layer) == (1, num_nights - 1, "input")
    assert (one.before, one.worse) == (pytest.approx(1 / 0.076, rel=0.05), pytest.approx(0.58, abs=0.02))
    assert found.regressions == []
    assert not [told for told in (*found.compared, *found.far) if "point 1: samples_per_s" in told], "told once"


def test_it_is_told_every_night_until_it_is_accepted(tmp_path: Path):
    store = fill(tmp_path, 4, num_points=2, change=since(2))
    (one,) = check(store).halved
    assert (one.since, one.nights_since, one.nights_before) == (night_name(2), 2, 2)
    set_baseline(store, [night_name(2)])
    assert check(store).halved == []


@pytest.mark.parametrize("fields", [{"slower": 0.9}, {"caveats": ["foreign_load"]}])
def test_less_than_that_and_what_cannot_be_trusted_is_none(tmp_path: Path, fields: dict[str, Any]):
    assert check(fill(tmp_path, 3, num_points=2, change=since(2, **fields))).halved == []


def test_repeats_that_do_not_count_do_not_hide_it(tmp_path: Path):
    """One of three repeats shares its node and is as fast as ever; a fast one that can be trusted would hide it."""
    for caveats, num in (["foreign_load"], 1), ([], 0):
        store = fill(tmp_path / str(num), 2, num_points=1)
        for repeat in range(3):
            more = {"caveats": caveats} if repeat == 0 else {}
            store.append(trial(2, 0, repeat, HALVED if repeat else 0.0, **more))
        assert len(check(store).halved) == num


def test_the_time_of_a_collective_that_doubles_is_half_its_rate(tmp_path: Path):
    store = ResultsStore(tmp_path)
    for night in range(2):
        for size, us in ((1024, 100.0 + 105.0 * night), (4096, 150.0)):
            for repeat in range(3):
                store.append(cell(night, size, us, repeat))
    (one,) = check(store, "comm").halved
    assert (one.metric, one.worse) == ("comm_s", pytest.approx(1.05))


def both(path: Path) -> ResultsStore:
    """Point 1 has a step that its history tells; point 2 fell to less than half last night."""

    def change(night: int, point: int) -> dict[str, float]:
        return {"slower": {1: 0.2 * (night >= 33), 2: HALVED * (night == 35)}.get(point, 0.0)}

    store = fill(path, 36, num_points=3, change=change)
    set_baseline(store, dates=f"{night_name(0)}..{night_name(29)}")
    return store


def test_it_is_counted_apart_from_regressions(tmp_path: Path):
    found = check(both(tmp_path))
    assert [[one.label for one in some] for some in (found.regressions, found.halved)] == [["point 1"], ["point 2"]]
    head, *lines = check_lines(found)
    assert head == (
        f"regression: 1 of 3 series of session {night_name(35)}, 36 nights; besides, 1 point fell to half its rate "
        "or less, which rests on one night"
    )
    (line,) = [line for line in lines if line.startswith("point 2: ")]
    assert line.endswith(f"since {night_name(35)}; this rests on 1 night, compared with 35 nights before")
    told = json.loads(json.dumps(check_json(found)))
    assert (told["regression"], len(told["regressions"]), len(told["halved"])) == (True, 1, 1)
    (suite,) = JUnitXml.fromstring(junit([], found).encode())
    types = [(case.name, result.type) for case in suite for result in case.result if isinstance(result, Failure)]
    assert types == [("point 1: samples_per_s", "regression"), ("point 2: samples_per_s", "halved")]


def test_what_the_history_tells_is_no_second_alarm(tmp_path: Path):
    store = fill(tmp_path, 36, num_points=3, change=since(33))
    set_baseline(store, dates=f"{night_name(0)}..{night_name(29)}")
    found = check(store)
    assert (len(found.regressions), found.halved) == (1, [])


def test_alone_it_is_the_answer(tmp_path: Path):
    young = check(fill(tmp_path / "young", 3, change=lambda night, point: {"slower": HALVED * (night and point > 3)}))
    told = f"2 points fell to half their rate or less in session {night_name(2)}, which rests on few nights"
    assert (young.num_judged, check_lines(young)[0]) == (0, told)
    old = check(fill(tmp_path / "old", 30, change=since(29)))
    told = "1 point fell to half its rate or less, which rests on one night; no regression in 6 series of session "
    assert check_lines(old)[0] == f"{told}{night_name(29)}, 30 nights"
