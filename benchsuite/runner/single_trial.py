"""Run one trial: in this process, as `benchsuite.run_trial(spec)` for debuggers and notebooks, or in its own."""

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
from benchsuite.runner.attempt import RecordAndSamples, measure
from benchsuite.runner.auto_batch import fit_batch_size
from benchsuite.runner.ceilings import ceiling_figures, without_model
from benchsuite.runner.roofline import with_roof
from benchsuite.trial.feed import Feed
from benchsuite.trial.staging import TrialCopy
from benchsuite.workloads.precision import float32_kept


def run_trial(spec: TrialSpec | Mapping[str, Any]) -> TrialRecord:
    """Run a one-rank trial in this process and return its record; a trial that fails has a record with its reason.

    measure.timeout_s does not apply here: nothing watches this process.

    Raises:
        UserError: the spec is not valid, cannot run here, or needs more than one process.
    """
    return run_in_this_process(plan_trial(spec))[0]


def fits_one_process(point: Point) -> bool:
    """Return whether a trial can run in this process: one rank, no process group, and a batch that is a number.

    This process could not leave a process group again.
    """
    return point.spec.parallelism == "none" and point.spec.batch_size != "auto"


TRACES = Path("benchsuite-traces")
"""The folder of PyTorch's traces where the trial has no store."""


def run_in_this_process(point: Point, store: ResultsStore | None = None) -> RecordAndSamples:
    """Run a resolved one-rank trial in this process. `store` holds the probes that give its roof, if there are any.

    Raises:
        UserError: it needs more than one process.
    """
    if not fits_one_process(point):
        ranks = f"parallelism {point.spec.parallelism}, world_size {point.spec.ranks}"
        raise UserError(f"{ranks}: run_trial() is one process without a group; use `benchsuite trial` or `sweep`")
    return run_with_launcher(point, _ThisProcess(), store)


def run_in_processes(point: Point, store: ResultsStore | None = None) -> RecordAndSamples:
    """Run each rank of a trial in its own process. `store` holds the probes that give its roof, if there are any."""
    with load_launcher("auto") as launcher:
        return run_with_launcher(fit_batch_size(point, launcher), launcher, store)


def run_with_launcher(point: Point, launcher: Launcher, store: ResultsStore | None = None) -> RecordAndSamples:
    """Run a trial by a launcher that was entered, and then the trial that measures the ceilings of its input."""
    attempt = new_attempt(point, "default", 0, "trial", None)
    record, samples = _measure(attempt, launcher, Guard())
    record = with_roof(point.spec, record, store)
    loader_alone = without_model(point) if record.status == "ok" else None
    if loader_alone is None:
        return record, samples
    ceilings, _ = _measure(new_attempt(loader_alone, "default", 0, "trial", None), launcher, None)
    return with_ceilings(attempt, record, ceiling_figures(ceilings), samples), samples


def _measure(attempt: Attempt, launcher: Launcher, guard: Guard | None) -> RecordAndSamples:
    """Run an attempt in a scratch folder; its traces are kept below `TRACES`."""
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
            with _restore_torch_settings():
                me.leave(run_rank(spec, dataset, me, keep))
        except Exception as error:
            if not is_plain(error):
                traceback.print_exception(error)
            leave_failed(me, error)
            code = 1
        finally:
            for resource in keep:
                if isinstance(resource, Feed):
                    resource.close()
                elif isinstance(resource, TrialCopy):
                    resource.remove()
        return Outcome([RankExit(0, code)])


@contextmanager
def _restore_torch_settings() -> Iterator[None]:
    """Restore the caller's threads, cores, TF32 and cuDNN settings and random state at the end."""
    threads, benchmark, cpus = torch.get_num_threads(), torch.backends.cudnn.benchmark, os.sched_getaffinity(0)
    try:
        with torch.random.fork_rng(), float32_kept():
            yield
    finally:
        torch.set_num_threads(threads)
        torch.backends.cudnn.benchmark = benchmark
        for thread in os.listdir("/proc/self/task"):  # threads that the trial has started keep its cores otherwise
            with suppress(OSError):
                os.sched_setaffinity(int(thread), cpus)
