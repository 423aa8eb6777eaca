"""Charts of collectives: what is drawn is what was measured, in Plotly's terms, beside those of trials."""

from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from benchsuite.results.charts import comm
from benchsuite.results.charts import page as html
from benchsuite.results.charts.chart import Chart
from benchsuite.results.render.tables import rows
from benchsuite.results.report.probes import COMM_COLUMNS
from benchsuite.results.store.store import ResultsStore
from tests.results.made import made_record
from tests.results.report.reported import full_store


def collective(number: int, size: int, us: float, **spec: Any) -> Any:
    base = {"op": "all_reduce", "algorithm": "backend", "dtype": "fp32", "backend": "gloo", "world_size": 2, "nodes": 1}
    figures = {
        "comm_s": us * 1e-6,
        "comm_s_p5": us * 0.9e-6,
        "comm_s_p95": us * 1.5e-6,
        "busbw_bytes_per_s": size / us * 1e6,
    }
    point = f"{sorted(spec.items())}-{size}"
    more = {"kind": "comm", "point_id": point, "trial_id": f"{point}.{number}", "sweep": "probe-comm"}
    return made_record(number, spec={**base, "num_bytes": size, **spec}, figures=figures, **more)


def step(number: int, mode: str, bucket: int, ms: float, exposed_ms: float) -> Any:
    """The rank that waits longest waits 7 ms more."""
    spec = {"op": "ddp_step", "algorithm": mode, "dtype": "fp32", "backend": "gloo", "world_size": 2, "nodes": 1}
    figures = {
        "step_s_p50": ms / 1e3,
        "communication_s": exposed_ms / 1e3 + 0.007,
        "communication_min_s": exposed_ms / 1e3,
    }
    figures |= {"comm_s": 0.02, "overlap_fraction": 0.5}
    more = {"kind": "comm", "point_id": f"{mode}-{bucket}", "trial_id": f"{mode}-{bucket}.0"}
    return made_record(number, spec={**spec, "num_bytes": 1 << 24, "bucket_bytes": bucket}, figures=figures, **more)


@pytest.fixture
def store(tmp_path: Path) -> ResultsStore:
    store = ResultsStore(tmp_path / "store")
    for number, size in enumerate((4096, 1024, 1 << 20)):
        store.append(collective(number, size, 100.0 + size / 1000))
        store.append(collective(10 + number, size, 200.0 + size / 1000, algorithm="ring"))
    lost = {"status": "failed", "reason": "rank 1: element 3 is 4, not 3", "figures": {}}
    store.append(collective(20, 2048, 1.0).model_copy(update=lost))
    for number, (bucket, ms, exposed) in enumerate(((1 << 20, 80.0, 5.0), (25 << 20, 100.0, 30.0))):
        store.append(step(30 + number, "overlapped", bucket, ms, exposed))
        store.append(step(40 + number, "after_backward", bucket, ms + 20, exposed + 20))
    return store


def charts(store: ResultsStore) -> dict[str, Chart]:
    return {one.key: one for one in comm.charts([*rows(store.frame(by="point", kind="comm"))])}


def named(chart: Chart) -> dict[str, dict[str, Any]]:
    return {trace["name"]: trace for trace in chart.traces}


def test_latency_against_size_with_the_middle_of_the_samples(store: ResultsStore) -> None:
    found = charts(store)["comm-latency"]
    backend = named(found)["backend"]
    assert set(named(found)) == {"backend", "ring"}, "lines are named by what tells them apart"
    assert backend["x"] == [1024, 4096, 1 << 20] and backend["y"] == [101.02, 104.1, 1148.6]
    assert backend["error_y"]["array"] == pytest.approx([50.512, 52.048, 574.29], rel=1e-3)
    assert backend["error_y"]["arrayminus"] == pytest.approx([10.102, 10.41, 114.86], rel=1e-3)
    assert found.layout["xaxis"]["ticktext"] == ["1 KiB", "4 KiB", "1 MiB"]


def test_bandwidth_in_gigabytes(store: ResultsStore) -> None:
    backend = named(charts(store)["comm-bandwidth"])["backend"]
    assert backend["y"][-1] == pytest.approx((1 << 20) / 1148.576e-6 / 1e9, rel=1e-3)


def test_steps_against_buckets_with_overlap_on_and_off(store: ResultsStore) -> None:
    found = named(charts(store)["comm-buckets"])
    assert {name: (trace["x"], trace["y"]) for name, trace in found.items()} == {
        "step overlapped": ([1 << 20, 25 << 20], [80.0, 100.0]),
        "exposed communication overlapped": ([1 << 20, 25 << 20], [5.0, 30.0]),
        "step after_backward": ([1 << 20, 25 << 20], [100.0, 120.0]),
        "exposed communication after_backward": ([1 << 20, 25 << 20], [25.0, 50.0]),
    }
    assert found["step overlapped"]["line"]["dash"] != found["step after_backward"]["line"]["dash"]


def test_table_and_chart_show_the_exposed_exchange_of_the_same_rank_and_say_which(store: ResultsStore) -> None:
    found = [row for row in rows(store.frame(by="point", kind="comm")) if row["spec.op"] == "ddp_step"]
    (column,) = [column for column in COMM_COLUMNS if column.heading == "exposed ms (least)"]
    chart = charts(store)["comm-buckets"]
    drawn = [y for name, trace in named(chart).items() if name.startswith("exposed") for y in trace["y"]]
    assert sorted(float(column.cell(row)) for row in found) == sorted(drawn) == [5.0, 25.0, 30.0, 50.0]
    assert "of the rank that waits least in a step" in chart.note


def test_plotly_accepts_them_and_the_page_has_them(store: ResultsStore, tmp_path: Path) -> None:
    for one in charts(store).values():
        go.Figure({"data": list(one.traces), "layout": dict(one.layout)})
        assert all("customdata" not in trace and trace["meta"] for trace in one.traces), "no point of the page's table"
    whole = full_store(tmp_path / "full")
    for record in store.records():
        whole.append(record)
    page = html.page(whole)
    for key in ("comm-latency", "comm-bandwidth", "comm-buckets"):
        assert f'"key":"{key}"' in page


def test_a_store_without_collectives_has_none_of_them(tmp_path: Path) -> None:
    assert charts(full_store(tmp_path)) == {}
    assert comm.charts([]) == []


def test_many_sizes_have_few_ticks() -> None:
    axis = comm.size_axis([{"spec.num_bytes": 1 << power} for power in range(10, 30)], "spec.num_bytes")
    assert len(axis["tickvals"]) <= comm.MAX_TICKS and axis["ticktext"][0] == "1 KiB"
