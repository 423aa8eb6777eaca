"""One attempt at a trial: launched between two looks at this host, and what came of it as a record."""

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

from benchsuite.analysis.flops import tell
from benchsuite.analysis.record_builder import Attempt, conclude, noted
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
Measured = tuple[TrialRecord, dict[str, Any] | None]
"""A record and its raw samples, where it has some."""


def measure(
    attempt: Attempt,
    launcher: Launcher,
    folder: Path,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    guard: Guard | None = None,
) -> Measured:
    """Launch an attempt, whose ranks leave what they found in `folder`; its record and its raw samples.

    `guard` looks at the devices before and after, where ranks may run on this node.
    """
    spec, is_here = attempt.point.spec, getattr(launcher, "is_here", lambda: True)
    looks = guard if guard is not None and is_here() else None
    try:
        if looks is not None:
            looks.before(spec.device == "cuda")
        tell(spec, folder)
        compile_for(spec.layout.engine, spec.device)
        outcome = launcher.run(spec, attempt.point.dataset, folder, on_progress)
        outcome = replace(outcome, interrupted=outcome.interrupted or _asked_to_end(outcome))
    except OSError:
        if is_folder(folder):
            raise
        outcome = Outcome()
    facts, found = looks.after() if looks is not None else ({}, [])
    record, samples = conclude(attempt.with_moment(facts), outcome, folder)
    return noted(with_tiles(record, spec, samples), [*found, *outcome.found]), samples


@cache
def compile_for(engine: str, device: str) -> None:
    """Have an engine compile what its ranks would else compile as they start, each time-out with it; once.

    What goes wrong here is left to the ranks, whose records say it.
    """
    build = None if engine == "torch" else engine_of(engine).build
    if build is not None:
        subprocess.run([sys.executable, "-m", build, device], check=False, stdout=subprocess.DEVNULL)


def _asked_to_end(outcome: Outcome) -> bool:
    """Whether ranks have ended by SIGTERM: schedulers send it to all processes of a job, in no order.

    Then this process has a moment to get its own; in a scheduler's job it is taken to be meant.
    """
    if not any(ended.signal == signal.SIGTERM for ended in outcome.exits):
        return False
    time.sleep(SIGNALS_APART_S)
    return any(name in os.environ for name in JOB_ID_VARIABLES)
