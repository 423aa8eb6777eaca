"""`benchsuite probe checkpoint`: launch the ranks, and make a record of what they found."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from benchsuite.analysis.byte_reconciliation import request_figures
from benchsuite.analysis.record_builder import Measuring
from benchsuite.contract.errors import UserError
from benchsuite.contract.exit_codes import OK, SOME_FAILED
from benchsuite.contract.scratch import scratch
from benchsuite.contract.session import check_session
from benchsuite.contract.terminal import PlainFormat, echo
from benchsuite.grid.expand import plan_trial
from benchsuite.grid.point import Point
from benchsuite.grid.validity import workload_of
from benchsuite.launch.launcher import check_alone
from benchsuite.launch.starters import LocalLauncher
from benchsuite.probe.checkpoint_rank import Request, Written
from benchsuite.probe.ranks import found_by, leave_request
from benchsuite.probe.record import appended, around, cache_caveats, facts_of, report, why_failed
from benchsuite.probe.target import own_below
from benchsuite.results.render.words import counted
from benchsuite.results.store.record import CheckpointFigures, Status
from benchsuite.results.store.store import ResultsStore
from benchsuite.storage.objects.path import ObjectPath
from benchsuite.storage.observe.requests import Counted, merged
from benchsuite.storage.rawspeed.probe import IN_MEMORY, check_folder
from benchsuite.workloads.layout import Layout

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

TASK = "benchsuite.probe.checkpoint_rank:run_rank"
STATES: Mapping[str, float] = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2, "adafactor": 0.1}
"""An optimizer's states, as a multiple of the parameters."""
IDENTITY = ("workload", "variant", "parallelism", "world_size", "optimizer", "batch_size", "precision", "device")
ALLOWED = ("none", "ddp", "zero2", "fsdp", "hsdp", "tp")


def check_ready(path: Path, store: Path | None, session: str) -> None:
    """Refuse what is wrong before anything is written: a session's name, a task of several, a folder, a store.

    Raises:
        UserError: of these, what.
    """
    check_session(session)
    check_alone("probe checkpoint")
    if not isinstance(path, ObjectPath):
        check_folder(path)
    if store:
        ResultsStore(store).check_writable()


def verb(
    path: Path,
    mode: str,
    repeats: int,
    values: Mapping[str, Any],
    store: Path | None,
    session: str,
    format: PlainFormat,
) -> int:
    """Write and read checkpoints below a path and print how fast; the exit code.

    Raises:
        UserError: this cannot run here.
    """
    check_ready(path, store, session)
    point = plan_trial({**values, "data": {"source": "synthetic"}})
    _check_layout(point.spec.layout)
    path = path.absolute()
    asked = point.spec.model_dump()
    spec = {"path": str(path), "mode": mode, "repeats": repeats, **{name: asked[name] for name in IDENTITY}}
    label = f"{point.spec.workload} {point.spec.variant} {mode} {path}"
    measuring = Measuring("checkpoint", spec, label, session, facts_of(path))
    with (
        own_below(path, "benchsuite-checkpoint", needed_bytes(point)) as target,
        LocalLauncher(TASK) as launcher,
    ):
        found, why = launched(point, Request(str(target), mode, repeats), launcher)
    if why is not None:
        status, reason = why
        [*appended([(measuring.record(status, reason=reason), {})], store)]
        echo(f"error: {' '.join(reason.split())}", err=True)
        return SOME_FAILED
    checkpoints = over_ranks(found)
    details = caveats(checkpoints, measuring.env["data"]["file_system"])
    medians = figures(checkpoints)
    record = measuring.record("ok", details=details, figures=medians)
    samples = {"ranks": found, "checkpoints": [vars(one) for one in checkpoints]}
    (kept,) = appended([(record, samples)], store)
    lines = [*in_words(point, mode, checkpoints, medians), *(f"  {text}" for text in details)]
    report(kept, store, format, lambda: echo(*lines))
    return OK


def _check_layout(layout: Layout) -> None:
    """Refuse layouts whose state cannot be collected by parameter names here."""
    if max(layout.pp, layout.cp, layout.ep) > 1 or layout.zero == 1 or layout.name == "data_parallel":
        raise UserError(
            f"probe checkpoint: parallelism {layout.name}: not yet supported; allowed: {', '.join(ALLOWED)}"
        )


def needed_bytes(point: Point) -> int:
    """What one checkpoint of the point's model and optimizer takes on disk, a tenth more."""
    workload = workload_of(point.spec)
    with torch.device("meta"):
        model = workload.build(point.spec.variant_in(workload.variants))
    parameters = sum(value.nbytes for value in model.parameters())
    buffers = sum(value.nbytes for value in model.buffers())
    states = STATES[point.spec.optimizer or "adamw"]
    return int(1.1 * (parameters * (1 + states) + buffers))


def launched(
    point: Point, request: "DataclassInstance", launcher: LocalLauncher
) -> tuple[list[dict[str, Any]], tuple[Status, str] | None]:
    """What each rank found; or status and reason where one failed."""
    ranks = range(point.spec.ranks)
    with scratch() as folder:
        leave_request(request, folder)
        outcome = launcher.run(point.spec, None, folder, lambda progress: None)
        if why := why_failed(outcome, len(ranks), folder):
            return [], why
        return [{"rank": rank, "written": found_by(folder, rank)} for rank in ranks], None


def over_ranks(found: Sequence[Mapping[str, Any]]) -> list[Written]:
    """Each checkpoint as the slowest rank saw it; its bytes, files and residency as rank 0 did."""
    checkpoints = []
    for seen in zip(*(rank["written"] for rank in found), strict=True):
        times = {name: max(one[name] for one in seen) for name in ("gather_s", "blocked_s", "durable_s", "write_s")}
        slowest = max(seen, key=lambda one: sum(one["steps_s"]))
        checkpoints.append(
            Written(
                num_bytes=seen[0]["num_bytes"],
                num_files=seen[0]["num_files"],
                read_s=max(one["read_s"] for one in seen),
                resident_before_read=seen[0]["resident_before_read"],
                bare_steps_s=slowest["bare_steps_s"],
                steps_s=slowest["steps_s"],
                requests=requests_of(seen),
                differing_replicas=max(one["differing_replicas"] for one in seen),
                **times,
            )
        )
    return checkpoints


def requests_of(shares: Iterable[Mapping[str, Any]]) -> Counted | None:
    """What several ranks or checkpoints asked of a bucket, together; None where there is none."""
    known = [found for share in shares if (found := share.get("requests")) is not None]
    return merged(known) if known else None


def slowdown(checkpoints: Sequence[Written]) -> float | None:
    """A step while a checkpoint is written over one without; medians over checkpoints of means over steps."""
    ratios = [
        (sum(one.steps_s) / len(one.steps_s)) / (sum(one.bare_steps_s) / len(one.bare_steps_s))
        for one in checkpoints
        if one.steps_s and one.bare_steps_s
    ]
    return median(ratios) if ratios else None


def figures(checkpoints: Sequence[Written]) -> CheckpointFigures:
    """Medians over checkpoints."""
    return CheckpointFigures(
        checkpoint_bytes=round(median(one.num_bytes for one in checkpoints)),
        checkpoint_write_bytes_per_s=median(one.num_bytes / one.write_s for one in checkpoints),
        checkpoint_read_bytes_per_s=median(one.num_bytes / one.read_s for one in checkpoints),
        checkpoint_blocked_s=median(one.blocked_s for one in checkpoints),
        checkpoint_durable_s=median(one.durable_s for one in checkpoints),
        checkpoint_slowdown=slowdown(checkpoints),
        **request_figures([one.requests for one in checkpoints if one.requests is not None]),
    )


def caveats(checkpoints: Sequence[Written], kind: str | None) -> list[str]:
    """Why the figures must not be trusted blindly: a name, a colon, the arithmetic."""
    differing = max(one.differing_replicas for one in checkpoints)
    details = []
    if differing:
        details.append(
            f"replicas_differ: {differing} values that every rank holds whole are not alike on all of them (batch "
            "norm's statistics, say); one rank's are in the checkpoint"
        )
    resident = [one.resident_before_read for one in checkpoints]
    return details + cache_caveats(kind, resident, kind in IN_MEMORY)


def in_words(point: Point, mode: str, checkpoints: Sequence[Written], found: CheckpointFigures) -> list[str]:
    """What was measured, in three or four lines."""
    spec, first = point.spec, checkpoints[0]
    parts = ("blocked_s", "write_s", "read_s", "gather_s")
    s = {name: around([getattr(one, name) for one in checkpoints], 3) for name in parts}
    written = around([one.num_bytes / one.write_s / 1e6 for one in checkpoints], 0)
    read = around([one.num_bytes / one.read_s / 1e6 for one in checkpoints], 0)
    lines = [
        f"-> {spec.workload} {spec.variant}, {spec.optimizer}, {spec.layout.name} on {counted(spec.ranks, 'rank')}, "
        f"{mode}: {first.num_bytes / 1e6:,.1f} MB in {counted(first.num_files, 'file')} a checkpoint; "
        f"training waits {s['blocked_s']} s for it",
        f"write {written} MB/s until durable ({s['write_s']} s), read {read} MB/s ({s['read_s']} s)",
    ]
    if mode == "rank0":
        lines.append(f"gathering on rank 0 takes {s['gather_s']} s of that wait")
    if found.checkpoint_slowdown is not None:
        steps = [len(one.steps_s) for one in checkpoints]
        lines.append(
            f"a step takes {found.checkpoint_slowdown:.2f} times as long while it is written "
            f"({min(steps)} to {max(steps)} steps meanwhile)"
        )
    resident = [one.resident_before_read for one in checkpoints]
    seen = "unknown" if None in resident else f"{max(value or 0.0 for value in resident):.0%}"
    lines.append(
        f"trust: {len(checkpoints)} of {len(checkpoints)} read back equal in every value; in the page cache before "
        f"reading: {seen}{'; median ± the farthest' if len(checkpoints) > 1 else ''}"
    )
    return lines
