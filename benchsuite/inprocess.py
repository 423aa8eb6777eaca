"""`benchsuite.run(spec)`: a trial in this process, for debuggers and notebooks."""

import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchsuite.autobatch import fitted
from benchsuite.errors import UserError
from benchsuite.failure import failed_result, is_plain
from benchsuite.grid import Point, resolve, why_illegal
from benchsuite.launch import Outcome, RankExit, load_launcher
from benchsuite.machine import this_machine
from benchsuite.measure import Feed
from benchsuite.outcome import conclude, new_attempt
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


def run(spec: TrialSpec | Mapping[str, Any]) -> TrialRecord:
    """Run a one-rank trial in this process and return its record; a failing trial is a record with its reason.

    Here measure.timeout_s does not apply: nothing watches this process.

    Raises:
        UserError: the spec is not valid, cannot run here, or needs more than one process.
    """
    return run_point(plan_trial(spec))


def fits_one_process(point: Point) -> bool:
    """Whether a trial has one rank and forms no process group, which could not be left again; and a batch."""
    return point.spec.parallelism == "none" and point.spec.batch_size != "auto"


def run_point(point: Point) -> TrialRecord:
    """Run a resolved one-rank trial in this process."""
    if not fits_one_process(point):
        asked = f"parallelism {point.spec.parallelism}, world_size {point.spec.ranks}"
        raise UserError(f"{asked}: run() is one process without a group; use `benchsuite trial` or `sweep`")
    from benchsuite.trial import run_rank

    attempt = new_attempt(point, "default", 0, "trial", None)
    keep: list[object] = []
    with tempfile.TemporaryDirectory(prefix="benchsuite-") as name, _torch_settings_kept():
        me = RankIdentity(0, 1, 0, Path(name), time.perf_counter())
        code = 0
        try:
            result = run_rank(point.spec, point.dataset, me, keep)
        except Exception as error:
            if not is_plain(error):
                traceback.print_exception(error)
            result, code = failed_result(0, error), 1
        for kept in keep:
            if isinstance(kept, Feed):
                kept.loader.close()
        result.write(me.result_path)
        return conclude(attempt, Outcome([RankExit(0, code)]), Path(name))[0]


@contextmanager
def _torch_settings_kept() -> Iterator[None]:
    """Give the caller's threads, TF32 settings and random state back."""
    threads = torch.get_num_threads()
    tf32 = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        with torch.random.fork_rng():
            yield
    finally:
        torch.set_num_threads(threads)
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = tf32


def run_forked(point: Point) -> TrialRecord:
    """Run a trial's ranks as processes of their own, outside of any store."""
    with tempfile.TemporaryDirectory(prefix="benchsuite-") as name, load_launcher("auto") as launcher:
        point = fitted(point, launcher)
        attempt = new_attempt(point, "default", 0, "trial", None)
        outcome = launcher.run(point.spec, point.dataset, Path(name), lambda progress: None)
        return conclude(attempt, outcome, Path(name))[0]
