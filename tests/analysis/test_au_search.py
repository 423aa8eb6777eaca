"""The search for the largest count that keeps an AU: against paths whose truth is known, with noise."""

import random
from collections import Counter

import pytest
from scipy import stats

from benchsuite.analysis.au_search import CannotRun, Tried, answer, decide, judged, mean_interval, search

ROOM = range(3, 11)


class Path:
    """A path that feeds `holds` accelerators; of more, each gets its share. Repeats are kept, as a store keeps them."""

    def __init__(self, holds: float, noise: float = 0.0, seed: int = 0, broken: int | None = None) -> None:
        self.holds, self.noise, self.broken, self.random = holds, noise, broken, random.Random(seed)
        self.known: dict[int, list[float]] = {}

    def measure(self, accelerators: int, repeats: int) -> list[float]:
        if accelerators == self.broken:
            raise CannotRun("oom: rank 3")
        kept = self.known.setdefault(accelerators, [])
        while len(kept) < repeats:
            kept.append(min(1.0, self.holds / accelerators) + self.random.gauss(0, self.noise))
        return kept[:repeats]

    def tried(self, threshold: float, most: int, least: int = 1) -> list[Tried]:
        return [*search(least, most, lambda count: decide(count, threshold, ROOM, self.measure))]


def best(tried: list[Tried]) -> int:
    return max((one.accelerators for one in tried if one.verdict == "kept"), default=0)


@pytest.mark.parametrize("truth", range(65))
def test_every_count_is_found_with_few_tries(truth: int):
    tried = Path(0.9 * truth + 0.01).tried(0.9, 64)
    assert best(tried) == truth
    counts = [one.accelerators for one in tried]
    assert len(counts) == len(set(counts)) <= 13
    assert all(one.verdict == ("kept" if one.accelerators <= truth else "not kept") for one in tried)


def test_least_and_most_hold():
    assert [one.accelerators for one in Path(100).tried(0.9, 6, least=4)] == [4, 6, 5] or best(
        Path(100).tried(0.9, 6)
    ) == 6
    assert best(Path(100).tried(0.9, 1)) == 1
    assert [one.accelerators for one in Path(0.1).tried(0.9, 8, least=4)] == [4]


def test_noise_near_the_threshold_is_repeated_and_then_undecided():
    path = Path(9.0, noise=0.02, seed=3)  # ten accelerators have 0.90 on average, exactly the threshold
    tried = {one.accelerators: one for one in path.tried(0.9, 64)}
    assert tried[10].verdict == "undecided" and len(tried[10].au) == 10
    assert tried[8].verdict == "kept" and tried[16].verdict == "not kept"
    assert len(tried[16].au) == 3, "what is clear is not repeated"


def test_what_is_kept_is_seldom_wrong():
    """A count just below the threshold, looked at after each of up to ten repeats, is called kept in at most 2.5 %."""
    wrong = Counter(decide(10, 0.9, ROOM, Path(8.99, noise=0.02, seed=seed).measure).verdict for seed in range(400))
    assert wrong["kept"] <= 400 * 0.025
    assert wrong["undecided"] >= 350


def test_interval_is_students():
    values = [0.91, 0.93, 0.95, 0.9]
    expected = stats.t.interval(0.95, 3, loc=stats.tmean(values), scale=stats.sem(values))
    assert mean_interval(values, 1) == pytest.approx(expected)
    wider = stats.t.interval(1 - 0.05 / 8, 3, loc=stats.tmean(values), scale=stats.sem(values))
    assert mean_interval(values, 8) == pytest.approx(wider)
    assert mean_interval([0.9], 1) is None
    assert judged(4, [0.95], 0.9).verdict == "undecided", "one repeat tells nothing"
    assert judged(4, [0.9, 0.9, 0.9], 0.9).verdict == "kept", "at the threshold is kept"


def test_a_count_that_cannot_run_is_told_and_the_search_goes_on_below():
    tried = Path(100, broken=8).tried(0.9, 64)
    assert best(tried) == 7
    assert answer(tried, 0.9, 64) == "7 accelerators are kept at AU 0.90 or above; 8: oom: rank 3"


def test_answers():
    assert answer(Path(6.0).tried(0.9, 64), 0.9, 64) == "6 accelerators are kept at AU 0.90 or above; 7: not"
    assert answer(Path(100).tried(0.9, 4), 0.9, 4).endswith("; more than 4 were not tried: --most")
    assert answer(Path(0.1).tried(0.9, 4), 0.9, 4).startswith("not even 1 accelerator is known to be kept")
    undecided = answer(Path(9.0, noise=0.02, seed=3).tried(0.9, 64), 0.9, 64)
    assert undecided == "9 accelerators are kept at AU 0.90 or above; 10: undecided after 10 repeats"
