"""Tables that a section rewrites in BENCHMARKS.md, between its markers."""

import sys
from pathlib import Path

DOCUMENT = Path("BENCHMARKS.md")


def keep(text: str, name: str, document: Path = DOCUMENT) -> None:
    """Print tables, and put them between the markers of `name` in the document where `--write` asks for it."""
    print(text)
    if "--write" not in sys.argv:
        return
    begin, end = (f"<!-- {name}: {word} -->" for word in ("begin", "end"))
    before, _, rest = document.read_text().partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"{document}: no place for the tables of {name}: {begin} to {end}")
    document.write_text(f"{before}{begin}\n{text}\n{end}{after}")
