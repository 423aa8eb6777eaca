"""`batch_size: auto`: the search, with launchers whose devices hold so much."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchsuite.contract.errors import UserError
from benchsuite.contract.outcome import Outcome, RankExit
from benchsuite.contract.rank_samples import Progress
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.grid.expand import resolve
from benchsuite.grid.point import Point
from benchsuite.host.machine import Machine
from benchsuite.runner.auto_batch import fit_batch_size, largest
from tests.helpers.made import made_block, made_result, made_spec


@pytest.mark.parametrize(
    ("capacity", "unit", "least", "most"),
    [(37, 1, 35, 37), (1000, 1, 937, 1000), (1, 1, 1, 1), (0, 1, 0, 0), (50, 8, 48, 48)],
)
def test_the_largest_is_found_to_a_sixteenth(capacity: int, unit: int, least: int, most: int) -> None:
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= capacity

    assert least <= largest(fits, unit) <= most
    assert all(size % unit == 0 for size in tried)
    assert len(tried) == len(set(tried)) <= 20


class Device:
    """A launcher whose device holds so many samples: larger batches end as CUDA ends them."""

    def __init__(self, capacity: int, otherwise: str = "torch.OutOfMemoryError: CUDA out of memory") -> None:
        self.capacity, self.otherwise = capacity, otherwise
        self.tried: list[TrialSpec] = []

    def run(
        self, spec: TrialSpec, dataset: Path | None, folder: Path, on_progress: Callable[[Progress], None]
    ) -> Outcome:
        self.tried.append(spec)
        if isinstance(spec.batch_size, int) and spec.batch_size <= self.capacity:
            step = {"load": 0.0, "h2d": 0.0, "forward": 0.1, "backward": 0.1, "optimizer": 0.1}
            made_result(0, [made_block("plain", 0.0, step)]).write(folder / "rank-0.json")
            return Outcome([RankExit(0, 0)])
        status = "oom" if "memory" in self.otherwise else "failed"
        made = replace(made_result(0, []), status=status, reason=self.otherwise)
        made.write(folder / "rank-0.json")
        assert json.loads((folder / "rank-0.json").read_text())["status"] == status
        return Outcome([RankExit(0, 1)])


def auto_point() -> Point:
    return resolve(made_spec(batch_size="auto", data={"source": "synthetic"}), Machine(2, 0), 1, {})


def test_a_point_gets_its_batch_and_keeps_its_id() -> None:
    point, device = auto_point(), Device(21)
    found = fit_batch_size(point, device)  # type: ignore[arg-type]
    assert found.spec.batch_size in (19, 20), "a twentieth is left of the largest"
    assert found.point_id == point.point_id
    assert all(spec.data == point.spec.data and spec.measure.steps == 2 for spec in device.tried)


def test_another_failure_is_not_taken_for_memory() -> None:
    with pytest.raises(UserError, match=r"trying 4 failed: .*no such kernel"):
        fit_batch_size(auto_point(), Device(2, "RuntimeError: no such kernel"))  # type: ignore[arg-type]


def test_a_device_too_small_says_so() -> None:
    with pytest.raises(UserError, match="not even 1 samples per rank fit"):
        fit_batch_size(auto_point(), Device(0))  # type: ignore[arg-type]


def test_a_given_batch_is_left_alone() -> None:
    point = resolve(made_spec(), Machine(2, 0), 1, {})
    assert fit_batch_size(point, Device(0)) is point  # type: ignore[arg-type]
