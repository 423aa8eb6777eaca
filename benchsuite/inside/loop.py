"""A loop of someone else's, timed from its iterator: load, marked parts, and the rest of its body, step by step.

Memory stays bounded: sums over all steps, and at most so many single ones. Steps are contiguous, but for the moments in
which counters are read; what lies between two passes (validation, checkpoints) belongs to no step.
"""

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from .counted import Counted, counters
from .feeders import Feeders, Living, feeders
from .guard import Spent
from .looks import Looker, Reading
from .readers import LoadTimes, ReaderTimes
from .samples import SETTLING_STEPS, STEADY_TURNS
from .syscalls import has_ended
from .timestamps import HostStamps, Stamps

T = TypeVar("T")
COUNTED = frozenset({"counted", "between"})
"""Kinds of steps that count: `between` ones lie between two blocks of replayed steps."""
REPLAYED = frozenset({"settling", "ceiling"})
"""Kinds of steps that get the batch before again."""
CEILING_BLOCKS = 4
CEILING_STEPS = 8
BETWEEN_STEPS = 32
MAX_DEPTH = 4
"""A batch is looked into so far for its first array."""
ADDED_TOGETHER = 32
"""Steps that have ended are added so many at once: what adds them is in no cache after a step that computes."""


def kinds_of_steps(warmup_steps: int, replayed_beside: int | None = None) -> Iterator[str]:
    """What each step of a loop is for, without end.

    `replayed_beside`: replay batches, in blocks between those of the loader (C L C L C L C); so many batches fit the
    loader's queue, which is drained before steps count.
    """
    yield from itertools.repeat("uncounted", warmup_steps)
    if replayed_beside is not None:
        for block in range(CEILING_BLOCKS):
            yield from itertools.repeat("settling", SETTLING_STEPS)
            yield from itertools.repeat("ceiling", CEILING_STEPS)
            yield from itertools.repeat("uncounted", replayed_beside + 1)
            if block + 1 < CEILING_BLOCKS:
                yield from itertools.repeat("between", max(BETWEEN_STEPS, STEADY_TURNS * replayed_beside))
    yield from itertools.repeat("counted")


@dataclass
class StepLog:
    """Seconds of the parts of steps: sums over all, and single steps, thinned evenly when they become too many."""

    max_kept: int = 10_000
    num_steps: int = 0
    samples: int | None = 0
    parts_s: dict[str, float] = field(default_factory=dict)
    kept: list[dict[str, float]] = field(default_factory=list)
    stride: int = 1
    """Every so many steps are kept."""

    def add(self, parts: dict[str, float], rows: int | None) -> None:
        """Add a step; `rows` samples were in its batch, as far as that is known."""
        for name, seconds in parts.items():
            self.parts_s[name] = self.parts_s.get(name, 0.0) + seconds
        self.samples = None if rows is None or self.samples is None else self.samples + rows
        if self.num_steps % self.stride == 0:
            self.kept.append(parts)
            if len(self.kept) > self.max_kept:
                self.kept, self.stride = self.kept[::2], 2 * self.stride
        self.num_steps += 1

    @property
    def seconds(self) -> float:
        """All parts of all steps."""
        return sum(self.parts_s.values())


@dataclass
class _Step:
    kind: str
    rows: int | None
    before: tuple[Any, Any] | None
    """The end of the pass before, where the loader took time to find that there was no more."""
    names: list[str]
    times: list[Any]
    """One more than names: the step's beginning."""
    refills: bool
    """The first of a pass that is not the first: the loader begins anew."""


def path_to_array(value: Any, depth: int = 0) -> tuple[Any, ...] | None:
    """Keys that lead to the first array in a batch, in its own order; None where there is none."""
    shape = getattr(value, "shape", None)
    if shape is not None and len(shape):
        return ()
    if depth == MAX_DEPTH or not isinstance(value, Mapping | list | tuple):
        return None
    for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
        path = path_to_array(item, depth + 1)
        if path is not None:
            return (key, *path)
    return None


def is_list_of_samples(batch: Any, stated: int) -> bool:
    """Whether the batch, or a part of it, is a list with as many samples as the loader says a batch has."""
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return any(isinstance(part, list | tuple) and len(part) == stated for part in (batch, *parts))


class BatchSize(NamedTuple):
    """What has to be handed over with a batch."""

    num_bytes: int = 0
    """Of its arrays, and of its texts."""
    num_arrays: int = 0


def size_of(batch: Any, depth: int = 0) -> BatchSize:
    """The arrays in a batch, however they are nested."""
    if isinstance(size := getattr(batch, "nbytes", None), int):
        return BatchSize(size, 1)
    if isinstance(batch, bytes | str):
        return BatchSize(len(batch))
    if depth == MAX_DEPTH or not isinstance(batch, Mapping | list | tuple):
        return BatchSize()
    parts = [size_of(part, depth + 1) for part in (batch.values() if isinstance(batch, Mapping) else batch)]
    return BatchSize(sum(part.num_bytes for part in parts), sum(part.num_arrays for part in parts))


class RowCounter:
    """Samples in a batch: as many as given, else the first dimension of its first array.

    Where that is not the loader's `batch_size` and samples are listed instead of stacked, its `batch_size`.
    """

    def __init__(self, loader: Any, batch_size: int | None) -> None:
        stated = getattr(loader, "batch_size", None)
        self._stated = stated if isinstance(stated, int) else None
        self._fixed = batch_size
        self._path: tuple[Any, ...] | None = None
        self._looked = False

    def __call__(self, batch: Any) -> int | None:
        """Samples in this batch; None where it cannot be told."""
        if self._fixed is not None:
            return self._fixed
        if not self._looked:
            self._looked, self._path = True, path_to_array(batch)
            rows = self._first_dimension(batch)
            if self._stated is not None and rows != self._stated and is_list_of_samples(batch, self._stated):
                self._fixed = self._stated
                return self._fixed
        return self._first_dimension(batch)

    def _first_dimension(self, batch: Any) -> int | None:
        if self._path is None:
            return None
        try:
            for key in self._path:
                batch = batch[key]
            return int(batch.shape[0])
        except (LookupError, TypeError, AttributeError):
            return None


_in_their_bodies: "dict[Loop, int]" = {}
"""Loops whose batch is being trained on, each with the thread that it gave the batch to."""


class Loop:
    """Passes over a loader and what was measured in them."""

    def __init__(
        self,
        kinds: Iterator[str],
        stamps: Callable[[], Stamps] = HostStamps,
        rows: Callable[[Any], int | None] = lambda batch: None,
        keeps_batch: bool = False,
    ) -> None:
        self.stamps: Stamps = HostStamps()
        self._steps, self.between, self.ceiling = (StepLog() for _ in range(3))
        self.counted, self.readers = Counted(), ReaderTimes()
        self.num_passes = self.num_uncounted = self.num_replayed = 0
        self.first_batch_s: float | None = None
        self.spent = Spent()
        """What whoever calls its methods has timed of them."""
        self._spent_before_s = 0.0
        """Of that what was before steps began to count."""
        self._batches_of_pass = 0
        self._began_s: float | None = None
        self._counts_from_s: float | None = None
        self.batch_size = BatchSize()
        """Of the largest of the first batches of passes."""
        self.refill_s = 0.0
        """Loads of the first steps of later passes."""
        self.begin_s = 0.0
        """Of these: seconds in which the passes made their iterators."""
        self.others_load_s = 0.0
        """Seconds of this one's steps in which another watched loop waited for its input."""
        self.loads, self.feeders = LoadTimes(), Feeders()
        self.reading_processes = frozenset[int]()
        """Those of all passes."""
        self._kinds, self._rows, self._find_stamps, self.keeps_batch = kinds, rows, stamps, keeps_batch
        self._waiting: str | None = None
        self._window: Counted | None = None
        self._pending: deque[_Step] = deque()
        self._num_ended = 0
        self._before: tuple[Any, Any] | None = None
        self._names: list[str] = []
        self._times: list[Any] = []
        self._batch_rows: int | None = None
        self._pass_begins = False
        self._pass_began_s = self._asked_s = 0.0
        self._first_asked_s: float | None = None
        """When a pass began that has no batch yet."""
        self._lived_before = Living(frozenset(), frozenset())
        self._kind = "uncounted"
        """The kind of the step that runs."""
        self._phase: str | None = None
        """What the loop's thread is in of a counted step: `load`, `body`, or neither."""
        self.note_step: Callable[[], bool] = lambda: False
        """What is called at the end of each step, and says whether it took some time."""
        self.looker: Looker | None = None
        """What looks at the loop's thread and its readers, where that is wanted."""

    @property
    def steps(self) -> StepLog:
        """All counted steps that have ended; `between` and `ceiling` hold theirs when these have been asked for."""
        self._add_ended()
        return self._steps

    def device(self) -> int | None:
        """The number of the CUDA device that it computes on."""
        return self.stamps.index

    def phase(self) -> tuple[str | None, int]:
        """What the loop's thread is in of a counted step, and how many steps came before."""
        return self._phase, self._num_ended

    def reading(self) -> Reading:
        """The processes and the threads that load for it; a worker that has ended is one of them in its pass alone."""
        processes, threads = self.feeders.processes, self.feeders.threads
        if self._batches_of_pass and self.feeders.are_workers:
            return Reading(processes, threads, self.feeders.without_data())
        return Reading(frozenset(each for each in processes if not has_ended(each)), threads)

    @property
    def own_s_per_step(self) -> float | None:
        """Seconds that measuring has taken of a step; None where none has ended."""
        return (self.spent.seconds - self._spent_before_s) / self._num_ended if self._num_ended else None

    @property
    def before_s(self) -> float:
        """Seconds from the first pass's start until steps began to count, or until now."""
        return (self._counts_from_s or time.perf_counter()) - self._began_s if self._began_s is not None else 0.0

    def run(self, loader: Iterable[T]) -> Iterator[T]:
        """One pass. A step that is broken off does not count."""
        held: list[T] = []
        self.begin_pass()
        try:
            iterator = iter(loader)
            self.note_iterator()
            while True:
                if not self.spent.on(self.ask):
                    try:
                        held = [next(iterator)]
                    except StopIteration:
                        self.run_out()
                        return
                self.spent.on(self.receive, held[0], iterator)
                yield held[0] if self.keeps_batch else held.pop()
                self.spent.on(self.end_step, bool(held))
        finally:
            self.close_pass()

    def begin_pass(self) -> None:
        """Begin a pass, in the thread that trains: its iterator is made next."""
        self._pass_began_s = self._first_asked_s = time.perf_counter()
        self._began_s = self._began_s or self._pass_began_s
        self._pass_begins, self._batches_of_pass = self.num_passes > 0, 0
        self.num_passes += 1
        self._lived_before = Living.now()
        self.loads.open(self.feeders.strangers(), self.feeders.threads)
        self._enter(self._next_kind(False))

    def note_iterator(self) -> None:
        """Note that the pass has its iterator, the making of which may have begun workers."""
        if self._kind in COUNTED and self._pass_begins:
            self.begin_s += time.perf_counter() - self._pass_began_s

    def ask(self) -> bool:
        """Note that the loop asks for a batch; whether it is to get the one before again instead."""
        _in_their_bodies.pop(self, None)  # one that asks for more than one batch a step waits for none but itself
        if self._kind in REPLAYED:
            return True
        if self._kind in COUNTED:
            self._look()
            self.loads.begin()
            self._phase = "load"
        self._asked_s = time.perf_counter()
        return False

    def run_out(self) -> None:
        """Note that the loader has said that there is no more."""
        self._waiting, self._before = self._kind, (self._times[0], self.stamps.now())

    def receive(self, batch: object, iterator: object) -> None:
        """Note that a batch has come: the step's body begins."""
        self._phase = None
        if self._kind not in REPLAYED:
            if self._kind in COUNTED:
                self.loads.end()
            self._tell_others(time.perf_counter() - self._asked_s)
        self._loaded(batch)
        if self._first_asked_s is not None:
            self.first_batch_s = self.first_batch_s or time.perf_counter() - self._first_asked_s
            self.batch_size = max(self.batch_size, size_of(batch))
            self._first_asked_s = None
            self._find_feeders(iterator, self._lived_before)
        self.begin_body()

    def begin_body(self, loads: bool = True) -> None:
        """Begin the part of a step that has its batch, or asks for none."""
        _in_their_bodies[self] = threading.get_ident()
        if self._kind in COUNTED:
            if not loads:
                self.loads.skip()
                self._look()
            self._phase = "body"

    def end_step(self, has_batch: bool) -> None:
        """End the step and begin the next one; `has_batch`: its batch is still there, so that it can be replayed."""
        self._phase = None
        self._end_step()
        self._enter(self._next_kind(has_batch))

    @property
    def in_step(self) -> bool:
        """Whether a step is under way, counted or not."""
        return bool(self._times)

    @property
    def in_body(self) -> bool:
        """Whether a step is under way that has its batch."""
        return bool(self._names)

    def pause(self) -> None:
        """Count no longer, in the middle of a pass: what comes now is no step."""
        self._phase = None
        self.loads.pause()
        self._close_window()
        if self._times:
            self._waiting, self._names, self._times = self._kind, [], []

    def resume(self, has_batch: bool) -> None:
        """Begin a step after a pause; elsewhere nothing."""
        if not self._times:
            self._enter(self._next_kind(has_batch))

    def close_pass(self) -> None:
        """End a pass, with the step that was broken off."""
        self._phase = None
        _in_their_bodies.pop(self, None)
        self._close_window()
        self.loads.close()
        self._names, self._times = [], []

    def mark(self, part: str) -> None:
        """Note the end of a part of the step's body; outside of a step nothing."""
        if self._times:
            self._names.append(part)
            self._times.append(self.stamps.now())

    def end_pass(self) -> None:
        """End the step that runs, and count no longer: until the next step begins, what runs is none of the loop's."""
        self._phase = None
        self._end_step()
        self._close_window()
        self._times = []

    def finish(self) -> None:
        """Read what the device has still to come to; where it has failed, those steps are lost."""
        if self.looker is not None:
            self.looker.stop()
        self._close_window()  # an iterator that is held longer is closed when Python has lost half of itself
        try:
            if self._pending:
                self.stamps.wait(self._pending[-1].times[-1])
                self._add_ended()
        except RuntimeError:
            self._pending.clear()

    def _look(self) -> None:
        """Look at this thread from now on, if that is wanted; a fork has ended it."""
        if self.looker is not None:
            self.looker.start()

    def _next_kind(self, has_batch: bool) -> str:
        """What the next step is for; before a pass has its first batch, none can be replayed."""
        kind = self._waiting or next(self._kinds)
        self._waiting = None
        if kind in REPLAYED and not has_batch:
            self._waiting = kind
            return "uncounted"
        return kind

    def _enter(self, kind: str) -> None:
        """Open or close the window of counters, where steps begin or cease to count; a step begins."""
        if not self._times and not self._num_ended and isinstance(self.stamps, HostStamps):
            self.stamps, self._before = self._find_stamps(), None
        self._kind, counts = kind, kind in COUNTED
        if counts != (self._window is not None) or not self._times:
            self._close_window()
            if counts:
                if self._counts_from_s is None:
                    self._counts_from_s, self._spent_before_s = time.perf_counter(), self.spent.seconds
                self.readers.look(counts=False)
                self._window = counters(self.loads, time.perf_counter())
            self._times = [self.stamps.now()]

    def _close_window(self) -> None:
        if self._window is not None:
            self.readers.look()
            self._add_window()
            self._window = None

    def _add_window(self) -> None:
        """Add what was counted up to now; the next window begins here."""
        if self._window is not None:
            now = counters(self.loads)
            self.counted.add(self._window, now)
            self._window = now

    def _loaded(self, batch: Any) -> None:
        self._batches_of_pass += 1
        self._names.append("load")
        self._times.append(self.stamps.now())
        self._batch_rows = self._rows(batch)

    def _end_step(self) -> None:
        """Note the end of a step whose batch was given out, unless the pass was ended meanwhile."""
        _in_their_bodies.pop(self, None)
        if not self._names:
            return
        kind = self._kind
        self._names.append("other")
        self._times.append(self.stamps.now())
        self.num_replayed += kind in REPLAYED
        end = self._times[-1]
        if kind in COUNTED or kind == "ceiling":
            self._num_ended += 1
            self._pending.append(
                _Step(kind, self._batch_rows, self._before, self._names, self._times, self._pass_begins)
            )
            if len(self._pending) >= ADDED_TOGETHER:
                self._add_ended()
        else:
            self.num_uncounted += 1
        self._names, self._times, self._before, self._pass_begins = [], [end], None, False
        if self.readers.due(time.perf_counter()):
            self.readers.look(counts=kind in COUNTED)
            self.loads.tell_apart(self.feeders.strangers(), self.feeders.threads)
            self._add_ended()
            self._add_window()
            self._times = [] if kind == "uncounted" else [self.stamps.now()]
        if self.note_step() and self._times:
            self._times = [self.stamps.now()]

    def _tell_others(self, seconds: float) -> None:
        """Say to each loop in whose counted step this thread is that so much of its body was this loop's load."""
        for other, thread in [*_in_their_bodies.items()] if _in_their_bodies else ():
            if thread == threading.get_ident() and other._window is not None:
                other.others_load_s += seconds

    def _find_feeders(self, iterator: object, before: Living) -> None:
        self.feeders = feeders(iterator, before, self.feeders)
        self.reading_processes |= self.feeders.processes
        self.readers.watch(self.feeders.processes)
        self.loads.tell_apart(self.feeders.strangers(), self.feeders.threads)

    def _add_ended(self) -> None:
        """Add the steps that have ended, and to whose end the timeline has come."""
        while self._pending and self.stamps.passed(self._pending[0].times[-1]):
            step = self._pending.popleft()
            parts: dict[str, float] = {}
            for name, (start, end) in zip(step.names, pairwise(step.times), strict=True):
                parts[name] = parts.get(name, 0.0) + self.stamps.seconds(start, end)
            if step.before is not None:
                parts["load"] += self.stamps.seconds(*step.before)
            if step.kind in COUNTED:
                self._steps.add(parts, step.rows)
                self.refill_s += parts["load"] if step.refills else 0.0
            if step.kind != "counted":
                (self.ceiling if step.kind == "ceiling" else self.between).add(parts, step.rows)
