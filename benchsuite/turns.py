"""Whose turn it is: trials of a plan that no other sweep of the session holds, until none is left to wait for."""

import time
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from benchsuite.claims import Claims, Held, Holding

T = TypeVar("T")
POLLS_PER_LEASE = 60
MAX_POLL_S = 1.0


class Turns(Generic[T]):
    """Items with the trials that they stand for, each with the claim that was taken on it.

    What others hold is asked for again after all else, and in the end until its holder either moves, and is left alone
    with it, or does not for as long as its lease, and is relieved of it. Items that are not allowed when their turn
    comes are never claimed.
    """

    def __init__(
        self, todo: list[tuple[int, T, str]], claims: Claims, allows: Callable[[T], bool] = lambda item: True
    ) -> None:
        self._todo, self._claims, self._allows = todo, claims, allows
        self.held: list[Held] = []
        """What was left to others, once all turns are over."""
        self.late: list[T] = []
        """What nobody had when its turn came, and was not allowed."""

    def __iter__(self) -> Iterator[tuple[int, T, Holding]]:
        waiting = self._todo
        while waiting:
            taken, others = False, []
            for number, item, trial in waiting:
                found = self._claims.take(trial) if self._allows(item) else self._claims.look(trial)
                if isinstance(found, Holding):
                    taken = True
                    yield number, item, found
                elif found == "free":
                    self.late.append(item)
                elif found is not None:
                    others.append(((number, item, trial), found))
            if not taken:
                self.held += [held for _, held in others if held.alive]
                others = [(each, held) for each, held in others if not held.alive]
                if others:
                    time.sleep(min(MAX_POLL_S, self._claims.lease_s / POLLS_PER_LEASE))
            waiting = [each for each, _ in others]
