"""Integers that no table of a model has a row for."""

import numpy as np
import pytest

from benchsuite.storage.dataset.fields import outside


@pytest.mark.parametrize("dtype", ["<i8", ">i8", "<i4", ">i4", "<u2", ">u2"])
def test_any_order_of_bytes_is_looked_into(dtype: str) -> None:
    params = {"vocab_size": 1000}
    assert outside("tokens", np.array([0, 999], dtype), params) is None
    assert (
        outside("tokens", np.array([0, 1000], dtype), params) == "tokens holds 1000, needed: 0..999 (vocab_size 1000)"
    )


@pytest.mark.parametrize("dtype", ["<i8", ">i8", ">i4"])
def test_what_is_negative_is_outside(dtype: str) -> None:
    found = outside("tokens", np.array([[5, -1], [7, 8]], dtype)[:, 1], {"vocab_size": 1000})
    assert found == "tokens holds -1, needed: 0..999 (vocab_size 1000)"
