"""What is seen of a rank's threads and readers, and what the kernel counts, while its counted steps run."""

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from benchsuite.inside.counted import Counted, counters, used_cores
from benchsuite.inside.looks import Looker, Reading
from benchsuite.inside.node_log import NodeLog
from benchsuite.inside.readers import LoadTimes, ReaderTimes, seen_readers
from benchsuite.inside.samples import Block, Looks

Readers = tuple[Collection[int], Collection[int]]
"""Processes that read, and threads of this process that do."""


class Seen:
    """Sees one rank while its steps count, and counts what the kernel says of all its blocks."""

    def __init__(self, readers: Callable[[], Readers] = lambda: ((), ()), device: int | None = None) -> None:
        self._find_readers = readers
        self._phase: str | None = None
        self._step = 0
        self._loads, self._readers, self._counted = LoadTimes(), ReaderTimes(), Counted()
        self._node = NodeLog(lambda: device)
        self._looker = Looker(lambda: (self._phase, self._step), lambda: Reading(*readers()), node=self._node)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count what the kernel says of what happens in here: all blocks, as reading its counters between two of them
        would let readers fill their queue. In the thread that steps."""
        processes, threads = self._find_readers()
        self._readers.watch([*processes], [*threads])
        self._loads.open(())
        self._readers.look(counts=False)
        window = counters(self._loads, time.perf_counter())
        self._looker.start()
        try:
            yield
        finally:
            self._looker.stop()
            self._counted.add(window, counters(self._loads))
            self._readers.look()
            self._loads.close()

    @contextmanager
    def counting(self) -> Iterator[None]:
        """The steps in here count."""
        self._loads.pause()
        self._phase = "body"
        try:
            yield
        finally:
            self._phase = None

    @contextmanager
    def loading(self) -> Iterator[None]:
        """The step waits for its batch in here."""
        if self._phase is None:
            yield
            return
        self._loads.begin()
        self._phase = "load"
        try:
            yield
        finally:
            self._phase = "body"
            self._step += 1
            self._loads.end()

    def ended(self, blocks: list[Block], queue_batches: int) -> dict[str, Any]:
        """What was seen, as fields of the rank's samples."""
        return {
            "seen_readers": seen_readers(self._loads, self._readers, queue_batches=queue_batches, workers_stay=True),
            "used_cores": used_cores(self._counted),
            "looks": self._looks(blocks),
            **self._node.told(),
        }

    def _looks(self, blocks: list[Block]) -> Looks:
        """What was seen, with what the readers' own clocks say of what they computed."""
        collated_s = sum(block.collate_s or 0.0 for block in blocks)
        computed_s = sum(block.decode_s + (block.read_cpu_s or 0.0) for block in blocks)
        inside = Looks({}, {}, {}, {}, [], collate_and_cpu_s=(collated_s, computed_s))
        seconds = self._counted.wall_s
        return self._looker.tally.looks(
            inside=inside,
            cost_fraction=self._looker.pace.spent_s / seconds if seconds else None,
            collate_and_cpu_s=(0.0, 0.0) if self._readers.num_readers else inside.collate_and_cpu_s,
        )
