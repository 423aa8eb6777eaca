"""Pairs of blocks that are added while AU is above 1, and what they read."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchsuite.contract.rank_samples import Heartbeat, read_progress
from benchsuite.grid.blocks import Layout, extra_pairs, layout, reader_samples
from benchsuite.storage.dataset.manifest import open_dataset
from benchsuite.storage.loaders import Delivered, ReaderCounts
from benchsuite.trial import clock
from benchsuite.trial.clock import Clock, clock_for
from benchsuite.trial.feed import Feed, Stepper
from benchsuite.trial.measure import interleaved_blocks
from benchsuite.trial.page_cache import files_read
from tests.helpers.made import made_spec

PLAN = Layout(ceiling_steps=2, drained_steps=1, loader_steps=2)
KEPT = {"image": torch.zeros(1)}


class Ready:
    """A loader that has all its batches at once."""

    queue_batches = 0

    def __next__(self) -> Delivered:
        return Delivered({"image": torch.zeros(1)}, [0], [0])

    def counts(self) -> ReaderCounts:
        return ReaderCounts(1_000_000, 0, 0.0, 0.0)  # its queue is always full

    def io(self) -> None:
        return None

    def close(self) -> None:
        pass


class Slow:
    """Steps on the batch that is kept take twice as long by the time that is told, as often as is said."""

    def __init__(self, slow_blocks: int) -> None:
        self.left, self.now_s = slow_blocks * (2 + PLAN.ceiling_steps), 0.0

    def step(self, batch: Any, clock: Clock) -> None:
        slow = batch is KEPT and self.left > 0
        self.left -= slow
        self.now_s += 0.02 if slow else 0.01
        clock.mark("forward")

    def perf_counter(self) -> float:
        return self.now_s


def kinds(folder: Path, data: Path, training: Slow, extra: int, prepared: list[int]) -> Iterator[str]:
    heart = Heartbeat(folder, 0)
    heart.total(0)
    stepper = Stepper(training, clock_for(torch.device("cpu")), heart)  # type: ignore[arg-type]
    feed = Feed(Ready(), open_dataset(data), 1)
    blocks = interleaved_blocks(stepper, feed, KEPT, PLAN, extra, lambda: prepared.append(len(prepared)))
    yield from (block.kind[0] for block in blocks)
    heart.beat()
    progress = read_progress(folder, 0)
    assert progress is not None and progress.total == max(0, len(blocks) - 5) // 2 * (PLAN.pair_batches + 4)


@pytest.mark.parametrize(
    ("slow_blocks", "extra", "expected"),
    [(0, 3, "clclc"), (3, 0, "clclc"), (3, 2, "clclclclc"), (99, 3, "clclclclclc")],
)
def test_pairs_are_added_while_the_ceiling_is_slower_than_the_steps(
    tmp_path: Path, dataset_root: Path, monkeypatch: pytest.MonkeyPatch, slow_blocks: int, extra: int, expected: str
) -> None:
    training, prepared = Slow(slow_blocks), []
    monkeypatch.setattr(clock, "time", training)  # a real clock sees a machine's noise in steps that do nothing
    found = "".join(kinds(tmp_path, dataset_root / "files", training, extra, prepared))
    assert found == expected
    assert len(prepared) == (1 if len(expected) > 5 else 0), "what they read is made ready once"


@pytest.mark.parametrize(
    ("data", "samples", "pairs"),
    [
        ({"cache": "cold"}, 10_000, 3),
        ({"cache": "warm"}, 10, 3),
        ({"cache": "cold", "shuffle": False}, 0, 0),
        ({"source": "memory"}, 10_000, 0),
    ],
)
def test_how_many_may_be_added(data: dict[str, Any], samples: int, pairs: int) -> None:
    assert extra_pairs(made_spec(data=data), samples) == pairs


def test_a_cold_trial_adds_only_what_it_has_not_read() -> None:
    spec = made_spec(data={"cache": "cold", "shuffle": False})
    for pairs in range(3):
        assert extra_pairs(spec, reader_samples(spec, pairs)[1]) == pairs
        assert extra_pairs(spec, reader_samples(spec, pairs + 1)[1] - 1) == pairs
    assert extra_pairs(made_spec(device="emulated:5ms", data={"cache": "warm"}), 1000) == 0


def test_files_of_further_pairs_are_those_that_the_reader_comes_to(dataset_root: Path) -> None:
    dataset = open_dataset(dataset_root / "files")
    spec = made_spec(batch_size=1, measure={"steps": 2}, data={"num_workers": 0, "shuffle": False})
    plan = layout(spec)
    more = [*files_read(spec, dataset, 1)]
    assert more[: len(files_read(spec, dataset))] == files_read(spec, dataset)
    assert len(more) - len(files_read(spec, dataset)) == plan.pair_batches == 2
    assert np.all([path.exists() for path in more])
