"""What measuring takes of a loop's thread is measured, and its errors are one line."""

import time
from functools import partial
from itertools import repeat

import pytest

from benchsuite.inside.guard import Guard
from benchsuite.inside.loop import Loop


def test_notes_are_timed_but_for_those_beside_the_loop():
    guard = Guard("off")
    note, beside = guard(partial(time.sleep, 0.01)), guard(partial(time.sleep, 0.01), is_timed=False)
    beside()
    assert guard.spent.seconds == 0.0
    note()
    note()
    assert guard.spent.seconds >= 0.02


def test_an_error_is_one_line_and_then_nothing_is_done(capsys: pytest.CaptureFixture[str]):
    guard = Guard("no longer measured")
    note = guard(lambda: [][0], default=7)
    assert [note(), note()] == [7, 7] and guard.is_off
    assert capsys.readouterr().err == "no longer measured: IndexError: list index out of range\n"


def test_the_loops_own_work_counts_as_none_of_ours():
    """Steps of 10 ms; in one of both loops, 5 ms more are ours at the end of each."""
    for ours_s in (0.0, 0.005):
        loop = Loop(repeat("counted"))
        loop.note_step = lambda ours_s=ours_s: bool(time.sleep(ours_s))  # type: ignore[misc]
        for _ in loop.run(range(20)):
            time.sleep(0.01)
        own_s = loop.own_s_per_step
        assert own_s is not None and ours_s <= own_s < ours_s + 0.005
