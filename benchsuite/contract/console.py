"""The console of rich, for tables and moving lines, safe for names that others have chosen."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import TextColumn
from rich.segment import Segment

from benchsuite.contract.terminal import one_line, visible
from benchsuite.results.render.plain import UNLIMITED_WIDTH as UNLIMITED_WIDTH

TITLE = TextColumn("{task.description}", markup=False)
"""Of a progress bar: a path in it may hold braces and brackets."""


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
    """Standard output, wide where it is not a terminal."""
    out = SafeConsole(highlight=False)
    return out if out.is_terminal else SafeConsole(highlight=False, width=UNLIMITED_WIDTH)
