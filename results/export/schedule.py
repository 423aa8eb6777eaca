"""A pipeline's schedule as text for a terminal, and as SVG for a paper."""

from collections.abc import Iterator, Sequence
from html import escape

from benchsuite.results.charts.pipeline import KINDS, LATER_CHUNK
from benchsuite.results.render.plain import plain
from benchsuite.results.report.modelled import Slot

LEFT, TOP, ROW, UNIT = 70, 34, 26, 26
"""Pixels beside and above the bars, of a stage, and of the shortest piece of work."""
FONT = "font-family='sans-serif' font-size='11'"
IDLE, GOES_ON = ".", "-"


def text(slots: Sequence[Slot], width: int) -> str:
    """A row per stage, a cell for as long as the shortest piece of work: F0 the forward pass of microbatch 0.

    Lower case: a later chunk; dashes: it goes on; dots: a bubble. Cut into blocks where it is wider than `width`.
    """
    cell_s = _shortest(slots)
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


def _shortest(slots: Sequence[Slot]) -> float:
    return min(slot.end_s - slot.start_s for slot in slots)


def _rows(slots: Sequence[Slot], cell_s: float) -> list[list[str]]:
    total = round(max(slot.end_s for slot in slots) / cell_s)
    longest = max(len(str(slot.microbatch)) for slot in slots) + 1
    rows = [[IDLE] * total for _ in range(1 + max(slot.stage for slot in slots))]
    for slot in slots:
        first, last = round(slot.start_s / cell_s), round(slot.end_s / cell_s)
        letter = slot.kind.lower() if slot.chunk else slot.kind
        rows[slot.stage][first:last] = [f"{letter}{slot.microbatch}"] + [GOES_ON * longest] * (last - first - 1)
    return rows


def svg(slots: Sequence[Slot], title: str) -> str:
    """One figure; the same schedule gives the same bytes."""
    scale = UNIT / _shortest(slots)
    stages = 1 + max(slot.stage for slot in slots)
    width = LEFT + 10 + scale * max(slot.end_s for slot in slots)
    height = TOP + ROW * stages + 34
    return "\n".join(
        [
            f"<svg xmlns='http://www.w3.org/2000/svg' width='{width:.0f}' height='{height}' {FONT}>",
            f"<rect width='{width:.0f}' height='{height}' fill='white'/>",
            f"<text x='{LEFT}' y='20' font-size='13'>{escape(plain(title))}</text>",
            *(f"<text x='8' y='{TOP + ROW * n + 17}'>stage {n}</text>" for n in range(stages)),
            *(_box(slot, scale) for slot in slots),
            *_legend({slot.kind for slot in slots}, TOP + ROW * stages + 12),
            "</svg>\n",
        ]
    )


def _box(slot: Slot, scale: float) -> str:
    x, wide, y = LEFT + scale * slot.start_s, scale * (slot.end_s - slot.start_s), TOP + ROW * slot.stage
    opacity = LATER_CHUNK if slot.chunk else 1
    fill = f"fill='rgb({KINDS[slot.kind][1]})' fill-opacity='{opacity}' stroke='white'"
    ink = "black" if slot.chunk or slot.kind == "B" else "white"
    return (
        f"<rect x='{x:.1f}' y='{y}' width='{wide:.1f}' height='{ROW - 4}' {fill}/>"
        f"<text x='{x + wide / 2:.1f}' y='{y + 15}' text-anchor='middle' fill='{ink}'>{slot.microbatch}</text>"
    )


def _legend(kinds: set[str], y: int) -> Iterator[str]:
    for place, kind in enumerate(kind for kind in KINDS if kind in kinds):
        name, color = KINDS[kind]
        x = LEFT + 110 * place
        yield f"<rect x='{x}' y='{y}' width='12' height='12' fill='rgb({color})'/>"
        yield f"<text x='{x + 17}' y='{y + 10}'>{name}</text>"
