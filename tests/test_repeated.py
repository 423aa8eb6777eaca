"""What is repeated where it fails: once, with the first failure's reason; too many such tests fail the run."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLUGIN = """
from tests import repeated


def pytest_collection_modifyitems(items):
    repeated.mark(items)


def pytest_terminal_summary(terminalreporter):
    repeated.tell(terminalreporter)
    print("too many:", repeated.too_many(terminalreporter))
"""
TESTS = """
import itertools

import pytest

TIMES = [itertools.count() for _ in range(9)]


@pytest.mark.slow
@pytest.mark.parametrize("which", range({count}))
def test_now_and_then(which):
    assert next(TIMES[which]), "the daemon was late"


@pytest.mark.cluster
def test_never():
    assert next(TIMES[7]) > 7


def test_at_once():
    assert next(TIMES[8])
"""


def said(folder: Path, count: int) -> str:
    """What pytest prints of these tests, of which so many pass when they are repeated."""
    (folder / "conftest.py").write_text(PLUGIN)
    (folder / "test_it.py").write_text(TESTS.format(count=count))
    options = ["-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(folder), "-o", "markers=slow\ncluster"]
    command = [sys.executable, "-m", "pytest", *options, str(folder)]
    environ = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "pytest_rerunfailures"}
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False).stdout


def test_what_fails_once_passes_and_is_told(tmp_path: Path) -> None:
    """What fails each time fails, and so does at once what a quick tier holds."""
    out = said(tmp_path, 1)
    assert "2 failed, 1 passed, 2 rerun" in out, out
    told = out.partition("failed first, and were repeated")[2].partition("too many: False")[0]
    assert "test_now_and_then[0]" in told and "AssertionError: the daemon was late" in told, out
    assert "test_never" in told and "test_at_once" not in told, out


def test_many_that_fail_once_are_too_many(tmp_path: Path) -> None:
    assert "too many: True" in said(tmp_path, 4)
