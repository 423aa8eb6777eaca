"""Where the wall time of a process that trains goes, from its beginning to its end: each moment to one part."""

import os
import time
from collections import defaultdict

from .processes import born_s
from .timestamps import HostStamps

WALL_PARTS = ("start_up", "training", "input", "validation", "checkpoints", "logging", "other", "end")
"""Until the first batch that is trained on is asked for; steps without their wait for input; that wait; loaders that
are not trained on, with all until the next batch that is; calls that save and that log; between passes; after the last
step."""


def process_began_s() -> float:
    """When this process began, by the clock of steps."""
    return time.perf_counter() - (time.clock_gettime(time.CLOCK_BOOTTIME) - born_s(os.getpid()))


class WallTime:
    """Turns from one part to the next as the training goes."""

    def __init__(self, began_s: float) -> None:
        self.part = "start_up"
        self._since_s, self._seconds = began_s, defaultdict[str, float](float)

    def turn_to(self, part: str, at_s: float | None = None) -> None:
        """Begin a part now, or at a moment that is past."""
        now_s = HostStamps.now() if at_s is None else at_s
        self._seconds[self.part] += now_s - self._since_s
        self.part, self._since_s = part, now_s

    def told(self) -> dict[str, float]:
        """Seconds of each part so far; what is still between passes may be the end."""
        found = defaultdict(float, self._seconds)
        found["end" if self.part == "other" else self.part] += HostStamps.now() - self._since_s
        return {part: found[part] for part in WALL_PARTS if part in found}
