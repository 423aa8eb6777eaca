"""What is untested on several GPUs is said under a report that holds such a point."""

from pathlib import Path
from typing import Any

import pytest

from benchsuite.results.charts import page
from benchsuite.results.report import markdown, objects, several_gpus
from benchsuite.results.report.sections import sections
from benchsuite.results.report.several_gpus import Accepted, Ran, features, remark, untested
from benchsuite.results.store.store import ResultsStore
from tests.results.report.reported import made_figures, made_spec, trial

DEGREES = {"dp": 1, "dp_replicate": 1, "tp": 1, "pp": 1, "cp": 1, "ep": 1, "zero": 0, "engine": "torch"}


@pytest.fixture(autouse=True)
def nothing_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def rows(path: Path, *points: dict[str, Any]) -> Any:
    store = ResultsStore(path)
    for number, changes in enumerate(points):
        spec = made_spec(**{"device": "cuda", "world_size": 8, **changes})
        store.append(trial(number, f"p{number}", spec, made_figures(10.0)))
    return store, sections(store)[0].points


@pytest.mark.parametrize(
    ("parallelism", "names"),
    [
        ("none", []),
        ("hsdp", ["hsdp"]),
        ("pp", ["pp", "schedule 1f1b"]),
        (DEGREES | {"dp": 8}, ["ddp"]),
        (DEGREES | {"dp": 8, "zero": 3, "dp_replicate": 2}, ["hsdp"]),
        (DEGREES | {"dp": 2, "cp": 2, "zero": 2}, ["zero2", "cp"]),
        (DEGREES | {"pp": 2, "schedule": "interleaved"}, ["pp", "schedule interleaved"]),
        (DEGREES | {"dp": 8, "zero": 1, "engine": "deepspeed"}, ["deepspeed"]),
        ({"tp": 2, "dp": None}, ["tp"]),
    ],
)
def test_what_a_mode_takes_part_in(parallelism: Any, names: list[str]) -> None:
    assert features(parallelism) == names
    assert features(parallelism, nodes=2) == [*names, "several nodes"]


def test_nothing_is_on_the_list_yet_and_what_is_is_not_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert several_gpus.ran() == (), "say in README.md what has run, once something has"
    monkeypatch.setattr(several_gpus, "ran", lambda: (Ran("ddp", "2026-12-01", "2 nodes of 8 x NVIDIA H100"),))
    assert untested(["ddp", "tp", "tp"], set(), "0.1.0") == ["tp"]


def test_points_on_one_gpu_on_cpus_and_emulated_are_not_marked(tmp_path: Path) -> None:
    _, points = rows(
        tmp_path,
        {"world_size": 1},
        {"device": "cpu"},
        {"device": "emulated:h100"},
        {"parallelism": "none", "world_size": 1},
    )
    assert remark(points) == []


def test_it_stands_in_every_form_of_the_report(tmp_path: Path, run_cli: Any) -> None:
    degrees = DEGREES | {"tp": 2, "pp": 2, "dp": 2, "zero": 1, "schedule": "zero_bubble"}
    store, points = rows(tmp_path, {}, {"parallelism": degrees}, {"device": "cpu", "parallelism": "fsdp"})
    (line,) = remark(points)
    names = line.partition(": ")[2].partition(" (of 2 points)")[0].split(", ")
    assert {*names} == {"ddp", "zero1", "tp", "pp", "schedule zero_bubble"} and "gpu-accept" in line
    assert line in run_cli("report", "--store", tmp_path)[1].splitlines()
    assert f"- {line}" in markdown.report(store).splitlines()
    assert line in page.page(store)
    assert objects.report(store)["sections"][0]["untested"] == [line]


def test_what_this_machine_has_passed_is_not_marked(tmp_path: Path) -> None:
    _, points = rows(tmp_path / "store", {}, {"parallelism": "fsdp"})
    several_gpus.keep(Accepted("0.1.0", ("H100",), "2026-12-01", ("ddp",)))
    assert "GPUs: fsdp (of 1 point)" in remark(points)[0], "by the version and the devices of the records"
    several_gpus.keep(Accepted("0.1.0", ("A100",), "2026-12-01", ("ddp", "fsdp")))
    assert "ddp" in remark(points)[0], "other devices than those of these records"
