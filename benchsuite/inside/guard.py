"""What of ours runs within someone else's training can do it no harm: an error is one line, and then it is off."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass
class Spent:
    """What measuring has taken of a loop's thread."""

    seconds: float = 0.0

    def on(self, note: Callable[..., T], *arguments: Any) -> T:
        """What a note gives, timed."""
        began_s = time.perf_counter()
        try:
            return note(*arguments)
        finally:
            self.seconds += time.perf_counter() - began_s


class Guard:
    """Wraps notes of one kind of measuring, and times them."""

    def __init__(self, what_ends: str) -> None:
        self.what_ends = what_ends
        """What is no longer done after an error, in words."""
        self.is_off = False
        self.spent = Spent()

    def __call__(self, note: Callable[..., Any], default: Any = None, is_timed: bool = True) -> Callable[..., Any]:
        """A note that raises nothing; where it fails, and from then on, it gives the default.

        `is_timed`: it is made in the loop's thread, and by no other note.
        """

        def guarded(*arguments: Any) -> Any:
            if self.is_off:
                return default
            began_s = time.perf_counter()
            try:
                return note(*arguments)
            except Exception as error:
                self._give_up(error)
                return default
            finally:
                if is_timed:
                    self.spent.seconds += time.perf_counter() - began_s

        return guarded

    def _give_up(self, error: Exception) -> None:
        self.is_off = True
        sys.stderr.write(f"{self.what_ends}: {type(error).__name__}: {error}\n")
