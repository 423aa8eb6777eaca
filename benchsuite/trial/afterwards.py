"""What a rank counts when its steps are done: FLOPs, bytes held and sent, its files' ceiling, the harness's own share.

Counting may fail, mostly for memory, and what was measured is not lost by that: it is kept before.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchsuite.contract.failed_rank import reason_of
from benchsuite.contract.rank_samples import ENDED_COUNTING, RankIdentity
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.inside.samples import RankSamples
from benchsuite.storage.dataset.manifest import Dataset
from benchsuite.storage.loaders import Batch
from benchsuite.trial import costs, io_observer, page_cache
from benchsuite.trial.feed import Feed, Stepper
from benchsuite.trial.measure import barrier
from benchsuite.workloads.workload import Workload

Count = Callable[[], dict[str, Any]]
"""Counts something; fields of a result."""


@dataclass(frozen=True)
class Trained:
    """A rank whose steps are done."""

    spec: TrialSpec
    workload: Workload
    stepper: Stepper
    feed: Feed | None
    batch: Batch
    dataset: Dataset | None
    """What it has read, which may be a staged copy."""
    me: RankIdentity


def keep_and_count(found: RankSamples, rank: Trained) -> RankSamples:
    """Keep a rank's result where its launcher looks, and return it with what is counted.

    Raises:
        Exception: counting failed where others take part, who then wait for this rank. They are ended with it.
    """
    spec, training, me, clock = rank.spec, rank.stepper.training, rank.me, rank.stepper.clock
    alone: list[Count] = [
        lambda: {"copy_bytes_per_s": costs.copy_bytes_per_s(found.blocks)},
        lambda: {"instrument_s_per_step": costs.instrument_s_per_step(clock, rank.stepper.heart, found.blocks)},
        lambda: {"flops": costs.flops_by_rank(spec, rank.workload, me)},
        lambda: {"gradient_copy_s": costs.gradient_copy_s(spec, training)},
    ]
    together: list[Count] = [
        lambda: io_observer.of_operators(spec, rank.stepper, rank.feed, rank.batch, me),
        lambda: {"storage_ceiling": page_cache.storage_ceiling(spec, rank.dataset, rank.feed, me)},
        lambda: costs.of_step(training, rank.batch, spec.compile),
    ]
    return _counted(found, me, alone, together)


def _counted(found: RankSamples, me: RankIdentity, alone: Sequence[Count], together: Sequence[Count]) -> RankSamples:
    missing: list[str] = []
    me.leave(replace(found, not_counted=ENDED_COUNTING))
    barrier()  # from here on the results of all ranks lie there
    for count in alone:
        try:
            found = replace(found, **count())
        except Exception as error:
            missing.append(reason_of(error))
    me.leave(replace(found, not_counted="; ".join([*missing, ENDED_COUNTING])))
    barrier()
    try:
        for count in together:
            found = replace(found, **count())
    except Exception as error:
        me.leave(replace(found, not_counted="; ".join([*missing, reason_of(error)])))
        raise
    return replace(found, not_counted="; ".join(missing) or None)
