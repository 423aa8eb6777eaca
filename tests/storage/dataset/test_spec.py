"""DataSpec: defaults, and what it refuses."""

import pytest
from pydantic import ValidationError

from benchsuite.storage.dataset.spec import DataSpec


def test_a_full_queue_holds_what_the_workers_keep_ready() -> None:
    assert DataSpec(num_workers=3, prefetch_factor=4).queue_batches == 12
    assert DataSpec(num_workers=0, prefetch_factor=4).queue_batches == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_workers": -1},
        {"num_workers": "2"},
        {"prefetch_factor": 0},
        {"shuffle_buffer": 0},
        {"cache": "hot"},
        {"source": "nowhere"},
        {"num_worker": 2},
        {"shuffle": 1},
    ],
)
def test_what_cannot_be_meant_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError) as raised:
        DataSpec.model_validate(wrong)
    assert next(iter(wrong)) in str(raised.value)
