"""What a DataLoader's workers tell of themselves."""

import pytest

from benchsuite.inside.workers import opening_s


@pytest.mark.parametrize(
    ("ended_s", "longer_s"),
    [
        ([10.0, 12.0, 12.1, 12.2, 12.3], 1.9),
        ([10.0, 10.1, 10.2, 14.0, 14.1], 0.0),  # a later one that takes long is no beginning
        ([10.0, 12.0], 0.0),  # of a single batch nobody knows how long it should take
        ([10.0], 0.0),
    ],
)
def test_what_the_first_batch_takes_longer(ended_s: list[float], longer_s: float) -> None:
    assert opening_s(ended_s) == pytest.approx(longer_s)
