"""`benchsuite.run(spec)`: a trial in this process, for debuggers and notebooks."""

import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchsuite.analysis.flops import tell
from benchsuite.analysis.record_builder import Attempt, conclude, keep_traces, new_attempt, noted, with_ceilings
from benchsuite.contract.errors import UserError
from benchsuite.contract.failed_rank import failed_result, is_plain
from benchsuite.contract.outcome import Outcome, RankExit
from benchsuite.contract.rank_samples import RankIdentity
from benchsuite.contract.scratch import scratch
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.grid.expand import plan_trial
from benchsuite.grid.point import Point
from benchsuite.host.interference import Guard
from benchsuite.launch.launcher import Launcher, load_launcher
from benchsuite.results.store.record import TrialRecord
from benchsuite.runner.auto_batch import fitted
from benchsuite.runner.ceilings import of_record, without_model
from benchsuite.trial.feed import Feed
from benchsuite.trial.staging import TrialCopy


def run(spec: TrialSpec | Mapping[str, Any]) -> TrialRecord:
    """Run a one-rank trial in this process and return its record; a failing trial is a record with its reason.

    Here measure.timeout_s does not apply: nothing watches this process.

    Raises:
        UserError: the spec is not valid, cannot run here, or needs more than one process.
    """
    return in_this_process(plan_trial(spec))[0]


def fits_one_process(point: Point) -> bool:
    """Whether a trial has one rank and forms no process group, which could not be left again; and a batch."""
    return point.spec.parallelism == "none" and point.spec.batch_size != "auto"


TRACES = Path("benchsuite-traces")
"""Where traces of PyTorch's profiler go that belong to no store."""
Measured = tuple[TrialRecord, dict[str, Any] | None]
"""A record and its raw samples, where it has some."""


def in_this_process(point: Point) -> Measured:
    """Run a resolved one-rank trial in this process: its record and its raw samples.

    Raises:
        UserError: it needs more than one process.
    """
    if not fits_one_process(point):
        asked = f"parallelism {point.spec.parallelism}, world_size {point.spec.ranks}"
        raise UserError(f"{asked}: run() is one process without a group; use `benchsuite trial` or `sweep`")
    return _with_ceilings(point, _run_here)


def _with_ceilings(point: Point, run: Callable[[Attempt], Measured]) -> Measured:
    """Run a trial, and then the one that measures what its input could give at best."""
    attempt = new_attempt(point, "default", 0, "trial", None)
    record, samples = between_looks(attempt, run)
    alone = without_model(point) if record.status == "ok" else None
    if alone is None:
        return record, samples
    ceilings, _ = run(new_attempt(alone, "default", 0, "trial", None))
    return with_ceilings(attempt, record, of_record(ceilings)), samples


def between_looks(attempt: Attempt, run: Callable[[Attempt], Measured]) -> Measured:
    """Run an attempt between two looks at this host: its record with what was found, and its samples."""
    guard = Guard()
    guard.before(attempt.point.spec.device == "cuda")
    record, samples = run(attempt)
    facts, found = guard.after()
    env = record.env | {"moment": attempt.with_moment(facts).env["moment"]}
    return noted(record.model_copy(update={"env": env}), found), samples


def _run_here(attempt: Attempt) -> Measured:
    from benchsuite.trial.rank import run_rank

    point = attempt.point
    keep: list[object] = []
    with scratch() as folder, _torch_settings_kept():
        me = RankIdentity(0, 1, 0, folder, time.perf_counter())
        code = 0
        try:
            result = run_rank(point.spec, point.dataset, me, keep)
        except Exception as error:
            if not is_plain(error):
                traceback.print_exception(error)
            result, code = failed_result(0, error), 1
        finally:
            _give_back(keep)
        result.write(me.result_path)
        return _concluded(attempt, Outcome([RankExit(0, code)]), folder)


def _give_back(keep: list[object]) -> None:
    """Stop readers and remove staged copies."""
    for kept in keep:
        if isinstance(kept, Feed):
            kept.close()
        elif isinstance(kept, TrialCopy):
            kept.remove()


def _concluded(attempt: Attempt, outcome: Outcome, folder: Path) -> Measured:
    """Make the record, and keep its traces: the folder is removed."""
    record, samples = conclude(attempt, outcome, folder)
    return keep_traces(record, folder, TRACES / record.record_id), samples


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


def in_processes(point: Point) -> Measured:
    """Run a trial's ranks as processes of their own, outside of any store: its record and its raw samples."""
    with load_launcher("auto") as launcher:
        return _with_ceilings(fitted(point, launcher), partial(_run_in, launcher))


def _run_in(launcher: Launcher, attempt: Attempt) -> Measured:
    point = attempt.point
    with scratch() as folder:
        tell(point.spec, folder)
        return _concluded(attempt, launcher.run(point.spec, point.dataset, folder, lambda progress: None), folder)
