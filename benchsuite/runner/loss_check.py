"""`benchsuite trial SPEC --check-loss`: does this trial's mode train as one process would, here, on this machine?"""

import json
import os
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import FileStore  # type: ignore[attr-defined]
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, start_processes

from benchsuite.contract.errors import UserError
from benchsuite.contract.rank_samples import write_whole
from benchsuite.contract.scratch import scratch
from benchsuite.contract.trial_spec import TrialSpec, parse_trial
from benchsuite.grid.point import Point
from benchsuite.grid.validity import workload_of
from benchsuite.trial.setup import backend_of
from benchsuite.workloads.parallel.check import Case, compare, train_alone, train_spread
from benchsuite.workloads.precision import set_float32

STEPS = 5


def case_of(spec: TrialSpec) -> Case:
    """What the check trains: the trial's model, mode and techniques on synthetic samples, for a few steps."""
    workload = workload_of(spec)
    variant = workload.variants[spec.variant]
    return Case(workload, variant, spec.layout, spec, spec.rank_batch, STEPS, spec.measure.seed)


def check_loss(point: Point) -> dict[str, Any]:
    """Train for a few steps over the point's ranks and in one process; how far apart the two are.

    Raises:
        UserError: a rank failed; with its last words.
    """
    with scratch() as folder:
        (folder / "spec.json").write_text(point.spec.model_dump_json())
        try:
            start_processes(  # type: ignore[no-untyped-call]
                _rank, (str(folder),), nprocs=point.spec.ranks, start_method="spawn"
            )
        except (ProcessRaisedException, ProcessExitedException) as error:
            lines = [line for line in str(error).strip().splitlines() if line.strip()]
            raise UserError(f"the check did not finish: {lines[-1].strip()}") from error
        found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found


def _rank(rank: int, name: str) -> None:
    """One rank of the check; rank 0 compares and leaves what it found."""
    folder = Path(name)
    spec = parse_trial(json.loads((folder / "spec.json").read_text()))
    torch.set_num_threads(spec.threads_per_rank or 1)
    set_float32(spec.precision)
    device = torch.device("cuda", rank) if spec.device == "cuda" else torch.device("cpu")
    if spec.layout.needs_group:
        _join(spec, folder, rank, device)
    case, keep = case_of(spec), []  # type: ignore[var-annotated]
    spread = train_spread(case, device, keep)
    if rank == 0:
        compared = compare(case, spread, train_alone(case, device), device)
        more = {"equal": compared.equal, "rounded": compared.rounded, "steps": case.steps}
        write_whole(folder / "found.json", asdict(compared) | more)
    if dist.is_initialized():
        dist.barrier()
    os._exit(0)  # unwinding DDP may hang


def _join(spec: TrialSpec, folder: Path, rank: int, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend_of(spec, device),
        store=FileStore(str(folder / "rendezvous"), spec.ranks),
        rank=rank,
        world_size=spec.ranks,
        timeout=timedelta(seconds=spec.measure.timeout_s),
    )


def in_words(point: Point, found: dict[str, Any]) -> str:
    """The verdict in one line."""
    spec = point.spec
    verdict = "ok" if found["equal"] else "NOT the same training"
    weights = (
        f"all weights together by {found['distance']:.1e} of the way they went (allowed: {found['max_distance']:.1g})"
        if found["rounded"]
        else f"weights by {found['weight_difference']:.1e} of what training changed (allowed: "
        f"{found['max_weight_difference']:.0e})"
    )
    if not found["moved"]:
        weights = "and training changed no weight: there is nothing to compare"
    return (
        f"{verdict}: {spec.workload} {spec.variant}, {spec.layout.name}, {spec.ranks} ranks, {spec.precision}: over "
        f"{found['steps']} steps losses differ from those of one process by {found['loss_difference']:.1e} at most "
        f"(allowed: {found['tolerance']:.0e}), {weights}"
    )
