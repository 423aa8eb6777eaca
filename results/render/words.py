"""Words of sentences and tables: counts, lists, sizes, rates and times; and texts of others made fit for documents."""

import os
import re
import shlex
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


def typed(*words: object) -> str:
    """Words as a shell takes them when they are typed; what is not printable is escaped: $'a\\x0ab' in bash and zsh."""
    return " ".join(_typed(str(word)) for word in words)


def _typed(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    escaped = (
        letter
        if letter.isprintable() and letter not in "\\'"
        else "".join(f"\\x{byte:02x}" for byte in os.fsencode(letter))
        for letter in word
    )
    return f"$'{''.join(escaped)}'"


def and_(words: Sequence[str]) -> str:
    """Words as a list in a sentence."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def counted(count: int, noun: str) -> str:
    """1 rank, 2 ranks."""
    return f"{count} {noun}" if count == 1 else f"{count:,} {noun}s"


def size(num_bytes: float) -> str:
    """Bytes in the decimal unit that suits them, to three digits: 14.6 GB, 204 MB, 512 B."""
    for unit in ("B", "KB", "MB", "GB"):
        if num_bytes < 999.5 or unit == "GB":
            break
        num_bytes /= 1000
    return f"{num_bytes:.0f} {unit}" if num_bytes >= 99.5 or unit == "B" else f"{num_bytes:.1f} {unit}"


def rate(bytes_per_s: float) -> str:
    """Bytes per second to three digits: 1.23 GB/s, 680 MB/s."""
    return f"{bytes_per_s / 1e9:.3g} GB/s" if bytes_per_s >= 1e9 else f"{bytes_per_s / 1e6:.3g} MB/s"


def binary(num_bytes: int) -> str:
    """Sizes in powers of two as they are given: 64 KiB; others in bytes."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if num_bytes >= 1 << power and num_bytes % (1 << power) == 0:
            return f"{num_bytes >> power} {unit}"
    return f"{num_bytes} B"


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them: 3.1 us, 12.0 ms, 1.50 s, 42 s, 12 min, 2.5 h."""
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.0f} us" if seconds >= 9.95e-6 else f"{seconds * 1e6:.1f} us"
    if seconds < 9.995:
        return f"{seconds * 1e3:.1f} ms" if seconds < 0.9995 else f"{seconds:.2f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


UNLIMITED_WIDTH = 2000
"""Nothing is cut or wrapped where output is not a terminal."""
