"""The report's charts as vector figures: what they draw, and what is said where they cannot be drawn."""

import math
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchsuite.results.charts.chart import Chart
from benchsuite.results.export.charts import MAX_BARS, _charts, _parted, draw_report, figure_of, labels_of
from benchsuite.results.report.modelled import NOTHING
from benchsuite.results.store.store import ResultsStore, StoreError
from tests.results.made import made_record
from tests.results.report.reported import NASTY, STEP, full_store

pytest.importorskip("matplotlib")
SVG_TEXT = "{http://www.w3.org/2000/svg}text"
POINTS = [f"files-{ranks}" for ranks in (1, 2, 4)]


@pytest.fixture(scope="module")
def charts(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Chart], list[str]]:
    named, labels = _charts(full_store(tmp_path_factory.mktemp("full")), NOTHING)
    return dict(named), labels


def test_every_chart_of_the_report_is_a_file(charts: tuple[dict[str, Chart], list[str]]):
    once = {
        "choices-1",
        "choices-2",
        "choices-3",
        "au",
        "rate",
        "heat",
        "step",
        "weak-scaling",
        "buckets",
        "memory",
        "operators",
        "roofline",
        "io",
        "staging",
    }
    assert {*charts[0]} == once | {f"timeline-{number}" for number in range(1, 6)}


def test_a_line_lies_where_the_page_has_it(charts: tuple[dict[str, Chart], list[str]]):
    """100, 101 samples/s on one rank, 180, 181 on two, 360, 361 on four: medians, and bars of half a sample."""
    (axes,) = figure_of(charts[0]["rate"], charts[1]).axes
    found = {line.get_label(): line for line in axes.containers}
    line, _, (bars,) = found["all files batch_size 8"]
    assert [*zip(*line.get_data(), strict=True)] == [(1, 100.5), (2, 180.5), (4, 360.5)]
    assert [[y for _, y in ends] for ends in bars.get_segments()] == [[100, 101], [180, 181], [360, 361]]
    assert [(text.get_text(), at) for text, at in zip(axes.get_xticklabels(), axes.get_xticks(), strict=True)] == [
        ("1", 1),
        ("2", 2),
        ("4", 4),
    ]
    assert (axes.get_xscale(), axes.get_ylim()[0], axes.get_ylabel()) == ("log", 0.0, "samples/s")


def test_parts_stand_upon_one_another_and_the_first_point_is_on_top(charts: tuple[dict[str, Chart], list[str]]):
    (axes,) = figure_of(charts[0]["step"], charts[1]).axes
    first = [bars.patches[0] for bars in axes.containers]
    assert [round(bar.get_width(), 6) for bar in first] == pytest.approx([1e3 * STEP[part] for part in STEP])
    ends = [bar.get_x() + bar.get_width() for bar in first]
    assert [bar.get_x() for bar in first] == pytest.approx([0.0, *ends[:-1]]) and ends[-1] == pytest.approx(80)
    assert [text.get_text() for text in axes.get_yticklabels()][:2] == ["all · files 1 ranks", "all · lmdb 1 ranks"]
    assert axes.yaxis_inverted()


def test_a_timeline_begins_where_its_parts_begin(charts: tuple[dict[str, Chart], list[str]]):
    chart = charts[0]["timeline-1"]
    (axes,) = figure_of(chart, charts[1]).axes
    assert [[bar.get_x() for bar in bars.patches] for bars in axes.containers] == [
        pytest.approx(trace["base"]) for trace in chart.traces
    ]


def test_cells_of_a_heat_map_are_medians():
    cells = [("files", "torch", 0.2, 0), ("files", "torch", 0.4, 1), ("lmdb", "dali", 0.9, 2)]
    trace = {"type": "heatmap", "zmin": 0, "zmax": 1, "colorbar": {"title": {"text": "AU"}}}
    axes = figure_of(Chart("heat", "AU", [trace], cells=cells), []).axes[0]
    found = {(t.get_position()[0], t.get_position()[1]): t.get_text() for t in axes.texts}
    assert found == {(0.5, 1.5): "0.3", (1.5, 0.5): "0.9"}, "dali below torch; what was not measured has no number"
    assert [text.get_text() for text in (*axes.get_xticklabels(), *axes.get_yticklabels())] == [
        "files",
        "lmdb",
        "dali",
        "torch",
    ]


def test_what_is_missing_is_a_gap_and_a_shade_is_no_line():
    shade = {"type": "scatter", "x": [1, 2, 2], "y": [1, 2, 1], "fill": "toself", "fillcolor": "rgba(255, 0, 0, 0.5)"}
    gap = {"type": "scatter", "x": [1, 2, 4], "y": [1.0, None, 3.0], "line": {"dash": "dash"}, "yaxis": "y2"}
    above, below = figure_of(Chart("k", "T", [shade, gap], {"yaxis2": {"title": {"text": "two"}}}), []).axes
    assert above.patches[0].get_facecolor() == (1.0, 0.0, 0.0, 0.5) and not above.lines
    assert math.isnan(below.lines[0].get_ydata()[1]) and below.lines[0].get_linestyle() == "--"
    assert below.get_ylabel() == "two"


def test_a_figure_has_only_so_many_bars():
    many = [*range(MAX_BARS + 5)]
    bars = {"type": "bar", "orientation": "h", "name": "load", "x": many, "y": many, "customdata": many}
    (axes,) = figure_of(Chart("step", "S", [bars], bars=True), [f"p{number}" for number in many]).axes
    assert len(axes.containers[0].patches) == MAX_BARS and axes.get_yticklabels()[-1].get_text() == f"p{MAX_BARS - 1}"


def test_more_series_than_a_legend_holds_are_a_figure_for_each_choice():
    line = {"type": "scatter", "x": [1], "y": [1]}
    chart = Chart("au", "AU", [line, line, line], groups=[("all", [0, 1, 2]), ("bert", [0, 2]), ("unet3d", [1])])
    assert [(one.choice, len(one.traces)) for one in _parted(chart)] == [("bert", 2), ("unet3d", 1)]


def test_labels_tell_sweep_and_session_where_there_are_several():
    rows = [{"sweep": s, "session": n, "label": "p"} for s, n in (("a", "mon"), ("a", "tue"), ("b", "mon"))]
    assert labels_of(rows) == ["a · p · mon", "a · p · tue", "b · p · mon"]
    assert labels_of(rows[:1]) == ["p"]


def test_names_of_users_are_text(tmp_path: Path):
    """Two `$` would hold a formula that is none; control characters are no XML; long names leave room."""
    store, name = ResultsStore(tmp_path / "store"), f"$x_{{$ \x1b[31m{NASTY} {'long ' * 99}"
    for number, label in enumerate((name, f"other {name}")):
        spec = {"workload": "resnet50", "world_size": 2, "data": {"source": "storage", "loader": label}}
        figures = {"samples_per_s": 9.0, "load_s": 0.01, "step_s_mean": 0.02}
        store.append(made_record(number, point_id=label, label=label, spec=spec, figures=figures))
    drawn = draw_report(store, tmp_path / "deep" / "figures", "svg")
    assert [path.relative_to(tmp_path / "deep" / "figures") for path in drawn] == [
        Path(f"{name}.svg") for name in ("choices-1", "choices-2", "step")
    ]
    for path in drawn:
        words = " ".join("".join(text.itertext()) for text in ElementTree.parse(path).iter(SVG_TEXT))
        assert "$x_{$ </script><script>" in words and "…" in words and "\x1b" not in words


def test_pdf_and_the_same_bytes_again(tmp_path: Path):
    store = ResultsStore(tmp_path / "store")
    spec = {"workload": "resnet50", "world_size": 2}
    for number in range(2):
        store.append(made_record(number, point_id=f"p{number}", spec=spec, figures={"samples_per_s": 9.0}))
    (first,) = draw_report(store, tmp_path / "a", "pdf")
    (again,) = draw_report(store, tmp_path / "b", "pdf")
    assert first == tmp_path / "a" / "choices.pdf" and first.read_bytes() == again.read_bytes()
    assert first.read_bytes().startswith(b"%PDF")


def test_mistakes_are_one_line(tmp_path: Path):
    store = ResultsStore(tmp_path / "store")
    store.append(made_record(0, kind="probe", spec={"path": "/data"}))
    with pytest.raises(StoreError, match=r"nothing to draw: no chart has a figure$"):
        draw_report(store, tmp_path, "svg")
    for number in range(2):
        store.append(made_record(1 + number, point_id=f"p{number}", spec={"workload": "resnet50", "world_size": 2}))
    with pytest.raises(StoreError, match=r"^--svg .*a\.svg: should be a folder, .*; such as a$"):
        draw_report(store, tmp_path / "a.svg", "svg")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"^--svg .*/file: is a file; allowed: a folder"):
        draw_report(store, tmp_path / "file", "svg")
