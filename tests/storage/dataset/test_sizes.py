"""Sizes in words."""

import pytest

from benchsuite.storage.dataset.sizes import in_units


@pytest.mark.parametrize(
    ("num_bytes", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999_960, "1 MB"),
        (1000, "1 KB"),
        (9_751_552, "9.752 MB"),
        (67_108_864, "67.11 MB"),
        (1_543_000_000, "1.543 GB"),
        (3_000_000_000, "3 GB"),
        (126_100_000_000, "126.1 GB"),
        (900 * 10**12, "900 TB"),
        (1.5e15, "1.5 PB"),
    ],
)
def test_no_size_is_rounded_to_nothing(num_bytes: float, words: str):
    assert in_units(num_bytes) == words
