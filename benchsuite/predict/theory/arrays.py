"""Arguments of the closed forms as float64 arrays, refused where they are not what a form is about."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from benchsuite.contract.errors import UserError

Floats = NDArray[np.float64]
"""What every form returns: an array, or for scalars a NumPy scalar (0-d), which goes where a float goes."""


def positive(**given: ArrayLike) -> tuple[Floats, ...]:
    """The arguments as arrays, in their order; UserError (a ValueError) where one is not above zero and finite."""
    return _checked(given, lambda value: (value > 0) & np.isfinite(value), "a finite number above 0")


def not_negative(**given: ArrayLike) -> tuple[Floats, ...]:
    """The arguments as arrays; UserError where one is negative or not finite."""
    return _checked(given, lambda value: (value >= 0) & np.isfinite(value), "a finite number, 0 or above")


def whole(**given: ArrayLike) -> tuple[Floats, ...]:
    """The arguments as arrays; UserError where one is not a whole number of at least 1."""
    return _checked(
        given,
        lambda value: (value >= 1) & (value == np.floor(value)) & np.isfinite(value),
        "a whole number, 1 or above",
    )


def fraction(**given: ArrayLike) -> tuple[Floats, ...]:
    """The arguments as arrays; UserError where one is not within 0 to 1."""
    return _checked(given, lambda value: (value >= 0) & (value <= 1), "a number from 0 to 1")


def _checked(given: dict[str, Any], valid: Callable[[Floats], Any], allowed: str) -> tuple[Floats, ...]:
    found = []
    for name, value in given.items():
        array = _numbers(value)
        if array is None:
            raise UserError(f"{name} {value!r} is not a number; allowed: {allowed}")
        wrong = array[~np.asarray(valid(array), dtype=bool)]
        if wrong.size:
            raise UserError(f"{name} {wrong.flat[0]:g} is not allowed; allowed: {allowed}")
        found.append(array)
    return tuple(found)


def _numbers(value: ArrayLike) -> Floats | None:
    """The values as float64; None of words, ragged lists and complex numbers."""
    try:
        array = np.asarray(value)
    except ValueError:
        return None
    return array.astype(np.float64) if array.dtype.kind in "biuf" else None
