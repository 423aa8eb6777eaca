"""`benchsuite trial SPEC --check-loss`: does this trial's mode train as one process would, here, on this machine?"""

import json
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchsuite.analysis.failure import failure
from benchsuite.contract.errors import UserError
from benchsuite.contract.rank_samples import RankIdentity, read_result
from benchsuite.contract.scratch import scratch
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.grid.point import Point
from benchsuite.grid.validity import workload_of
from benchsuite.inside.files import write_new
from benchsuite.inside.samples import RankSamples
from benchsuite.launch.agents import AgentLauncher
from benchsuite.launch.starters import LocalLauncher
from benchsuite.trial.setup import join, rendezvous_of, settle
from benchsuite.workloads.parallel.check import Case, compare, train_alone, train_parallelized

TASK = "benchsuite.runner.loss_check:run_rank"
COMPARISON = "comparison.json"
STEPS = 5


def check_loss(point: Point, launcher: AgentLauncher | None = None, shared: Path | None = None) -> dict[str, Any]:
    """Train for a few steps on the point's ranks and in one process; return how far the two are apart.

    Args:
        point: the trial whose mode is checked.
        launcher: a launcher that was entered, and that stays open; None: one of this machine, for this check.
        shared: a folder that all nodes of the launcher see; None: a temporary one.

    Raises:
        UserError: a rank failed, with the reason; or it trains on stale gradients.
    """
    if point.spec.layout.max_staleness is not None:
        raise UserError("with max_staleness gradients are stale by design; one process has no stale gradients")
    with LocalLauncher() if launcher is None else nullcontext(launcher) as started, scratch(shared) as folder:
        started.task = TASK
        outcome = started.run(point.spec, None, folder, lambda progress: None)
        results = [read_result(folder / f"rank-{rank}.json") for rank in range(point.spec.ranks)]
        if any(result is None or result.status != "ok" for result in results):
            raise UserError(f"the check did not finish: {failure(outcome, results, folder)[1]}")
        comparison: dict[str, Any] = json.loads((folder / COMPARISON).read_text())
    return comparison


def run_rank(spec: TrialSpec, _dataset: Path | None, me: RankIdentity, keep: list[object]) -> RankSamples:
    """Train the trial's model on synthetic samples for a few steps; rank 0 compares and writes the comparison."""
    device = settle(spec, me)
    if spec.layout.needs_group:
        join(rendezvous_of(me, spec.measure.timeout_s), me, device, spec)
    workload = workload_of(spec)
    variant = spec.variant_in(workload.variants)
    case = Case(workload, variant, spec.layout, spec, spec.rank_batch, STEPS, spec.measure.seed)
    parallelized = train_parallelized(case, device, keep)
    if me.rank == 0:
        comparison = compare(case, parallelized, train_alone(case, device), device)
        verdict = {"equal": comparison.equal, "rounded": comparison.rounded, "steps": case.steps}
        write_new(me.folder / COMPARISON, json.dumps(asdict(comparison) | verdict))
    return RankSamples(me.rank, "ok")


def describe_comparison(point: Point, comparison: dict[str, Any]) -> str:
    """Return the verdict as one line."""
    spec = point.spec
    verdict = "ok" if comparison["equal"] else "NOT the same training"
    if not comparison["moved"]:
        weights = "and training changed no weight: there is nothing to compare"
    elif comparison["rounded"]:
        weights = (
            f"all weights together by {comparison['distance']:.1e} of the way they went "
            f"(allowed: {comparison['max_distance']:.1g})"
        )
    else:
        weights = (
            f"weights by {comparison['weight_difference']:.1e} of what training changed "
            f"(allowed: {comparison['max_weight_difference']:.0e})"
        )
    return (
        f"{verdict}: {spec.workload} {spec.variant}, {spec.layout.name}, {spec.ranks} ranks, {spec.precision}: over "
        f"{comparison['steps']} steps losses differ from those of one process by "
        f"{comparison['loss_difference']:.1e} at most (allowed: {comparison['tolerance']:.0e}), {weights}"
    )
