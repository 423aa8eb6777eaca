"""The nearest of the names that there are, for error lines."""

import difflib
from collections.abc import Iterable


def nearest(given: str, names: Iterable[str], cutoff: float = 0.5) -> str:
    """`; nearest: NAME`, where one is like what was given; else nothing."""
    close = difflib.get_close_matches(given, list(names), n=1, cutoff=cutoff)
    return f"; nearest: {close[0]}" if close else ""
