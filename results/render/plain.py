"""Texts from logs and names from users, made fit for documents."""

import re
from collections.abc import Sequence

TERMINAL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
UNFIT = re.compile(
    "[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
    "|[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e007f]"
)
"""Characters that XML 1.0 has no way to write; other controls, and what turns the direction of text."""


def plain(text: str) -> str:
    """A text without what documents cannot hold: control characters, colours of terminals, lone surrogates."""
    return UNFIT.sub("", TERMINAL.sub("", text))


def and_(words: Sequence[str]) -> str:
    """Words as a list in a sentence."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def counted(count: int, noun: str) -> str:
    """1 rank, 2 ranks."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


UNLIMITED_WIDTH = 2000
"""Nothing is cut or wrapped where output is not a terminal."""
