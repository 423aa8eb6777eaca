"""`benchsuite.run(spec)`: a trial in this process, for debuggers and notebooks."""

import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import torch

from benchsuite.analysis.record_builder import Attempt, keep_traces, new_attempt, with_ceilings
from benchsuite.contract.errors import UserError
from benchsuite.contract.failed_rank import is_plain, leave_failed
from benchsuite.contract.outcome import Outcome, RankExit
from benchsuite.contract.rank_samples import Progress, RankIdentity
from benchsuite.contract.scratch import scratch
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.grid.expand import plan_trial
from benchsuite.grid.point import Point
from benchsuite.host.interference import Guard
from benchsuite.launch.launcher import Launcher, load_launcher
from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import ResultsStore
from benchsuite.runner.attempt import Measured, measure
from benchsuite.runner.auto_batch import fitted
from benchsuite.runner.ceilings import of_record, without_model
from benchsuite.runner.roofline import with_roof
from benchsuite.trial.feed import Feed
from benchsuite.trial.staging import TrialCopy
from benchsuite.workloads.precision import float32_kept


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


def in_this_process(point: Point, store: ResultsStore | None = None) -> Measured:
    """Run a resolved one-rank trial in this process: its record and its raw samples. `store`: of what was probed.

    Raises:
        UserError: it needs more than one process.
    """
    if not fits_one_process(point):
        asked = f"parallelism {point.spec.parallelism}, world_size {point.spec.ranks}"
        raise UserError(f"{asked}: run() is one process without a group; use `benchsuite trial` or `sweep`")
    return launched(point, _ThisProcess(), store)


def in_processes(point: Point, store: ResultsStore | None = None) -> Measured:
    """Run a trial's ranks as processes of their own: its record and its raw samples. `store`: of what was probed."""
    with load_launcher("auto") as launcher:
        return launched(fitted(point, launcher), launcher, store)


def launched(point: Point, launcher: Launcher, store: ResultsStore | None = None) -> Measured:
    """Run a trial by a launcher that was entered, and then the one that measures what its input could give at best."""
    attempt = new_attempt(point, "default", 0, "trial", None)
    record, samples = _measured(attempt, launcher, Guard())
    record = with_roof(point.spec, record, store)
    alone = without_model(point) if record.status == "ok" else None
    if alone is None:
        return record, samples
    ceilings, _ = _measured(new_attempt(alone, "default", 0, "trial", None), launcher, None)
    return with_ceilings(attempt, record, of_record(ceilings)), samples


def _measured(attempt: Attempt, launcher: Launcher, guard: Guard | None) -> Measured:
    """Run an attempt in a folder that is removed; its traces are kept elsewhere."""
    with scratch() as folder:
        record, samples = measure(attempt, launcher, folder, guard=guard)
        return keep_traces(record, folder, TRACES / record.record_id), samples


class _ThisProcess:
    """A launcher whose one rank runs in this process."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def run(
        self, spec: TrialSpec, dataset: Path | None, folder: Path, _on_progress: Callable[[Progress], None]
    ) -> Outcome:
        """Run the rank; readers are stopped and staged copies removed afterwards."""
        from benchsuite.trial.rank import run_rank

        keep: list[object] = []
        me = RankIdentity(0, 1, 0, folder, time.perf_counter())
        code = 0
        try:
            with _torch_settings_kept():
                me.leave(run_rank(spec, dataset, me, keep))
        except Exception as error:
            if not is_plain(error):
                traceback.print_exception(error)
            leave_failed(me, error)
            code = 1
        finally:
            for kept in keep:
                if isinstance(kept, Feed):
                    kept.close()
                elif isinstance(kept, TrialCopy):
                    kept.remove()
        return Outcome([RankExit(0, code)])


@contextmanager
def _torch_settings_kept() -> Iterator[None]:
    """Give the caller's threads, cores, TF32 and cuDNN settings and random state back."""
    threads, tries, cpus = torch.get_num_threads(), torch.backends.cudnn.benchmark, os.sched_getaffinity(0)
    try:
        with torch.random.fork_rng(), float32_kept():
            yield
    finally:
        torch.set_num_threads(threads)
        torch.backends.cudnn.benchmark = tries
        for thread in os.listdir("/proc/self/task"):  # those that were made meanwhile, too
            with suppress(OSError):
                os.sched_setaffinity(int(thread), cpus)
