"""`benchsuite probe storage s3://bucket/prefix`: what a bucket gives, as a record and as its user sees it.

Imports no torch.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

from benchsuite.analysis.record_builder import Measuring
from benchsuite.contract.console import console, progress_bar
from benchsuite.contract.exit_codes import OK
from benchsuite.contract.session import check_session
from benchsuite.contract.terminal import PlainFormat
from benchsuite.host.interference import foreign_load
from benchsuite.inside.processes import everyone_s, tree_cpu_s
from benchsuite.probe.record import appended, around, facts_of, farthest, report
from benchsuite.results.render.tables import ABSENT, Column
from benchsuite.results.render.terminal import fitting_table
from benchsuite.results.render.words import binary, duration
from benchsuite.results.store.record import ProbeFigures
from benchsuite.results.store.store import ResultsStore
from benchsuite.storage.objects.path import ObjectPath
from benchsuite.storage.rawspeed import bucket_probe
from benchsuite.storage.rawspeed.bucket_probe import BucketCell, BucketProbe, quantile
from benchsuite.storage.rawspeed.probe import Asked

MAX_SPREAD = 0.5
"""Rounds of a cell that lie farther from its median than this share of it are not steady."""
UNKNOWN_CACHE = "cache_unverified: whether the server read from its memory cannot be seen"


def verb(path: ObjectPath, asked: Asked, store: Path | None, session: str, format: PlainFormat) -> int:
    """Probe a bucket and print what it gave; the exit code."""
    check_session(session)
    bucket_probe.check(asked)
    if store:
        ResultsStore(store).check_writable()
    spec = {
        "path": str(path),
        "size_bytes": asked.size_bytes,
        "seconds": asked.seconds,
        "blocks": list(asked.blocks),
        "depths": list(asked.depths),
        "rounds": asked.rounds,
        "engine": "obstore",
        "access": "requests",
    }
    begun = Measuring("probe", spec, f"{path} obstore", session, facts_of(path))
    started_s, before_s = time.perf_counter(), everyone_s() - tree_cpu_s()
    with progress_bar(f"probing {path} (measurements)", tells_quarters=True) as progress:
        found = bucket_probe.probe(path, asked, progress)
    foreign_cores = max(0.0, (everyone_s() - tree_cpu_s() - before_s) / (time.perf_counter() - started_s))
    details = caveats(found, foreign_cores)
    record = replace(begun, spec=spec).record("ok", details=details, figures=figures(found, foreign_cores))
    samples = {"cells": [asdict(cell) for cell in found.cells], "listed_per_s": found.listed_per_s}
    (kept,) = appended([(record, samples)], store)
    report(kept, store, format, lambda: show(found, details))
    return OK


def figures(found: BucketProbe, foreign_cores: float | None = None) -> ProbeFigures:
    """The best medians; latencies are those of the cell of whole objects that gave most bytes."""
    best, ranges = found.best("get"), [cell for cell in found.cells if cell.operation == "range"]
    puts = [cell for cell in found.cells if cell.operation == "put"]
    return ProbeFigures(
        storage_ceiling_bytes_per_s=best.median,
        random_read_bytes_per_s=found.best("range").median,
        random_reads_per_s=max(median(cell.requests_per_s) for cell in ranges),
        put_bytes_per_s=found.best("put").median,
        puts_per_s=max(median(cell.requests_per_s) for cell in puts),
        listed_per_s=median(found.listed_per_s),
        client_cpu_s_per_byte=median(best.cpu_s_per_byte),
        request_s_p50=quantile(best.latencies_s, 0.5),
        request_s_p99=quantile(best.latencies_s, 0.99),
        first_byte_s_p50=quantile(best.first_bytes_s, 0.5),
        first_byte_s_p99=quantile(best.first_bytes_s, 0.99),
        request_retries=sum(cell.retries for cell in found.cells),
        foreign_cpu_cores=foreign_cores,
    )


def caveats(found: BucketProbe, foreign_cores: float | None = None) -> list[str]:
    """Why the figures must not be trusted blindly: a name, a colon, the arithmetic."""
    details = [UNKNOWN_CACHE]
    if load := foreign_load(foreign_cores, len(os.sched_getaffinity(0))):
        details.append(f"foreign_load: {load}")
    far = [cell for cell in found.cells if farthest(cell.bytes_per_s) > MAX_SPREAD * cell.median]
    if far:
        details.append(
            f"not_steady: in {len(far)} of {len(found.cells)} cells a round lies more than {MAX_SPREAD:.0%} from the "
            f"median, as in {far[0].operation} {binary(far[0].object_bytes)} x {far[0].depth}"
        )
    return details


def show(found: BucketProbe, details: Sequence[str]) -> None:
    """A sentence, a table, and what the numbers rest on."""
    out = console()
    out.print(f"-> {sentence(found)}", markup=False)
    columns = [_column(name) for name in _row(found.cells[0])]
    out.print(fitting_table([_row(cell) for cell in found.cells], columns, out))
    rounds = len(found.listed_per_s)
    out.print(
        f"trust: by obstore from this process; a range is a quarter of an object; {rounds} rounds, ± = the farthest; "
        "the server's cache cannot be seen",
        markup=False,
    )
    for detail in details:
        out.print(f"  {detail}", markup=False)


def _column(name: str) -> Column:
    return Column(name, lambda row: str(row[name]), right=name != "request")


def _row(cell: BucketCell) -> dict[str, str]:
    """One line of the table."""
    latencies = [_time(cell.latencies_s, 0.5), _time(cell.latencies_s, 0.99)]
    first = [_time(cell.first_bytes_s, 0.5), _time(cell.first_bytes_s, 0.99)]
    return {
        "request": f"{cell.operation} {binary(cell.object_bytes)}",
        "at once": str(cell.depth),
        "MB/s": around([rate / 1e6 for rate in cell.bytes_per_s], 1),
        "requests/s": around(cell.requests_per_s, 0),
        "p50, p99": ", ".join(latencies),
        "first byte p50, p99": ", ".join(first) if cell.first_bytes_s else ABSENT,
        "CPU s/GB": f"{median(cell.cpu_s_per_byte) * 1e9:.2f}",
    }


def _time(values: Sequence[float], share: float) -> str:
    found = quantile(values, share)
    return ABSENT if found is None else duration(found)


def sentence(found: BucketProbe) -> str:
    """The best of each kind of request."""
    best, ranges, puts = (found.best(operation) for operation in ("get", "range", "put"))
    reads = f"{_rate(best)} of whole objects ({_way(best)}), {_rate(ranges)} by ranges ({_way(ranges)})"
    cost = f"a read costs its client {median(best.cpu_s_per_byte) * 1e9:.2f} CPU s/GB"
    names = f"lists {around(found.listed_per_s, 0)} names/s"
    return f"{found.path} gives {reads}, takes {_rate(puts)} ({_way(puts)}), and {names}; {cost}."


def _rate(cell: BucketCell) -> str:
    return f"{around([rate / 1e6 for rate in cell.bytes_per_s], 1)} MB/s"


def _way(cell: BucketCell) -> str:
    return f"{binary(cell.object_bytes)} x {cell.depth}"
