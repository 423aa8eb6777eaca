"""Charts of what models say: predictions behind points, schedules of pipelines, the storage knee."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from benchsuite.results.charts.chart import Chart, error_bars, span_of
from benchsuite.results.charts.modelled import MAX_SLOTS, OF_NO_POINT, knees, pipelines, predictions
from benchsuite.results.report.modelled import PipelineStep, Predicted, Slot, StorageCurve, StorageKnee
from benchsuite.results.scaling.series import Series, find_series
from tests.results.scaled import frame, made_trial

PLACE = {("default", f"p{ranks}"): ranks for ranks in (1, 2, 4, 8)}


def series(rates: dict[int, list[float]], au: dict[int, float] | None = None, **data: Any) -> Series:
    """Points p1, p2 ..., whose numbers are their ranks."""
    told = lambda n: {"au": au[n]} if au else {}  # noqa: E731
    records = [
        made_trial(n, rate, k, point_id=f"p{n}", spec={"data": {"source": "storage", **data}}, figures=told(n))
        for n, found in rates.items()
        for k, rate in enumerate(found)
    ]
    return find_series(frame(*records))[0]


def row(ranks: int, rate: float, half: float) -> dict[str, float]:
    """A prediction of so many samples/s, of 100 a rank, with its interval."""
    ends = {"": 1.0, "_low": 1 - half, "_high": 1 + half}
    rates = {f"samples_per_s{end}": rate * times for end, times in ends.items()}
    return {"ranks": ranks, **rates, **{f"efficiency{end}": rate / ranks / 100 * x for end, x in ends.items()}}


ROWS = [row(1, 100, 0.01), row(2, 196, 0.02), row(4, 380, 0.05), row(8, 700, 0.1)]
MEASURED = series({1: [99.0, 100.0, 101.0], 2: [190.0, 195.0, 196.0]})


def named(chart: Chart, name: str, axis: str = "y") -> dict[str, Any]:
    (found,) = [trace for trace in chart.traces if trace.get("name") == name and trace.get("yaxis", "y") == axis]
    return found


def predicted(rows: Sequence[Any] = ROWS, **more: Any) -> Chart:
    (chart,) = predictions([Predicted(MEASURED, "weak · resnet50", rows, **more)], PLACE)
    return chart


def test_the_interval_is_shaded_around_the_curve() -> None:
    shade = named(predicted(), "90 % interval")
    assert shade["x"] == [1, 2, 4, 8, 8, 4, 2, 1] and shade["fill"] == "toself"
    assert shade["y"] == pytest.approx([101, 199.92, 399, 770, 630, 361, 192.08, 99])
    efficiency = named(predicted(), "90 % interval", "y2")
    assert efficiency["y"] == pytest.approx([1.01, 0.9996, 0.9975, 0.9625, 0.7875, 0.9025, 0.9604, 0.99])


def test_the_curve_is_dashed_beyond_what_was_measured() -> None:
    fitted, beyond = named(predicted(), "fitted"), named(predicted(), "predicted")
    assert (fitted["x"], fitted["line"]["dash"]) == ([1, 2], "solid")
    assert (beyond["x"], beyond["y"], beyond["line"]["dash"]) == ([2, 4, 8], [196, 380, 700], "dash")
    assert beyond["hovertext"][-1] == "8 ranks: 700 [630 770] samples/s"


def test_measured_points_lie_above_the_curve_with_their_bars() -> None:
    chart = predicted()
    rates, efficiencies = named(chart, "measured"), named(chart, "measured", "y2")
    assert (rates["x"], rates["y"], rates["customdata"]) == ([1, 2], [100, 195], [1, 2])
    assert (rates["error_y"]["array"], rates["error_y"]["arrayminus"]) == ([1, 1], [1, 5])
    assert efficiencies["y"] == [1, 0.975]
    order = [trace["name"] for trace in chart.traces if trace["yaxis"] == "y"]
    assert order == ["90 % interval", "fitted", "predicted", "measured"]


def test_assumptions_stand_below_and_axes_reach_to_the_last_rank() -> None:
    chart = predicted(lines=["fitted to 1, 2 ranks"])
    assert [(one.title, one.notes) for one in chart.tables] == [("weak · resnet50", ["fitted to 1, 2 ranks"])]
    assert chart.layout["xaxis"]["tickvals"] == [1, 2, 4, 8] and chart.layout["xaxis"]["range"][1] > 0.9
    assert all(trace["meta"] == {"point": 1} for trace in chart.traces if trace["name"] != "measured")


def test_without_a_prediction_the_measured_curve_stays_and_says_why() -> None:
    chart = predicted([], problem="mixed environments: cpu")
    assert [trace["name"] for trace in chart.traces] == ["measured", "measured"]
    assert chart.traces[0]["mode"] == "lines+markers" and chart.tables[0].notes == [
        "no prediction: mixed environments: cpu"
    ]


def test_ticks_are_what_was_measured_and_powers_of_two_beyond() -> None:
    found = Predicted(series({1: [100.0], 3: [290.0]}), "", [row(n, 90.0 * n, 0.1) for n in (1, 2, 3, 5, 8, 13, 24)])
    assert found.ticks == [1, 3, 4, 8, 16]


def test_bars_are_intervals_from_six_repeats_on() -> None:
    found = error_bars([span_of(repeats) for repeats in ([1.0, 2.0, 6.0], [3.0, 1.0, 2.0, 4.0, 5.0, 6.0])])
    assert (found["array"], found["arrayminus"]) == ([4, 2.5], [1, 2.5])


SLOTS = [
    Slot(0, "F", 0, 0, 0.0, 0.010),
    Slot(0, "B", 0, 0, 0.040, 0.060),
    Slot(1, "F", 0, 0, 0.010, 0.020),
    Slot(1, "B", 0, 1, 0.020, 0.040),
]


def test_a_schedule_is_bars_of_stages_with_microbatches() -> None:
    (chart,) = pipelines([PipelineStep("1f1b", SLOTS, ["bubble"], "default", "p2")], PLACE)
    forward = named(chart, "forward")
    assert (forward["base"], forward["x"], forward["y"]) == ([0, 10], [10, 10], [0, 1])
    assert forward["text"] == ["0", "0"] and forward["meta"] == {"point": 2}
    assert [trace["name"] for trace in chart.traces] == ["forward", "backward", "backward, chunk 2"]
    assert chart.layout["xaxis"]["range"] == [0, 60] and chart.layout["xaxis"]["title"]["text"] == "ms"
    assert chart.lines == ["1f1b", "bubble"] and chart.choice == "1f1b"


def test_units_of_time_where_nothing_was_measured() -> None:
    (chart,) = pipelines([PipelineStep("unit", SLOTS, timed=False)], PLACE)
    assert chart.layout["xaxis"]["title"]["text"] == "units of time" and named(chart, "forward")["base"] == [0, 0.01]
    assert named(chart, "forward")["meta"] == OF_NO_POINT


def test_a_schedule_too_large_to_read_is_told_not_drawn() -> None:
    many = [replace(SLOTS[0], microbatch=n) for n in range(MAX_SLOTS + 1)]
    (chart,) = pipelines([PipelineStep("large", many, (), "default", "p4")], PLACE)
    assert chart.traces == [{"type": "scatter", "x": [], "y": [], "meta": {"point": 4}}]
    assert chart.lines[-1] == "1201 pieces of work: more than the 1200 that are drawn"


SHARED = series({1: [10.0], 2: [20.0], 4: [30.0]}, {1: 1.0, 2: 1.0, 4: 0.75})
STAGED = series({1: [10.0], 2: [20.0], 4: [40.0]}, {1: 1.0, 2: 1.0, 4: 0.98}, staging="copy")


def test_the_knee_is_marked_between_shared_and_staged() -> None:
    forms = (StorageCurve("shared", SHARED, [1, 4, 8], [1.0, 0.75, 0.375]), StorageCurve("local", STAGED))
    (chart,) = knees([StorageKnee("unet3d", forms, 3.0, ["saturates"])], PLACE)
    mark = named(chart, "knee at 3 ranks")
    assert (mark["x"], mark["y"]) == ([3, 3], [0, 1])
    form, dots = named(chart, "shared, predicted"), named(chart, "shared")
    assert (form["x"], form["y"]) == ([1, 4, 8], [1, 0.75, 0.375])
    assert (dots["x"], dots["y"], dots["customdata"], dots["mode"]) == ([1, 2, 4], [1, 1, 0.75], [1, 2, 4], "markers")
    assert named(chart, "local")["mode"] == "lines+markers" and chart.lines == ["unet3d", "saturates"]
    assert chart.layout["yaxis"]["title"]["text"] == "AU" and chart.layout["xaxis"]["tickvals"] == [1, 2, 4, 8]


def test_without_utilization_the_knee_is_of_throughput() -> None:
    bare = series({1: [10.0], 2: [20.0], 4: [20.0]})
    (chart,) = knees([StorageKnee("", [StorageCurve("shared", bare)], 2.0)], PLACE)
    assert chart.layout["yaxis"]["title"]["text"] == "samples/s"
    assert named(chart, "shared")["y"] == [10, 20, 20] and named(chart, "knee at 2 ranks")["y"] == [0, 20]


def test_nothing_modelled_is_no_chart() -> None:
    assert [*predictions([], {}), *pipelines([], {}), *knees([], {})] == []
