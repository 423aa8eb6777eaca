"""Launchers: who starts the ranks of a trial and watches them.

A launcher is built without arguments, is a context manager, and has the method of `Launcher`. `registry` has ours;
third parties add theirs through the entry point group `benchsuite.launchers`.
"""

import os
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Protocol, Self

from benchsuite.contract.errors import UserError, refuse
from benchsuite.contract.outcome import Outcome
from benchsuite.contract.rank_samples import Progress
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.host.machine import Machine, this_machine
from benchsuite.launch.allocation import allocation, task, task_variables
from benchsuite.launch.registry import LAUNCHERS

GROUP = "benchsuite.launchers"


class CannotStart(UserError):
    """No trial can be run by this launcher, now."""

    lasting = False
    """Whether this process never could: to start the same sweep again would not help."""


def load_launcher(name: str) -> "Launcher":
    """A launcher by name; `auto` is what the environment suggests.

    Raises:
        UserError: no such launcher, it cannot run here, or this process is one of several tasks of a job.
    """
    name = suggested()[0] if name == "auto" else name
    check_name(name)
    if name in LAUNCHERS:
        check_alone(f"--launcher {name}", unless=name)
    made: Launcher = known()[name].load()()
    return made


def check_alone(what: str, unless: str = "") -> None:
    """Refuse what each task of a job would do once more, such as a sweep of its own.

    Args:
        what: that is asked for, in words.
        unless: the starter of tasks that share the work.

    Raises:
        UserError: this process is one of several tasks that another starter has started; naming the variables that
            say so.
    """
    mine = task()
    if mine is not None and mine.world_size > 1 and mine.starter != unless:
        where = f"this process is task {mine.rank} of {mine.world_size} ({task_variables()})"
        raise UserError(f"{what}: {where}, and each would run it all; allowed: sweep --launcher auto, or one process")


def check_name(name: str) -> None:
    """Refuse a name that no launcher has, wherever it could run.

    Raises:
        UserError: no such launcher.
    """
    if name not in ("auto", *LAUNCHERS) and name not in (found := known()):
        raise refuse("--launcher", name, ("auto", *found))


def known() -> dict[str, EntryPoint]:
    """All launchers by name; those that installed packages add follow ours, and take no name of these."""
    ours = {name: EntryPoint(name, known.start, GROUP) for name, known in LAUNCHERS.items()}
    return ours | {entry.name: entry for entry in entry_points(group=GROUP) if entry.name not in ours}


def machine_of(launcher: object) -> Machine:
    """What a node of a launcher has, and how many there are; this machine where it does not tell.

    Raises:
        CannotStart: its agents, which could tell, cannot be started.
    """
    return getattr(launcher, "machine", None) or this_machine()


def describe_launcher(name: str, launcher: object) -> str:
    """Return which launcher was asked for, or was chosen and why."""
    chosen, why = suggested() if name == "auto" else (name, getattr(launcher, "words", ""))
    return f"{chosen} ({why})" if why else chosen


def suggested(environment: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """The launcher that `auto` stands for, and why."""
    mine, given = task(environment), allocation(environment)
    if mine is not None and mine.world_size > 1:
        return mine.starter, f"this process is task {mine.rank} of {mine.world_size}"
    elsewhere = given is not None and given.scheduler == "slurm" and not environment.get("SLURMD_NODENAME")
    if given is not None and (given.num_nodes > 1 or elsewhere):
        return next(name for name, known in LAUNCHERS.items() if known.scheduler == given.scheduler), given.words
    return "local", f"{given.words}, so ranks are forked here" if given else "no scheduler's job"


class TooFewNodes(UserError):
    """A trial needs more nodes than are left of those that its sweep began with."""


class Launcher(Protocol):
    """Runs one trial at a time; every process it started is gone when `run` returns."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def run(
        self, spec: TrialSpec, dataset: Path | None, folder: Path, on_progress: Callable[[Progress], None]
    ) -> Outcome:
        """Run the ranks of a trial; each leaves its result, log and heartbeat in `folder`."""
