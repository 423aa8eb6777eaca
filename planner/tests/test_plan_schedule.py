"""`plan --schedule`: any pipeline schedule as text, JSON and SVG, and what is refused."""

import json
import resource
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchsuite.cli.app import run_command
from benchsuite.results.report.modelled import Slot, schedule_text

FOUR = ["plan", "--schedule", "1f1b", "--pipeline-parallel", "2", "--microbatches", "3"]
SLOTS = [Slot(0, "F", 10, 0, 0.0, 1.0), Slot(1, "F", 10, 0, 1.0, 2.0), Slot(1, "B", 10, 1, 2.0, 4.0)]


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


def test_the_text_is_the_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(FOUR) == 0
    out, err = capsys.readouterr()
    # 1F1B by hand: B takes F + W; bubble (p - 1)/(m + p - 1) = 1/4
    assert out.splitlines() == [
        "1f1b: 2 stages, 3 microbatches; F = B = W: a step of 12, 25.0% of it bubble",
        "",
        "stage 0 F0 F1 .  .  B0 -- F2 B1 -- .  B2 --",
        "stage 1 .  F0 B0 -- F1 B1 -- F2 B2 -- .  .",
        "",
        "microbatches held at most, by stage: 2, 1",
    ]
    assert "lower case: a later chunk" in err


def test_zero_bubble_schedules_are_told_without_a_barrier(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["plan", "--schedule", "zbv", "--pipeline-parallel", "2", "--microbatches", "4"]) == 0
    assert "of it bubble, 0.0% with no barrier at its end" in capsys.readouterr().out


def test_json_has_every_piece_of_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([*FOUR, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schedule"] == "1f1b" and len(found["slots"]) == 2 * 3 * 2 and found["peak_in_flight"] == [2, 1]
    assert found["slots"][0] == {"stage": 0, "kind": "F", "microbatch": 0, "chunk": 0, "start_s": 0.0, "end_s": 1.0}
    assert found["idle_fractions"] == pytest.approx([0.25, 0.25])


def test_wide_schedules_are_cut_into_blocks() -> None:
    assert schedule_text(SLOTS, 100) == "stage 0 F10 .   .   .\nstage 1 .   F10 b10 ---"
    assert schedule_text(SLOTS, 18) == "stage 0 F10 .\nstage 1 .   F10\n\nstage 0 .   .\nstage 1 b10 ---"


def test_the_figure_names_every_microbatch_of_every_stage(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert run_command([*FOUR, "--svg", str(tmp_path / "figures")]) == 0
    root = ElementTree.parse(tmp_path / "figures/schedule.svg")
    words = Counter("".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text"))
    assert words["2"] >= 4, "forward and backward of microbatch 2 on two stages, besides ticks"
    assert {"forward", "backward", "stage", "units of time"} <= {*words}


def test_more_than_can_be_drawn_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--schedule", "gpipe", "--pipeline-parallel", "65", "--microbatches", "2"]
    assert run_command([*words, "--svg", str(tmp_path)]) == 2
    told = "--svg: 65 stages and 260 pieces of work; allowed: 64 stages, and 1,200 pieces of work in all"
    assert capsys.readouterr().err == f"error: {told}\n"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            ["--schedule", "1f2b", "--pipeline-parallel", "2", "--microbatches", "2"],
            "schedule '1f2b' is unknown; nearest: 1f1b; allowed: naive, gpipe, 1f1b, interleaved, zero_bubble, "
            "zb-h1, zb-h2, zbv",
        ),
        (
            ["--schedule", "gpipe", "--pipeline-parallel", "2"],
            "--schedule gpipe: --microbatches is missing, such as --pipeline-parallel 4 --microbatches 8",
        ),
        (
            ["--schedule", "gpipe", "--microbatches", "2"],
            "--schedule gpipe: --pipeline-parallel is missing, such as --pipeline-parallel 4 --microbatches 8",
        ),
        (
            ["--schedule", "gpipe", "--devices", "4"],
            "plan: --schedule gpipe with --devices; allowed: --pipeline-parallel, --interleave, --format, "
            "--microbatches, --svg",
        ),
        (["--svg", "x"], "plan: --svg without --schedule; allowed: with --schedule NAME"),
        (
            ["--schedule", "interleaved", "--pipeline-parallel", "2", "--microbatches", "3", "--interleave", "2"],
            "interleaved: num_microbatches 3 % num_stages 2 = 1; allowed: 0",
        ),
        (
            ["--schedule", "1f1b", "--pipeline-parallel", "100000000", "--microbatches", "100000000"],
            "1f1b: 100000000 stages x 100000000 microbatches x 1 chunks; allowed: 1,024 stages, and 100,000 in all",
        ),
    ],
)
def test_mistakes_are_one_line(words: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["plan", *words]) == 2
    assert capsys.readouterr().err == f"error: {error}\n"


def test_a_figure_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "file"
    out.write_text("")
    assert run_command([*FOUR, "--svg", str(out)]) == 2
    assert capsys.readouterr().err.startswith(f"error: --svg {out}: is a file; allowed: a folder")


def test_on_a_full_disk_the_old_figure_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files may not grow beyond 500 bytes; modules compiled meanwhile would stay cut off."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "schedule.svg").write_text("old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
    try:
        assert run_command([*FOUR, "--svg", str(tmp_path)]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert f"{tmp_path}/schedule.svg: cannot be written: " in capsys.readouterr().err
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("schedule.svg", "old")]
