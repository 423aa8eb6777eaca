"""`benchsuite probe comm`: launch the ranks, make a record of each collective, print them and what was fitted."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchsuite.analysis.record_builder import Measuring
from benchsuite.contract.console import progress_bar
from benchsuite.contract.errors import UserError
from benchsuite.contract.exit_codes import OK, SOME_FAILED
from benchsuite.contract.session import check_session
from benchsuite.contract.terminal import PlainFormat, echo
from benchsuite.contract.trial_spec import parse_trial
from benchsuite.grid.expand import resolve
from benchsuite.grid.point import Point
from benchsuite.grid.validity import why_invalid
from benchsuite.host.environment import environment
from benchsuite.host.machine import Machine
from benchsuite.launch.launcher import Launcher, machine_of
from benchsuite.launch.work_folder import shared_folder
from benchsuite.probe.comm.records import ddp_specs, label_of, record_of, spec_of
from benchsuite.probe.comm.request import (
    ALLOWED_ALGORITHMS,
    ELEMENT_BYTES,
    OPS,
    Request,
    cells,
    check_algorithms,
    lacking,
    parse_names,
)
from benchsuite.probe.ranks import agents_for, found_by, leave_request
from benchsuite.probe.record import (
    Measured,
    appended,
    parse_counts,
    parse_sizes,
    report,
    why_failed,
)

TASK = "benchsuite.probe.comm.rank:run_rank"
BUCKETS = "1MiB,4MiB,25MiB"
NETWORK_VARIABLES = ("GLOO_", "NCCL_", "UCX_")
"""Beginnings of those that a time depends on."""
LEGEND = (
    "us: median over samples (three rounds) of the slowest rank, each after a barrier; size: the whole array, algbw "
    "and busbw as in nccl-tests; contents checked. alpha, beta: piecewise fit with 95 % intervals."
)
DDP_LEGEND = (
    "ddp_step: exposed: what backward() takes longer than its computation, of the rank that waits least in a step: the "
    "slowest, which others wait for. overlap = 1 - exposed / us, us being the same exchange with nothing else to do, "
    "of its least waiting rank. Below 0, as after_backward may be: what is exposed took longer than alone, by noise or "
    "by what the processors still do."
)


@dataclass(frozen=True)
class Asked:
    """What the options of `probe comm` ask for."""

    ops: tuple[str, ...]
    algorithms: tuple[str, ...]
    dtypes: tuple[str, ...]
    sizes: tuple[int, ...]
    ranks: tuple[int, ...]
    backend: str
    iterations: int
    seconds: float
    bucket_bytes: tuple[int, ...] = ()
    ranks_per_node: int | None = None
    timeout_s: float = 900.0


def asked(
    op: str,
    sizes: str,
    dtype: str,
    world_size: str,
    algorithm: str,
    overlap: bool,
    buckets: str | None,
    **others: Any,
) -> Asked:
    """What the options ask for; `others` as they are.

    Raises:
        UserError: one of them is not allowed, or does not go with another.
    """
    ops = parse_names(op, "--op", OPS)
    algorithms = parse_names(algorithm, "--algorithm", ALLOWED_ALGORITHMS)
    if algorithm != "all":
        check_algorithms(ops, algorithms)
        for missing in lacking(ops, algorithms):
            echo(f"warning: {missing}: not measured", err=True)
    if buckets is not None and not overlap:
        raise UserError(f"--buckets {buckets} without --overlap: give both, or neither")
    return Asked(
        ops=ops,
        algorithms=algorithms,
        dtypes=parse_names(dtype, "--dtype", tuple(ELEMENT_BYTES)),
        sizes=parse_sizes(sizes, "--sizes"),
        ranks=parse_counts(world_size, "--world-size", 2),
        bucket_bytes=parse_sizes(BUCKETS if buckets is None else buckets, "--buckets") if overlap else (),
        **others,
    )


def verb(asked: Asked, launcher: str, store: Path | None, session: str, format: PlainFormat) -> int:
    """Measure, and print what was found; the exit code.

    Raises:
        UserError: this cannot run here.
    """
    check_session(session)
    with agents_for(TASK, launcher, store) as chosen:
        points = [point_of(asked, num_ranks, machine_of(chosen)) for num_ranks in asked.ranks]
        kept = [one for point in points for one in appended(measured(asked, point, chosen, store, session), store)]
    report(kept, store, format, lambda: show(kept))
    return OK if all(record.status in ("ok", "skipped") for record, _ in kept) else SOME_FAILED


def point_of(asked: Asked, num_ranks: int, machine: Machine) -> Point:
    """Where the ranks run and on what, as a trial says it.

    Raises:
        UserError: they cannot run here, with the arithmetic.
    """
    device = {"gloo": "cpu", "nccl": "cuda"}.get(asked.backend, "auto")
    values = {
        "workload": "gpt_neox",
        "variant": "tiny",
        "data": {"source": "synthetic"},
        "device": device,
        "parallelism": "ddp",
        "world_size": num_ranks,
        "ranks_per_node": asked.ranks_per_node,
        "batch_size": 1,
        "measure": {"timeout_s": float(asked.timeout_s)},
    }
    point = resolve(parse_trial(values), machine, num_ranks, {})
    reason = why_invalid(point, machine)
    if reason:
        raise UserError(f"probe comm cannot run: {reason}")
    return point


def measured(asked: Asked, point: Point, launcher: Launcher, store: Path | None, session: str) -> Iterator[Measured]:
    """A record of each cell of one number of ranks, and its raw samples; none of cells that were not come to."""
    num_ranks = point.spec.ranks
    wanted = cells(asked.ops, asked.algorithms, asked.dtypes, asked.sizes, num_ranks)
    request = Request(tuple(wanted), asked.iterations, asked.seconds, asked.bucket_bytes)
    begun = Measuring("comm", {}, "", session, environment() | {"network": _network()})
    with shared_folder(store, launcher, "comm") as folder:
        leave_request(request, folder)
        with progress_bar(f"probing collectives on {num_ranks} ranks") as bar:
            outcome = launcher.run(point.spec, None, folder, lambda progress: bar(progress.step, progress.total))
        lines = [cells_of(folder, rank) for rank in range(num_ranks)]
        why = why_failed(outcome, num_ranks, folder)
    env = begun.env | outcome.env
    specs = [*(spec_of(cell, point, env) for cell in wanted), *ddp_specs(asked.bucket_bytes, point, env)]
    complete = min(map(len, lines))
    for number, spec in enumerate(specs[: complete + 1]):
        measuring = replace(begun, spec=spec, label=label_of(spec), env=env)
        if number < complete:
            yield record_of(measuring, [rank[number] for rank in lines])
        elif why is not None:
            status, reason = why
            left = len(specs) - number - 1
            also = f"; {left} more were not come to" if left else ""
            yield measuring.record(status, reason=f"{reason}{also}"), None
    if why is not None and complete == len(specs):
        echo(f"warning: all was measured, and then: {why[1]}", err=True)


def _network() -> dict[str, str]:
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(NETWORK_VARIABLES)}


def cells_of(folder: Path, rank: int) -> list[dict[str, Any]]:
    """What a rank has found so far of each cell, all rounds together."""
    found: list[dict[str, Any]] = []
    for timed in found_by(folder, rank):
        if timed["cell"] == len(found):
            found.append(timed)
        else:
            found[timed["cell"]]["seconds"] += timed["seconds"]
    return found


def unfitted(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which numbers of ranks give no alpha and beta though they were measured: their ranks wait for cores."""
    crowded = sorted({int(row["spec.world_size"]) for row in rows if "oversubscribed" in row["caveats"]})
    if not crowded:
        return []
    counts = ", ".join(map(str, crowded))
    return [f"no alpha and beta of {counts} ranks, more than there are cores: times are those of waiting for a core"]


def show(kept: Sequence[Measured]) -> None:
    """Print the table and what was fitted."""
    from benchsuite.contract.console import console
    from benchsuite.predict.theory.alpha_beta_fit import from_rows, in_words
    from benchsuite.results.render.tables import rows
    from benchsuite.results.render.terminal import fitting_table
    from benchsuite.results.report.probes import DDP_STEP, columns_of
    from benchsuite.results.store.frames import record_frame

    frame = record_frame([record for record, _ in kept], "comm")
    out = console()
    found = rows(frame)
    out.print(fitting_table(found, columns_of(found), out))
    for key, fitted in from_rows(frame).items():
        out.print(f"{key.op} {key.algorithm} {key.dtype} {key.backend}, {key.ranks} ranks:", markup=False)
        for line in in_words(fitted):
            out.print(f"  {line}", markup=False)
    for line in unfitted(found):
        out.print(line, markup=False)
    out.print(LEGEND, style="dim", markup=False)
    if any(row.get("spec.op") == DDP_STEP for row in found):
        out.print(DDP_LEGEND, style="dim", markup=False)
