"""What models say beside the measurements, as plain data: whoever has the models hands it to the report."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchsuite.results.render.tables import Row
    from benchsuite.results.scaling.series import Series

MAX_TICKS = 14
IDLE, GOES_ON = ".", "-"


@dataclass(frozen=True)
class Predicted:
    """A scaling series with the curve of a model fitted to it."""

    series: "Series"
    title: str
    rows: Sequence["Row"] = ()
    """Rows by ranks: `samples_per_s` and `efficiency`, each with `_low` and `_high`, the ends of the 90 % interval."""
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
    """Utilization at those ranks; empty where none is predicted."""


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
    """How many pipelines more there are than are drawn; empty where all are."""


NOTHING = Modelled()


def schedule_text(slots: Sequence[Slot], width: int) -> str:
    """A row per stage, a cell for as long as the shortest piece of work: F0 the forward pass of microbatch 0.

    Lower case: a later chunk; dashes: it goes on; dots: a bubble. Cut into blocks where it is wider than `width`.
    """
    cell_s = min(slot.end_s - slot.start_s for slot in slots)
    rows = _rows(slots, cell_s)
    size = 1 + max(len(cell) for row in rows for cell in row)
    names = [f"stage {stage} " for stage in range(len(rows))]
    margin = max(map(len, names))
    count = max(1, (width - margin) // size)
    blocks = [
        "\n".join(
            f"{name:<{margin}}{''.join(f'{cell:<{size}}' for cell in row[start : start + count]).rstrip()}"
            for name, row in zip(names, rows, strict=True)
        )
        for start in range(0, len(rows[0]), count)
    ]
    return "\n\n".join(blocks)


def _rows(slots: Sequence[Slot], cell_s: float) -> list[list[str]]:
    total = round(max(slot.end_s for slot in slots) / cell_s)
    longest = max(len(str(slot.microbatch)) for slot in slots) + 1
    rows = [[IDLE] * total for _ in range(1 + max(slot.stage for slot in slots))]
    for slot in slots:
        first, last = round(slot.start_s / cell_s), round(slot.end_s / cell_s)
        letter = slot.kind.lower() if slot.chunk else slot.kind
        rows[slot.stage][first:last] = [f"{letter}{slot.microbatch}"] + [GOES_ON * longest] * (last - first - 1)
    return rows
