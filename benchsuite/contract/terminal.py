"""The one way by which text leaves for a terminal, a log or a pipe.

Names of files, samples, sweeps and hosts, and records of others, may hold what moves a terminal's cursor, hides text
or forges lines. So what people read goes through `echo` (or `console.SafeConsole`, which draws tables), and what
programs read through `document`. A stream that cannot be written to ends no verb: `ready` makes the streams so.
"""

import errno
import io
import os
import re
import select
import sys
from typing import Any, Literal, TextIO

from benchsuite.contract.exit_codes import OK, USAGE

PlainFormat = Literal["table", "json"]
"""How what is not a table is printed."""
TableFormat = Literal["table", "json", "csv", "md"]
HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)
"""Controls but tab and newline, what turns the direction of text, other ends of lines, halves of characters."""


def visible(text: str) -> str:
    """A text with what a terminal must not get as Python writes it: ESC is \\x1b. Tabs and newlines stay."""
    return HARMFUL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """A text for one line: a newline in a name must not pass for the end of ours."""
    return visible(text.rstrip("\n").replace("\n", " "))


def echo(*lines: str, err: bool = False) -> None:
    """Print lines for people; `err`: on standard error."""
    _write("".join(f"{one_line(line)}\n" for line in lines), sys.stderr if err else sys.stdout)


def document(text: str) -> None:
    """Print what programs read (JSON, CSV, Markdown, YAML): as it is, but made visible on a terminal."""
    _write(f"{visible(text) if sys.stdout.isatty() else text}\n", sys.stdout)


def _write(text: str, stream: TextIO) -> None:
    stream.write(text)
    stream.flush()  # a log may have both streams: keep their order


class _Outlet(io.FileIO):
    """A standard stream that swallows what it cannot write, and knows why: a verb that measures goes on."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.failure: OSError | None = None
        self._was_terminal = os.isatty(descriptor)

    def write(self, data: Any, /) -> int:
        """Write, or do as if."""
        while self.failure is None:
            try:
                if (written := super().write(data)) is not None:
                    return written
                select.select([], [self], [])  # another program has made the terminal non-blocking
            except OSError as error:
                self.failure = error
        return memoryview(data).nbytes

    @property
    def is_unread(self) -> bool:
        """Whether nobody wanted more: the reader of a pipe has gone, or the terminal."""
        return self.failure is not None and (self.failure.errno == errno.EPIPE or self._was_terminal)


def ready() -> None:
    """Make the standard streams fit for whatever is printed; characters that their encoding lacks are escaped.

    A stream that was closed leads nowhere: its number must not go to a file that is opened later.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdout, sys.stderr = _stream(1, sys.stdout), _stream(2, sys.stderr)


def _stream(descriptor: int, before: TextIO | None) -> TextIO:
    if before is not None:
        before.flush()
    buffer = io.BufferedWriter(_Outlet(descriptor))
    encoding = "utf-8" if before is None else before.encoding
    lines = descriptor == 2 or os.isatty(descriptor)
    return io.TextIOWrapper(buffer, encoding, errors="backslashreplace", line_buffering=lines)


def finished(code: int) -> int:
    """The exit code of a verb that would end with `code`, once all was printed: not 0 where that was not possible."""
    sys.stdout.flush()
    outlet = sys.stdout.buffer.raw if isinstance(sys.stdout, io.TextIOWrapper) else None
    if isinstance(outlet, _Outlet) and outlet.failure is not None and not outlet.is_unread:
        echo(f"error: standard output: {outlet.failure.strerror}", err=True)
        return USAGE if code == OK else code
    return code
