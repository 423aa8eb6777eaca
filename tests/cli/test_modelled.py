"""What a report shows of models: predictions, schedules of stored pipelines, storage knees with their arithmetic."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchsuite.cli import modelled as models
from benchsuite.cli.app import run_command
from benchsuite.cli.modelled import (
    MAX_PIPELINES,
    MAX_PREDICTED,
    layout,
    modelled,
    pipeline_steps,
    reach,
    stage_times,
    storage_knees,
)
from benchsuite.predict.curve import Curve, Point
from benchsuite.results.charts import page as html
from benchsuite.results.report.markdown import report
from benchsuite.results.report.modelled import PipelineStep, StorageKnee
from benchsuite.results.report.scaling import titles
from benchsuite.results.scaling.series import Series, find_series
from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import ResultsStore
from tests.results.made import made_record
from tests.results.report.reported import many
from tests.results.scaled import frame, made_trial

MB = 1_000_000
READ = {"source": "storage", "format": "files", "staging": "none"}


def stored(path: Path, *records: TrialRecord) -> ResultsStore:
    store = ResultsStore(path)
    for number, record in enumerate(records):
        store.append(record.model_copy(update={"record_id": f"r{number}", "trial_id": f"t{number}"}))
    return store


def weak(ranks: tuple[int, ...] = (1, 2, 4), **changes: Any) -> list[TrialRecord]:
    return [made_trial(n, 100.0 * n * 0.98 ** (n - 1) + k, k, **dict(changes)) for n in ranks for k in range(3)]


def test_a_series_is_predicted_to_eight_times_its_most_ranks(tmp_path: Path) -> None:
    (found,) = modelled(stored(tmp_path, *weak())).predicted
    assert found.problem is None and found.rows[0]["ranks"] == 1 and found.rows[-1]["ranks"] == 32
    assert found.ticks == [1, 2, 4, 8, 16, 32]
    by_ranks = {row["ranks"]: row for row in found.rows}
    assert by_ranks[4]["samples_per_s"] == pytest.approx(377, rel=0.03)
    widths = [by_ranks[n]["efficiency_high"] - by_ranks[n]["efficiency_low"] for n in (4, 8, 16, 32)]
    assert widths == sorted(widths) and widths[-1] > 0.05
    assert any(line.startswith("fitted to 1, 2, 4 ranks, weak") for line in found.lines)


def test_unlike_environments_are_not_predicted_but_shown(tmp_path: Path) -> None:
    records = [*weak((1,)), *weak((2,), env={"cpu": "another"})]
    (found,) = modelled(stored(tmp_path, *records)).predicted
    assert found.rows == () and (found.problem or "").startswith("mixed environments: cpu 'a cpu' at 1 rank, 'another'")


def test_a_series_with_one_scale_that_worked_is_left_out(tmp_path: Path) -> None:
    assert modelled(stored(tmp_path, made_trial(1, 100.0), made_trial(2, None))).predicted == []


def test_a_model_that_refuses_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(curve: Curve, _: object) -> None:
        raise models.UserError(f"{curve.title}: the data do not carry it")

    monkeypatch.setattr(models.outlook, "predict", refuse)
    (found,) = modelled(stored(tmp_path, *weak())).predicted
    assert found.problem == "the data do not carry it"


def points(*ranks: int) -> tuple[Point, ...]:
    return tuple(Point(n, (1.0,)) for n in ranks)


def test_reach_by_hand() -> None:
    assert reach(Curve("", "weak", 8, points(2, 4)))[-1] == 32
    assert reach(Curve("", "weak", 8, points(1, 3)))[:4] == [1, 2, 3, 4]
    # a global batch of 12 gives no more than 12 ranks a sample each
    assert reach(Curve("", "strong", 12, points(1, 2, 4)))[-1] == 12
    assert reach(Curve("", "strong", 2, points(1, 2, 4)))[-1] == 4
    # pairs of ranks share a sample; and tensor-parallel ranks all of them, so that samples set no end
    assert reach(Curve("", "strong", 12, points(2, 4), data_share=0.5))[-1] == 24
    assert reach(Curve("", "strong", 2, points(1, 2, 4), data_share=0.25))[-1] == 32


def test_strong_scaling_says_where_samples_end(tmp_path: Path) -> None:
    records = weak(spec={"batch_size": None, "global_batch_size": 16})
    (found,) = modelled(stored(tmp_path, *records)).predicted
    assert found.rows[-1]["ranks"] == 16
    assert found.lines[-1] == "drawn up to 16 ranks: more have no sample each of the 16 in a batch"


def test_markdown_has_a_table_and_the_assumptions(tmp_path: Path) -> None:
    store = stored(tmp_path, *weak())
    text = report(store, modelled(store))
    (title,) = titles(find_series(store.frame()))
    assert f"## Predicted: {title}\n\n| ranks | samples/s [90 %] | efficiency [90 %] |" in text
    assert re.search(r"^\| 32 \| \d+\.\d \[\d+\.\d \d+\.\d\] \| 0\.\d\d \[", text, re.M)
    assert "- fitted to 1, 2, 4 ranks" in text and "Predicted" not in report(store)


@pytest.mark.full  # tests/results/charts has as many trials on one page
def test_two_thousand_trials_fit_with_predictions(tmp_path: Path) -> None:
    store = many(tmp_path, trials=2000, points=1000)
    shown = modelled(store)
    assert len(shown.predicted) == MAX_PREDICTED and all(one.problem is None for one in shown.predicted)
    several = sum(len(series.rates) > 1 for series in find_series(store.frame(), mix_environments=True))
    assert shown.unpredicted.startswith(f"{MAX_PREDICTED} of {several} series are predicted, ")
    assert shown.unpredicted.endswith(f"; {several - MAX_PREDICTED} left out.")
    assert len(html.page(store, shown).encode()) < 6_000_000


def test_how_many_series_are_left_out_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = [*weak((1, 2), session="b"), *weak((1, 2, 4, 8), session="c"), made_trial(1, 9.0, session="d")]
    store = stored(tmp_path, *weak(), *others)
    assert modelled(store).unpredicted == ""
    monkeypatch.setattr(models, "MAX_PREDICTED", 1)
    shown = modelled(store)
    (one,) = shown.predicted
    assert len(one.series.rates) == 4 and shown.unpredicted.startswith("1 of 3 series are predicted, ")
    assert shown.unpredicted.endswith("; 2 left out.")
    assert f"\n\n{shown.unpredicted}\n\n" in report(store, shown)
    page = html.page(store, shown)
    assert page.count("1 of 3 series are predicted, ") == 1


# Pipelines


def rank(number: int, forward: float, backward: float, bubble: float | None, steps: int = 2) -> dict[str, Any]:
    parts = {"forward": [forward] * steps, "backward": [backward] * steps}
    parts |= {} if bubble is None else {"bubble": [bubble] * steps}
    loaded = {"kind": "loader", "start_s": 0.0, "end_s": 1.0, "parts": parts}
    return {"rank": number, "blocks": [{**loaded, "kind": "ceiling", "parts": {"forward": [9.0]}}, loaded]}


def piped(parallelism: Any = None, ranks: int = 2, **changes: Any) -> TrialRecord:
    degrees = {"pp": 2, "microbatches": 2, "schedule": "gpipe"} if parallelism is None else parallelism
    spec = {"workload": "gpt_neox", "parallelism": degrees, "world_size": ranks, "batch_size": 4}
    figures = {"step_s_mean": 0.1}
    return made_record(0, **{"spec": spec, "label": "gpipe", "sweep": "pipes", "figures": figures, **changes})


def drawn(path: Path, record: TrialRecord, *ranks: dict[str, Any]) -> PipelineStep:
    store = ResultsStore(path)
    store.append(record, {"record_id": record.record_id, "ranks": list(ranks)} if ranks else None)
    (found,) = pipeline_steps(store)
    return found


def test_a_pipeline_is_drawn_at_the_times_of_its_stages(tmp_path: Path) -> None:
    # a microbatch takes stage 0: F 10, B 20 ms; stage 1: F 20, B 30 ms
    found = drawn(tmp_path, piped(), rank(0, 0.02, 0.04, 0.07), rank(1, 0.04, 0.06, 0.03))
    ends = {(s.stage, s.kind, s.microbatch): round(s.end_s * 1e3) for s in found.slots}
    assert ends == {
        (0, "F", 0): 10,
        (0, "F", 1): 20,
        (1, "F", 0): 30,
        (1, "F", 1): 50,
        (1, "B", 0): 80,
        (1, "B", 1): 110,
        (0, "B", 0): 100,
        (0, "B", 1): 130,
    }
    assert found.timed and found.title == "gpipe · pipes · default"
    assert found.lines[0] == "gpipe: 2 stages, 2 microbatches; a step took 100 ms"
    assert found.lines[1].startswith("as drawn 130 ms, without transfers")
    # 130 - 2 x 30 of stage 0, 130 - 2 x 50 of stage 1
    assert found.lines[2:] == [
        "stage 0: forward 10 ms, backward 20 ms a microbatch; bubble a step 70 ms as drawn, 70 ms measured",
        "stage 1: forward 20 ms, backward 30 ms a microbatch; bubble a step 30 ms as drawn, 30 ms measured",
    ]


def test_how_many_pipelines_are_left_out_is_told(tmp_path: Path) -> None:
    count = MAX_PIPELINES + 3
    records = [piped(point_id=f"p{n}", label=f"pipe {n}") for n in range(count)]
    shown = modelled(stored(tmp_path, *records))
    assert [step.point_id for step in shown.pipelines] == [f"p{n}" for n in range(3, count)]
    assert shown.undrawn == f"{MAX_PIPELINES} of {count} points with pipelines are drawn, the last ones; 3 left out."
    assert shown.undrawn in report(ResultsStore(tmp_path), shown)
    assert modelled(stored(tmp_path / "few", piped())).undrawn == ""


def test_without_raw_samples_times_are_units(tmp_path: Path) -> None:
    found = drawn(tmp_path, piped())
    assert not found.timed and max(slot.end_s for slot in found.slots) == (2 + 2 - 1) * 3
    assert found.lines[1] == "at unit times (the stages' were not kept): 33.3% of the step is bubble"


def test_ranks_of_one_stage_are_averaged() -> None:
    of = layout(piped({"pp": 2, "dp": 2, "microbatches": 2}, ranks=4))
    assert of is not None and of.microbatches == 2
    ranks = [rank(0, 0.01, 0.02, None), rank(1, 0.03, 0.02, None), rank(2, 0.05, 0.04, None), rank(3, 0.05, 0.04, None)]
    times = stage_times({"ranks": ranks}, of)
    assert times == {"forward": pytest.approx([0.02, 0.05]), "backward": pytest.approx([0.02, 0.04])}
    assert stage_times({"ranks": ranks[:2]}, of) is None and stage_times(None, of) is None


def test_zero_bubble_splits_the_backward_pass_and_has_two_chunks(tmp_path: Path) -> None:
    record = piped({"pp": 2, "microbatches": 4, "schedule": "zero_bubble"})
    found = drawn(tmp_path, record, rank(0, 0.04, 0.08, 0.01), rank(1, 0.04, 0.08, 0.01))
    assert {(slot.kind, slot.chunk) for slot in found.slots} == {(kind, chunk) for kind in "FBW" for chunk in (0, 1)}
    assert all(slot.end_s - slot.start_s == pytest.approx(0.005) for slot in found.slots)
    assert found.lines[0].startswith("zero_bubble: 2 stages, 2 chunks each, 4 microbatches")


@pytest.mark.parametrize("given", ["ddp", {"tp": 2}, None, {"pp": 2, "dp": 3}, {"nonsense": 1}])
def test_trials_without_stages_are_no_pipelines(tmp_path: Path, given: Any) -> None:
    spec = {"parallelism": given, "world_size": 2}
    assert pipeline_steps(stored(tmp_path, made_record(0, spec=spec))) == []


def test_naive_is_one_microbatch_and_pp_takes_every_rank() -> None:
    naive, named = layout(piped({"pp": 2, "schedule": "naive"})), layout(piped("pp", ranks=4))
    assert naive is not None and naive.microbatches == 1
    assert named is not None and (named.pp, named.microbatches, named.schedule) == (4, 4, "1f1b")


# The storage knee


def reading(staging: str, au: dict[int, float], wait: bool = True, batch: int = 8) -> list[TrialRecord]:
    """Steps of 100 ms of computation, samples of 2 MB."""
    records = []
    for n, value in au.items():
        rate, step = n * batch * value / 0.1, 0.1 / value
        figures = {"au": value, "io_bytes_per_s": rate * 2 * MB, "load_s": step - 0.1, "communication_s": 0.0}
        spec = {"data": {**READ, "staging": staging}, "batch_size": batch}
        records += [made_trial(n, rate * x, k, spec=spec, figures=dict(figures)) for k, x in enumerate((0.999, 1.001))]
    return records


def found_series(*records: TrialRecord) -> list[Series]:
    return [one for one in find_series(frame(*records)) if one.kind == "weak"]


# 8 samples of 2 MB each 100 ms: a rank reads 160 MB/s; 480 MB/s feed three ranks
SATURATED = {1: 1.0, 2: 1.0, 4: 0.75, 8: 0.375}


def knees_of(*records: TrialRecord) -> list[StorageKnee]:
    found = found_series(*records)
    predicted = [models.predicted(one, title) for one, title in zip(found, titles(found), strict=True)]
    return storage_knees(found, titles(found), predicted)


def test_the_knee_by_hand() -> None:
    (knee,) = knees_of(*reading("none", SATURATED), *reading("copy", dict.fromkeys(SATURATED, 0.98)))
    assert knee.knee_ranks == pytest.approx(3, rel=0.01)
    (line,) = knee.lines
    assert line.startswith("the file system saturates at 3.00 ranks") and line.endswith(", 480 MB/s")
    shared, local = knee.curves
    assert (shared.name, local.name) == ("shared file system", "node-local copy")
    by_ranks = dict(zip(shared.ranks, shared.au, strict=True))
    assert [by_ranks[n] for n in (1, 2, 4, 8, 16)] == pytest.approx([1, 1, 0.75, 0.375, 0.1875], rel=0.01)
    assert list(shared.ranks) == sorted(shared.ranks) and max(shared.ranks) == 16
    assert local.au == pytest.approx([0.98] * len(local.au), rel=0.005)


def test_a_staged_series_of_another_batch_is_no_pair() -> None:
    other = reading("copy", {1: 1.0, 2: 1.0}, batch=4)
    found = found_series(*reading("none", {1: 1.0, 2: 1.0}), *other)
    assert len(found) == 2 and storage_knees(found, titles(found)) == []


def test_an_unsaturated_pair_says_so_and_has_no_mark() -> None:
    (knee,) = knees_of(*reading("none", {1: 0.9, 2: 0.9, 4: 0.9}), *reading("copy", {1: 0.98, 2: 0.98, 4: 0.98}))
    assert knee.knee_ranks is None
    assert knee.lines == ["no knee: not saturated: throughput grows with the ranks up to 4"]
    assert knee.curves[0].au == pytest.approx([0.9] * len(knee.curves[0].au), rel=0.005)


def test_a_client_below_full_utilization_moves_the_knee_out() -> None:
    # at AU 0.8 a rank reads 128 MB/s: 480 MB/s feed 3.75 ranks
    (knee,) = knees_of(*reading("none", {1: 0.8, 2: 0.8, 4: 0.75, 8: 0.375}))
    assert knee.knee_ranks == pytest.approx(3.75, rel=0.01)
    by_ranks = dict(zip(knee.curves[0].ranks, knee.curves[0].au, strict=True))
    assert [by_ranks[n] for n in (1, 2, 8, 16)] == pytest.approx([0.8, 0.8, 0.375, 0.1875], rel=0.01)


def test_strong_scaling_has_its_knee_by_fit() -> None:
    records = []
    for n, rate in ((1, 80.0), (2, 160.0), (4, 200.0), (8, 200.0)):
        figures = {"au": 0.9, "io_bytes_per_s": rate * 2 * MB, "load_s": 0.001 * n, "bottleneck": "storage"}
        spec = {"data": READ, "batch_size": None, "global_batch_size": 8}
        records += [made_trial(n, rate, k, spec=spec, figures=dict(figures)) for k in range(2)]
    found = find_series(frame(*records))
    (knee,) = storage_knees(found, titles(found))
    assert knee.knee_ranks == pytest.approx(2.5, rel=0.01) and knee.curves[0].au == []
    assert len(knee.lines) == 1 and knee.lines[0].startswith("the file system saturates at 2.50 ranks")


def test_the_verb_puts_models_into_the_page(tmp_path: Path) -> None:
    stored(tmp_path / "store", *reading("none", SATURATED), *reading("copy", dict.fromkeys(SATURATED, 0.98)), piped())
    out = tmp_path / "out.html"
    assert run_command(["report", "--store", str(tmp_path / "store"), "--html", str(out)]) == 0
    (data,) = re.findall(r'<script[^>]*id="data"[^>]*>(.*?)</script', out.read_text(), re.S)
    keys = [chart["key"] for chart in json.loads(data)["charts"]]
    assert [keys.count(key) for key in ("predicted", "knee", "pipeline")] == [2, 1, 1]
