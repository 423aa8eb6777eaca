"""The verb `plan table`: what it prints of a table of layouts, and the error lines."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of four layouts on 2, 4 and 8 devices of one node; a step is no straight line in anything."""
    monkeypatch.chdir(tmp_path)
    lines = ["gpus,tp,microbatch,global_batch,hidden,layers,seq,step_s"]
    for gpus in (2, 4, 8):
        for tp, micro in ((1, 1), (1, 2), (2, 1), (2, 2)):
            step_s = (0.1 * micro / tp + 0.02 * tp) * (1.3 if gpus == 8 else 1.0)
            lines.append(f"{gpus},{tp},{micro},{micro * 8 * gpus // tp},1024,24,1024,{step_s}")
    Path("layouts.csv").write_text("\n".join(lines))


def error_line(run_cli: Run, *arguments: str) -> str:
    code, out, err = run_cli("plan", "table", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1) and err.startswith("error: ")
    return err


def test_each_layout_at_more_ranks(run_cli: Run):
    asked = ("plan", "table", "layouts.csv", "--ranks", "16")
    code, out, err = run_cli(*asked, "--format", "json")
    assert (code, err) == (0, "")
    (found,) = json.loads(out)
    labels = [f"tensor {tp} microbatch {micro}" for tp in (1, 2) for micro in (1, 2)]
    assert [row["label"] for row in found["rows"]] == labels
    assert any(
        line.startswith("one model from one source: how far others would be off is not known")
        for line in found["assumptions"]
    )
    _, out, _ = run_cli(*asked, "--node-bandwidth", "160GB")
    assert "ms/step [90 %]" in out and "bubble" in out and "read: ranks (gpus)" in out
    assert "between nodes each is taken to get about 160 GB/s, as given" in " ".join(out.split())


def test_where_keeps_rows(run_cli: Run):
    asked = ("plan", "table", "layouts.csv", "--ranks", "16", "--where", "tensor=1", "--format", "csv")
    assert [line.split(",")[1] for line in run_cli(*asked)[1].splitlines()[1:]] == ["microbatch 1", "microbatch 2"]


def test_rows_without_a_time(run_cli: Run):
    """The first was measured, the others were not; nodes stand in place of ranks."""
    names = "nodes,gpus_per_node,tp,microbatch,global_batch,hidden,layers,seq"
    Path("asked.csv").write_text(f"{names}\n1,4,2,1,16,1024,24,1024\n1,8,4,1,16,1024,24,1024\n2,8,1,1,128,1024,24,1024")
    asked = ("plan", "table", "layouts.csv", "--rows", "asked.csv")
    (found,) = json.loads(run_cli(*asked, "--format", "json")[1])
    assert [row["ranks"] for row in found["rows"]] == [4, 8, 16]
    measured, other, far = found["rows"]
    assert measured["step_s"] == measured["measured_s"] == pytest.approx(0.09)
    assert other["measured_s"] is None and other["efficiency"] is None
    for row in (other, far):
        assert 0 < row["step_s_low"] < row["step_s"] < row["step_s_high"]
        assert row["samples_per_s"] == pytest.approx({8: 16, 16: 128}[row["ranks"]] / row["step_s"])
    _, out, _ = run_cli(*asked, "--format", "md")
    assert out.startswith("**layouts.csv · asked.csv**\n\n| ") and "\n- one model fitted to 12 rows\n" in out
    Path("plain.csv").write_text("gpus,step_s\n1,0.5\n2,0.5\n")
    line = error_line(run_cli, "layouts.csv", "--rows", "plain.csv")
    assert "table plain.csv: no column of hidden_size, num_layers, seq_len, microbatch; it has gpus, step_s" in line


def test_a_back_test(run_cli: Run):
    code, out, _ = run_cli("plan", "table", "layouts.csv", "--back-test")
    assert code == 0 and "measured ms/step" in out and "fitted to the 8 rows of up to 4 ranks" in out
    _, out, _ = run_cli("plan", "table", "layouts.csv", "--back-test", "--format", "csv")
    assert out.splitlines()[0].startswith("series,label,ranks,measured_s,step_s") and out.count("\n") == 5


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ("layouts.csv",),
            "--ranks is missing: give numbers of ranks to predict, such as --ranks 16,64, or --rows or --back-test",
        ),
        (("layouts.csv", "--ranks", "8,many"), "--ranks 'many': allowed: whole numbers from 1, with commas"),
        (("layouts.csv", "--ranks", "65"), "65 ranks are 8.12 times the 8 measured; allowed: up to 8 times (64)"),
        (("layouts.csv", "--ranks", "8", "--scaling", "week"), "'week' is not allowed; nearest: weak"),
        (("layouts.csv", "--ranks", "8", "--node-bandwidth", "0GB"), "--node-bandwidth '0GB': allowed: above 0"),
        (("layouts.csv", "--rows", "layouts.csv", "--back-test"), "--rows with --back-test: rows that were measured"),
        (("none.csv", "--ranks", "8"), "table none.csv: no such file"),
    ],
)
def test_error_lines(run_cli: Run, arguments: tuple[str, ...], line: str):
    assert line in error_line(run_cli, *arguments)


def test_help_explains_the_columns(run_cli: Run):
    told = " ".join(run_cli("plan", "table", "--help")[1].split())
    assert "efficiency: samples/s over those of the layout's largest measured scale" in told
