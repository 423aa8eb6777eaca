"""Names as they are printed: short where that says enough, whole where it is asked where results come from."""

from pathlib import Path
from typing import Any

import pytest

from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.grid.point import Point
from benchsuite.results.charts import page
from benchsuite.results.render.naming import degrees, labels_apart, last_part, parallelism_of, short_workloads
from benchsuite.results.report import provenance
from benchsuite.results.report.scaling import titles
from benchsuite.results.report.sections import sections
from benchsuite.results.scaling.series import find_series
from benchsuite.results.store.frames import flatten
from benchsuite.results.store.store import ResultsStore
from benchsuite.workloads.layout import layout_of
from benchsuite.workloads.spec import Parallelism
from tests.results.charts.test_page import data, without_scripts
from tests.results.made import made_record
from tests.results.report.reported import made_figures, made_spec, trial
from tests.results.scaled import frame, made_trials

OWN = "/home/me/models/net.py:WORKLOAD"


def test_points_of_one_label_are_told_apart_by_what_differs() -> None:
    same = {"spec.workload": "resnet50", "spec.data.root": "/a", "spec.measure.repeats": 1, "spec.batch_size": 4.0}
    rows = [
        {"label": "resnet50", "point_id": "1", **same, "spec.device": "emulated:5ms", "spec.measure.epochs": None},
        {"label": "resnet50", "point_id": "2", **same, "spec.device": "emulated:20ms", "spec.measure.epochs": 1.0},
        {"label": "resnet50", "point_id": "2", **same, "spec.device": "emulated:20ms", "spec.measure.epochs": 1.0},
        {"label": "files", "point_id": "3", **same, "spec.data.root": "/b", "spec.measure.repeats": 3},
    ]
    assert labels_apart(rows) == {
        "1": "resnet50 emulated:5ms",
        "2": "resnet50 emulated:20ms epochs 1",
        "3": "files",
    }
    elsewhere = [
        {**rows[0], "point_id": "4", "spec.data.root": "/c/photos"},
        {**rows[0], "spec.data.root": "/a/photos"},
    ]
    assert labels_apart(elsewhere) == {"4": "resnet50 c/photos", "1": "resnet50 a/photos"}
    assert labels_apart([rows[0], {**rows[0], "point_id": "4"}]) == {"1": "resnet50", "4": "resnet50"}
    revised = [{**rows[0], "revision": None}, {**rows[0], "point_id": "4", "revision": "tp 2"}]
    assert labels_apart(revised) == {"1": "resnet50", "4": "resnet50 revision tp 2"}


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["resnet50", OWN], ["resnet50", "net.py:WORKLOAD"]),
        ([OWN, "/home/you/models/net.py:WORKLOAD"], ["me/models/net.py:WORKLOAD", "you/models/net.py:WORKLOAD"]),
        (["a/net.py:W", "net.py:W"], ["a/net.py:W", "net.py:W"]),
        (["a/net.py:W", "a/net.py:V"], ["net.py:W", "net.py:V"]),
        (["/net.py:W", "net.py:W"], ["/net.py:W", "net.py:W"]),
        (["a/net.py:W", "b/a/net.py:W"], ["a/net.py:W", "b/a/net.py:W"]),
        (["group/name"], ["group/name"]),
        ([], []),
    ],
)
def test_as_much_of_a_path_as_tells_it_from_the_others(names: list[str], short: list[str]) -> None:
    found = short_workloads(names)
    assert list(found.items()) == list(zip(names, short, strict=True))
    assert len({*found.values()}) == len(found)


def test_titles_of_series_are_short_and_told_apart() -> None:
    rates: dict[int, list[float | None]] = {1: [100.0], 2: [190.0]}
    (one,) = titles(find_series(frame(*made_trials(rates, spec={"workload": OWN}))))
    assert one == "weak · net.py:WORKLOAD tiny synthetic fp32 ddp · 8 per rank"
    both = [*made_trials(rates, spec={"workload": OWN}), *made_trials(rates, spec={"workload": "/b/net.py:WORKLOAD"})]
    assert [title.split()[2] for title in titles(find_series(frame(*both)))] == [
        "models/net.py:WORKLOAD",
        "b/net.py:WORKLOAD",
    ]


def test_charts_and_filters_are_short_and_the_provenance_is_whole(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path)
    for number, workload in enumerate((OWN, "bert")):
        store.append(trial(number, f"p{number}", made_spec(workload=workload), made_figures(100.0)))
    text = page.page(store)
    assert [point["workload"] for point in data(text)["points"]] == [["net.py:WORKLOAD"], ["bert"]]
    assert data(text)["axes"] == ["workload"]
    whole = without_scripts(text).partition("Where this comes from")[2]
    assert f"<th>workload</th><td>{OWN}</td>" in whole and whole.count(OWN) == 2, "in the sweep file as well"
    trials = [row for section in sections(store) for row in section.trials]
    assert [row["spec.workload"] for row in trials] == ["net.py:WORKLOAD", "bert"]
    assert {*store.frame()["spec.workload"]} == {OWN, "bert"}, "the store's own rows stay as they are"


def test_workloads_that_are_no_files_are_no_fact_of_their_own() -> None:
    assert "workload" not in dict(provenance.environments([made_record()]))


def test_degrees_that_go_without_saying_are_not_told() -> None:
    spec = {"dp": 2, "tp": 1, "pp": 1, "cp": None, "zero": 0, "engine": "torch", "schedule": "1f1b"}
    assert degrees(spec) == "dp 2"
    assert degrees({**spec, "pp": 2, "loss_parallel": True}) == "dp 2 pp 2 schedule 1f1b loss_parallel"
    assert degrees({"dp": 1}) == "none"


@pytest.mark.parametrize(
    "given",
    [
        {"dp": 1},
        {"dp": 4, "zero": 3, "dp_replicate": 2},
        {"dp": 2, "tp": 2, "sequence_parallel": True, "loss_parallel": True},
        {"dp": 2, "pp": 2, "schedule": "gpipe", "microbatches": 1},
        {"dp": 2, "cp": 2, "cp_attention": "all_to_all", "zero": 1},
        {"dp": 4, "ep": 2},
        {"dp": 2, "engine": "parameter_server", "num_servers": 2, "max_staleness": 0},
        {"dp": 2, "engine": "deepspeed", "zero": 2},
    ],
)
def test_plans_and_reports_have_the_same_words_for_a_mode(given: dict[str, Any]) -> None:
    asked = Parallelism(**given)
    words = degrees(asked.model_dump())
    assert layout_of(asked, None).name == words
    spec = TrialSpec(workload="gpt_neox", variant="nano", batch_size=4, parallelism=asked)
    point = Point(spec, "p", None, None, {"parallelism": asked.model_dump(), "batch_size": 4})
    assert point.label == ("batch_size 4" if words == "none" else f"{words} batch_size 4")


def test_points_of_one_label_are_told_apart_by_their_mode() -> None:
    modes = ({"dp": 2, "tp": 1, "engine": "horovod"}, {"dp": 1, "tp": 2, "sequence_parallel": True})
    points = [
        {"label": "x", "point_id": str(number), **flatten("spec", {"parallelism": given})}
        for number, given in enumerate(modes)
    ]
    assert labels_apart(points) == {"0": "x dp 2 horovod", "1": "x tp 2 sequence_parallel"}


def test_the_parallelism_of_a_row_is_its_name_or_its_degrees() -> None:
    assert parallelism_of({"spec.parallelism": "ddp"}) == "ddp"
    row = {"spec.parallelism": float("nan"), "spec.parallelism.dp": 2.0, "spec.parallelism.tp": float("nan")}
    assert parallelism_of(row) == "dp 2"
    assert parallelism_of({"spec.parallelism": None}) == ""


def test_the_last_part_of_a_path() -> None:
    assert [last_part(OWN), last_part("bert"), last_part(None)] == ["net.py:WORKLOAD", "bert", "None"]
