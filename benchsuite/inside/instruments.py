"""All instruments of one watched loop, and what they have measured so far as the samples of its rank."""

import resource
import sys
from dataclasses import dataclass

from .counted import used_cores
from .loop import Loop, StepLog
from .readers import seen_readers
from .samples import PARTS, Block, Looks, RankSamples, Reads, SeenReaders
from .workers import Inside, TimedCollate

MARKS = PARTS[1:]
FIRST_STEPS = 5
"""Steps that never count by default, while libraries choose their kernels and memory is first touched."""
UNKNOWN_QUEUE = 8
"""Batches that a loader may hold ready where it does not say."""
MIN_CEILING_STEPS = 8


def queue_of(loader: object) -> int | None:
    """Batches that a loader may hold ready, where it says so as PyTorch's DataLoader does."""
    workers, prefetch = getattr(loader, "num_workers", None), getattr(loader, "prefetch_factor", None)
    if not isinstance(workers, int):
        return None
    return workers * (prefetch if isinstance(prefetch, int) else 0)


@dataclass
class Instruments:
    """What watches a loop, and what is known of its loader."""

    loop: Loop
    queue_batches: int | None = None
    """Batches that the loader may hold ready."""
    workers_stay: bool = False
    inside: Inside | None = None
    """Where workers leave what they see of themselves."""
    collate: TimedCollate | None = None
    """What times a DataLoader's `collate_fn`."""

    def samples(self, rank: int, seen_inside: Looks | None = None) -> RankSamples:
        """What has been measured so far; `seen_inside`: what workers saw of themselves."""
        loop, cuda = self.loop, self.loop.stamps.device != "cpu"
        counted, node = loop.counted, loop.looker.node if loop.looker is not None else None
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return RankSamples(
            rank,
            "ok",
            blocks=_blocks(loop),
            first_batch_s=loop.first_batch_s,
            reads=Reads(counted.read_call_bytes, counted.storage_bytes, seconds=counted.wall_s),
            seen_readers=self._readers(),
            used_cores=used_cores(counted),
            instrument_s_per_step=loop.own_s_per_step,
            peak_memory_bytes=sys.modules["torch"].cuda.max_memory_allocated() if cuda else peak,
            device_name=loop.stamps.device if cuda else None,
            looks=self._looks(seen_inside),
            **(node.told() if node is not None else {}),
        )

    def seen_inside(self) -> Looks | None:
        """What workers have left of what they saw of themselves, read from their folder."""
        return None if self.inside is None else self.inside.told(self.loop.reading_processes)

    def _readers(self) -> SeenReaders:
        loop, counted = self.loop, self.loop.counted
        return seen_readers(
            loop.loads,
            loop.readers,
            counted.below_cpu_s / counted.wall_s if loop.feeders.unseen and counted.wall_s else 0.0,
            refill_s=loop.refill_s,
            queue_batches=self.queue_batches or 0,
            workers_stay=self.workers_stay,
            batch_bytes=loop.batch_size.num_bytes,
            batch_arrays=loop.batch_size.num_arrays,
            passes=loop.num_passes,
            begin_s=loop.begin_s,
        )

    def _looks(self, inside: Looks | None) -> Looks | None:
        """What was seen of the loop's threads, and what its workers saw of themselves."""
        looker, seconds = self.loop.looker, self.loop.counted.wall_s
        if looker is None:
            return None
        steps = self.loop.steps.num_steps
        counted = steps / ((steps + self.loop.num_uncounted) or 1)
        collated_s = counted * self.collate.spent_s[0] if self.collate is not None else 0.0
        load_s = self.loop.steps.parts_s.get("load", 0.0)
        computed_s = load_s * self.loop.loads.own_s / (self.loop.loads.seconds or 1.0)
        return looker.tally.looks(
            inside=inside,
            cost_fraction=looker.pace.spent_s / seconds if seconds else None,
            collate_and_cpu_s=(collated_s, computed_s) if collated_s else (0.0, 0.0),
        )


def _blocks(loop: Loop) -> list[Block]:
    """The counted steps, and the ceiling with those beside it."""
    counted = loop.counted
    waiting = None if counted.run_queue_s is None or not counted.wall_s else counted.run_queue_s / counted.wall_s
    blocks = [_block("loader", loop.steps, waiting)]
    if loop.ceiling.num_steps >= MIN_CEILING_STEPS and loop.between.num_steps:
        blocks += [_block("ceiling", loop.ceiling), _block("between", loop.between)]
    return blocks


def _block(kind: str, log: StepLog, waiting: float | None = None) -> Block:
    """A kind of steps; `waiting` is the share of them in which the loop's thread waited for a core."""
    queued = None if waiting is None else waiting * log.seconds
    return Block(
        kind,
        0.0,
        log.seconds,
        {name: [parts.get(name, 0.0) for parts in log.kept] for name in log.parts_s},
        queued,
        consumed_samples=log.samples,
        produced_samples=None,
        every=log.stride,
        totals=(log.num_steps, dict(log.parts_s)),
    )
