"""What models say beside the measurements, as plain data: whoever has the models hands it to the report."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchsuite.results.render.tables import Row
    from benchsuite.results.scaling.series import Series

MAX_TICKS = 14


@dataclass(frozen=True)
class Predicted:
    """A scaling series with the curve of a model fitted to it."""

    series: "Series"
    title: str
    rows: Sequence["Row"] = ()
    """By ranks: `samples_per_s` and `efficiency`, each with `_low` and `_high`, the ends of the 90 % interval."""
    lines: Sequence[str] = ()
    """What the curve rests on."""
    problem: str | None = None
    """Why there is no curve."""

    @property
    def ticks(self) -> list[int]:
        """The ranks measured, and powers of two beyond; some of them where they are many."""
        measured = {point.ranks for point in self.series.points if point.trials}
        last = int(max([*measured, *(row["ranks"] for row in self.rows)]))
        found = sorted(measured | {2**power for power in range(last.bit_length()) if max(measured) < 2**power <= last})
        return found[:: -(-len(found) // MAX_TICKS)]


@dataclass(frozen=True)
class Slot:
    """A piece of work on one stage of a pipeline."""

    stage: int
    kind: str
    """F forward, B backward (of the input alone where W is apart), W gradient of the weights."""
    microbatch: int
    chunk: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class PipelineStep:
    """One step of a pipeline as its schedule has it, at measured durations."""

    title: str
    slots: Sequence[Slot]
    lines: Sequence[str] = ()
    session: str | None = None
    point_id: str | None = None
    """The point it belongs to; None: none."""
    timed: bool = True
    """Durations are seconds; else units of one forward pass."""


@dataclass(frozen=True)
class StorageCurve:
    """A series that reads from storage, with its predicted utilization."""

    name: str
    series: "Series"
    ranks: Sequence[float] = ()
    au: Sequence[float] = ()
    """By those ranks; empty where none is predicted."""


@dataclass(frozen=True)
class StorageKnee:
    """A series that reads from a shared file system, and the same from node-local copies."""

    title: str
    curves: Sequence[StorageCurve]
    """The shared one first."""
    knee_ranks: float | None = None
    """Where throughput stops to grow; None where no limit of the file system was seen."""
    lines: Sequence[str] = ()


@dataclass(frozen=True)
class Modelled:
    """All that models add to a report."""

    predicted: Sequence[Predicted] = ()
    pipelines: Sequence[PipelineStep] = ()
    knees: Sequence[StorageKnee] = ()
    unpredicted: str = ""
    """How many series more there are than are predicted; empty where all are."""
    undrawn: str = ""
    """The same of pipelines."""


NOTHING = Modelled()
