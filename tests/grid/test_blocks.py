"""How many steps, batches and samples a trial takes."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchsuite import storage
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.grid.blocks import Layout, layout, reader_samples, steady_steps
from benchsuite.storage.dataset.manifest import open_dataset
from benchsuite.storage.loaders.reader import LoaderInput
from benchsuite.storage.loaders.torch import TorchLoader
from benchsuite.trial.feed import Feed
from tests.helpers.made import made_spec


def spec_of(steps: int, workers: int, prefetch: int, batch: int = 4, **more: Any) -> TrialSpec:
    data = {"num_workers": workers, "prefetch_factor": prefetch, "pin_memory": False}
    return made_spec(data=data, measure={"steps": steps}, batch_size=batch, **more)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (spec_of(30, 2, 2), Layout(ceiling_steps=10, drained_steps=5, loader_steps=16)),
        (spec_of(31, 2, 2), Layout(ceiling_steps=11, drained_steps=5, loader_steps=16)),
        (spec_of(2, 0, 2), Layout(ceiling_steps=1, drained_steps=1, loader_steps=1)),
        (spec_of(24, 4, 3), Layout(ceiling_steps=8, drained_steps=13, loader_steps=12)),
        (spec_of(3, 8, 4), Layout(ceiling_steps=1, drained_steps=33, loader_steps=8)),
        (spec_of(3, 8, 4, device="emulated:20ms"), Layout(0, drained_steps=38, loader_steps=8, held=1, drains=1)),
    ],
)
def test_layout(spec: TrialSpec, expected: Layout):
    assert layout(spec) == expected


def test_a_loader_block_first_empties_the_queue_and_one_more():
    for workers, prefetch in ((1, 1), (2, 4), (8, 2)):
        assert layout(spec_of(30, workers, prefetch)).drained_steps == workers * prefetch + 1


def test_batches_of_a_trial():
    plan = layout(spec_of(30, 2, 2))
    assert plan.loader_batches == 1 + (5 + 16) + (5 + 16)


def test_batches_of_an_emulated_trial():
    """Its queue is emptied once, its warm-up takes batches too, and one is held when the last step ends."""
    plan = layout(spec_of(30, 2, 2, device="emulated:20ms"))
    assert plan.loader_batches == 1 + (5 + 5) + 16 + 16 + 1


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("steps", [2, 3, 17, 30])
def test_blocks_count_whole_turns_of_the_readers(workers: int, steps: int):
    plan = layout(spec_of(steps, workers, 2))
    assert plan.loader_steps % workers == 0 and 2 * plan.loader_steps >= steps


@pytest.mark.parametrize(("workers", "prefetch", "steps"), [(2, 2, 24), (4, 2, 48), (0, 2, 6), (1, 1, 6)])
def test_steady_from_three_turns_of_the_queue_in_each_block(workers: int, prefetch: int, steps: int):
    assert steady_steps(spec_of(30, workers, prefetch)) == steps
    assert layout(spec_of(steps, workers, prefetch)).loader_steps >= 3 * workers * prefetch


@pytest.mark.parametrize("workers", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("prefetch", [1, 2, 3])
@pytest.mark.parametrize("steps", [2, 8, 15, 30])
def test_samples_of_the_busiest_reader(workers: int, prefetch: int, steps: int):
    """Replay the loader: batches are dealt to workers in turn, and a new one is asked for with each one taken."""
    spec = spec_of(steps, workers, prefetch)
    taken = 1 + sum(layout(spec).drained_steps + layout(spec).loader_steps for _ in range(2))
    asked = taken + workers * prefetch
    per_worker = Counter(batch % max(workers, 1) for batch in range(asked))
    assert reader_samples(spec) == (max(per_worker.values()), max(per_worker.values()) * 4)


def test_the_real_loader_reads_as_much_as_is_said(dataset_root: Path):
    spec = spec_of(4, workers=2, prefetch=2, batch=2)
    dataset = open_dataset(dataset_root / "files")
    kind = storage.load(storage.KINDS, "image")
    loader = TorchLoader(LoaderInput(dataset, spec.data, kind, {"image_size": 32}, spec.rank_batch, 0, 1, seed=0))
    try:
        feed = Feed(loader, dataset, spec.rank_batch)
        for _ in range(layout(spec).loader_batches):
            feed()
        assert feed.wait_full(), "the readers fill the queue and rest"
        batches, samples = reader_samples(spec)
        assert loader.counts().samples == (layout(spec).loader_batches + 4) * 2
        assert loader.counts().samples <= 2 * samples
        assert batches * spec.rank_batch == samples
    finally:
        loader.close()
