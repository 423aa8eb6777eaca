"""What sections print: goals, ratios, and tables that they rewrite in BENCHMARKS.md between their markers."""

import sys
from collections.abc import Mapping
from pathlib import Path

from bench.pairs import Ratio

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


def goal(met: bool, text: str) -> str:
    """A goal and whether it was met."""
    return f"   goal: {text}: {'met' if met else 'MISSED'}"


def print_best(found: Mapping[tuple[str, str], Ratio], wanted: float) -> None:
    """Ratios by format and loader, and whether the best loader of every format reaches what is wanted."""
    best: dict[str, float] = {}
    for (name, loader), ratio in found.items():
        print(f"    {name} {loader}: {ratio}")
        best[name] = max(best.get(name, 0.0), ratio.median)
    least = min(best, key=lambda name: best[name])
    print(goal(best[least] >= wanted, f"best loader of every format >= {wanted} (least: {least})"))
