"""Loops of which nothing can be told: the reason stands in the record, and every verb reads it."""

import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import benchsuite
from benchsuite.cli.app import run_command
from benchsuite.results.store.store import ResultsStore
from tests.helpers.watching import watched


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a bare list: steps of nothing, which measuring takes much longer than."""
    folder = tmp_path_factory.mktemp("bare")
    watch = watched([torch.zeros(4)] * 2000, store=folder, name="bare")
    for _ in watch:
        pass
    watch.close()
    return folder


@pytest.fixture
def untold(bare: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bare, tmp_path / "store"))


def test_a_bare_list_has_no_verdict_and_its_reason(untold: Path, capsys: pytest.CaptureFixture[str]):
    (record,) = ResultsStore(untold).records()
    assert (record.figures.bottleneck, record.figures.bottleneck_remedy) == ("cannot_tell", None)
    assert str(record.figures.bottleneck_evidence).startswith("measuring takes ")
    assert (record.figures.overhead_fraction or 0.0) > 0.05
    assert run_command(["report", "--store", str(untold)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    told = r"bare( \(doubtful: other processes used the cores\))?: What limits it is unknown: (measuring takes|other)"
    assert re.search(told, said) and "cannot tell" in said, said


@pytest.mark.parametrize(
    "verb",
    [
        ["report", "--html", "out.html"],
        ["report", "--format", "md"],
        ["results", "show", "--by", "point"],
        ["results", "export", "prometheus"],
        ["results", "export", "junit"],
        ["status"],
        ["compare", "session=default", "session=default"],
        ["baseline", "set"],
        ["check"],
    ],
)
def test_every_verb_reads_a_record_without_verdict(
    untold: Path, verb: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(untold)
    if verb == ["check"]:
        assert run_command(["baseline", "set", "--store", str(untold)]) == 0
    nothing_newer = 4 if verb == ["check"] else 0
    assert run_command([*verb, "--store", str(untold)]) == nothing_newer, capsys.readouterr()
    if "--html" in verb:
        page = (untold / "out.html").read_text()
        assert "<b>cannot tell</b><span>what holds back 1 point</span>" in page


def test_an_answer_that_cannot_be_written_ends_no_training():
    script = (
        "import benchsuite\nwith benchsuite.watch([1] * 50) as batches:\n  for _ in batches: pass\nprint('trained')"
    )
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=full, timeout=120, text=True
        )
    assert (done.returncode, done.stdout) == (0, "trained\n")


def test_a_pass_whose_thread_has_ended_goes_on_in_another():
    batches = iter(benchsuite.watch([1] * 50))
    begun: list[int] = []
    thread = threading.Thread(target=lambda: begun.append(next(batches)))
    thread.start()
    thread.join()
    assert [*begun, *batches] == [1] * 50
