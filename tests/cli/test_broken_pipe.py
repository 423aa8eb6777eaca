"""Output that nobody reads to its end: `benchsuite ... | head`."""

import subprocess
import sys

import pytest

from benchsuite.results.store.store import ResultsStore


def through_broken_pipe(*arguments: str) -> tuple[int, str]:
    """Exit code and stderr of a command whose reader has gone."""
    command = [sys.executable, "-c", "from benchsuite.cli.app import main; main()", *arguments]
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
