"""How a watch ends: what its loop has measured is summed up, printed and stored once nobody holds its loader."""

import atexit
import os
import shutil
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from benchsuite.analysis.judging.thresholds import NAMED_STEPS
from benchsuite.analysis.record_builder import Measuring
from benchsuite.contract.terminal import echo
from benchsuite.host.environment import file_system
from benchsuite.host.machine import this_machine
from benchsuite.inside.instruments import Instruments
from benchsuite.inside.loop import Loop
from benchsuite.inside.samples import RankSamples
from benchsuite.results.render.words import counted
from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import ResultsStore, StoreError
from benchsuite.storage.observe.file_systems import file_system_of
from benchsuite.watcher.answer import Told, caveats, figures, lines, record_of, saved_line
from benchsuite.watcher.ranks import Ranks

T = TypeVar("T")
WRITTEN = "written"
WITH_ACCELERATE = "; where Accelerate prepares loaders, watch what it returns: watch(accelerator.prepare(loader))"
ONCE = (
    "This line of your code watches a loader anew each time. Write `loader = benchsuite.watch(loader)` before the loop "
    "over epochs, and the steps of all epochs add up."
)
SHORT_S = 10.0
"""Steps of fewer seconds may be those of one epoch of many: they bear too few looks for a cause."""
RESTS = ". The steps of the next loader watched here are added. The answer comes with 30 steps, or at the end."


@dataclass
class Ending:
    """What is to be done when a loop has ended. It knows nothing of the Watch, whose end calls it."""

    instruments: Instruments
    begun: Measuring
    data: Path | None
    store: ResultsStore | None
    quiet: bool
    warmup_steps: int
    ranks: Ranks = field(default_factory=Ranks)
    pid: int = field(default_factory=os.getpid)
    cut_short_by: str | None = None
    figures: dict[str, Any] | None = None
    record: TrialRecord | None = None
    has_ended: bool = False
    is_again: bool = False
    """The line that watches this loader has watched one before, as in a loop over epochs."""
    asked: tuple[object, ...] = ()
    """What was to be watched, and how."""
    rests: bool = False
    """Its loader is gone, and the next one that is watched in the same way goes on with it."""
    goes_on: bool = False
    """It has rested before."""
    steps_told: int = 0
    kept: Path | None = None
    """The folder of the store in which the ranks keep what they have measured while they train."""

    @property
    def loop(self) -> Loop:
        """The loop that is watched."""
        return self.instruments.loop

    @property
    def may_rest(self) -> bool:
        """Whether its loop may be one over epochs that watches anew in each: it has too few steps to name a cause, or
        has been looked at too rarely.

        Ranks would have to agree on it; in a session at a prompt the answer is wanted at once.
        """
        steps = self.loop.steps
        is_short = self.goes_on or steps.num_steps < NAMED_STEPS or steps.seconds < SHORT_S
        can_be_told = self.loop.num_passes and self.ranks.world_size == 1 and not hasattr(sys, "ps1")
        return bool(is_short and can_be_told and self.pid == os.getpid())

    def rest(self) -> None:
        """Wait for the next loader; tell what is known each time that there are twice as many steps."""
        self.rests = True
        if self.loop.looker is not None:
            self.loop.looker.stop()
        steps = self.loop.steps.num_steps
        if self.quiet or steps < 2 * self.steps_told:
            return
        mine, told = self.mine(), self.told()
        if steps >= NAMED_STEPS:
            say(lines([mine], told, figures([mine], told)))
            self.steps_told = steps
        elif not self.goes_on:
            say([f"{told.name} · {counted(steps, 'step')} counted so far{RESTS}"])

    def conclude(self) -> None:
        """Sum up, print and store. What goes wrong here is a warning: the training that has ended is not ours."""
        if os.getpid() != self.pid:
            return
        self.has_ended = True
        if not self.loop.num_passes:
            self._never_iterated()
            return
        try:
            self.loop.finish()
            self._conclude()
        except Exception as error:
            say([f"warning: benchsuite.watch: {type(error).__name__}: {error}"])
        finally:
            if self.instruments.inside is not None:
                self.instruments.inside.remove()
            if self.kept is not None and not self.ranks.rank:
                shutil.rmtree(self.kept, ignore_errors=True)

    def _never_iterated(self) -> None:
        """Say that nothing was watched: a framework may have made a loader of its own of the one that was given."""
        if not self.quiet and _uncaught() is None:
            hint = WITH_ACCELERATE if "accelerate" in sys.modules else ""
            say([f"warning: benchsuite.watch: {self.begun.label}: the loader was never iterated{hint}"])

    def _conclude(self) -> None:
        self.cut_short_by = self.cut_short_by or _uncaught()
        mine = self.mine()
        ranks, missing = self.ranks.gathered(mine, wait=self.cut_short_by is None)
        told = self.told(missing if ranks is not None else None)
        counted = [rank for rank in ranks or [mine] if rank.blocks[0].num_steps]
        self.figures = figures(counted, told) if counted else {}
        if ranks is None:
            return
        reason = None if counted else self._why_none(told.num_uncounted)
        noted = caveats(counted, told) if counted else []
        self.record = record_of(self.begun, self.data, self.figures, noted, reason, len(ranks), told)
        where = self._stored(self.record, ranks)
        if not self.quiet and not (self.steps_told and self.loop.steps.num_steps == self.steps_told):
            say(lines(counted, told, self.figures) if counted else [f"{told.name} · {reason}"])
        if where is not None and not (self.quiet and where.startswith(WRITTEN)):
            say([where])
        if self.is_again and not self.quiet and self.loop.steps.num_steps < NAMED_STEPS:
            say([ONCE])

    def _why_none(self, num_uncounted: int) -> str:
        """Why no step counted, and what to change."""
        hint = f" (warmup_steps={self.warmup_steps}); train more steps, or give a smaller warmup_steps="
        if not num_uncounted:
            return "no step counted: none ended"
        return f"no step counted: {num_uncounted} steps ended, all of them warm-up{hint if self.warmup_steps else ''}"

    def _stored(self, record: TrialRecord, ranks: list[RankSamples]) -> str | None:
        """Append the record, where there is a store; a line that says where it is, or why it is not stored."""
        if self.store is None:
            return None
        try:
            self.record = self.store.append(record, {"ranks": [asdict(rank) for rank in ranks]})
        except StoreError as error:
            return f"warning: benchsuite.watch: not stored: {error}"
        return saved_line(self.store.path)

    def mine(self) -> RankSamples:
        """What this rank's loop has measured so far."""
        return self.instruments.samples(self.ranks.rank, self.instruments.seen_inside())

    def told(self, missing: tuple[int, ...] | None = None) -> Told:
        """What is known of the loop beside its measurements; without `missing`, of this rank's alone."""
        counted = None if self.data is None else file_system_of(file_system(self.data)["file_system"]).reads_counted
        cores = this_machine().cores
        alone = missing is None and self.ranks.world_size > 1
        loop = self.loop
        return Told(
            self.begun.label,
            missing or (),
            counted,
            self.cut_short_by,
            loop.num_replayed,
            cores,
            alone,
            loop.stamps.device,
            loop.num_passes,
            loop.num_uncounted,
            loop.before_s,
            loop.others_load_s / (loop.steps.seconds or 1.0),
        )


_places: "dict[tuple[object, ...], weakref.ref[Ending]]" = {}
"""The last watch of each line of the user's code that has watched a loader, by who called whom up to there."""


def begun_at(frame: FrameType, asked: tuple[object, ...], begin: Callable[[], Ending]) -> Ending:
    """The watch that this line goes on with: the one that rests, if it was asked for the same, else a new one."""
    place = tuple((one.f_code, line) for one, line in traceback.walk_stack(frame))
    before = _places[place]() if place in _places else None
    if before is not None and before.rests and before.pid == os.getpid():
        before.rests = False
        if before.asked == asked:
            before.goes_on = True
            return before
        conclude(before)
    ending = begin()
    ending.asked, ending.is_again = asked, place in _places
    _places[place] = weakref.ref(ending)
    return ending


class Token:
    """What every loader of one watch holds: when the last of them is dropped, the watch ends."""


_open: dict[int, Ending] = {}
"""The endings of watches that are still open."""
_passes: "weakref.WeakSet[Generator[Any, None, None]]" = weakref.WeakSet()
"""Passes that have been begun, and may be held."""


def begun(one: Generator[T, None, None]) -> Generator[T, None, None]:
    """A pass that is ended with the process at the latest, while Python is still whole."""
    _passes.add(one)
    return one


def ender(token: Token, ending: Ending) -> "weakref.finalize[Any, Any]":
    """What ends a watch: when it is closed, or when the last of its loaders is dropped; the end of the process does."""
    _open[id(ending)] = ending
    end = weakref.finalize(token, _dropped, ending)
    end.atexit = False  # its list may change while Python goes through it, which then ends nobody
    return end


def _dropped(ending: Ending) -> None:
    try:
        if id(ending) in _open and ending.may_rest:
            ending.rest()
            return
    except Exception as error:  # the training is not ours
        say([f"warning: benchsuite.watch: {type(error).__name__}: {error}"])
    conclude(ending)


def conclude(ending: Ending) -> None:
    """End a watch, once."""
    if _open.pop(id(ending), None) is not None:
        ending.conclude()


@atexit.register
def _end_all() -> None:
    for ending in list(_open.values()):
        conclude(ending)
    for one in list(_passes):
        with suppress(Exception):  # one that runs in another thread ends with it
            one.close()


def heed_sigterm() -> None:
    """Conclude all watches when this process is told to end, and then let it end as it would have.

    A handler that is there is called afterwards; one that comes later, or that ignores the signal, is left alone.
    """
    before: Any = signal.getsignal(signal.SIGTERM)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or before in (None, signal.SIG_IGN) or getattr(before, "is_of_watch", False):
        return

    def end(number: int, frame: FrameType | None) -> None:
        for ending in list(_open.values()):
            ending.cut_short_by = "SIGTERM"
            conclude(ending)
        if callable(before):
            before(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    end.is_of_watch = True  # type: ignore[attr-defined]
    signal.signal(signal.SIGTERM, end)


def say(said: list[str]) -> None:
    """Print to stderr, if there is one; one that cannot be written to ends no training."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            echo(*said, err=True)


def _uncaught() -> str | None:
    """The exception that is ending this process, as the interpreter notes it before it exits."""
    kind: type | None = getattr(sys, "last_type", None)
    return kind.__name__ if kind is not None and not hasattr(sys, "ps1") else None
