"""`benchsuite probe storage`: what a path gives, as a record and as its user sees it. Imports no torch."""

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Literal

from rich.console import RenderableType

from benchsuite.analysis.record_builder import Measuring
from benchsuite.contract.console import SafeConsole, console, progress_bar
from benchsuite.contract.exit_codes import OK
from benchsuite.contract.session import check_session
from benchsuite.contract.terminal import PlainFormat
from benchsuite.contract.units import parse_bytes
from benchsuite.host.interference import foreign_load
from benchsuite.inside.processes import everyone_s, tree_cpu_s
from benchsuite.probe.record import (
    appended,
    around,
    cache_caveats,
    facts_of,
    farthest,
    parse_counts,
    parse_sizes,
    report,
)
from benchsuite.results.render.tables import Column
from benchsuite.results.render.terminal import fitting_table
from benchsuite.results.render.words import binary
from benchsuite.results.store.record import ProbeFigures
from benchsuite.results.store.store import ResultsStore
from benchsuite.storage.dataset.sizes import in_units
from benchsuite.storage.observe import file_systems
from benchsuite.storage.rawspeed import probe
from benchsuite.storage.rawspeed.probe import Asked, Cell, Probe

MAX_SPREAD = 0.5
"""Rounds of a cell that lie farther from its median than this share of it are not steady."""
IMAGE_BYTES = 110_000
"""The mean of ImageNet's photographs."""
SLOW_BYTES_PER_S = 1e8
"""Slower paths are told in MB/s."""
NAMED = {"open": "open + stat"}


ACCESS = {"direct": "O_DIRECT", "buffered": "through the evicted page cache", "memory": "from memory"}


def asked(size: str, seconds: float, engine: Literal["auto", "fio", "own"], block: str, depth: str) -> Asked:
    """What the options of `probe storage` ask for.

    Raises:
        UserError: one of them is not a size or a number.
    """
    blocks, depths = parse_sizes(block, "--block"), parse_counts(depth, "--depth", 1)
    return Asked(parse_bytes(size, "--size"), seconds, blocks, depths, engine)


def verb(path: Path, asked: Asked, store: Path | None, session: str, format: PlainFormat) -> int:
    """Probe a path and print what it gave; the exit code."""
    check_session(session)
    probe.check_folder(path)
    if store:
        ResultsStore(store).check_writable()
    env = facts_of(path)
    kind: str | None = env["data"]["file_system"]
    begun = Measuring("probe", {}, "", session, env)
    started_s, before_s = time.perf_counter(), _cpu_s()
    with progress_bar(f"probing {path} (measurements)", tells_quarters=True) as progress:
        found = probe.probe(path.absolute(), asked, kind, progress)
    foreign_cores = max(0.0, (_cpu_s() - before_s) / (time.perf_counter() - started_s))
    spec = {
        "path": str(found.path),
        "size_bytes": found.size_bytes,
        "seconds": asked.seconds,
        "blocks": list(asked.blocks),
        "depths": list(asked.depths),
        "rounds": asked.rounds,
        "engine": found.engine,
        "access": found.access,
    }
    measuring = replace(begun, spec=spec, label=f"{found.path} {found.engine}")
    details = caveats(found, kind, foreign_cores)
    samples = {"cells": [asdict(cell) for cell in found.cells], "names": [asdict(cell) for cell in found.names]}
    record = measuring.record("ok", details=details, figures=figures(found, foreign_cores))
    (kept,) = appended([(record, samples)], store)
    report(kept, store, format, lambda: show(found, details, kind, env["data"]["server_cache"]))
    return OK


def _cpu_s() -> float:
    """CPU seconds of everyone but this process and all below it, on the cores that it may use."""
    return everyone_s() - tree_cpu_s()


def figures(found: Probe, foreign_cores: float | None = None) -> ProbeFigures:
    """The best medians; rates of reads are null where they were served from memory."""
    most = found.most_reads()
    memory = found.access == "memory"
    return ProbeFigures(
        storage_ceiling_bytes_per_s=None if memory else found.best("sequential").median,
        random_read_bytes_per_s=None if memory else found.best("random").median,
        random_reads_per_s=None if memory else most.median / most.block_bytes,
        creates_per_s=found.names_per_s("create"),
        opens_per_s=found.names_per_s("open"),
        unlinks_per_s=found.names_per_s("unlink"),
        foreign_cpu_cores=foreign_cores,
    )


def caveats(found: Probe, kind: str | None, foreign_cores: float | None = None) -> list[str]:
    """Why the figures must not be trusted blindly: a name, a colon, the arithmetic."""
    resident = [value for cell in found.cells for value in cell.resident_before]
    details = [] if found.access == "direct" else cache_caveats(kind, resident, found.access == "memory")
    bound = [cell for cell in found.cells if is_lock_bound(cell)]
    if bound:
        details.append(
            f"engine_bound: in {len(bound)} of {len(found.cells)} cells (~) our reader spent more than "
            f"{probe.LOCK_BOUND:.0%} of the time in Python: the path may give more; --engine fio tells"
        )
    if load := foreign_load(foreign_cores, len(os.sched_getaffinity(0))):
        details.append(f"foreign_load: {load}")
    if apart := unsteady(found):
        details.append(f"not_steady: {apart}")
    return details


def is_lock_bound(cell: Cell) -> bool:
    """Whether our own reader may be what limits a cell."""
    return bool(cell.lock_fraction) and max(cell.lock_fraction) > probe.LOCK_BOUND


def show(found: Probe, details: list[str], kind: str | None, server_cache: file_systems.Cached | None = None) -> None:
    """A sentence, two tables, and what the numbers rest on."""
    out = console()
    out.print(f"-> {sentence(found)}", markup=False)
    if found.access != "memory":
        out.print(f"-> {for_images(found)}", markup=False)
    reads = ((f"{cell.pattern} {binary(cell.block_bytes)}", cell.depth, _rate(cell)) for cell in found.cells)
    names = ((NAMED.get(cell.operation, cell.operation), cell.depth, _spread(cell.per_s)) for cell in found.names)
    out.print(_by_depth("MB/s, by readers at once", reads, out))
    out.print(_by_depth("per second, by threads", names, out))
    out.print(
        f"trust: {kind}, read {ACCESS[found.access]} by {found.engine}, a file of {in_units(found.size_bytes)}; "
        f"{file_systems.in_words(kind, server_cache)}; {len(found.cells[0].bytes_per_s)} rounds, ± = the farthest",
        markup=False,
    )
    for detail in details:
        out.print(f"  {detail}", markup=False)


def _by_depth(title: str, cells: Iterable[tuple[str, int, str]], out: SafeConsole) -> RenderableType:
    """A table with a row for each name and a column for each number of readers."""
    rows: dict[str, dict[str, str]] = {}
    for name, depth, text in cells:
        rows.setdefault(name, {"": name})[str(depth)] = text
    depths = sorted({depth for row in rows.values() for depth in row if depth}, key=int)
    columns = [Column(title, lambda row: row[""], right=False), *map(_column, depths)]
    return fitting_table([*rows.values()], columns, out)


def _column(depth: str) -> Column:
    return Column(depth, lambda row: row.get(depth, ""))


def sentence(found: Probe) -> str:
    """The best of each kind, each with how far its rounds lie apart."""
    sequential, scattered, most = found.best("sequential"), found.best("random"), found.most_reads()
    opens, reads = found.best_names("open"), [rate / most.block_bytes for rate in most.bytes_per_s]
    return (
        f"{found.path} gives {_bytes_rate(sequential)} sequentially ({_way(sequential)}), "
        f"{_bytes_rate(scattered)} at random ({_way(scattered)}), "
        f"{around(reads, 0)} random reads/s ({_way(most)}), "
        f"{around(opens.per_s, 0)} opens/s."
    )


def for_images(found: Probe) -> str:
    """What that is for training: shards are read in order; where each image is a file, opens are a bound, too."""
    rates = [cell for cell in found.cells if cell.pattern == "random"]
    nearest = min(abs(cell.block_bytes - IMAGE_BYTES) for cell in rates)
    near = max((cell for cell in rates if abs(cell.block_bytes - IMAGE_BYTES) == nearest), key=lambda cell: cell.median)
    shards, apart = found.best("sequential").median / IMAGE_BYTES, near.median / IMAGE_BYTES
    return (
        f"That is {shards:,.0f} images/s of {IMAGE_BYTES / 1e3:.0f} KB (ImageNet's mean) from shards, and at most "
        f"{min(apart, found.best_names('open').median):,.0f} images/s from a file each "
        f"(opens, and random reads of {binary(near.block_bytes)})."
    )


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
    return f"{around([rate / unit_bytes for rate in cell.bytes_per_s], digits)} {unit}/s"


def _way(cell: Cell) -> str:
    return f"{binary(cell.block_bytes)} x {cell.depth}"


def _rate(cell: Cell) -> str:
    mark = "~" if is_lock_bound(cell) else ""
    return mark + _spread([rate / 1e6 for rate in cell.bytes_per_s])


def _spread(values: Sequence[float]) -> str:
    return around(values, 0 if median(values) >= 100 else 1)
