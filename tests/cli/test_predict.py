"""`benchsuite predict` from a store or a table to tables, JSON, CSV, Markdown and error lines."""

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from benchsuite.results.store.store import ResultsStore
from tests.results.scaled import made_trials

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BENCHSUITE_STORE", raising=False)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A weak series in two precisions, at 1 to 4 ranks."""
    store = ResultsStore(tmp_path_factory.mktemp("measured") / "store")
    rates = {1: [99.0, 100.0, 101.0], 2: [190.0, 192.0, 193.0], 4: [372.0, 374.0, 377.0]}
    for record in (*made_trials(rates), *made_trials(rates, spec={"precision": "bf16"})):
        store.append(record)
    return store.path


@pytest.fixture
def store(measured: Path, tmp_path: Path) -> Path:
    """A copy of it, to which tests may append."""
    return shutil.copytree(measured, tmp_path / "store")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "published.csv"
    path.write_text("gpus,batch_size,images/s\n8,256,2800\n16,256,5500\n32,256,10700\n64,256,20500\n")
    return path


def error_line(run_cli: Run, *arguments: object) -> str:
    code, out, err = run_cli("predict", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1
    return err


def test_a_table_for_each_series_and_what_it_rests_on(run_cli: Run, store: Path):
    code, out, err = run_cli("predict", "--store", store, "--ranks", "16,8")
    assert (code, err) == (0, "")
    lines = [line.strip() for line in out.splitlines()]
    assert "weak · resnet50 tiny synthetic bf16 ddp · 8 per rank" in lines
    rows = [line.split() for line in lines if line.startswith(("8 ", "16 "))]
    assert [row[0] for row in rows] == ["8", "16", "8", "16"]
    low, high = float(rows[0][2].strip("[")), float(rows[0][3].strip("]"))
    assert low < float(rows[0][1]) < high
    assert 80 < float(rows[0][1]) < 95, "86 ms at 4 ranks"
    assert any(line.startswith("- fitted to 1, 2, 4 ranks, weak") for line in lines)
    assert "a measurement at 16 ranks would tighten the interval most" in " ".join(out.split())


def test_where(run_cli: Run, store: Path):
    out = run_cli("predict", "--store", store, "--ranks", "8", "--where", "precision=fp32")[1]
    assert "fp32" in out and "bf16" not in out
    assert "there are: bf16, fp32" in error_line(run_cli, "--store", store, "--ranks", "8", "--where", "precision=fp8")


def test_json(run_cli: Run, store: Path):
    code, out, _ = run_cli("predict", "--store", store, "--ranks", "8", "--format", "json")
    assert code == 0
    first, _ = json.loads(out)
    (row,) = first["rows"]
    assert row["ranks"] == 8
    assert row["samples_per_s"] == pytest.approx(64 / row["step_s"])
    assert row["efficiency_low"] < row["efficiency"] < row["efficiency_high"]
    assert first["assumptions"]


def test_csv_and_markdown(run_cli: Run, store: Path):
    rows = list(
        csv.DictReader(io.StringIO(run_cli("predict", "--store", store, "--ranks", "8,16", "--format", "csv")[1]))
    )
    assert [row["ranks"] for row in rows] == ["8", "16"] * 2
    assert float(rows[0]["step_s_low"]) < float(rows[0]["step_s_high"])
    text = run_cli("predict", "--store", store, "--ranks", "8", "--format", "md")[1]
    assert "| ranks | ms/step [90 %] |" in text and "- fitted to 1, 2, 4 ranks" in text


def test_back_test(run_cli: Run, table: Path):
    code, out, err = run_cli("predict", "--table", table, "--back-test")
    assert (code, err) == (0, "")
    (row,) = [line.split() for line in out.splitlines() if " 64 " in line]
    assert row[1:3] == ["64", "799.2"]
    assert abs(float(row[6])) < 5
    assert "- 1 predicted: error median" in out


def test_model_parallel_ranks_share_their_samples(run_cli: Run, tmp_path: Path):
    """MT-NLG 530B (arXiv:2201.11990): 1,920 samples over 8 and 10 replicas of 280 ranks; 12 take 160 each."""
    rows = ("2240,{}1920,60.1", "2800,{}1920,50.2")
    (tmp_path / "bare.csv").write_text("\n".join(["gpus,global_batch_size,step_s", *(row.format("") for row in rows)]))
    (tmp_path / "full.csv").write_text(
        "\n".join(["gpus,tp,pp,global_batch_size,step_s", *(row.format("8,35,") for row in rows)])
    )
    line = error_line(run_cli, "--table", "bare.csv", "--ranks", "3360")
    assert "3360 ranks cannot share 1920 samples a step evenly, nor could all of those measured" in line
    assert "columns tensor and pipeline" in line
    line = error_line(run_cli, "--table", "full.csv", "--ranks", "3080")
    assert "3080 ranks cannot share 1920 samples a step evenly; take a divisor" in line
    code, out, err = run_cli("predict", "--table", "full.csv", "--ranks", "3360")
    assert (code, err) == (0, "")
    (row,) = [line.split() for line in out.splitlines() if line.strip().startswith("3360 ")]
    assert 40e3 < float(row[1]) < 50.2e3 * 2800 / 3360 * 1.1


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((), "--ranks is missing: give numbers of ranks to predict"),
        (("--ranks", "8,many"), "--ranks 'many': allowed: whole numbers from 1, with commas"),
        (("--ranks", "33"), "33 ranks are 8.25 times the 4 measured; allowed: up to 8 times (32)"),
        (("--ranks", "8", "--table", "none.csv"), "table none.csv: no such file"),
        (("--ranks", "8", "--network", "2"), "predict --network is retired: only ranks vary; measure a series"),
        (("--ranks", "8", "--batch-size=12"), "predict --batch-size is retired: only ranks vary; measure a series"),
        (("--rows", "wanted.csv"), "predict --rows is retired: tables of layouts are for `benchsuite plan table FILE`"),
        (("--nccl-tests", "a.log"), "predict --nccl-tests is retired: predictions rest on a series' steps alone"),
    ],
)
def test_error_lines(run_cli: Run, store: Path, arguments: tuple[str, ...], line: str):
    assert line in error_line(run_cli, "--store", store, *arguments)


def test_a_series_that_is_too_short_stops_no_other(run_cli: Run, store: Path):
    for record in made_trials({1: [50.0], 2: [90.0]}, spec={"precision": "fp16"}):
        ResultsStore(store).append(record)
    code, out, err = run_cli("predict", "--store", store, "--ranks", "32", "--format", "json")
    assert (code, err) == (0, "")
    *good, short = json.loads(out)
    assert [row["ranks"] for section in good for row in section["rows"]] == [32, 32]
    assert short["rows"] == [] and "fp16" in short["series"]
    assert short["assumptions"][0].startswith("left out: 32 ranks are 16 times the 2 measured")
    text = run_cli("predict", "--store", store, "--ranks", "32", "--format", "md")[1]
    assert text.count("| ranks |") == 2 and "- left out: 32 ranks" in text
    for record in made_trials({8: [700.0]}):
        ResultsStore(store).append(record)
    code, out, err = run_cli("predict", "--store", store, "--back-test", "--format", "json")
    assert (code, err) == (0, "")
    *tested, last = json.loads(out)
    assert sorted(row["ranks"] for section in tested for row in section["rows"]) == [4, 8]
    assert last["assumptions"][0].startswith("left out: measured at 1, 2 ranks: a back-test leaves out those above 1")
    assert "left out" not in error_line(run_cli, "--store", store, "--ranks", "100")


def test_far_is_allowed_when_asked_for(run_cli: Run, store: Path):
    assert run_cli("predict", "--store", store, "--ranks", "64", "--far")[0] == 0


def test_a_single_scale_is_not_enough(run_cli: Run, tmp_path: Path):
    (tmp_path / "one.csv").write_text("gpus,step_s\n4,0.5\n")
    line = error_line(run_cli, "--table", "one.csv", "--ranks", "8")
    assert "measured at 4 ranks: a prediction needs at least 2 scales" in line and "`benchsuite sweep weak-sca" in line
    (tmp_path / "one.csv").write_text("gpus,step_s\n1,0.5\n")
    assert "measured at 1 rank: " in error_line(run_cli, "--table", "one.csv", "--ranks", "8")


def test_measured_scales_are_those_of_scaling(run_cli: Run, tmp_path: Path):
    """Of an even number of repeats the median rate is not that of the median step."""
    store = ResultsStore(tmp_path / "even")
    for record in made_trials({1: [438.0, 659.0], 2: [600.0, 780.0, 900.0, 1000.0]}):
        store.append(record)
    shown = json.loads(run_cli("scaling", "--store", store.path, "--format", "json")[1])[0]["points"]
    found = json.loads(run_cli("predict", "--store", store.path, "--ranks", "1,2", "--format", "json")[1])[0]["rows"]
    for point, row in zip(shown, found, strict=True):
        assert row["samples_per_s"] == pytest.approx(point["samples_per_s"])
        assert row["efficiency"] == pytest.approx(point["weak_efficiency"])
    assert shown[0]["samples_per_s"] == pytest.approx(548.5)


def test_rows_of_unlike_batches_are_no_series(run_cli: Run, tmp_path: Path):
    """256 samples on 8 ranks and 8,192 on 256 are 32 each; what 64 ranks did with 16 each tells nothing of them."""
    (tmp_path / "t.csv").write_text("gpus,global_batch,images/s\n8,256,2800\n64,1024,20000\n256,8192,80000\n")
    code, out, err = run_cli("predict", "--table", "t.csv", "--ranks", "512", "--format", "json")
    assert (code, err) == (0, "")
    series, alone = json.loads(out)
    (row,) = series["rows"]
    assert series["series"] == "t.csv · 32 per rank" and row["samples_per_s"] == pytest.approx(32 * 512 / row["step_s"])
    assert (alone["series"], alone["rows"]) == ("t.csv · 1024 in all", [])
    (tmp_path / "u.csv").write_text("gpus,global_batch,images/s\n8,256,2800\n64,1024,20000\n")
    line = error_line(run_cli, "--table", "u.csv", "--ranks", "128")
    assert "u.csv · 256 in all: measured at 8 ranks: a prediction needs at least 2 scales" in line


def test_help_explains_the_columns(run_cli: Run):
    code, out, _ = run_cli("predict", "--help")
    told = " ".join(out.split())
    assert code == 0 and "Columns: efficiency: samples/s over those of the smallest measured scale" in told
    assert "90 % interval" in told and "`benchsuite schema table`" in told
