"""The charts of the HTML report: answers worked out by hand, and Plotly's own check of their form."""

import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from benchsuite.results.charts import chart as figures
from benchsuite.results.charts import choices, page, scaling, storage
from benchsuite.results.charts import step as figures_step
from benchsuite.results.charts.chart import Chart, Numbered
from benchsuite.results.report.sections import sections
from benchsuite.results.store.frames import flatten
from benchsuite.results.store.store import ResultsStore
from tests.results.made import made_record
from tests.results.report.reported import PROFILE, full_store, made_figures, made_spec, trial
from tests.results.report.test_trace import made_samples

POINTS = "spec.world_size"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ResultsStore:
    return full_store(tmp_path_factory.mktemp("full"))


@cache
def points_of(store: ResultsStore) -> list[Numbered]:
    return list(enumerate(row for section in sections(store) for row in section.points))


@cache
def every_chart(store: ResultsStore) -> list[Chart]:
    return page.charts(store, sections(store))


def chart(store: ResultsStore, key: str) -> Chart:
    return next(found for found in every_chart(store) if found.key == key)


def named(chart: Chart, name: str) -> dict[str, Any]:
    (found,) = [trace for trace in chart.traces if trace.get("name") == name]
    return found


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from numbers(inner)
    elif isinstance(value, float):
        yield value


def test_every_chart_is_what_plotly_accepts(store: ResultsStore) -> None:
    found = every_chart(store)
    assert len(found) >= 10
    for one in found:
        go.Figure({"data": list(one.traces), "layout": dict(one.layout)})
        assert all(map(math.isfinite, numbers(one.traces))), one.key


def test_elements_carry_the_numbers_of_their_points(store: ResultsStore) -> None:
    labels = [row["label"] for _, row in points_of(store)]
    trace = named(chart(store, "rate"), "all lmdb")
    assert [labels[number] for number in trace["customdata"]] == ["lmdb 1 ranks", "lmdb 2 ranks"]
    assert (trace["x"], trace["y"]) == ([1, 2], [100.5, 180.5])
    assert trace["error_y"]["array"] == trace["error_y"]["arrayminus"] == [0.5, 0.5]  # two repeats: their range


def test_points_without_a_result_stand_on_the_floor(store: ResultsStore) -> None:
    labels = [row["label"] for _, row in points_of(store)]
    lost = named(chart(store, "au"), "no result")
    assert [(labels[n], x, y) for n, x, y in zip(lost["customdata"], lost["x"], lost["y"], strict=True)] == [
        ("lmdb 4 ranks", 4, 0),
        ("oom", 1, 0),
    ]


def test_skipped_points_are_not_drawn() -> None:
    rows = [{"status": status, "spec.world_size": n} for n, status in enumerate(("ok", "skipped", "timeout", "oom"))]
    [lost] = figures.lost([*enumerate(rows)], POINTS)
    assert lost["customdata"] == [2, 3]
    assert figures.lost([(1, rows[1])], POINTS) == []


def test_six_repeats_have_an_interval_for_bars(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path)
    for repeat, rate in enumerate((100, 90, 95, 104, 108, 130)):
        store.append(trial(repeat, "p", made_spec(), made_figures(rate), trial_id=f"p.{repeat}"))
    store.append(trial(9, "q", made_spec(batch_size=4), made_figures(50.0)))
    (trace,) = chart(store, "choices").traces
    assert trace["x"] == [102.0, 50.0]
    assert (trace["error_x"]["arrayminus"][0], trace["error_x"]["array"][0]) == (12.0, 28.0)


def test_a_line_holds_points_that_differ_in_ranks_alone() -> None:
    def row(ranks: int, **more: Any) -> dict[str, Any]:
        return {"sweep": "s", "session": "d", "spec.world_size": ranks, "spec.parallelism": "ddp", **more}

    rows = [row(1, **{"spec.parallelism": "none"}), row(4), row(2), row(2, **{"spec.precision": "bf16"})]
    found = figures.lines(list(enumerate(rows)), POINTS, ())
    assert [(name, [number for number, _ in group]) for name, group in found] == [("s", [0, 2, 1]), ("bf16", [3])]


def test_batches_that_meet_at_one_number_of_ranks_are_told_apart() -> None:
    rows = [
        {"sweep": "s", "session": "d", "spec.world_size": 2, "spec.batch_size": size, "spec.precision": "fp32"}
        for size in (4, 8)
    ]
    found = figures.lines(list(enumerate(rows)), POINTS, ("spec.batch_size",))
    assert [name for name, _ in found] == ["batch_size 4", "batch_size 8"]


def test_throughput_against_batch(tmp_path: Path) -> None:
    """Where it varies at one number of ranks, and what has no result on the floor; a batch alone is no line."""
    store = ResultsStore(tmp_path)
    for number, (ranks, batch, rate) in enumerate([(2, 8, 150.0), (2, 4, 100.0), (2, 16, None), (1, 4, 60.0)]):
        measured = None if rate is None else made_figures(rate)
        store.append(trial(number, f"p{number}", made_spec(world_size=ranks, batch_size=batch), measured))
    found = chart(store, "batch")
    line, cross = found.traces
    assert (line["x"], line["y"], line["name"]) == ([4, 8], [100.0, 150.0], "world_size 2")
    assert (cross["name"], cross["x"], cross["y"]) == ("no result", [16], [0])
    assert found.layout["xaxis"]["tickvals"] == [4, 8, 16]
    go.Figure({"data": list(found.traces), "layout": dict(found.layout)})
    alone = figures.against_batch([point for point in points_of(store) if point[1]["spec.batch_size"] == 4])
    assert alone == []


def test_sessions_are_named_where_a_sweep_has_several() -> None:
    rows = [{"sweep": "s", "session": name, "spec.world_size": 1} for name in ("mon", "tue")]
    assert [name for name, _ in figures.lines(list(enumerate(rows)), POINTS, ())] == ["mon", "tue"]


def test_the_step_is_the_sum_of_its_parts(store: ResultsStore) -> None:
    found = chart(store, "step")
    assert found.bars and [trace["name"] for trace in found.traces] == [
        "load",
        "h2d",
        "forward",
        "backward",
        "communication",
        "optimizer",
    ]
    assert sum(trace["x"][0] for trace in found.traces) == pytest.approx(80.0)
    labels = [row["label"] for _, row in points_of(store)]
    exchange = dict(
        zip((labels[n] for n in named(found, "communication")["y"]), named(found, "communication")["x"], strict=True)
    )
    assert [exchange[f"bucket-{size}"] for size in (1, 25, 100)] == [100.0, 4.0, 1.0]
    assert "lmdb 4 ranks" not in exchange


def test_step_and_exchange_against_bucket_size(store: ResultsStore) -> None:
    found = chart(store, "buckets")
    step, exchange = found.traces
    assert step["x"] == exchange["x"] == [1, 25, 100]
    assert (step["y"], exchange["y"]) == ([80.0] * 3, [100.0, 4.0, 1.0])
    assert found.layout["xaxis"]["tickvals"] == [1, 25, 100]


def test_memory_in_gigabytes(store: ResultsStore) -> None:
    found = chart(store, "memory")
    held = {trace["name"]: trace["x"][0] for trace in found.traces}
    assert held == {"weights": 1.0, "gradients": 1.0, "optimizer": 2.0, "peak of a rank": 6.0}


def test_memory_says_what_is_counted(store: ResultsStore) -> None:
    note = chart(store, "memory").note
    assert all(words in note for words in ("allocator had allocated", "only reserved", "resident set (RSS)", "PSS"))


def lines_of(count: int, **changes: Any) -> list[Numbered]:
    """Points at 1 and 2 ranks of so many loaders."""
    rows = [
        {"sweep": "s", "session": "d", "status": "ok", "point_id": f"{n}-{ranks}", "label": f"{n}"}
        | {"spec.world_size": ranks, "spec.data.source": "storage", "spec.data.loader": f"l{n:02d}", "au": 0.5}
        | {name: values[n % len(values)] for name, values in changes.items()}
        for n in range(count)
        for ranks in (1, 2)
    ]
    return list(enumerate(rows))


def test_as_many_series_as_a_legend_holds_are_drawn_at_once() -> None:
    (found,) = figures.against_ranks(lines_of(12), "au", "AU", "au", "AU")
    assert (len(found.traces), found.groups) == (12, ())


def test_legends_and_axes_name_modes_in_words() -> None:
    """The degree that follows the ranks parts no line; what is set of others is told as elsewhere."""
    modes = ({"tp": 1, "engine": "horovod"}, {"tp": 2, "pp": 1, "sequence_parallel": True}, {"tp": 2, "pp": 1})
    points = [
        (number, {**row, **flatten("spec", {"parallelism": {"dp": row["spec.world_size"] // 2, **mode}})})
        for mode in modes
        for number, row in lines_of(1)
    ]
    (found,) = figures.against_ranks(points, "au", "AU", "au", "AU")
    names = ["dp horovod", "dp tp 2 sequence_parallel", "dp tp 2"]
    assert [trace["name"] for trace in found.traces] == names
    axes = choices.axes([row for _, row in points])
    assert axes["parallelism"] == [name for name in names for _ in (1, 2)]
    assert axes["parallelism.tp"] == ["1", "1", "2", "2", "2", "2"]


def test_more_series_can_be_chosen_by_the_first_settings_that_part_them() -> None:
    """26 series: of two workloads 13 each, which is too many; with the format of each, 4 or 5."""
    points = lines_of(26, **{"spec.workload": ["bert", "unet3d"], "spec.data.format": ["files", "hdf5", "lmdb"]})
    (found,) = figures.against_ranks(points, "au", "AU", "au", "AU")
    assert [(name, len(places)) for name, places in found.groups] == [
        ("all 26 series", 26),
        ("bert files", 5),
        ("unet3d hdf5", 5),
        ("bert lmdb", 4),
        ("unet3d files", 4),
        ("bert hdf5", 4),
        ("unet3d lmdb", 4),
    ]
    of_bert = [found.traces[place]["name"] for place in dict(found.groups)["bert files"]]
    assert of_bert == [f"l{n:02d} bert files" for n in (0, 6, 12, 18, 24)]
    every = [place for _, places in found.groups[1:] for place in places]
    assert sorted(every) == list(range(26))


def test_crosses_stay_with_their_series() -> None:
    points = lines_of(14, **{"spec.workload": ["bert", "unet3d"]})
    lost = (29, {**points[1][1], "status": "failed", "au": None, "spec.world_size": 4, "point_id": "lost"})
    (found,) = figures.against_ranks([*points, lost], "au", "AU", "au", "AU")
    crosses = [at for at, trace in enumerate(found.traces) if trace["name"] == "no result"]
    assert [name for name, places in found.groups if {*places} & {*crosses}] == ["all 14 series", "bert"]
    assert [found.traces[at]["customdata"] for at in crosses] == [[29]]


def test_series_that_nothing_parts_are_all_drawn() -> None:
    points = lines_of(14, **{"spec.data.loader": ["torch"], "spec.lr": [n / 10 for n in range(14)]})
    (found,) = figures.against_ranks(points, "au", "AU", "au", "AU")
    assert (len(found.traces), found.groups) == (14, [])


def test_scaling_series_can_be_chosen_with_their_ideal(tmp_path: Path) -> None:
    store, number = ResultsStore(tmp_path), 0
    for workload in ("bert", "unet3d"):
        for loader in range(7):
            for ranks in (1, 2):
                spec = made_spec(workload=workload, world_size=ranks, data={"loader": f"l{loader}"})
                store.append(trial(number, f"p{number}", spec, made_figures(100.0 * ranks)))
                number += 1
    found = chart(store, "weak-scaling")
    assert [(name, len(places)) for name, places in found.groups] == [("all 14 series", 15), ("bert", 8), ("unet3d", 8)]
    assert all(found.traces[places[-1]]["name"] == "ideal" for _, places in found.groups)


def test_the_heat_map_has_a_cell_per_point_that_read(store: ResultsStore) -> None:
    found = chart(store, "heat")
    labels = [row["label"] for _, row in points_of(store)]
    cells = {(labels[number], x, y, value) for x, y, value, number in found.cells}
    assert ("lmdb 1 ranks", "lmdb", "torch", 0.9) in cells and ("files 4 ranks", "files", "torch", 0.4) in cells
    assert len(cells) == 9  # twelve points, of which one failed, one had no memory, one is unstaged besides


def test_the_heat_map_leaves_out_utilization_above_one_and_says_so(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path)
    for number, (name, au) in enumerate({"files": 0.4, "lmdb": 1.05, "tar": 1.47}.items()):
        store.append(trial(number, name, made_spec(data={"format": name}), made_figures(100.0, au)))
    found = chart(store, "heat")
    assert [cell[0] for cell in found.cells] == ["files", "lmdb"]
    assert found.note.endswith(" Left out: 1 point with au_above_one.")


@pytest.mark.parametrize("source", ["synthetic", "memory"])
def test_the_heat_map_has_no_cell_of_a_point_that_reads_no_files(tmp_path: Path, source: str) -> None:
    store = ResultsStore(tmp_path)
    for number, data in enumerate(({"format": "files"}, {"format": "lmdb"}, {"format": "files", "source": source})):
        store.append(trial(number, f"p{number}", made_spec(data=data), made_figures(100.0, 0.9 if number > 1 else 0.4)))
    assert [tuple(cell[:3]) for cell in chart(store, "heat").cells] == [("files", "torch", 0.4), ("lmdb", "torch", 0.4)]


def test_efficiency_has_its_interval_and_the_ideal(store: ResultsStore) -> None:
    found = chart(store, "weak-scaling")
    line = named(found, "files")
    # Medians over two repeats: 100.5, 180.5, 360.5
    assert line["y"] == pytest.approx([1.0, 180.5 / 201, 360.5 / 402], rel=1e-4)
    low, high = 180 / 101 / 2, 181 / 100 / 2
    assert line["error_y"]["arrayminus"][1] == pytest.approx(line["y"][1] - low, abs=1e-4)
    assert line["error_y"]["array"][1] == pytest.approx(high - line["y"][1], abs=1e-4)
    ideal = named(found, "ideal")
    assert (ideal["x"], ideal["y"]) == ([1, 4], [1, 1]) and "customdata" not in ideal
    assert named(found, "no result")["x"] == [4]


def test_unlike_environments_are_told_and_do_not_stop_the_report(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path)
    for ranks in (1, 2):
        record = trial(ranks, f"p{ranks}", made_spec(world_size=ranks), made_figures(100.0 * ranks))
        store.append(record.model_copy(update={"env": {**record.env, "cpu": f"cpu {ranks}"}}))
    assert any(
        "mixed environments: cpu 'cpu 1' at 1 rank" in line for line in chart(store, "weak-scaling").tables[0].notes
    )


def test_staging_lines_cross_where_it_pays(store: ResultsStore) -> None:
    (found,) = [one for one in every_chart(store) if one.key == "staging"]
    unstaged, staged, pays = found.traces
    even = 30 / (1000 / 360.5 - 1000 / 720)
    assert (staged["y"][0], unstaged["y"][0]) == (30.0, 0.0)
    assert pays["x"][0] == pytest.approx(even, rel=1e-4)
    assert pays["y"][0] == pytest.approx(even * 1000 / 360.5, rel=1e-4)
    assert pays["y"][0] == pytest.approx(30 + even * 1000 / 720, rel=1e-4)


def test_reads_by_size() -> None:
    (found,) = storage.io_profile(PROFILE, 3, {"label": "l", "sweep": "s", "session": "d"})
    assert (found.traces[0]["x"], found.traces[0]["y"]) == (["32 KiB to 64 KiB", "64 KiB to 128 KiB"], [10, 20])
    assert found.traces[0]["meta"] == {"point": 3} and any("sequential share 0.75" in line for line in found.lines)


def test_the_timeline_is_the_loaders_step_of_median_length() -> None:
    samples = made_samples(ranks=2, blocks=2, steps=3)
    for rank in samples["ranks"]:
        rank["blocks"][1]["parts"]["load"] = [0.004, 0.104, 0.054]
    (found,) = figures_step.timeline(samples, 5, {"label": "l", "sweep": "s", "session": "d"})
    load, forward = named(found, "load"), named(found, "forward")
    assert load["x"] == pytest.approx([54.0, 54.0]) and load["y"] == ["0", "1"]
    assert load["base"] == pytest.approx([0.0, 0.1], abs=1e-3)  # rank 1 began 0.1 ms later
    assert forward["base"] == pytest.approx([54.0, 54.1], abs=1e-2) and forward["x"] == pytest.approx([10.0, 10.0])
    assert [trace["name"] for trace in found.traces][-1] == "optimizer" and found.traces[0]["meta"] == {"point": 5}


def test_samples_without_steps_have_no_timeline() -> None:
    row = {"label": "l", "sweep": "s", "session": "d"}
    assert figures_step.timeline({"ranks": [{"rank": 0, "blocks": []}]}, 0, row) == []


def test_charts_without_figures_are_not_there() -> None:
    row = {"label": "l", "sweep": "s", "session": "d", "status": "ok", "point_id": "p", "spec.world_size": 1}
    points = [(0, row)]
    for made in (figures_step.breakdown, figures_step.memory, figures_step.buckets, storage.staging):
        assert made(points) == []
    assert storage.formats_by_loaders(points) == []
    assert figures.against_ranks(points, "au", "AU", "au", "AU") == []
    assert scaling.efficiencies([], points) == []


def test_missing_is_null_never_zero() -> None:
    assert [figures.rounded(value) for value in (None, math.nan, math.inf, 0.0)] == [None, None, None, 0.0]
    assert figures.rounded(0.123456789, 1e3) == 123.46


def test_a_watched_loop_without_ranks_or_parts_is_no_trouble(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path)
    store.append(made_record(0, sweep="watch", spec={"script": "train.py"}, figures={"load_s": 0.1, "other_s": 0.2}))
    assert [found.key for found in every_chart(store)] == ["step"]
