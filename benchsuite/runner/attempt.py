"""One attempt at a trial: launch its ranks, look at this host before and after, and make a record of the outcome."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from benchsuite.analysis.flops import write_known_flops
from benchsuite.analysis.record_builder import Attempt, conclude, with_caveats
from benchsuite.contract.outcome import Outcome
from benchsuite.contract.rank_samples import Progress
from benchsuite.host.interference import Guard
from benchsuite.launch.launcher import Launcher
from benchsuite.results.store.record import TrialRecord
from benchsuite.runner.claims import JOB_ID_VARIABLES
from benchsuite.runner.roofline import with_tiles
from benchsuite.storage.dataset.local_path import is_folder
from benchsuite.workloads.engine import engine_of

SIGNALS_APART_S = 2.0
RecordAndSamples = tuple[TrialRecord, dict[str, Any] | None]
"""A record and its raw samples; None where it has none."""


def measure(
    attempt: Attempt,
    launcher: Launcher,
    folder: Path,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    guard: Guard | None = None,
) -> RecordAndSamples:
    """Launch an attempt and return its record and raw samples; its ranks write their files into `folder`.

    `guard` looks at the devices before and after, unless all ranks run on other nodes. A `folder` that is gone makes a
    failed record.
    """
    spec, is_here = attempt.point.spec, getattr(launcher, "is_here", lambda: True)
    local_guard = guard if guard is not None and is_here() else None
    try:
        if local_guard is not None:
            local_guard.before(spec.device == "cuda")
        write_known_flops(spec, folder)
        compile_extensions(spec.layout.engine, spec.device)
        outcome = launcher.run(spec, attempt.point.dataset, folder, on_progress)
        outcome = replace(outcome, interrupted=outcome.interrupted or _was_job_terminated(outcome))
    except OSError:
        if is_folder(folder):
            raise
        outcome = Outcome()
    facts, caveats = local_guard.after() if local_guard is not None else ({}, [])
    record, samples = conclude(attempt.with_moment(facts), outcome, folder)
    return with_caveats(with_tiles(record, spec, samples), [*caveats, *outcome.found]), samples


@cache
def compile_extensions(engine: str, device: str) -> None:
    """Have an engine compile its extensions once, so that ranks do not compile them within their time-outs.

    Errors are ignored: the ranks then fail and their records say why.
    """
    build = None if engine == "torch" else engine_of(engine).build
    if build is not None:
        subprocess.run([sys.executable, "-m", build, device], check=False, stdout=subprocess.DEVNULL)


def _was_job_terminated(outcome: Outcome) -> bool:
    """Return whether the scheduler ended the job: ranks ended by SIGTERM, and this process runs in a job.

    Schedulers send the signal to all processes of a job in no order, so this waits a moment for its own first.
    """
    if not any(ended.signal == signal.SIGTERM for ended in outcome.exits):
        return False
    time.sleep(SIGNALS_APART_S)
    return any(name in os.environ for name in JOB_ID_VARIABLES)
