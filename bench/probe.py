"""Our own reads beside fio's: the same file, pattern, block size and readers, in interleaved rounds."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median

from bench.tables import goal
from benchsuite.storage.observe import page_cache
from benchsuite.storage.rawspeed import fio
from benchsuite.storage.rawspeed.plain_reader import (
    PATTERNS,
    Pattern,
    aligned_buffers,
    offsets,
    read_file,
    takes_direct,
)
from benchsuite.storage.rawspeed.probe import write_incompressible

MAX_DIFFERENCE = 0.1
SIZE_BYTES = 64 * (16 << 20)
BLOCKS = (4 << 10, 64 << 10, 1 << 20, 16 << 20)
DEPTHS = (1, 4, 16)
ROUNDS = 5
SECONDS = 1.0


@dataclass(frozen=True)
class Pair:
    """One way to read by both, over rounds."""

    pattern: Pattern
    block_bytes: int
    depth: int
    own: tuple[float, ...]
    fio: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Median over rounds of ours over fio's, neighbours in time."""
        return median(ours / theirs for ours, theirs in zip(self.own, self.fio, strict=True))


def measure(folder: Path) -> Iterator[Pair]:
    """Every pattern, block size and number of readers; in each round both, the order swapped."""
    file = folder / "data"
    write_incompressible(file, SIZE_BYTES)
    direct = takes_direct(file)
    buffers = aligned_buffers(max(DEPTHS), max(BLOCKS))
    for pattern, block, depth in product(PATTERNS, BLOCKS, DEPTHS):
        rates: dict[str, list[float]] = {"own": [], "fio": []}
        both = {
            "own": lambda: _own(file, pattern, block, depth, direct, buffers),  # noqa: B023
            "fio": lambda: fio.read_file(file, pattern, block, depth, SECONDS, direct, direct),  # noqa: B023
        }
        for number in range(ROUNDS):
            for name in (["own", "fio"], ["fio", "own"])[number % 2]:
                page_cache.evict([file])
                call: Callable[[], float] = both[name]
                rates[name].append(call())
        yield Pair(pattern, block, depth, tuple(rates["own"]), tuple(rates["fio"]))


def _own(file: Path, pattern: Pattern, block: int, depth: int, direct: bool, buffers: list[memoryview]) -> float:
    views = [buffer[:block] for buffer in buffers]
    return read_file(file, offsets(pattern, SIZE_BYTES, block, depth), views, SECONDS, direct, direct).bytes_per_s


def table(pairs: list[Pair]) -> str:
    """The pairs as Markdown."""
    lines = ["| pattern | block | readers | own MB/s | fio MB/s | own / fio |", "|---|---:|---:|---:|---:|---:|"]
    for pair in pairs:
        lines.append(
            f"| {pair.pattern} | {pair.block_bytes >> 10} KiB | {pair.depth} | {_spread(pair.own)} | "
            f"{_spread(pair.fio)} | {pair.ratio:.2f} |"
        )
    return "\n".join(lines)


def _spread(rates: tuple[float, ...]) -> str:
    return f"{median(rates) / 1e6:,.0f} ({min(rates) / 1e6:,.0f}..{max(rates) / 1e6:,.0f})"


def show(folder: Path) -> None:
    """Print both engines' rates, where fio is installed."""
    if not fio.installed():
        print("(i) our own reads beside fio's: not run; fio is not installed")
        return
    print("(i) the own engine of `probe storage` beside fio: the same file, reads and readers, interleaved rounds")
    pairs = list(measure(folder))
    print(table(pairs))
    far = [pair for pair in pairs if abs(pair.ratio - 1) > MAX_DIFFERENCE]
    print(goal(not far, f"own / fio within {MAX_DIFFERENCE:.0%}: {len(pairs) - len(far)} of {len(pairs)} cells"))
