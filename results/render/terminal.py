"""Tables for terminals of any width: no number is cut; what has no room stands once above or below, or is named."""

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
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
    """The table as `_fitted` makes it. No line ends in blanks, and none is blank.

    Args:
        found: its rows.
        columns: those that say anything are shown.
        out: where it is printed.
        dropped_first: headings that a narrow terminal does without, in this order.
    """
    return _fitted(_shown(found, columns, dropped_first), out, dropped_first)


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
    return Group(*_paragraphs(same, out.width), _table(shown, out.width), *_paragraphs(notes, out.width))


def _paragraphs(texts: Iterable[str], width: int) -> list[Text]:
    filled = (textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False) for text in texts)
    return [Text(text, no_wrap=True, overflow="ignore") for text in filled]


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


def _table(shown: Sequence[_Shown], width: int | None = None) -> Text:
    """The columns on lines of so many characters; without a width each is as wide as it would like to be.

    Lines are put together here: rich's `Table` takes a second for a thousand rows.
    """
    widths = [one.widest for one in shown] if width is None else _widths(shown, width)
    gap, edge = ("   ", " ") if width is None else ("  ", "")
    headings = [_wrapped(one.heading, most or 1, True) for one, most in zip(shown, widths, strict=True)]
    wraps = [width is not None and not one.right for one in shown]
    most_lines = max(map(len, headings), default=0)
    lines = _lines([[""] * (most_lines - len(each)) + each for each in headings], shown, widths, gap)
    lines.append("─" * (sum(widths) + len(gap) * (len(widths) - 1)))
    for cells in zip(*(one.cells for one in shown), strict=True):
        wrapped = [_wrapped(*each) for each in zip(cells, widths, wraps, strict=True)]
        lines += _lines(wrapped, shown, widths, gap)
    text = Text("\n".join((edge + line).rstrip() for line in lines), no_wrap=True, overflow="ignore")
    text.stylize("bold", 0, sum(len((edge + line).rstrip()) + 1 for line in lines[:most_lines]))
    return text


def _wrapped(cell: str, width: int, wraps: bool) -> list[str]:
    """A cell's lines: between words, and within one that is wider than its column."""
    if not wraps or cell_len(cell) <= width:
        return [cell]
    return [line.plain for line in Text(cell).wrap(Console(width=width), width, overflow="fold")]


def _lines(cells: Sequence[Sequence[str]], shown: Sequence[_Shown], widths: Sequence[int], gap: str) -> list[str]:
    """One row of a table: as many lines as its highest cell has."""
    found = []
    for parts in zip_longest(*cells, fillvalue=""):
        blanks = [" " * (most - cell_len(part)) for part, most in zip(parts, widths, strict=True)]
        sides = zip(parts, blanks, shown, strict=True)
        found.append(gap.join(blank + part if one.right else part + blank for part, blank, one in sides))
    return found


def _blocks(shown: Sequence[_Shown]) -> str:
    """A block of lines per row, a line per column."""
    most = max(len(one.heading) for one in shown)
    rows = zip(*(one.cells for one in shown), strict=True)
    blocks = [[f"{one.heading:<{most}}  {cell}" for one, cell in zip(shown, cells, strict=True)] for cells in rows]
    return "\n\n".join("\n".join(lines) for lines in blocks)
