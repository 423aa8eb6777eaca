"""A pipeline's schedule as text for a terminal."""

from collections.abc import Sequence

from benchsuite.results.report.modelled import Slot

IDLE, GOES_ON = ".", "-"


def text(slots: Sequence[Slot], width: int) -> str:
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
