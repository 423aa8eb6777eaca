"""Hidden and system files: what desktops, notebooks and editors leave beside data. They are nobody's samples."""

import os
from collections.abc import Iterator
from pathlib import Path

SYSTEM_NAMES = frozenset(
    {"__macosx", "__pycache__", "thumbs.db", "ehthumbs.db", "desktop.ini", "lost+found"}
    | {"@eadir", "#recycle", "#snapshot", "$recycle.bin", "system volume information"}
)
"""What macOS, Windows and storage servers put into folders, in small letters."""
_BACKUP_SUFFIXES = ("~", ".bak", ".orig", ".swp", ".swo")


def is_hidden(name: str) -> bool:
    """Whether a file or folder of this name is hidden, the system's, or an editor's backup."""
    if name.startswith("."):
        return name not in (".", "..")
    lower = name.lower()
    is_autosave = len(name) > 1 and name[0] == name[-1] == "#"
    return lower in SYSTEM_NAMES or is_autosave or lower.endswith(_BACKUP_SUFFIXES)


def in_hidden(path: str) -> bool:
    """Whether a relative path is hidden, or lies in something that is."""
    return any(map(is_hidden, path.split("/")))


def count_hidden(folder: Path) -> int:
    """Count the hidden files in a folder and all folders below; links are followed, what may not be read is passed."""
    return sum(_counts(str(folder), frozenset()))


def _counts(folder: str, above: frozenset[str]) -> Iterator[int]:
    here = os.path.realpath(folder)
    if here in above:
        return
    try:
        with os.scandir(folder) as listing:
            found = list(listing)
    except OSError:
        return
    for entry in found:
        if is_hidden(entry.name):
            yield sum(len(files) for _, _, files in os.walk(entry.path)) if entry.is_dir() else 1
        elif entry.is_dir():
            yield from _counts(entry.path, above | {here})
