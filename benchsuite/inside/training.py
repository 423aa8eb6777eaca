"""The training of this process, as its calls of torch tell it: where its steps begin and end, and what they consist of.

A step begins when the loop asks for a batch. It ends when the loop asks for the next one after a backward pass or an
optimizer's step; all batches that it asks for before that are of the one step. Loaders whose batches are followed by
neither, as those of a validation, are told from those that are trained on, and what runs between is no step. Where the
thread that trains asks no loader, a step ends when the first optimizer has stepped.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Hashable
from threading import get_ident
from typing import Any

from .instruments import Instruments
from .loop import Loop
from .timestamps import HostStamps
from .wall_time import WallTime, process_began_s

FEW_ASKED = 2
"""Batches of a loader that are asked for before a backward pass: frameworks ask for one ahead."""
MANY_ASKED = 16
"""Batches in a row without a backward pass: this is a validation, though on a loader that is trained on."""
WITHOUT_LOADER = "without a loader"
"""The one pass of a loop that asks no loader."""
Begin = Callable[[Any], Instruments]


class Training:
    """What this process trains, one loop after another as one."""

    def __init__(self, begin: Begin, began_s: Callable[[], float] = process_began_s) -> None:
        """Wait for the first backward pass.

        Args:
            begin: makes the instruments, of the iterator whose batch was the first to be trained on; None where the
                thread that trains has asked for none.
            began_s: says when this process began.
        """
        self._begin, self._began_s = begin, began_s
        self.begin_anew()

    def begin_anew(self) -> None:
        """Know of no training: one may begin."""
        self.instruments: Instruments | None = None
        self._loop: Loop
        """That of the instruments."""
        self.wall: WallTime
        """Where the process's time goes, once it trains."""
        self._asked_s = self._received_s = 0.0
        """When it last asked for a batch, and got one, before it trained."""
        self._thread = self._asking_thread = 0
        """Which trains, once one does, and which has asked for a batch."""
        self._trained_on = set[Hashable]()
        self._asked = Counter[Hashable]()
        """How often each loader was asked since the last backward pass."""
        self._last: Hashable = None
        """Which was asked last of these."""
        self._has_trained = False
        """Whether a backward pass or an optimizer's step has come since the last batch was asked for."""
        self._part = "forward"
        """What is under way in the step's body."""
        self._parts: list[str] = []
        """Backward passes, optimizers' steps and exchanges that are under way, one within another."""
        self._has_computed = False
        """Whether the backward pass under way has computed."""
        self._loading = self._counts = False
        """Whether a batch is being made, and whether it is one of a step."""
        self._optimizer: int | None = None
        self._beside = set[Hashable]()
        """Loaders that were asked once before the last backward pass, beside the one that was asked last."""
        self._perhaps: Hashable = None
        """A loader that was asked for many batches before the last backward pass."""
        self._held: dict[Hashable, Any] = {}
        self._iterator: weakref.ReferenceType[Any] | None = None
        """What was asked last; it is the job's to keep, as its workers end with it."""
        self._asked_loader: Hashable = None
        """Whose iterator that is."""
        self._pass: Hashable = None

    def open(self, loader: Hashable) -> None:
        """Note that the loop begins to iterate over a loader."""
        if self._loading or get_ident() != self._thread:
            return
        before, trained_on = self._pass, self._turn_to(loader)
        if trained_on and before == loader:  # it was left in its middle
            self._loop.close_pass()
            self._begin_pass(loader)
        self.wall.turn_to("input" if trained_on else "validation")

    def ask(self, iterator: Any, key_of: Callable[[Any], Hashable]) -> tuple[bool, Any]:
        """Note that the loop asks for a batch; whether it is to get the one before again, and that one.

        `key_of`: what an iterator has in common with those of other passes over its loader.
        """
        if self._loading or (self.instruments is not None and get_ident() != self._thread):
            return False, None
        if self._iterator is None or self._iterator() is not iterator:
            self._iterator, self._asked_loader = weakref.ref(iterator, self._note_left), key_of(iterator)
        loader = self._asked_loader
        self._loading, self._counts = True, self.instruments is not None and self._turn_to(loader)
        self._asking_thread = get_ident()
        self._asked[loader] += 1
        self._last = loader
        if self._counts and self._loop.in_body:
            self._loop.mark(self._part)  # of a step that asks for more than one batch
        if self.instruments is None:
            self._asked_s = HostStamps.now()
        else:
            self.wall.turn_to("input" if self._counts else "validation")
        again = self._counts and self._loop.ask()
        return again, self._held.get(loader)

    def receive(self, iterator: Any, batch: Any) -> None:
        """Note that the batch that was asked for has come."""
        if not self._is_asked_by(iterator):
            return
        self._loading = False
        if self.instruments is None:
            self._received_s = HostStamps.now()
        if self._counts:
            self.wall.turn_to("training")
            self._loop.receive(batch, iterator)
            if self._loop.keeps_batch:
                self._held[self._asked_loader] = batch

    def run_out(self, iterator: Any) -> None:
        """Note that there is no more, or that the loader has failed."""
        if not self._is_asked_by(iterator):
            return
        loader = self._asked_loader
        self._loading = False
        del self._asked[loader]
        self._last = None if self._last == loader else self._last
        if self._counts:
            self._loop.run_out()
            self._loop.close_pass()
            self._pass = None
        if self.instruments is not None:
            self.wall.turn_to("other")

    def _note_left(self, iterator: weakref.ReferenceType[Any]) -> None:
        """Note that the loop has left an iterator: after the batch was trained on, the step is over."""
        if (
            get_ident() == self._thread
            and iterator is self._iterator
            and self._has_trained
            and self.wall.part == "training"
        ):
            self.wall.turn_to("other")

    def begin_call(self, part: str) -> str | None:
        """Note that the job calls something that is no part of a step; the part that it was in, where that counts."""
        if get_ident() != self._thread:
            return None
        before = self.wall.part
        self.wall.turn_to(part)
        return before

    def end_call(self, before: str | None) -> None:
        """Note its end; `before`: what `begin_call` gave."""
        if before is not None:
            self.wall.turn_to(before)

    def _is_asked_by(self, iterator: Any) -> bool:
        """Whether this is the end of what `ask` began: loaders within loaders, and other threads', are none of ours."""
        asked = None if self._iterator is None else self._iterator()
        return self._loading and asked is iterator and get_ident() == self._asking_thread

    def begin_part(self, part: str, optimizer: int | None = None) -> None:
        """Note that a backward pass, an optimizer's step or an exchange begins that its caller waits for."""
        if self.instruments is None and part != "communication":
            self._begin_to_watch()
        if get_ident() != self._thread:
            return
        if part != "communication":
            if not self._has_trained:
                self._learn()
            self._has_trained = True
            self._optimizer = self._optimizer or optimizer
        outer = self._parts[-1] if self._parts else None
        if outer != part:
            self._loop.mark("forward" if part == "backward" else outer or self._part)
        self._parts.append(part)

    def end_part(self, part: str, optimizer: int | None = None) -> None:
        """Note its end."""
        if get_ident() != self._thread or part not in self._parts:
            return
        while self._parts.pop() != part:
            pass
        if not self._parts or self._parts[-1] != part:
            self._loop.mark("communication" if part == "backward" and self._has_computed else part)
            self._has_computed = False
        if self._parts:
            return
        if part != "communication":
            self._part = "other"
        if optimizer is not None and optimizer == self._optimizer and not self._trained_on:
            self._end_step()
            if self._pass is None:
                self._begin_pass(WITHOUT_LOADER)
            self._loop.resume(False)
            self._loop.begin_body(loads=False)

    def note_computed(self) -> None:
        """Note that the backward pass under way has computed: what is left of it is the exchange of gradients.

        It may be another thread that says so, while the one that trains waits.
        """
        if self._parts == ["backward"] or self._parts[-2:] == ["optimizer", "backward"]:
            self._loop.mark("backward")
            self._has_computed = True

    def _begin_to_watch(self) -> None:
        self._thread = get_ident()
        if self._asking_thread != self._thread:
            self._iterator, self._asked, self._last, self._loading = None, Counter(), None, False
        self.wall = WallTime(self._began_s())
        if self._iterator is not None:
            self.wall.turn_to("input", self._asked_s)
            self.wall.turn_to("training", self._received_s)
        else:
            self.wall.turn_to("training")
        self.instruments = self._begin(None if self._iterator is None else self._iterator())
        self._loop = self.instruments.loop
        self._loop.num_uncounted += 1  # the step under way

    def _learn(self) -> None:
        """Note which of the loaders that were asked have given what is trained on.

        One that was asked for many batches, or before the last one, may have been validated with. Where that comes
        before two backward passes in a row, it is trained on.
        """
        last = self._last
        if len(self._asked) == 1 and last in self._trained_on and not self._beside:  # as in nearly every step
            self._perhaps = last
            return
        beside = {each for each, count in self._asked.items() if count == 1 and each != last}
        self._trained_on |= beside & self._beside
        if last is not None and (self._asked[last] <= FEW_ASKED or last == self._perhaps):
            self._trained_on.add(last)
        self._beside, self._perhaps = beside, last

    def _turn_to(self, loader: Hashable) -> bool:
        """End the step before, if there was one, and begin one; whether this loader's batches are trained on."""
        trained_on = loader in self._trained_on and self._asked[loader] < MANY_ASKED
        if self._has_trained:
            self._end_step()
        self._part = "forward"
        if not trained_on:
            self._loop.pause()
            return False
        if self._pass in (None, WITHOUT_LOADER):
            self._loop.close_pass()
            self._begin_pass(loader)
        self._loop.resume(loader in self._held)
        return True

    def _begin_pass(self, loader: Hashable) -> None:
        self._pass = loader
        self._loop.begin_pass()

    def _end_step(self) -> None:
        if self._loop.in_step:
            self._loop.end_step(bool(self._held))
        self._asked.clear()
        self._has_trained, self._last, self._part = False, None, "forward"
