"""What the normal run takes of a matrix of cases: enough to meet each value of each axis; the rest is marked `full`."""

from collections.abc import Iterable, Sequence
from itertools import product

import pytest
from _pytest.mark import ParameterSet


def covering(cases: Iterable[Sequence[object]], *axes: tuple[int, ...]) -> list[ParameterSet]:
    """All cases, of which those are not marked `full` that meet everything there is on these axes.

    Args:
        cases: the matrix.
        axes: places in a case; of a tuple of several, all combinations that the matrix has are met.
    """
    every = [tuple(case) for case in cases]
    missing = {met for case in every for met in _meets(case, axes)}
    chosen = set()
    while missing:
        best = max(range(len(every)), key=lambda number: len(missing & _meets(every[number], axes)))
        chosen.add(best)
        missing -= _meets(every[best], axes)
    return [
        pytest.param(*case, marks=() if number in chosen else pytest.mark.full) for number, case in enumerate(every)
    ]


def each_once(*values: Sequence[object]) -> list[ParameterSet]:
    """The product of some axes, of which the normal run meets each value, and all of the longest axis in turn."""
    longest = max(len(axis) for axis in values)
    chosen = {tuple(number % len(axis) for axis in values) for number in range(longest)}
    return [
        pytest.param(
            *(axis[place] for axis, place in zip(values, places, strict=True)),
            marks=() if places in chosen else pytest.mark.full,
        )
        for places in product(*(range(len(axis)) for axis in values))
    ]


def _meets(case: Sequence[object], axes: Iterable[tuple[int, ...]]) -> set[tuple[object, ...]]:
    return {(places, *(repr(case[place]) for place in places)) for places in axes}
