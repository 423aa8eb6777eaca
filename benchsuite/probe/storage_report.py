"""A probe's figures as its user sees them: a sentence, two tables, and what the numbers rest on."""

from collections.abc import Sequence
from statistics import median

from rich import box
from rich.table import Table

from benchsuite.contract.console import console
from benchsuite.storage.dataset.sizes import in_units
from benchsuite.storage.observe import file_systems
from benchsuite.storage.rawspeed import probe
from benchsuite.storage.rawspeed.probe import Cell, NameCell, Probe

MAX_SPREAD = 0.5
"""Rounds of a cell that lie farther from its median than this share of it are not steady."""
SLOW_BYTES_PER_S = 1e8
"""Slower paths are told in MB/s."""


def is_lock_bound(cell: Cell) -> bool:
    """Whether our own reader may be what limits a cell."""
    return bool(cell.lock_fraction) and max(cell.lock_fraction) > probe.LOCK_BOUND


def show(found: Probe, details: list[str], kind: str | None, server_cache: file_systems.Cached | None = None) -> None:
    """A sentence, the table, and what the numbers rest on."""
    out = console()
    out.print(f"-> {sentence(found)}", markup=False)
    out.print(_read_table(found))
    out.print(_name_table(found))
    how = {"direct": "O_DIRECT", "buffered": "through the evicted page cache", "memory": "from memory"}[found.access]
    out.print(
        f"trust: {kind}, read {how} by {found.engine}, a file of {in_units(found.size_bytes)}; "
        f"{file_systems.in_words(kind, server_cache)}; {len(found.cells[0].bytes_per_s)} rounds, ± = the farthest",
        markup=False,
    )
    for detail in details:
        out.print(f"  {detail}", markup=False)


def sentence(found: Probe) -> str:
    """The best of each kind, each with how far its rounds lie apart."""
    sequential, scattered, most = found.best("sequential"), found.best("random"), found.most_reads()
    opens, reads = found.best_names("open"), [rate / most.block_bytes for rate in most.bytes_per_s]
    return (
        f"{found.path} gives {_bytes_rate(sequential)} sequentially ({_way(sequential)}), "
        f"{_bytes_rate(scattered)} at random ({_way(scattered)}), "
        f"{most.median / most.block_bytes:,.0f} ±{farthest(reads):,.0f} random reads/s ({_way(most)}), "
        f"{opens.median:,.0f} ±{farthest(opens.per_s):,.0f} opens/s."
    )


def farthest(values: Sequence[float]) -> float:
    """How far the farthest lies from their median."""
    middle = median(values)
    return max(abs(value - middle) for value in values)


def unsteady(found: Probe) -> str | None:
    """How many cells have rounds that lie far apart, and the worst of them; None where there is none."""
    rates = {f"{cell.pattern} {_way(cell)}": cell.bytes_per_s for cell in found.cells}
    rates |= {f"{cell.operation} x {cell.depth}": cell.per_s for cell in found.names}
    spreads = {name: farthest(values) / median(values) for name, values in rates.items() if median(values)}
    far = {name: spread for name, spread in spreads.items() if spread > MAX_SPREAD}
    if not far:
        return None
    worst = max(far, key=lambda name: far[name])
    return (
        f"in {len(far)} of {len(rates)} cells a round lies more than {MAX_SPREAD:.0%} from the median, "
        f"in {worst} {far[worst]:.0%}"
    )


def _bytes_rate(cell: Cell) -> str:
    unit_bytes, unit, digits = (1e9, "GB", 2) if cell.median >= SLOW_BYTES_PER_S else (1e6, "MB", 1)
    return f"{cell.median / unit_bytes:.{digits}f} ±{farthest(cell.bytes_per_s) / unit_bytes:.{digits}f} {unit}/s"


def _way(cell: Cell) -> str:
    return f"{in_binary(cell.block_bytes)} x {cell.depth}"


def in_binary(num_bytes: int) -> str:
    """Block sizes as they are given: 64 KiB."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if num_bytes >= 1 << power and not num_bytes % (1 << power):
            return f"{num_bytes >> power} {unit}"
    return f"{num_bytes} B"


def _read_table(found: Probe) -> Table:
    depths = sorted({cell.depth for cell in found.cells})
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("MB/s, by readers at once")
    for depth in depths:
        table.add_column(str(depth), justify="right", no_wrap=True)
    by_row: dict[tuple[str, int], list[Cell]] = {}
    for cell in found.cells:
        by_row.setdefault((cell.pattern, cell.block_bytes), []).append(cell)
    for (pattern, block), cells in by_row.items():
        table.add_row(f"{pattern} {in_binary(block)}", *map(_rate, sorted(cells, key=lambda cell: cell.depth)))
    return table


def _rate(cell: Cell) -> str:
    mark = "~" if is_lock_bound(cell) else ""
    return mark + _spread([rate / 1e6 for rate in cell.bytes_per_s], cell.median / 1e6)


def _spread(values: Sequence[float], middle: float) -> str:
    digits = 0 if middle >= 100 else 1
    return f"{middle:,.{digits}f} ±{farthest(values):,.{digits}f}"


def _name_table(found: Probe) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("per second, by threads")
    for depth in sorted({cell.depth for cell in found.names}):
        table.add_column(str(depth), justify="right", no_wrap=True)
    by_row: dict[str, list[NameCell]] = {}
    for cell in found.names:
        by_row.setdefault(cell.operation, []).append(cell)
    for operation, cells in by_row.items():
        words = {"open": "open + stat"}.get(operation, operation)
        table.add_row(words, *(_spread(cell.per_s, cell.median) for cell in cells))
    return table
