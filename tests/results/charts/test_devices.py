"""What devices say of themselves stands in the page's table and charts, with records that hold such figures."""

from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from benchsuite.results.charts import page
from benchsuite.results.charts.chart import Chart
from benchsuite.results.report.sections import sections
from benchsuite.results.store.store import ResultsStore
from tests.results.charts.chromium import tab
from tests.results.report.devices_reported import SECONDS, devices_store
from tests.results.report.reported import full_store

KEYS = ["energy", "device-memory", "device-shares", "nvlink", "device-samples"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ResultsStore:
    return devices_store(tmp_path_factory.mktemp("devices"))


@pytest.fixture(scope="module")
def charts(store: ResultsStore) -> list[Chart]:
    return page.charts(store, sections(store))


def figures(charts: list[Chart], key: str) -> dict[str, dict[int, Any]]:
    """What a chart draws of each point, by name and by the point's number."""
    (found,) = [chart for chart in charts if chart.key == key]
    return {trace["name"]: dict(zip(trace["y"], trace["x"], strict=True)) for trace in found.traces}


def test_every_figure_of_devices_has_its_chart(charts: list[Chart]) -> None:
    assert [key for key in dict.fromkeys(chart.key for chart in charts) if key in KEYS] == KEYS
    for one in charts:
        go.Figure({"data": list(one.traces), "layout": dict(one.layout)})


def test_energy_memory_and_shares_in_their_units(store: ResultsStore, charts: list[Chart]) -> None:
    labels = [row["label"] for section in sections(store) for row in section.points]
    one, two = labels.index("gpus-1"), labels.index("gpus-2")
    assert figures(charts, "energy") == {"energy": {two: 625.0, one: 625.0}}, "J per 1,000 samples; none of the cpu"
    memory = figures(charts, "device-memory")
    assert [found[one] for found in memory.values()] == [50.0, 65.0, 70.0], "per cent of 80 GB"
    assert labels.index("cpu") not in set().union(*memory.values()), "whose peak is of no card"
    assert [found[one] for found in figures(charts, "device-shares").values()] == [75.0, 12.0, 3.0]
    assert figures(charts, "nvlink") == {"busiest device": {two: 81.0}}


def test_devices_are_drawn_over_the_trial(charts: list[Chart]) -> None:
    drawn = {chart.choice: chart for chart in charts if chart.key == "device-samples"}
    assert [choice.split(" · ")[:2] for choice in drawn if "gpus-2" in choice] == [
        [name, "gpus-2"] for name in ("power", "clock", "busy")
    ], "none of the temperature, which no device told"
    power = next(chart for choice, chart in drawn.items() if choice.startswith("power · gpus-2"))
    steps, first, second = power.traces
    assert steps["name"] == "counted steps" and min(steps["x"]) == pytest.approx(10.25, abs=0.01)
    assert (first["name"], second["name"]) == ("rank 0", "rank 1")
    assert first["x"] == [float(at) for at in range(SECONDS)], "seconds after launch"
    assert second["y"][9:11] == [100.0, 601.0]
    busy = next(chart for choice, chart in drawn.items() if choice.startswith("busy · gpus-1"))
    assert busy.traces[-1]["y"][-1] == 90.0 and "%" in busy.layout["yaxis"]["title"]["text"]


def test_the_table_of_the_page_has_them(store: ResultsStore) -> None:
    found = page.data(store, sections(store))
    headings = [heading for heading, _ in found["headings"]]
    row = dict(zip(headings, found["rows"][[point["label"] for point in found["points"]].index("gpus-2")], strict=True))
    assert row["J per 1,000 samples"] == "625" and row["peak of the card's GB"] == "56.0 of 80"
    assert [row[name] for name in ("GPU busy %", "power-capped %", "too hot %")] == ["75", "12", "3"]
    assert row["NVLink GB/s"] == "81.0" and row["energy J"] == "5000"
    assert "held back, the worst device" in page.page(store), "and what they mean"
    assert headings[-1] == "verdict" or headings[-2:] == ["verdict", "caveats"], "words stand at the end"


def test_records_without_devices_have_none_of_it(tmp_path: Path) -> None:
    store = full_store(tmp_path)
    assert not {chart.key for chart in page.charts(store, sections(store))} & {*KEYS}


def test_a_browser_draws_them_without_a_complaint(store: ResultsStore, tmp_path: Path) -> None:
    page.write(store, tmp_path / "page.html")
    with tab(tmp_path / "profile") as browser:
        browser.look(1200)
        browser.open(tmp_path / "page.html")
        shown = browser.run("[...document.querySelectorAll('#charts > section:not([hidden])')].map(box => box.id)")
        assert [key for key in shown if key in KEYS] == KEYS
        drawn = browser.run("document.querySelectorAll('#device-samples .plot .scatterlayer .trace').length")
        assert drawn >= 2, "a device's line, and the counted steps behind it"
        assert browser.problems == []
