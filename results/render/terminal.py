"""Tables for terminals of any width: no number is cut; what has no room stands once above or below, or is named."""

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from benchsuite.results.render.tables import ABSENT, Column, Row, telling
from benchsuite.results.render.words import plain

DROPPED_FIRST = (
    "= load+h2d+fwd+bwd+comm+opt",
    "good is",
    "n",
    "from storage",
    "MB/s",
    "AU of the epoch",
    "tokens/s",
    "trial",
    "ms/step",
    "samples/s",
)
"""Columns that a narrow terminal does without, in this order. Their cells are never wrapped."""
MAX_WORD = 24
"""A text column is no wider than this for the sake of one long word."""
SHORT = 7
"""Headings up to this are not wrapped while there is room."""
NOTE = "note"


@dataclass(frozen=True)
class _Shown:
    """A column with its cells, each on one line."""

    heading: str
    cells: tuple[str, ...]
    right: bool = False
    footnote: bool = False
    is_whole: bool = False
    """Whether its cells are never wrapped, as those of numbers are not."""

    @property
    def least(self) -> int:
        """Characters it takes when wrapped between words."""
        cells = self.cells if self.is_whole else [word for cell in self.cells for word in cell.split()]
        most = max(map(cell_len, [*cells, *self.heading.split()]), default=0)
        return most if self.is_whole else min(most, MAX_WORD)

    @property
    def widest(self) -> int:
        """Characters it takes when nothing is wrapped."""
        return max(map(cell_len, (self.heading, *self.cells)))

    @property
    def natural(self) -> int:
        """Characters it takes when only its heading is wrapped."""
        return max([self.least, min(cell_len(self.heading), SHORT), *map(cell_len, self.cells)])


def fitting_table(
    found: Sequence[Row], columns: Sequence[Column], out: Console, dropped_first: Sequence[str] = DROPPED_FIRST
) -> RenderableType:
    """The table as `_fitted` makes it; in pipes and files no line ends in blanks, and none is blank.

    Args:
        found: its rows.
        columns: those that say anything are shown.
        out: where it is printed.
        dropped_first: headings that a narrow terminal does without, in this order.
    """
    fitted = _fitted(_shown(found, columns, dropped_first), out, dropped_first)
    if out.is_terminal:
        return fitted
    lines = out.render_lines(fitted, pad=False)
    text = "\n".join("".join(segment.text for segment in line).rstrip() for line in lines)
    return Text(text.strip("\n"), no_wrap=True, overflow="ignore")


def _fitted(whole: list[_Shown], out: Console, dropped_first: Sequence[str]) -> RenderableType:
    """The table as it is where there is room for it, else with all words and every number that fits.

    Columns that are the same in all rows then stand once above it, and remarks as numbered notes below it; text is
    wrapped between words, and the columns that still have no room are named. Where not even that fits, or for a single
    row not all of it, each row is a block of lines.
    """
    if sum(one.widest for one in whole) + 3 * len(whole) - 1 <= out.width:
        return _table(whole)
    shown, same = _folded(whole)
    notes: list[str] = []
    if _total(one.natural for one in shown) > out.width:
        shown, notes = _noted(shown)
    shown, gone = _dropped(shown, out.width, dropped_first)
    if _total(one.least for one in shown) > out.width or (gone and len(whole[0].cells) == 1):
        return Text(_blocks(whole))
    if gone:
        notes = [*notes, f"no room for {', '.join(gone)}: a wider terminal, or another --format, shows all"]
    return Group(*map(Text, same), _table(shown, out.width), *map(Text, notes))


def hanging(text: str, width: int) -> str:
    """A line wrapped between words; what follows is indented below it."""
    indent = " " * (len(text) - len(text.lstrip()) + 2)
    return textwrap.fill(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def say(out: Console, text: str, style: str = "") -> None:
    """Print one line, whatever names in it hold; on a terminal wrapped between words."""
    line = text.replace("\n", " ")
    out.print(Text(hanging(line, out.width) if out.is_terminal else line, style=style), soft_wrap=True)


def _shown(found: Sequence[Row], columns: Sequence[Column], dropped_first: Sequence[str]) -> list[_Shown]:
    """The columns that say anything."""
    return [
        _Shown(
            column.heading,
            tuple(_line(column.cell(row)) for row in found),
            column.right,
            column.footnote,
            is_whole=column.right or column.heading in dropped_first,
        )
        for column in telling(found, columns)
    ]


def _line(text: str) -> str:
    return " ".join(plain(text).split())


def _folded(shown: list[_Shown]) -> tuple[list[_Shown], list[str]]:
    """The columns that differ between rows, and a line of those that do not."""
    same = [one for one in shown if len(one.cells) > 1 and len({*one.cells}) == 1]
    rest = [one for one in shown if one not in same]
    if not same or not rest:
        return shown, []
    return rest, [f"in all rows: {' · '.join(f'{one.heading} {one.cells[0]}' for one in same)}"]


def _noted(shown: list[_Shown]) -> tuple[list[_Shown], list[str]]:
    """Remarks as one column of numbers, and what the numbers stand for."""
    remarks = [one for one in shown if one.footnote]
    if not remarks:
        return shown, []
    texts = dict.fromkeys(cell for one in remarks for cell in one.cells if cell not in ("", ABSENT))
    number = {text: str(place) for place, text in enumerate(texts, 1)}
    rows = zip(*(one.cells for one in remarks), strict=True)
    cells = tuple(" ".join(number[cell] for cell in row if cell in number) for row in rows)
    kept = [one for one in shown if not one.footnote]
    return [*kept, _Shown(NOTE, cells)], [f"{NOTE} {place}: {text}" for text, place in number.items()]


def _dropped(shown: list[_Shown], width: int, dropped_first: Sequence[str]) -> tuple[list[_Shown], list[str]]:
    """The columns that there is room for, and the headings of those left out."""
    kept, gone = shown, list[str]()
    for heading in dropped_first:
        if _total(one.least for one in kept) <= width:
            break
        left = [one for one in kept if one.heading != heading]
        if 0 < len(left) < len(kept):
            kept, gone = left, [*gone, heading]
    return kept, gone


def _total(widths: Iterable[int]) -> int:
    """Characters of a line of columns: two between them, and rich's padding after the last."""
    known = [*widths]
    return sum(known) + 2 * len(known) - 1


def _widths(shown: Sequence[_Shown], width: int) -> list[int]:
    """What each column gets: the widest are narrowed first, none below its least."""
    widths = [one.natural for one in shown]
    while _total(widths) > width:
        spare = [place for place, one in enumerate(shown) if widths[place] > one.least]
        if not spare:
            break
        widths[max(spare, key=lambda place: widths[place])] -= 1
    return widths


def _table(shown: Sequence[_Shown], width: int | None = None) -> Table:
    """The columns on lines of so many characters; without a width each is as wide as it would like to be."""
    if width is None:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    else:
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for one, most in zip(shown, [one.widest for one in shown] if width is None else _widths(shown, width), strict=True):
        lines = textwrap.wrap(one.heading, most or 1, break_long_words=False, break_on_hyphens=False)
        side: Literal["right", "left"] = "right" if one.right else "left"
        is_kept = width is None or one.right
        table.add_column("\n".join(lines), justify=side, width=most, no_wrap=is_kept, overflow="fold")
    for cells in zip(*(one.cells for one in shown), strict=True):
        table.add_row(*map(Text, cells))
    return table


def _blocks(shown: Sequence[_Shown]) -> str:
    """A block of lines per row, a line per column."""
    most = max(len(one.heading) for one in shown)
    rows = zip(*(one.cells for one in shown), strict=True)
    blocks = [[f"{one.heading:<{most}}  {cell}" for one, cell in zip(shown, cells, strict=True)] for cells in rows]
    return "\n\n".join("\n".join(lines) for lines in blocks)
