"""Imbalance that is waiting for another rank's input."""

from typing import Any

import pytest

from benchsuite.predict.scaling import outlook
from benchsuite.predict.scaling.curve import Curve
from benchsuite.predict.scaling.from_store import from_series
from benchsuite.predict.scaling.input_wait import late_s, notes
from benchsuite.predict.scaling.series import fit
from benchsuite.results.scaling.series import find_series
from tests.results.scaled import frame, made_trial

TOLD = {
    "step_s_mean": 0.1,
    "load_s": 0.0,
    "load_mean_s": 0.02,
    "input_stall_fraction": 0.45,
    "imbalance_mean_s": 0.03,
    "communication_min_s": 0.01,
}
"""The hungriest rank waits 45 ms, the mean one 20 ms: 25 of the 30 ms that ranks wait for others are input's."""


def test_by_hand():
    assert late_s(TOLD) == pytest.approx(0.025)
    assert late_s(TOLD | {"input_stall_fraction": 0.9}) == 0.03, "no more than ranks wait for others"
    assert late_s(TOLD | {"input_stall_fraction": 0.1}) == 0.0
    assert late_s(TOLD | {"input_stall_fraction": None}) is None
    assert late_s({}) is None


def curve(ranks: tuple[int, ...] = (1, 2, 4), **changes: Any) -> Curve:
    records = []
    for n in ranks:
        alone = {"load_mean_s": None, "imbalance_mean_s": None, "communication_min_s": None, "load_s": 0.06}
        told = TOLD | (alone if n == 1 else {}) | {"io_bytes_per_s": 80e6 * n} | changes
        records.append(made_trial(n, 80.0 * n, figures=told, spec={"data": {"source": "storage"}}))
    (series,) = find_series(frame(*records))
    return from_series(series, "s", {}, None, False)


def test_it_counts_as_waiting_for_input():
    found = curve()
    point = found.points[2]
    assert point.load_s == pytest.approx(0.045)
    assert point.parts == pytest.approx({"compute": 0.04, "communication": 0.01, "imbalance": 0.005})
    assert sum(point.parts.values()) + point.load_s == pytest.approx(0.1)
    model = fit(found)
    assert model.at(4).fraction_not_waiting[0] == pytest.approx(0.55, abs=0.02), "45 of 100 ms are waits for input"
    assert any(
        "at 4 ranks each waits 25% of the step for ranks whose input is late: counted as waiting for input; 0.005 s of "
        "imbalance stay" in line
        for line in outlook.assumptions(model, [8])
    )


def test_where_records_do_not_tell_utilization_is_said_to_be_an_upper_bound():
    found = curve(input_stall_fraction=None)
    assert found.points[2].load_s == 0.02
    assert found.points[2].parts is not None and found.points[2].parts["imbalance"] == 0.03
    assert any("counted as imbalance, so that AU may be lower than said" in line for line in found.notes)


def test_nothing_is_said_of_small_imbalance_or_of_steps_without_input():
    assert notes({4: TOLD | {"imbalance_mean_s": 0.001}}) == ()
    assert notes({1: {"step_s_mean": 0.1}}) == ()
    assert notes({4: TOLD | {"input_stall_fraction": 0.21}}) == (), "1 ms of it is input's"
    records = [made_trial(n, 80.0 * n, figures=TOLD) for n in (1, 2, 4)]
    (series,) = find_series(frame(*records))
    assert from_series(series, "s", {}, None, False).notes == (), "synthetic"
