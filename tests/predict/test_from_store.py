"""Curves from a store's series, and what is said of their trials."""

from typing import Any

import pytest

from benchsuite.predict.curve import Curve
from benchsuite.predict.from_store import from_series
from benchsuite.results.scaling.series import find_series
from tests.results.scaled import frame, made_trial, made_trials

READ = {"source": "storage", "format": "files", "staging": "none"}


def curve(*records: Any) -> Curve:
    (series,) = find_series(frame(*records))
    return from_series(series, "s")


def told(*records: Any) -> str:
    return "\n".join(curve(*records).notes)


def trials(**changes: Any) -> list[Any]:
    return [made_trial(n, 80.0 * n, **{name: dict(value) for name, value in changes.items()}) for n in (1, 2, 4)]


def test_steps_are_samples_over_rates() -> None:
    found = curve(*made_trials({1: [80.0, 100.0], 2: [160.0], 4: [320.0]}))
    assert (found.kind, found.batch, found.samples(8)) == ("weak", 8, 64)
    assert sorted(found.points[0].step_s) == pytest.approx([0.08, 0.1])
    assert found.points[0].middle_s == pytest.approx(8 / 90), "of the median rate"
    assert found.points[2].step_s == pytest.approx((0.1,)) and found.most_ranks == 4


def test_ranks_that_share_samples() -> None:
    """Four tensor-parallel ranks work on eight samples together."""
    spec = {"parallelism": "tp", "batch_size": None, "global_batch_size": 8}
    series = [one for one in find_series(frame(*trials(spec=spec))) if one.kind == "strong"]
    found = from_series(series[0], "s")
    assert (found.batch, found.data_share) == (8, 0.25)
    assert [point.step_s for point in found.points] == [pytest.approx((8 / 80 / n,)) for n in (1, 2, 4)]


def test_utilization_is_as_measured_and_none_where_its_ceiling_was_slow() -> None:
    assert [point.au for point in curve(*trials(figures={"au": 0.9})).points] == [0.9] * 3
    assert [point.au for point in curve(*trials(figures={"au": 1.2})).points] == [None] * 3


def test_what_the_trials_cannot_say_is_told() -> None:
    nodes = "no scale is known to lie on several nodes: what a network between them costs is not in the prediction"
    assert told(*trials()) == nodes
    assert told(*trials()[:2], made_trial(4, 320.0, env={"nodes": [{}, {}]})) == ""
    figures = {"io_bytes_per_s": 2e9}
    limit = "input: storage gave up to 2 GB/s; a limit above that is not in the prediction"
    assert limit in told(*trials(figures=figures, spec={"data": READ}))
    assert "input" not in told(*trials(figures=figures, spec={"data": {**READ, "staging": "copy"}}))
    short = trials(figures={"cpu_contention_fraction": 0.2, "step_s_mean": 0.1})
    assert "cores were short: at 1 rank 20% of the step was spent waiting for one" in told(*short)


def test_caveats_and_scales_that_failed_are_told() -> None:
    marked = [made_trial(n, 80.0 * n, caveats=["not_steady"]) for n in (1, 2)]
    first = curve(*marked, made_trial(4, None)).notes[0]
    assert first == "trials: not_steady in 2 of 2 trials, 4 ranks failed (EIO)"
