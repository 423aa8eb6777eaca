"""The console of rich, for tables and moving lines, safe for names that others have chosen."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment

from benchsuite.contract.terminal import echo, one_line, visible
from benchsuite.results.render.words import UNLIMITED_WIDTH as UNLIMITED_WIDTH

OnProgress = Callable[[int, int], None]
"""Called with what is done, and with all there is: 0 where that is not known."""


class SafeConsole(Console):
    """Writes no control characters but its own."""

    def print(self, *objects: Any, **how: Any) -> None:
        """Print objects; a text is one line."""
        super().print(*(one_line(given) if isinstance(given, str) else given for given in objects), **how)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of an object; what it holds of its own to move the cursor are controls, and stay."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


def console() -> SafeConsole:
    """Standard output, wide where it is not a terminal, unless COLUMNS says how wide."""
    out = SafeConsole(highlight=False)
    given = os.environ.get("COLUMNS", "").isdigit()
    return out if out.is_terminal or given else SafeConsole(highlight=False, width=UNLIMITED_WIDTH)


@contextmanager
def progress_bar(title: str, tells_quarters: bool = False) -> Iterator[OnProgress]:
    """A bar on standard error; without a terminal nothing, or a line for each quarter."""
    out = SafeConsole(stderr=True)
    if not out.is_terminal:
        yield partial(_say_quarters, title) if tells_quarters else lambda done, total: None
        return
    words = TextColumn("{task.description}", markup=False)  # a path in it may hold braces and brackets
    columns = (words, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out, transient=not tells_quarters) as progress:
        task = progress.add_task(title)
        yield lambda done, total: progress.update(task, completed=done, total=total or None)


def _say_quarters(title: str, done: int, total: int) -> None:
    if total and done * 4 // total > (done - 1) * 4 // total:
        echo(f"{title}: {done}/{total}", err=True)
