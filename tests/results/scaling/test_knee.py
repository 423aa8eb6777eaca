"""The knee of a series: made throughputs with a known one, its interval, and why there is none."""

import json
from typing import Any

import numpy as np
import pytest

from benchsuite.results.render.tables import as_json
from benchsuite.results.render.words import rate as in_rate
from benchsuite.results.report.scaling import as_objects, markdown, notes
from benchsuite.results.scaling.knee import fit_knee, input_knee, knee_line, record_bytes
from benchsuite.results.scaling.series import Series, find_series
from tests.results.scaled import frame, made_trial

RANKS = (1, 2, 4, 8, 16)
MB = 1_000_000


def made(
    knee: float, noise: float = 0.0, repeats: int = 3, seed: int = 0, ranks: Any = RANKS
) -> dict[int, list[float]]:
    """Throughputs of 40 samples/s a rank up to a knee."""
    generator = np.random.default_rng(seed)
    return {n: [40 * min(n, knee) * generator.lognormal(0, noise) for _ in range(repeats)] for n in ranks}


def series(rates: dict[int, list[float]], waits: bool = True, **data: Any) -> Series:
    """A series that reads 2 MB a sample; beyond 40 samples/s a rank it waits for input, or for its exchange."""
    stored = {"source": "storage", "format": "files", "staging": "none", **data}
    records = [made_trial(n, rate, k, spec={"data": stored}, figures=_parts(n, rate, waits))
               for n, found in rates.items() for k, rate in enumerate(found)]  # fmt: skip
    (found,) = [one for one in find_series(frame(*records)) if one.kind == "weak"]
    return found


def _parts(ranks: int, rate: float, waits: bool) -> dict[str, float]:
    step, own = 8 * ranks / rate, 0.2
    late = max(step - own, 0.0)
    load, exchange = (late, 0.0) if waits else (0.0, late)
    return {"load_s": load, "communication_s": exchange, "forward_s": own, "io_bytes_per_s": 2 * MB * rate}


@pytest.mark.parametrize("knee", [1.5, 3.0, 4.0, 7.5])
def test_a_known_knee_is_found(knee: float) -> None:
    found = fit_knee(made(knee))
    assert found.problem is None and found.ranks == pytest.approx(knee)
    assert (found.per_rank, found.limit) == (pytest.approx(40), pytest.approx(40 * knee))
    assert (found.low, found.high) == (pytest.approx(knee), pytest.approx(knee)) and found.relative_error < 1e-9


def test_the_interval_by_hand() -> None:
    # 1, 2 ranks rise: log(y/N) is log 100 -+ 0.01; 4, 8 are flat: log 300 -+ 0.01. Eight repeats, each 0.01 off:
    # variance 8 x 1e-4 / 6; of the difference of two means of four: x (1/4 + 1/4); t(0.975, 6) = 2.446912
    rates = {n: [100 * min(n, 3) * np.exp(off) for off in (-0.01, 0.01)] for n in (1, 2, 4, 8)}
    found = fit_knee(rates)
    half = 2.446912 * np.sqrt(8 * 1e-4 / 6 * 0.5)
    assert found.ranks == pytest.approx(3)
    assert (found.low, found.high) == (pytest.approx(3 * np.exp(-half)), pytest.approx(3 * np.exp(half)))


def test_intervals_hold_the_true_knee_as_often_as_they_say() -> None:
    fits = [fit_knee(made(5.3, noise=0.03, repeats=3, seed=seed)) for seed in range(300)]
    held = [fit.low <= 5.3 <= fit.high for fit in fits if fit.low is not None and fit.high is not None]
    assert len(held) == 300 and 0.92 <= np.mean(held) <= 0.98


def test_one_repeat_has_no_interval() -> None:
    found = fit_knee(made(3.0, repeats=1))
    assert found.ranks == pytest.approx(3) and (found.low, found.high) == (None, None)


@pytest.mark.parametrize(
    ("rates", "problem"),
    [
        ({1: [40.0], 8: [80.0]}, "a knee needs 3 numbers of ranks, 2 measured"),
        ({}, "a knee needs 3 numbers of ranks, 0 measured"),
        (made(100.0), "not saturated: throughput grows with the ranks up to 16"),
        ({n: [40 * n**0.97] for n in RANKS}, "not saturated: throughput grows with the ranks up to 16"),
        ({n: [40 * n**0.6] for n in RANKS}, "not saturated: throughput still grows from 8 to 16 ranks"),
        (made(6.0, ranks=(1, 2, 4, 8)), "not told: only 8 ranks lie beyond a knee; measure 16 as well"),
        ({1: [40.0], 2: [80.0], 4: [160.0], 8: [160.0], 16: [60.0]}, "not told: min(a N, B) misses what was measured"),
    ],
)
def test_why_there_is_none(rates: dict[int, list[float]], problem: str) -> None:
    found = fit_knee(rates)
    assert found.ranks is None and found.limit is None and (found.problem or "").startswith(problem)


def test_a_series_limited_by_input_says_where_it_saturates() -> None:
    found = series(made(3.0, noise=0.01))
    knee = input_knee(found)
    assert knee.ranks == pytest.approx(3, rel=0.03) and record_bytes(found) == pytest.approx(2 * MB)
    assert knee.limit_bytes_per_s == pytest.approx((knee.limit or 0) * 2 * MB)
    line = knee_line(found)
    assert line is not None and line.startswith(f"the file system saturates at {knee.ranks:.2f}")
    assert " ranks (knee fit ±0.0" in line and ", 95 %): 1" in line
    assert " samples/s, 23" in line or " samples/s, 24" in line
    assert " MB/s" in line and line in notes(found) and f"- {line}" in markdown([found])
    (told,) = json.loads(as_json(as_objects([found])))
    assert told["knee"]["ranks"] == knee.ranks and told["knee"]["problem"] is None


def test_rates_in_words() -> None:
    assert [in_rate(rate) for rate in (12.1e9, 1e9, 2.5e7)] == ["12.1 GB/s", "1 GB/s", "25 MB/s"]


def test_the_same_by_hand_in_words() -> None:
    assert knee_line(series(made(3.0, repeats=1))) == (
        "the file system saturates at 3.0 ranks (knee fit, one repeat: no interval): 120 samples/s, 240 MB/s"
    )
    staged = series(made(3.0, repeats=1), staging="copy")
    assert (knee_line(staged) or "").startswith("the node-local copy saturates at 3.0 ranks")


def test_a_flat_series_that_waits_for_something_else_has_none() -> None:
    found = series(made(3.0), waits=False)
    assert knee_line(found) is None and not any("saturates" in line for line in notes(found))
    (told,) = json.loads(as_json(as_objects([found])))
    assert told["knee"]["ranks"] is None and "not for want of input" in told["knee"]["problem"]


def test_the_verdict_counts_where_ranks_wait_for_each_others_input() -> None:
    found = series(made(3.0), waits=False)
    for point in found.points:
        for trial in point.trials:
            trial["bottleneck"] = "storage"  # type: ignore[index]
    assert input_knee(found).ranks == pytest.approx(3)


def test_what_reads_nothing_has_none() -> None:
    found = series(made(3.0), source="synthetic")
    assert input_knee(found).problem == "its samples are not read from storage" and knee_line(found) is None
