"""Output that nobody reads to its end: `benchsuite ... | head`."""

import subprocess
import sys
from pathlib import Path

import pytest

from results.store import ResultsStore
from tests.results.made import made_record


@pytest.fixture
def store(tmp_path: Path) -> ResultsStore:
    """Two repeats of one point and a failed trial."""
    store = ResultsStore(tmp_path / "store")
    for number, rate in enumerate([100.0, 104.0]):
        figures = {"samples_per_s": rate, "au": 0.5, "bottleneck": "storage", "load_s": 0.01, "step_s_mean": 0.02}
        store.append(made_record(number, figures=figures, question="Why so slow?", caveats=["not_steady"]))
    lost = {"status": "failed", "reason": "disk | on\nfire", "figures": {}, "label": "tar", "point_id": "other"}
    store.append(made_record(2, **lost, question="Why so slow?"))
    return store


def through_broken_pipe(*arguments: str) -> tuple[int, str]:
    """Exit code and stderr of a command whose reader has gone."""
    command = [sys.executable, "-c", "from benchsuite.cli import main; main()", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    with process.stderr as stream:
        said = stream.read()
    return process.wait(), said


class TestBrokenPipe:
    @pytest.mark.parametrize("arguments", [["schema", "record"], ["results", "show"], ["report", "--format", "md"]])
    def test_is_no_traceback(self, store: ResultsStore, arguments: list[str]):
        more = [] if arguments[0] == "schema" else ["--store", str(store.path)]
        assert through_broken_pipe(*arguments, *more)[1] == ""
