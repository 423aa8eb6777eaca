"""How processes make samples in tests: apart from the tests, so that they start quickly."""

import numpy as np

from benchsuite.storage.dataset.sample import Allocate, Sample
from benchsuite.storage.errors import DatasetError


def noted_sample(index: int, allocate: Allocate, log: str) -> Sample:
    """Notes in a file that it was made; its array lies in the memory given."""
    with open(log, "a") as file:
        file.write(f"{index}\n")
    values = allocate("array", 4000)[:4000]
    values.fill(index % 251)
    return Sample(f"{index:06d}", {"array": values})


def failing_sample(index: int, allocate: Allocate) -> Sample:
    if index == 3:
        raise DatasetError("sample 3 cannot be made")
    return Sample(f"{index}", {"array": np.full(10, index)})
