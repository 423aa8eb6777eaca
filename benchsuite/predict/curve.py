"""Measured points of a scaling series: what a prediction is fitted to."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

Kind = Literal["weak", "strong"]
MIN_SCALES = 2


@dataclass(frozen=True)
class Point:
    """What was measured at a number of ranks."""

    ranks: int
    step_s: tuple[float, ...]
    """Seconds of a step, of each repeat."""
    au: float | None = None
    """Accelerator utilization; None where it was not measured."""

    @property
    def middle_s(self) -> float:
        """Seconds at the median rate, which `scaling` prints too; of an even number of repeats, not the median step."""
        return float(1 / np.median(1 / np.array(self.step_s)))


@dataclass(frozen=True)
class Curve:
    """A series of points that differ in their ranks alone."""

    title: str
    kind: Kind
    """weak: the batch of a rank is fixed; strong: that of all ranks."""
    batch: float
    """Samples per step: of a rank that has samples of its own (weak), of all (strong)."""
    points: tuple[Point, ...]
    """By number of ranks."""
    data_share: float = 1.0
    """Ranks with samples of their own over ranks."""
    notes: tuple[str, ...] = ()
    """What its user must know of the measurements: caveats, and what they cannot tell of more ranks."""

    def samples(self, ranks: float) -> float:
        """Samples per step of all ranks."""
        return self.batch * ranks * self.data_share if self.kind == "weak" else self.batch

    @property
    def most_ranks(self) -> int:
        """The largest scale."""
        return max(point.ranks for point in self.points)
