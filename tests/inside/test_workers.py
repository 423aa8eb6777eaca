"""What a DataLoader's workers tell of themselves."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from benchsuite.inside.workers import Inside, LookInside, TimedCollate, opening_s


class Pieces(Dataset[dict[int, torch.Tensor]]):
    """Samples of the same size in so many tensors."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[int, torch.Tensor]:
        return {number: torch.zeros(6400 // self.count) for number in range(self.count)}


def handed_over(count: int, folder: Path) -> tuple[float, int]:
    """What a worker tells of handing over batches of so many tensors: CPU seconds, and how many batches."""
    folder.mkdir()
    looks, collate = LookInside(str(folder)), TimedCollate(lambda samples: samples[0])
    loader: Any = DataLoader(Pieces(count), 1, num_workers=1, worker_init_fn=looks, collate_fn=collate)
    assert len([*loader]) == 40
    (told,) = folder.glob("*.json")
    found = Inside(str(folder)).told([int(told.stem)])
    assert found is not None and json.loads(told.read_text())["handed_over"] == [*found.handed_over]
    return found.handed_over


def test_what_a_worker_takes_to_hand_on_its_batches(tmp_path: Path) -> None:
    few_s, few = handed_over(1, tmp_path / "few")
    many_s, many = handed_over(64, tmp_path / "many")
    assert few == many == 40
    assert many_s > 5 * few_s > 0


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
