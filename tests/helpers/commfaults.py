"""Tasks for ranks of `probe comm` on which something is wrong."""

import os
from pathlib import Path

import torch.distributed as dist

from benchsuite.contract.rank_samples import RankIdentity
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.inside.samples import RankSamples
from benchsuite.probe.comm import collectives, rank
from benchsuite.probe.comm.stepping import Counted, Stepper

real_broadcast, real_all_reduce, real_run = dist.broadcast, dist.all_reduce, Stepper.run


def wrong_result(spec: TrialSpec, dataset: Path | None, me: RankIdentity, keep: list[object]) -> RankSamples:
    """Rank 1 gets one element of a broadcast wrong."""

    def broken(tensor, src, group=None):  # type: ignore[no-untyped-def]
        real_broadcast(tensor, src, group=group)
        if me.rank == 1:
            tensor[3] += 1

    dist.broadcast = broken
    return rank.run_rank(spec, dataset, me, keep)


def refused(spec: TrialSpec, dataset: Path | None, me: RankIdentity, keep: list[object]) -> RankSamples:
    """A backend without reduce."""

    def missing(*arguments, **more):  # type: ignore[no-untyped-def]
        raise RuntimeError("ProcessGroupGloo does not\nsupport reduce")

    dist.reduce = missing
    return rank.run_rank(spec, dataset, me, keep)


def killed(spec: TrialSpec, dataset: Path | None, me: RankIdentity, keep: list[object]) -> RankSamples:
    """Rank 1 dies when it comes to a broadcast."""

    def dying(*arguments, **more):  # type: ignore[no-untyped-def]
        if me.rank == 1:
            os.kill(os.getpid(), 9)
        return real_broadcast(*arguments, **more)

    dist.broadcast = dying
    return rank.run_rank(spec, dataset, me, keep)


def miscounted(spec: TrialSpec, dataset: Path | None, me: RankIdentity, keep: list[object]) -> RankSamples:
    """Rank 0 sends a byte more than its table says."""

    def counting(self):  # type: ignore[no-untyped-def]
        found = real_run(self)
        return Counted(found.messages, found.num_bytes + (me.rank == 0))

    Stepper.run = counting
    return rank.run_rank(spec, dataset, me, keep)


def out_of_memory(spec: TrialSpec, dataset: Path | None, me: RankIdentity, keep: list[object]) -> RankSamples:
    """Rank 1 has no room for the buffers of all_gather."""

    def full(op, place, count):  # type: ignore[no-untyped-def]
        if op == "all_gather" and me.rank == 1:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes")
        return real(op, place, count)

    real = collectives.contents
    collectives.contents = full
    return rank.run_rank(spec, dataset, me, keep)
