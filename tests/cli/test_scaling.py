"""`benchsuite scaling` from a store to tables, files and error lines; and the sweeps that feed it."""

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import benchsuite
from benchsuite.cli import sweep
from benchsuite.grid.expand import expand, load_sweep
from benchsuite.host.machine import Machine
from benchsuite.results.store.store import ResultsStore
from tests.helpers.snapshots import compare_messages
from tests.results.scaled import made_trial, made_trials

Run = Callable[..., tuple[int, str, str]]
SWEEPS = Path(benchsuite.__file__).parent / "sweeps"


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BENCHSUITE_STORE", raising=False)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A weak series in two precisions; with bf16, 4 ranks failed."""
    store = ResultsStore(tmp_path / "store")
    rates: dict[int, list[float | None]] = {1: [99.0, 100.0, 101.0], 2: [180.0, 190.0, 195.0], 4: [360.0, 364.0, 400.0]}
    for record in made_trials(rates, caveats=["not_steady"]):
        store.append(record)
    for record in made_trials({**rates, 4: [None]}, spec={"precision": "bf16"}):
        store.append(record)
    return store.path


def error_line(run_cli: Run, *arguments: object) -> str:
    code, out, err = run_cli("scaling", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1
    return err


def test_sentence_table_and_what_it_rests_on(run_cli: Run, store: Path):
    code, out, err = run_cli("scaling", "--store", store)
    assert (code, err) == (0, "")
    lines = [line.strip() for line in out.splitlines()]
    assert "weak · resnet50 tiny synthetic fp32 ddp · 8 per rank · baseline 1 rank · 3 repeats" in lines
    assert (
        "-> Efficiency 0.91 (0.89 1.01) at 4 ranks; what is lost was not split: the parts of steps were not measured. "
        "Every repeat on 1 and 4 ranks is doubtful: not_steady." in lines
    )
    (row,) = [line.split() for line in lines if line.startswith("4 ") and "364.0" in line]
    assert row == ["4", "364.0", "±36.0", "0.91", "(0.89", "1.01)", "9", "%", "not_steady", "unstable"]
    assert any(line.split() == ["4", "-", "-", "-", "failed:", "EIO"] for line in lines)
    assert "( ) range over repeats, no interval: it takes 6, of as many jobs or the same" in lines
    assert "USL needs 4 numbers of ranks, 3 measured" in lines
    assert any(line.startswith("efficiency = P(N) / (P(N0) N / N0)") for line in lines)


def test_json(run_cli: Run, store: Path):
    code, out, _ = run_cli("scaling", "--store", store, "--format", "json")
    assert code == 0
    fp32, bf16 = json.loads(out)
    assert [point["weak_efficiency"] for point in fp32["points"]] == pytest.approx([1.0, 0.95, 0.91])
    assert [point["status"] for point in bf16["points"]] == ["ok", "ok", "failed"]
    assert bf16["points"][2]["weak_efficiency"] is None


def test_csv(run_cli: Run, store: Path):
    rows = list(csv.DictReader(io.StringIO(run_cli("scaling", "--store", store, "--format", "csv")[1])))
    assert [row["ranks"] for row in rows] == ["1", "2", "4"] * 2
    assert float(rows[1]["weak_efficiency"]) == pytest.approx(0.95)
    assert rows[5]["weak_efficiency"] == rows[5]["samples_per_s"] == ""
    text = (Path(__file__).parents[2] / "docs/forecast.md").read_text().partition("| column | what |")[2]
    named = [line.split(" | ")[0] for line in text.partition("\n\n")[0].splitlines()[2:]]
    told = [name for line in named for name in re.findall(r"`(\w+)`", line)]
    assert told == [*rows[0]], "docs/forecast.md has each column, in this order"


def test_markdown(run_cli: Run, store: Path):
    out = run_cli("scaling", "--store", store, "--format", "md")[1]
    assert "| 2 | 190.0 ±10.0 | 0.95 (0.89 0.98) |" in out
    assert [line[:12] for line in out.splitlines()[-2:]] == ["- efficiency", "- load: wait"]


def test_latex(run_cli: Run, store: Path):
    out = run_cli("scaling", "--store", store, "--latex")[1]
    assert out.startswith("% needs \\usepackage{booktabs}\n")
    assert (
        r"baseline 1 rank $\cdot$ 3 repeats. samples/s: median; $\pm$ farthest repeat; ( ) range over repeats," in out
    )
    assert out.count(r"\begin{tabular}") == out.count(r"\end{tabular}") == 2
    assert r"\label{tab:scaling-1}" in out and r"\label{tab:scaling-2}" in out
    assert r"2 & 190.0 $\pm$10.0 & 0.95 (0.89 0.98) & - & - & - & 5 \% & not\_steady \\" in out


def test_figures(run_cli: Run, store: Path, tmp_path: Path):
    pytest.importorskip("matplotlib")
    code, out, err = run_cli("scaling", "--store", store, "--svg", "a", "--pdf", "a")
    assert code == 0 and "Efficiency" in out
    assert err == "figure: a/scaling.svg\nfigure: a/scaling.pdf\n"
    assert (tmp_path / "a/scaling.pdf").read_bytes().startswith(b"%PDF")
    run_cli("scaling", "--store", store, "--svg", "b", "--where", "precision=bf16")
    text = (tmp_path / "b/scaling.svg").read_text()
    command = "benchsuite scaling --store store --where precision=bf16 --svg DIR"
    assert f"drawn by benchsuite {benchsuite.__version__}: {command}" in text
    drawn = ElementTree.parse(tmp_path / "a/scaling.svg").iter("{http://www.w3.org/2000/svg}text")
    assert "weak · resnet50 tiny synthetic bf16 ddp · 8 per rank" in " ".join(
        "".join(text.itertext()) for text in drawn
    )


@pytest.mark.parametrize(
    ("filters", "precisions"),
    [
        (["precision=bf16"], ["bf16"]),
        (["spec.precision=fp32", "session=default"], ["fp32"]),
        (["data.source=synthetic"], ["fp32", "bf16"]),
        (["batch_size=8"], ["fp32", "bf16"]),
        (["env.cpu=a cpu"], ["fp32", "bf16"]),
    ],
)
def test_filters(run_cli: Run, store: Path, filters: list[str], precisions: list[str]):
    options = [word for text in filters for word in ("--where", text)]
    found = json.loads(run_cli("scaling", "--store", store, "--format", "json", *options)[1])
    assert [word for series in found for word in ("fp32", "bf16") if word in series["series"]] == precisions


def test_mistakes(run_cli: Run, store: Path) -> None:
    cases = [
        ["--where", "precision"],
        ["--where", "precison=bf16"],
        ["--where", "foo=1"],
        ["--where", "precision=bf6"],
        ["--where", "world_size=2"],
        ["--format", "xml"],
        ["--pdf", "in.out"],
        ["--svg", "a.svg"],
        ["--mix-environment"],
        ["--store", "gone"],
    ]
    Path("in.out").touch()
    compare_messages(
        "scaling", cases, lambda arguments: error_line(run_cli, "--store", store, *arguments), {str(store): "STORE"}
    )


def test_unlike_environments_are_refused_unless_told(run_cli: Run, store: Path):
    ResultsStore(store).append(made_trial(8, 700.0, env={"libraries": {"torch": "2.12.0"}}))
    line = error_line(run_cli, "--store", store)
    assert "weak series of resnet50, session default: " in line
    assert "libraries.torch '2.13.0' at 1 rank, '2.12.0' at 8 ranks" in line and "--mix-environments" in line
    code, out, _ = run_cli("scaling", "--store", store, "--mix-environments")
    assert code == 0 and "mixed environments: libraries.torch '2.13.0' at 1 rank, '2.12.0' at 8 ranks" in out


@pytest.mark.parametrize(
    ("name", "fixed", "varied"),
    [
        ("weak-scaling", "batch_size", "world_size"),
        ("strong-scaling", "global_batch_size", "world_size"),
        ("batch-size", "world_size", "batch_size"),
        ("model-size", "batch_size", "variant"),
    ],
)
def test_the_sweeps_of_practice_vary_one_thing(name: str, fixed: str, varied: str):
    plan = expand(load_sweep(SWEEPS / f"{name}.yaml", []), Machine(2, 0))
    assert plan.sweep.name == name and plan.sweep.question
    assert not plan.skipped and len(plan.points) >= 2
    specs = [point.spec.model_dump() for point in plan.points]
    assert len({spec[fixed] for spec in specs}) == 1 and specs[0][fixed] is not None
    assert len({spec[varied] for spec in specs}) == len(specs)
    rest = [{key: value for key, value in spec.items() if key != varied} for spec in specs]
    assert all(spec == rest[0] for spec in rest)


@pytest.mark.parametrize("name", ["weak-scaling", "strong-scaling"])
def test_the_scaling_sweeps_give_a_series_and_its_interval(
    run_cli: Run, tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
):
    """Every point that the sweep plans, as a record: one series, of its kind."""
    plan = expand(load_sweep(SWEEPS / f"{name}.yaml", ["world_size=[1,2,4]"]), Machine(4, 0))
    store = ResultsStore(tmp_path / name)
    for point in plan.points:
        for k in range(point.spec.measure.repeats):
            fields: dict[str, Any] = {"point_id": point.point_id, "trial_id": f"{point.point_id}.{k}"}
            fields |= {"record_id": f"{point.point_id}.{k}", "spec": point.spec.model_dump()}
            store.append(made_trial(1, 100.0 * point.spec.ranks + k, k).model_copy(update=fields))
    (series,) = json.loads(run_cli("scaling", "--store", store.path, "--format", "json")[1])
    assert series["kind"] == name.partition("-")[0]
    assert [point["ranks"] for point in series["points"]] == [1, 2, 4]
    assert [point["interval"] for point in series["points"]] == [None, "95 %", "95 %"]
    sweep._show(plan, store, "default")
    last = capfd.readouterr().out.splitlines()[-1]
    assert f"report --store {store.path} · " in last and last.endswith(f"scaling --store {store.path}")
