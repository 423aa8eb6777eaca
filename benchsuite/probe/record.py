"""`benchsuite probe storage`, and what the records of probes have in common. Imports no torch."""

import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from benchsuite.analysis.record_builder import Measuring, now
from benchsuite.contract.console import progress_bar
from benchsuite.contract.errors import UserError
from benchsuite.contract.exit_codes import OK
from benchsuite.contract.terminal import PlainFormat, document, echo
from benchsuite.contract.trial_spec import check_session, trial_id
from benchsuite.contract.units import parse_bytes
from benchsuite.host.environment import environment, file_system
from benchsuite.host.interference import foreign_load
from benchsuite.host.processes import everyone_s, tree_cpu_s
from benchsuite.probe.storage_report import is_lock_bound, show, unsteady
from benchsuite.results.store.record import Figures, Status, TrialRecord
from benchsuite.results.store.store import ResultsStore
from benchsuite.storage.observe import file_systems
from benchsuite.storage.rawspeed import probe
from benchsuite.storage.rawspeed.probe import Asked, Probe

MAX_RESIDENT = 0.01
"""Share of a file in the page cache up to which it is cold."""


def asked(size: str, seconds: float, engine: Literal["auto", "fio", "own"], block: str, depth: str) -> Asked:
    """What the options of `probe storage` ask for.

    Raises:
        UserError: one of them is not a size or a number.
    """
    blocks = [parse_bytes(text, "--block") for text in block.split(",")]
    if not re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*)*", depth):
        raise UserError(f"--depth {depth!r}: allowed: whole numbers such as 1,4,16")
    depths = [int(text) for text in depth.split(",")]
    return Asked(parse_bytes(size, "--size"), seconds, tuple(sorted({*blocks})), tuple(sorted({*depths})), engine)


def facts_of(path: Path) -> dict[str, Any]:
    """The environment, and the file system that holds the path."""
    return {**environment(), "data": file_system(path)}


def kept(
    measuring: Measuring, store: Path | None, status: Status, samples: Mapping[str, Any], **fields: Any
) -> TrialRecord:
    """The record, appended to the store where there is one; measured again it is a repeat."""
    first = measuring.record(status, 0, **fields)
    return append_repeat(ResultsStore(store), first, dict(samples)) if store else first


def append_repeat(store: ResultsStore, record: TrialRecord, samples: dict[str, Any] | None) -> TrialRecord:
    """Append a record as one more repeat of what its session has of its point."""
    before = store.records() if store.exists() else []
    repeat = sum((other.point_id, other.session) == (record.point_id, record.session) for other in before)
    again = {"repeat": repeat, "trial_id": trial_id(record.point_id, record.session, repeat)}
    return store.append(record.model_copy(update=again), samples)


def storage_verb(path: Path, asked: Asked, store: Path | None, session: str, format: PlainFormat) -> int:
    """Probe a path and print what it gave; the exit code."""
    check_session(session)
    probe.check_folder(path)
    if store:
        ResultsStore(store).check_writable()
    env = facts_of(path)
    kind: str | None = env["data"]["file_system"]
    started_s, started_at = time.perf_counter(), now()
    before_s = _cpu_s()
    with progress_bar(f"probing {path}") as progress:
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
    measuring = Measuring("probe", spec, f"{found.path} {found.engine}", session, env, started_s, started_at)
    details = caveats(found, kind, foreign_cores)
    samples = {"cells": [asdict(cell) for cell in found.cells], "names": [asdict(cell) for cell in found.names]}
    record = kept(
        measuring,
        store,
        "ok",
        samples,
        details=details,
        figures=figures(found, foreign_cores),
    )
    if format == "json":
        document(json.dumps(record.model_dump(mode="json") | {"samples": samples}, indent=1))
        return OK
    show(found, details, kind, env["data"]["server_cache"])
    if store:
        echo(f"written: {store} · next: benchsuite results show --kind probe --store {store}")
    return OK


def _cpu_s() -> float:
    """CPU seconds of everyone but this process and all below it, on the cores that it may use."""
    return everyone_s() - tree_cpu_s()


def figures(found: Probe, foreign_cores: float | None = None) -> Figures:
    """The best medians; rates of reads are null where they were served from memory."""
    most = found.most_reads()
    memory = found.access == "memory"
    return Figures(
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
    details = []
    resident = [value for cell in found.cells for value in cell.resident_before]
    if found.access == "memory":
        details.append(f"not_cold: {kind} is memory: no storage was read")
    elif found.access == "buffered":
        known = [value for value in resident if value is not None]
        if len(known) < len(resident) or not file_systems.file_system_of(kind).client_visible:
            details.append(f"cache_unverified: without O_DIRECT, and the cache of {kind} cannot be seen from here")
        elif max(known) > MAX_RESIDENT:
            details.append(f"not_cold: up to {max(known):.0%} of the file was in the page cache before a measurement")
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
