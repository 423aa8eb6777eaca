"""A utilization above 1 by more than its noise is a caveat."""

import pytest

from benchsuite.analysis.caveats import utilization_caveats
from tests.helpers.made import made_spec


def test_utilization_above_one_by_more_than_noise_has_its_arithmetic():
    """480 ms a step with its input in memory over 250 ms with the loader: 1.92."""
    assert utilization_caveats(made_spec(), 1.92, 0.48) == [
        (
            "au_above_one",
            "AU 1.92 = 480 ms a step with its input in memory / 250 ms with the loader, above 1.05: the ceiling was "
            "measured in a slower stretch than the steps: measure again on an idle machine",
        )
    ]


@pytest.mark.parametrize(("au", "ceiling_s"), [(1.05, 0.48), (0.4, 0.48), (None, None)])
def test_utilization_within_its_noise_has_no_caveat(au: float | None, ceiling_s: float | None):
    assert utilization_caveats(made_spec(), au, ceiling_s) == []
