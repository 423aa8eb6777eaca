"""What is skipped of tests that measure: the last failure of one, on a machine that was busy with something else."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.quiet import Moment, disturbance, lost_share

BEFORE = Moment(at_s=100.0, everyone_s=50.0, ours_s=20.0, stolen_s=1.0)
ROOT = Path(__file__).parents[1]
NEIGHBOUR = "import time\nend_s = time.monotonic() + 300\nwhile time.monotonic() < end_s: pass"


def after(**more: float) -> Moment:
    """Ten seconds later, in which the tests have computed for seven."""
    seconds = {"at_s": 10.0, "everyone_s": 7.5, "ours_s": 7.0, "stolen_s": 0.0} | more
    return replace(BEFORE, **{name: getattr(BEFORE, name) + value for name, value in seconds.items()})


@pytest.mark.parametrize(
    ("more", "lost", "told"),
    [
        ({}, 0.001, None),
        ({"everyone_s": 17.0}, 0.0, "other processes kept 1.0 of 2 cores busy"),
        ({"stolen_s": 1.0}, 0.0, "the machine's host kept 0.10 of 2 cores"),
        ({}, 0.031, "a core stands still for 3.1% of the time"),
    ],
)
def test_what_is_not_quiet(more: dict[str, float], lost: float, told: str | None) -> None:
    assert disturbance(BEFORE, after(**more), lost, 2) == told


def test_a_core_stands_still_for_a_share_of_the_time() -> None:
    assert 0 <= lost_share() < 1


TESTS = """
import pytest

@pytest.mark.quiet
def test_a_figure_that_is_off():
    assert 0.93 > 0.95

@pytest.mark.quiet
def test_a_mistake():
    raise ValueError

@pytest.mark.slow
def test_what_measures_nothing():
    assert 0.93 > 0.95

@pytest.mark.quiet
def test_a_figure_that_is_right():
    assert 0.96 > 0.95
"""


@pytest.mark.full
def test_beside_a_busy_neighbour(tmp_path: Path) -> None:
    """A failed comparison is no verdict there; a mistake in a test is, and so is whatever does not measure."""
    file = tmp_path / "test_it.py"
    file.write_text(TESTS.replace("    assert", "    __import__('time').sleep(0.5)\n    assert"))
    options = ["-p", "tests.quiet", "-p", "no:cacheprovider", "-p", "no:rerunfailures", "-c", "/dev/null", "-rsf"]
    neighbours = [subprocess.Popen([sys.executable, "-c", NEIGHBOUR]) for _ in range(2)]
    try:
        command = [sys.executable, "-m", "pytest", *options, str(file)]
        said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    finally:
        for each in neighbours:
            each.kill()
            each.wait()
    assert "2 failed, 1 passed, 1 skipped" in said, said
    assert "not quiet: other processes kept" in said and "0.93 > 0.95" in said, said
    assert "::test_a_mistake" in said and "::test_what_measures_nothing" in said, said
