"""The largest number of accelerators whose utilization (AU) stays above a threshold, found by bisection.

A count is decided only where the interval of its repeats is clear of the threshold; else it is measured again, up to a
bound. Each look after another repeat is one more chance to be wrong, so that the 95 % are shared out over all looks
(Bonferroni). It is taken that more accelerators have no higher AU.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

LEVEL = 0.95
Verdict = Literal["kept", "not kept", "undecided", "cannot run"]


class CannotRun(Exception):
    """So many accelerators cannot be tried, with the reason."""


@dataclass(frozen=True)
class Tried:
    """A count of accelerators and what came of it."""

    accelerators: int
    au: tuple[float, ...]
    """The utilization of each repeat."""
    low: float | None
    high: float | None
    """Interval of the mean AU, 95 % over all looks at it; None below two repeats."""
    verdict: Verdict
    reason: str = ""


def mean_interval(values: Sequence[float], looks: int) -> tuple[float, float] | None:
    """Student's interval of a mean, of which so many hold together with 95 %; None below two values."""
    from scipy.stats import t  # takes long to import

    if len(values) < 2:
        return None
    half = float(t.ppf(1 - (1 - LEVEL) / (2 * looks), len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def judged(accelerators: int, au: Sequence[float], threshold: float, looks: int = 1) -> Tried:
    """What the repeats of a count say: its AU is kept at the threshold or above, or not, or that is not clear yet."""
    found = mean_interval(au, looks)
    low, high = found or (None, None)
    verdict: Verdict = "undecided"
    if low is not None and low >= threshold:
        verdict = "kept"
    elif high is not None and high < threshold:
        verdict = "not kept"
    return Tried(accelerators, tuple(au), low, high, verdict)


def decide(
    accelerators: int, threshold: float, repeats: range, measure: Callable[[int, int], Sequence[float]]
) -> Tried:
    """Measure a count until it is decided; `repeats` are the least and the most, `measure` gives the AU of so many."""
    try:
        for count in repeats:
            tried = judged(accelerators, measure(accelerators, count), threshold, len(repeats))
            if tried.verdict != "undecided":
                break
    except CannotRun as error:
        return Tried(accelerators, (), None, None, "cannot run", str(error))
    return tried


def search(least: int, most: int, decided: Callable[[int], Tried]) -> Iterator[Tried]:
    """Every count that is tried, in its order: doubled until one is not kept, then the gap is halved."""
    low, high, count = least - 1, most + 1, least
    while low < count < high:
        tried = decided(count)
        yield tried
        if tried.verdict == "kept":
            low, count = count, min(2 * count, most)
        else:
            high = count
    while high - low > 1:
        middle = (low + high) // 2
        tried = decided(middle)
        yield tried
        low, high = (middle, high) if tried.verdict == "kept" else (low, middle)


def answer(tried: Sequence[Tried], threshold: float, most: int) -> str:
    """The largest count that is kept, and what is known of the next one, in a sentence."""
    best = max((one.accelerators for one in tried if one.verdict == "kept"), default=0)
    after = min((one for one in tried if one.accelerators > best), key=lambda one: one.accelerators, default=None)
    kept = (
        f"{best} accelerators are"
        if best > 1
        else "1 accelerator is"
        if best
        else "not even 1 accelerator is known to be"
    )
    said = f"{kept} kept at AU {threshold:.2f} or above"
    if after is None:
        return f"{said}; more than {most} were not tried: --most"
    words = {"not kept": "not", "undecided": f"undecided after {len(after.au)} repeats", "cannot run": after.reason}
    return f"{said}; {after.accelerators}: {words[after.verdict]}"
