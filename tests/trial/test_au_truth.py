"""What the bench `au` compares AU with: readers that take a known time a sample, and steps of a known time.

Both wait by sleeping, so the truth is arithmetic; `make bench SECTIONS=au` measures trials beside it.
"""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from bench import au, real
from bench.au import Case
from benchsuite.runner.single_trial import run_in_this_process


def test_the_truth_of_a_real_device_is_arithmetic() -> None:
    """A step of 12 ms and 0.4 ms to take a batch, against readers that make one in 8, 12 or 24 ms."""
    known = ((0.008, 2, 12 / 12.4), (0.012, 2, 12 / 12.4), (0.024, 2, 0.5), (0.0116, 0, 0.5))
    for batch_s, workers, truth in known:
        case = Case(0.010, 4, 0.010 / batch_s, workers=workers)
        assert real.Known(case, 0.0004).truth(0.012) == pytest.approx(truth)
    found = real.Beside(case, (0.51, 0.53, 0.52), (0.49, 0.50, 0.51))
    assert (found.truth, found.error, found.outside) == (0.50, pytest.approx(0.02), pytest.approx(0.01))
    assert replace(found, truths=(0.525,) * 3).outside == 0
    assert replace(found, truths=(0.6,) * 3).outside == pytest.approx(0.07)


def test_real_cases_cover_the_grid() -> None:
    """Each point with every queue that a trial has time for, and each number of ranks and steps."""
    found = real.cases()
    assert {(case.step_s, case.batch, case.ratio) for case in found} == set(au.POINTS)
    assert {(case.workers, case.prefetch) for case in found} == set(au.QUEUES)
    assert {case.steps for case in found} == {3, 12} and {case.loader for case in found} == set(au.LOADERS)
    assert {case.ranks for case in found} >= ({1, 2, 4} if (os.cpu_count() or 1) > 1 else {1})


def test_a_trial_in_this_process_has_parts_that_add_up(tmp_path: Path) -> None:
    """`benchsuite.run_trial` takes emulated devices, too."""
    case = Case(0.0035, 2, 0.5, workers=2, steps=8)
    with au.registered():
        record = run_in_this_process(au.point_of(case, tmp_path))[0]
    assert (record.status, record.reason) == ("ok", None)
    found = record.figures
    parts = [found.load_s, found.communication_s, found.forward_s]
    assert sum(part for part in parts if part is not None) == pytest.approx(found.step_s_mean)
    assert found.forward_s == pytest.approx(case.step_s, abs=1e-9)
    assert (found.h2d_s, found.backward_s, found.optimizer_s, found.final_loss) == (None, None, None, None)
