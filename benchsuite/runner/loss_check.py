"""`benchsuite trial SPEC --check-loss`: does this trial's mode train as one process would, here, on this machine?"""

import json
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchsuite.analysis.failure import failure
from benchsuite.contract.errors import UserError
from benchsuite.contract.rank_samples import RankIdentity, RankSamples, read_result
from benchsuite.contract.scratch import scratch
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.grid.point import Point
from benchsuite.grid.validity import workload_of
from benchsuite.launch.agents import AgentLauncher
from benchsuite.launch.starters import LocalLauncher
from benchsuite.storage.dataset.owned_files import write_new
from benchsuite.trial.setup import join, rendezvous_of, settle
from benchsuite.workloads.parallel.check import Case, compare, train_alone, train_parallelized

TASK = "benchsuite.runner.loss_check:run_rank"
FOUND = "found.json"
STEPS = 5


def check_loss(point: Point, launcher: AgentLauncher | None = None, shared: Path | None = None) -> dict[str, Any]:
    """Train for a few steps over the point's ranks and in one process; how far apart the two are.

    Args:
        point: what is trained.
        launcher: one that was entered, and goes on afterwards; default: one of this machine's.
        shared: a folder that all nodes of the launcher see; default: a temporary one.

    Raises:
        UserError: a rank failed, with the reason; or it trains on stale gradients.
    """
    if point.spec.layout.max_staleness is not None:
        raise UserError("with max_staleness gradients are stale by design, which those of one process are not")
    with LocalLauncher() if launcher is None else nullcontext(launcher) as started, scratch(shared) as folder:
        started.task = TASK
        outcome = started.run(point.spec, None, folder, lambda progress: None)
        results = [read_result(folder / f"rank-{rank}.json") for rank in range(point.spec.ranks)]
        if any(result is None or result.status != "ok" for result in results):
            raise UserError(f"the check did not finish: {failure(outcome, results, folder)[1]}")
        found: dict[str, Any] = json.loads((folder / FOUND).read_text())
    return found


def run_rank(spec: TrialSpec, _dataset: Path | None, me: RankIdentity, keep: list[object]) -> RankSamples:
    """Train the trial's model on synthetic samples for a few steps; rank 0 compares and leaves what it found."""
    device = settle(spec, me)
    if spec.layout.needs_group:
        join(rendezvous_of(me, spec.measure.timeout_s), me, device, spec)
    workload = workload_of(spec)
    variant = spec.variant_in(workload.variants)
    case = Case(workload, variant, spec.layout, spec, spec.rank_batch, STEPS, spec.measure.seed)
    spread = train_parallelized(case, device, keep)
    if me.rank == 0:
        compared = compare(case, spread, train_alone(case, device), device)
        more = {"equal": compared.equal, "rounded": compared.rounded, "steps": case.steps}
        write_new(me.folder / FOUND, json.dumps(asdict(compared) | more))
    return RankSamples(me.rank, "ok")


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
