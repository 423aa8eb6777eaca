"""`benchsuite.run(spec)`: a trial in this process, for debuggers and notebooks."""

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchsuite.environment import environment, file_system
from benchsuite.errors import UserError
from benchsuite.failure import failed_result
from benchsuite.grid import Point, resolve, why_illegal
from benchsuite.launch import Outcome, RankExit
from benchsuite.machine import this_machine
from benchsuite.outcome import Attempt, conclude
from benchsuite.ranks import RankIdentity
from benchsuite.spec import TrialSpec, parse_trial
from results.record import TrialRecord


def plan_trial(spec: TrialSpec | Mapping[str, Any]) -> Point:
    """A spec resolved for this machine.

    Raises:
        UserError: it is not valid, or cannot run here; with the reason.
    """
    machine = this_machine()
    parsed = spec if isinstance(spec, TrialSpec) else parse_trial(spec)
    point = resolve(parsed, machine, parsed.ranks, {})
    reason = why_illegal(point, machine)
    if reason:
        raise UserError(f"this trial cannot run: {reason}")
    return point


def new_attempt(point: Point) -> Attempt:
    """An attempt outside of any sweep."""
    env = environment()
    if point.dataset:
        env["data"] = file_system(point.dataset)
    return Attempt(point, "default", 0, "trial", None, env, this_machine().cores)


def run(spec: TrialSpec | Mapping[str, Any]) -> TrialRecord:
    """Run a one-rank trial in this process and return its record; a failing trial is a record with its reason.

    Raises:
        UserError: the spec is not valid, cannot run here, or needs more than one process.
    """
    point = plan_trial(spec)
    if point.spec.ranks > 1:
        raise UserError(f"world_size {point.spec.ranks}: run() is one process; use `benchsuite trial` or `sweep`")
    import torch

    from benchsuite.trial import run_rank

    threads = torch.get_num_threads()
    attempt = new_attempt(point)
    with tempfile.TemporaryDirectory(prefix="benchsuite-") as name:
        me = RankIdentity(0, 1, 0, Path(name), time.perf_counter())
        code = 0
        try:
            result = run_rank(point.spec, point.dataset, me, [])
        except Exception as error:
            result, code = failed_result(0, error), 1
        torch.set_num_threads(threads)
        result.write(me.result_path)
        return conclude(attempt, Outcome([RankExit(0, code)]), Path(name))[0]


def run_forked(point: Point) -> TrialRecord:
    """Run a trial's ranks as processes of their own, outside of any store."""
    from benchsuite.launch.local import LocalLauncher

    attempt = new_attempt(point)
    with tempfile.TemporaryDirectory(prefix="benchsuite-") as name, LocalLauncher() as launcher:
        outcome = launcher.run(point.spec, point.dataset, Path(name), lambda progress: None)
        return conclude(attempt, outcome, Path(name))[0]
