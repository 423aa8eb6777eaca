"""How a trial's steps are laid out: ceiling blocks interleaved with loader blocks (C L C L C), or loader blocks alone.

A loader block drains what the queue held before it counts, so that a full prefetch queue flatters nothing.
"""

import math
from dataclasses import dataclass

from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.inside.samples import STEADY_TURNS

LOADER_BLOCKS = 2
CEILING_BLOCKS = LOADER_BLOCKS + 1
MAX_EXTRA_PAIRS = 3
"""Pairs of a loader and a ceiling block that are added, one by one, while AU is above 1 by more than its noise."""
MIN_STEPS = 2
"""The least of measure.steps."""


@dataclass(frozen=True)
class Layout:
    """Steps per block: uncounted ones first, then counted ones."""

    ceiling_steps: int
    drained_steps: int
    loader_steps: int
    held: int = 0
    """Batches that are asked for during the last step."""
    drains: int = LOADER_BLOCKS
    """How many of the loader blocks begin with drained steps: those before which the readers could fill the queue."""

    @property
    def total_loader_steps(self) -> int:
        """Steps that take the loader's batches."""
        return self.drains * self.drained_steps + LOADER_BLOCKS * self.loader_steps

    @property
    def loader_batches(self) -> int:
        """Batches of one rank that the loader blocks and the first batch take."""
        return 1 + self.total_loader_steps + self.held

    @property
    def pair_batches(self) -> int:
        """Batches of one rank that a further pair of blocks takes."""
        return self.drained_steps + self.loader_steps


def layout(spec: TrialSpec) -> Layout:
    """The layout of a trial's blocks.

    Readers deliver in turn, and after a turn of all of them their pattern begins anew: a loader block counts whole
    turns. What a step needs on an emulated device is known: no ceiling, and warm-up steps take the loader's batches.
    """
    turn = spec.data.readers
    drained = spec.data.queue_batches + 1
    loader = math.ceil(spec.measure.steps / LOADER_BLOCKS / turn) * turn
    if spec.emulated:
        return Layout(0, drained + spec.measure.warmup_steps, loader, held=1 if spec.data.num_workers else 0, drains=1)
    return Layout(math.ceil(spec.measure.steps / CEILING_BLOCKS), drained, loader)


def steady_steps(spec: TrialSpec) -> int:
    """The least measure.steps for which each loader block covers STEADY_TURNS turns of the queue."""
    return LOADER_BLOCKS * STEADY_TURNS * max(spec.data.queue_batches, 1)


def extra_pairs(spec: TrialSpec, num_samples: int) -> int:
    """Further pairs of blocks that may be added: a cold trial is to see no sample of so many again."""
    if spec.emulated or spec.data.source != "storage":
        return 0
    share = num_samples // (spec.data_ranks * spec.data.readers)
    room = math.inf if spec.data.cache == "warm" else share - (spec.data.shuffle_buffer if spec.data.shuffle else 0)
    return max(pairs for pairs in range(MAX_EXTRA_PAIRS + 1) if not pairs or reader_samples(spec, pairs)[1] <= room)


def reader_samples(spec: TrialSpec, pairs: int = 0) -> tuple[int, int]:
    """Batches and samples that the busiest reader of a rank decodes in a trial, prefetched ones included.

    `pairs`: further pairs of blocks.
    """
    plan = layout(spec)
    batches = plan.loader_batches + pairs * plan.pair_batches + spec.data.queue_batches
    per_reader = math.ceil(batches / spec.data.readers)
    return per_reader, per_reader * spec.rank_batch


def most_steps(spec: TrialSpec, room: int, most: int) -> int:
    """The most steps, up to `most`, for which no reader takes more than `room` samples."""
    low = 0
    while low < most:
        middle = (low + most + 1) // 2
        fits = reader_samples(spec.with_steps(middle))[1] <= room
        low, most = (middle, most) if fits else (low, middle - 1)
    return low
