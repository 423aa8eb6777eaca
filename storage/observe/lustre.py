"""How Lustre spreads files over its servers' targets (OSTs): what `lfs getstripe` tells, and what would suit readers.

A file with stripe count c and stripe size z lies on c OSTs, z bytes on each in turn (Operations Manual, "Managing
File Layout (Striping) and Free Space"). A progressive layout (PFL) has several components, each for a range of bytes.
`lfs` is asked with a list of arguments and a time limit, never through a shell.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

LFS = "lfs"
TIMEOUT_S = 10.0
"""A server that is away lets `lfs` wait for minutes."""
LOOKED_AT = 256
"""Files of a folder that are looked at for its largest."""
ALL = -1
"""The stripe count that means all OSTs."""
_FIELD = re.compile(r"(?<![\w.])(?:lmm_|lcme_extent\.)?(stripe_count|stripe_size|pattern|pool|e_start|e_end):\s+(\S+)")


@dataclass(frozen=True)
class Component:
    """The stripes of a file, or of a range of its bytes in a composite layout."""

    stripe_count: int
    """-1: over all OSTs; 0: none, the data lie with the metadata (data on MDT)."""
    stripe_size_bytes: int
    pool: str | None
    pattern: str | None
    start: int = 0
    end: int | None = None
    """None: to the end of the file."""


def parsed(text: str) -> list[Component]:
    """The components that `lfs getstripe` prints of one file, or with -d of one folder; none where it prints no layout.

    Of a mirrored file, those of every mirror.
    """
    found: list[dict[str, str]] = []
    for name, value in _FIELD.findall(text):
        if name == ("e_start" if "e_start" in text else "stripe_count"):
            found.append({})
        if found:
            found[-1].setdefault(name, value)
    return [_component(values) for values in found if "stripe_count" in values and "stripe_size" in values]


def _component(values: dict[str, str]) -> Component:
    end = values.get("e_end", "EOF")
    return Component(
        int(values["stripe_count"]),
        int(values["stripe_size"]),
        values.get("pool"),
        values.get("pattern"),
        int(values.get("e_start", 0)),
        None if end == "EOF" else int(end),
    )


def num_osts(text: str) -> int | None:
    """How many OSTs `lfs df` lists; None where it lists none."""
    return len(set(re.findall(r"\[OST:(\d+)\]", text))) or None


def layout_of(path: Path) -> dict[str, Any] | None:
    """The layout of a file, or of a folder's largest file beside what new files there get; None where `lfs` tells none.

    `osts` is how many the file system has.
    """
    program = shutil.which(LFS)
    if program is None:
        return None
    largest = path if path.is_file() else max(islice(_files(path), LOOKED_AT), key=_size, default=None)
    of_file = parsed(_asked(program, "getstripe", str(largest))) if largest is not None else []
    of_new = parsed(_asked(program, "getstripe", "-d", str(path))) if path.is_dir() else []
    if not of_file and not of_new:
        return None
    return {
        "components": [asdict(one) for one in of_file],
        "new_files": [asdict(one) for one in of_new],
        "osts": num_osts(_asked(program, "df", str(path))),
    }


def _asked(program: str, *words: str) -> str:
    """What `lfs` prints; nothing where it fails or does not answer."""
    try:
        done = subprocess.run(
            [program, *words], capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _files(folder: Path) -> Iterator[Path]:
    for where, _, names in os.walk(folder):
        yield from (Path(where) / name for name in names)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def stripes_of(components: list[Component], file_bytes: float, osts: int) -> int:
    """How many OSTs a file of that size lies on: as many as its widest component that it reaches, and has bytes for."""
    reached = [one for one in components if one.start < max(file_bytes, 1)]
    counts = [0]
    for one in reached:
        span = min(file_bytes, one.end if one.end is not None else file_bytes) - one.start
        wide = osts if one.stripe_count == ALL else one.stripe_count
        counts.append(min(wide, osts, -int(-span // one.stripe_size_bytes)))
    return max(counts)


def advice(components: list[Component], osts: int, num_files: int, file_bytes: float, readers: int) -> str | None:
    """What would suit readers of so many files of about that size, with the arithmetic; None where the layout does.

    Args:
        components: the layout that the files have.
        osts: how many the file system has.
        num_files: the dataset's.
        file_bytes: mean size.
        readers: how many files are read at once, at most.
    """
    stripes = stripes_of(components, file_bytes, osts)
    if not stripes:
        return None
    at_once = min(readers, num_files)
    reached, wanted = min(osts, at_once * stripes), min(osts, readers)
    told = f"{num_files} files of {file_bytes / 1e6:,.1f} MB, each on {stripes} of {osts} OSTs"
    if reached < wanted:
        count = -(-wanted // at_once)
        return (
            f"{told}: {readers} readers of {at_once} files at once reach {at_once} x {stripes} = {reached} OSTs; "
            f"stripe count {count} reaches {min(osts, at_once * count)}"
        )
    if stripes > 1 and at_once >= wanted:
        return (
            f"{told}: {at_once} files read at once reach {min(osts, at_once)} OSTs with stripe count 1 already; more "
            f"stripes cost each open {stripes} servers"
        )
    return None
