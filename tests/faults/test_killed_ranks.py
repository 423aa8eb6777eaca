"""A rank or a loader worker that is killed or stopped from outside: the cause is named, nothing is left behind."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch

from benchsuite.analysis.record_builder import conclude, new_attempt
from benchsuite.contract.rank_samples import RankIdentity, read_progress
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.grid.expand import plan_trial
from benchsuite.inside.samples import RankSamples
from benchsuite.launch.agents import TRIAL
from benchsuite.launch.starters import LocalLauncher
from benchsuite.results.store.record import TrialRecord
from benchsuite.storage.loaders import Batch
from benchsuite.trial import costs
from benchsuite.trial.rank import run_rank
from benchsuite.workloads.parallel.account import Account
from benchsuite.workloads.parallel.step import Training
from tests.helpers.below import below

ENDLESS = 100_000


@pytest.fixture(scope="module")
def launcher() -> Iterator[LocalLauncher]:
    with LocalLauncher() as started:
        yield started


def descendants(launcher: LocalLauncher) -> list[psutil.Process]:
    assert launcher._process is not None
    return below(launcher._process.pid, recursive=True)


def ranks(launcher: LocalLauncher) -> list[psutil.Process]:
    assert launcher._process is not None
    return below(launcher._process.pid)


def run_and_hurt(
    launcher: LocalLauncher, root: Path, folder: Path, hurt: Callable[[], None], timeout_s: float = 60
) -> TrialRecord:
    """Start an endless 2-rank trial and hurt it once both ranks take steps."""
    point = plan_trial(
        {
            "workload": "resnet50",
            "variant": "nano",
            "data": {"root": str(root), "cache": "warm", "num_workers": 1},
            "parallelism": "ddp",
            "world_size": 2,
            "batch_size": 2,
            "device": "cpu",
            "measure": {"steps": ENDLESS, "warmup_steps": ENDLESS, "timeout_s": timeout_s},
        }
    )

    def wait_and_hurt() -> None:
        while not all((p := read_progress(folder, rank)) and p.step > 3 for rank in (0, 1)):
            time.sleep(0.02)
        hurt()

    threading.Thread(target=wait_and_hurt, daemon=True).start()
    attempt = new_attempt(point, "default", 0, "killed", None)
    outcome = launcher.run(point.spec, point.dataset, folder, lambda progress: None)
    record, samples = conclude(attempt, outcome, folder)
    assert samples is None
    assert descendants(launcher) == []
    return record


def counts_in_vain(spec: TrialSpec, dataset: Path | None, me: RankIdentity, keep: list[object]) -> RankSamples:
    """A trial's rank; rank 1 runs out of memory in the step that is counted, while rank 0 waits for it there."""

    def full(training: Training, batch: Batch) -> Account:
        if me.rank == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return real(training, batch)

    real, costs.account = costs.account, full
    return run_rank(spec, dataset, me, keep)


def test_memory_that_runs_out_when_the_steps_are_done_loses_no_trial(launcher: LocalLauncher, tmp_path: Path) -> None:
    base = {"workload": "gpt_neox", "variant": "nano", "parallelism": "ddp", "world_size": 2, "batch_size": 2}
    more = {"device": "cpu", "data": {"source": "synthetic"}, "measure": {"steps": 4, "timeout_s": 30}}
    point = plan_trial({**base, **more})
    launcher.task = f"{counts_in_vain.__module__}:counts_in_vain"
    outcome = launcher.run(point.spec, None, tmp_path, lambda progress: None)
    launcher.task = TRIAL
    record, samples = conclude(new_attempt(point, "default", 0, "killed", None), outcome, tmp_path)
    assert record.status == "ok" and samples is not None, record.reason
    assert record.figures.samples_per_s and record.figures.flops_per_sample, "what needs no other rank is counted"
    assert record.figures.wire_bytes_per_step is None
    (said,) = (one for one in record.caveat_details if one.startswith("not_counted"))
    assert said.startswith("not_counted: rank 1, when its steps were done: OutOfMemoryError: CUDA out of memory.")


def test_a_killed_rank_is_named(launcher: LocalLauncher, dataset_root: Path, tmp_path: Path) -> None:
    record = run_and_hurt(launcher, dataset_root, tmp_path, lambda: ranks(launcher)[1].kill())
    assert record.status == "failed"
    assert record.reason is not None and record.reason.startswith("rank 1, in phase warmup, step ")
    assert record.reason.endswith("killed by SIGKILL")


def test_a_killed_loader_worker_is_named(launcher: LocalLauncher, dataset_root: Path, tmp_path: Path) -> None:
    def kill_worker() -> None:
        workers = [process for rank in ranks(launcher) for process in below(rank.pid)]
        assert len(workers) == 2
        workers[0].kill()

    record = run_and_hurt(launcher, dataset_root, tmp_path, kill_worker)
    assert record.status == "failed"
    assert record.reason is not None and "killed by signal: Killed" in record.reason


def test_a_stopped_rank_is_caught_by_the_time_limit(
    launcher: LocalLauncher, dataset_root: Path, tmp_path: Path
) -> None:
    def stop() -> None:
        os.kill(ranks(launcher)[1].pid, signal.SIGSTOP)

    record = run_and_hurt(launcher, dataset_root, tmp_path, stop, timeout_s=8)
    assert record.status == "timeout"
    assert record.reason is not None and record.reason.startswith("ranks waited in vain in phase warmup, step ")
    assert "; rank 1 gave no sign of life: stopped, or stuck in the kernel; rank 0, " in record.reason


def test_a_killed_zygote_is_a_failed_trial_and_the_next_one_runs(dataset_root: Path, tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    with LocalLauncher() as own:
        own.start()
        own._ensure_ready()
        zygote = psutil.Process(own._process.pid)  # type: ignore[union-attr]
        killed: list[psutil.Process] = []

        def kill_zygote() -> None:
            killed.extend(below(zygote.pid, recursive=True))
            zygote.kill()

        point = plan_trial(
            {
                "workload": "resnet50",
                "variant": "nano",
                "data": {"root": str(dataset_root), "cache": "warm", "num_workers": 1},
                "batch_size": 2,
                "device": "cpu",
                "measure": {"steps": ENDLESS},
            }
        )

        def wait_and_kill() -> None:
            while not ((p := read_progress(tmp_path / "first", 0)) and p.step > 3):
                time.sleep(0.02)
            kill_zygote()

        threading.Thread(target=wait_and_kill, daemon=True).start()
        outcome = own.run(point.spec, point.dataset, tmp_path / "first", lambda progress: None)
        record, _ = conclude(new_attempt(point, "default", 0, "killed", None), outcome, tmp_path / "first")
        assert record.status == "failed"
        assert record.reason is not None and "the process that forks ranks ended" in record.reason
        assert len(killed) == 2
        assert psutil.wait_procs(killed, timeout=10)[1] == []
        short = point.spec.model_copy(update={"measure": point.spec.measure.model_copy(update={"steps": 4})})
        outcome = own.run(short, point.dataset, tmp_path / "second", lambda progress: None)
        assert [ended.code for ended in outcome.exits] == [0]
