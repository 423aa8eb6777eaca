"""The gate itself: night after night, which series have stepped to a worse level, since when and by how much.

A night alarms when the Bayes factor for a step exceeds what chance reaches, over all series, in one of a hundred
nights, and the step exceeds the metric's practical threshold. What the noise is like is learnt from the nights up to
NIGHTS before (at most MAX_NIGHTS), and from the baseline's; once a series has alarmed, from those before its step, so
that a regression that stays is told until it is mended or the baseline is set anew.
"""

from dataclasses import dataclass

import numpy as np

from benchsuite.results.compare.metrics import Array
from benchsuite.results.gate.noise import Mask, Noise, learn
from benchsuite.results.gate.step_detection import NIGHTS, Evidence, evidence, tail

MAX_NIGHTS = 240
"""The noise is learnt from at most so many nights."""
MIN_NIGHTS = 6
"""Fewer values tell nothing about a series."""
FALSE_ALARMS = 0.01
"""Share of the nights on which any of the series may alarm without cause."""
LOG_FACTOR, SHORT_FACTOR = 0.6, 70.0
"""The threshold of one series begins here; with log(series / share of the false alarms) added, and
SHORT_FACTOR over the nights learnt from, the rate above was measured in simulations (`python -m bench gate`)."""
FLIPS_FACTOR = 1.0
"""Added for series with two levels: their share is an estimate too, and a run of the worse level looks like a step."""
TAIL_MARGIN, TAIL_SHORT_NIGHTS = 0.0, 150.0
"""Windows that the noise was learnt from surprise less than new ones: what is added to their tail."""
HEAVIER = 1.2
"""The history's own tail sets the threshold where it lies so much above that of normal noise."""
RELEARN_EVERY, RELEARN_TAIL_EVERY, SHORT = 7, 56, 30
"""Nights after which the noise is learnt anew; every night while the history is SHORT."""


@dataclass(frozen=True)
class Alarms:
    """One value per series and night."""

    alarm: Mask
    since: Array
    """Number of the night of the step, NaN where there is no alarm."""
    shift: Array
    """Worse by this much, a difference of logarithms; NaN where the night was not judged."""
    shift_error: Array
    judged: Mask
    """Whether the series had a value that night, and enough nights before it."""
    scale: Array
    """Standard deviation of a night; NaN where it is not known."""


def learnt_end(night: int, num_baseline: int) -> int:
    """How many nights are learnt from when a night is judged."""
    return min(max(night - NIGHTS + 1, num_baseline), night)


class _Learner:
    """What is known of the series of one metric as their nights go by."""

    def __init__(self, values: Array, num_baseline: int, per_series: float) -> None:
        self.values = values
        self.num_baseline = num_baseline
        self.per_series = per_series
        self.step = np.full(len(values), np.inf)
        """Number of the night of the step that a series has alarmed for."""
        self._learnt_at = self._tail_at = -1
        self._num_learnt = 1
        self._tail = -np.inf

    def end(self, night: int) -> int:
        """The first night that is looked at and not learnt from."""
        return learnt_end(night, self.num_baseline)

    def learn(self, night: int) -> tuple[Mask, Noise | None, float]:
        """Which series are known well enough, their noise, and the threshold of their factors' logarithms."""
        due = night - self._learnt_at >= (RELEARN_EVERY if night >= SHORT else 1)
        if self._learnt_at < 0 or due:
            self._relearn(night)
        return self._known, self._noise, self._threshold()

    def forget(self) -> None:
        """Learn anew on the next night: the nights to learn from are others now."""
        self._learnt_at = -1

    def _relearn(self, night: int) -> None:
        end = self.end(night)
        start = max(0, end - MAX_NIGHTS)
        self._num_learnt = max(1, end - start)
        numbers = np.arange(start, end)
        past = np.where(numbers[None] < self.step[:, None], self.values[:, start:end], np.nan)
        self._known: Mask = (~np.isnan(past)).sum(1) >= MIN_NIGHTS
        self._noise = learn(past[self._known], night - end + 1) if self._known.any() else None
        if self._noise is not None and (self._tail_at < 0 or night - self._tail_at >= RELEARN_TAIL_EVERY):
            self._tail, self._tail_at = tail(self._noise, self.per_series), night
            self._tail += TAIL_MARGIN + TAIL_SHORT_NIGHTS / (end - start)
        self._learnt_at = night

    def _threshold(self) -> float:
        normal = LOG_FACTOR + SHORT_FACTOR / self._num_learnt + float(np.log(FALSE_ALARMS / self.per_series))
        return self._tail if self._tail > normal + HEAVIER else normal


def watch(values: Array, num_baseline: int, practical: float, num_series: float, first: int = 0) -> Alarms:
    """Judge every night of the series of one metric, from night `first` on.

    Args:
        values: (series, nights), logarithms, larger for worse, NaN where there is none.
        num_baseline: the first nights, taken to be good.
        practical: the least shift that matters, a difference of logarithms.
        num_series: of all metrics, over the share of false alarms that this one may have.
        first: nights before are only learnt from.
    """
    shape = values.shape
    found = {name: np.full(shape, np.nan) for name in ("since", "shift", "shift_error", "scale")}
    alarm, judged = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
    learner = _Learner(values, num_baseline, FALSE_ALARMS / num_series)
    for night in range(max(first, num_baseline, 1), shape[1]):
        known, noise, threshold = learner.learn(night)
        if noise is None:
            continue
        seen = evidence(noise, _recent(values, learner, night)[known])
        least = threshold + FLIPS_FACTOR * (noise.share > 0)
        over = (seen.log_factor >= least) & (seen.shift >= practical)
        alarm[known, night], judged[:, night] = over, known & ~np.isnan(values[:, night])
        begin = np.minimum(np.where(np.isinf(learner.step[known]), night - seen.nights + 1, learner.step[known]), night)
        found["since"][known, night] = np.where(over, begin, np.nan)
        for name in ("shift", "shift_error"):
            found[name][known, night] = np.where(judged[known, night], getattr(seen, name), np.nan)
        found["scale"][known, night] = noise.spread
        _freeze(learner, known, over, begin, seen)
    return Alarms(alarm=alarm, judged=judged, **found)


def _recent(values: Array, learner: _Learner, night: int) -> Array:
    """The last nights of each series (series, NIGHTS), NaN for those that were learnt from."""
    numbers = np.arange(night - NIGHTS + 1, night + 1)
    begins = np.minimum(learner.end(night), learner.step)
    recent = np.where(numbers[None] >= begins[:, None], values[:, np.maximum(numbers, 0)], np.nan)
    found: Array = np.where(numbers[None] >= 0, recent, np.nan)
    return found


def _freeze(learner: _Learner, known: Mask, over: Mask, begin: Array, seen: Evidence) -> None:
    """Stop learning from series that have stepped; go on where the last nights are as before."""
    step = learner.step[known]
    mended = ~np.isinf(step) & (seen.shift < 2 * seen.shift_error)
    now = np.where(over & np.isinf(step), begin, np.where(mended & ~over, np.inf, step))
    if (now != step).any():
        learner.step[known] = now
        learner.forget()
