"""What of ours runs within someone else's training can do it no harm: an error is one line, and then it is off."""

import sys
from collections.abc import Callable
from typing import Any


class Guard:
    """Wraps notes of one kind of measuring."""

    def __init__(self, what_ends: str) -> None:
        self.what_ends = what_ends
        """What is no longer done after an error, in words."""
        self.is_off = False

    def __call__(self, note: Callable[..., Any], default: Any = None) -> Callable[..., Any]:
        """A note that raises nothing; where it fails, and from then on, it gives the default."""

        def guarded(*arguments: Any) -> Any:
            if self.is_off:
                return default
            try:
                return note(*arguments)
            except Exception as error:
                self._give_up(error)
                return default

        return guarded

    def _give_up(self, error: Exception) -> None:
        self.is_off = True
        sys.stderr.write(f"{self.what_ends}: {type(error).__name__}: {error}\n")
