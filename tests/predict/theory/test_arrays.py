"""What closed forms take as arguments, and what they say of the rest."""

import numpy as np
import pytest

from benchsuite.contract.errors import UserError
from benchsuite.predict.theory.arrays import fraction, not_negative, positive, whole

NAN, INF = float("nan"), float("inf")


def test_arguments_become_float64_in_their_order() -> None:
    first, second = positive(a=[1, 2], b=3)
    assert first.dtype == second.dtype == np.float64
    assert first.tolist() == [1, 2] and second == 3 and second.shape == ()


@pytest.mark.parametrize(
    ("check", "valid", "invalid"),
    [
        (positive, [1e-300, 0.5, 1e300], [0, -1e-300, NAN, INF]),
        (not_negative, [0, 1e-300, 1e300], [-1e-300, NAN, INF]),
        (whole, [1, 2, 2**40], [0, 0.5, 1.5, -1, NAN, INF]),
        (fraction, [0, 0.5, 1], [-1e-9, 1.000001, NAN, INF]),
    ],
)
def test_limits(check: object, valid: list[float], invalid: list[float]) -> None:
    (found,) = check(x=valid)  # type: ignore[operator]
    assert found.tolist() == valid
    for value in invalid:
        with pytest.raises(UserError, match=r"^x .* is not allowed; allowed: "):
            check(x=[valid[0], value])  # type: ignore[operator]


def test_the_first_wrong_value_is_told() -> None:
    with pytest.raises(ValueError, match=r"^num_ranks 2\.5 is not allowed; allowed: a whole number, 1 or above$"):
        whole(num_stages=[1, 2], num_ranks=[[4, 2.5], [0, 1]])


@pytest.mark.parametrize("value", ["8", "many", [1, "x"], 1j, [[1], [1, 2]], None])
def test_what_is_no_number(value: object) -> None:
    with pytest.raises(UserError, match=r"^x .* is not a number; allowed: a finite number above 0$"):
        positive(x=value)
