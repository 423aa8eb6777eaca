"""A file asked for by name is written whole or not at all: beside its name first, then renamed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchsuite.results.store.manifest import publish, temporary
from benchsuite.results.store.place import StoreError


@contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """A name in the same folder to write to, which becomes `out` when the block ends well and else vanishes.

    What a link leads to is replaced, not the link; an old file's permissions stay. What is no file (/dev/stdout, a
    pipe), and a file in a folder that takes no others, is written in place.

    Raises:
        StoreError: it cannot be written. What was there before is untouched then, unless it was written in place.
    """
    path = Path(os.path.realpath(out))
    there = os.path.exists(path)
    in_place = there and (not path.is_file() or not os.access(path.parent, os.W_OK))
    made = path if in_place else temporary(path)
    try:
        yield made
        if not in_place:
            if there:
                made.chmod(path.stat().st_mode & 0o777)
            publish(path, written=made)
    except OSError as error:
        raise StoreError(f"{out}: cannot be written: {error.strerror or error}") from error
    finally:
        if not in_place:
            with suppress(OSError):
                made.unlink()


def write_whole(out: Path, text: str) -> None:
    """Write a text as UTF-8, with \\n at the end of its lines and ? for what UTF-8 has not; else as `replacing`."""
    with replacing(out) as path:
        path.write_text(text, encoding="utf-8", errors="replace", newline="\n")
