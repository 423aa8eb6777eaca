"""Launchers: who starts the ranks of a trial and watches them.

A launcher is built without arguments, is a context manager, and has the method of `Launcher`. Third parties add to
LAUNCHERS through the entry point group `benchsuite.launchers`.
"""

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from benchsuite.errors import refuse
from benchsuite.ranks import Progress
from benchsuite.spec import TrialSpec

LAUNCHERS: Mapping[str, str] = {
    "local": "benchsuite.launch.local:LocalLauncher",
}
LAUNCHERS_NOT_YET = ("torchrun", "srun", "mpiexec")


@dataclass(frozen=True)
class RankExit:
    """How a rank ended before its launcher ended the rest: exit code, or the signal that killed it."""

    rank: int
    code: int | None = None
    signal: int | None = None


@dataclass(frozen=True)
class Outcome:
    """How a trial's processes ended."""

    exits: list[RankExit] = field(default_factory=list)
    timed_out: bool = False
    interrupted: bool = False
    out_of_memory: bool = False
    """The kernel killed a process for memory meanwhile."""
    launcher_error: str | None = None
    foreign_cores: float | None = None
    """Cores that other processes kept busy meanwhile; None where the launcher cannot tell."""


def load_launcher(name: str) -> "Launcher":
    """A launcher by name; `auto` is the local one.

    Raises:
        UserError: no such launcher.
    """
    name = "local" if name == "auto" else name
    if name in LAUNCHERS:
        made: Launcher = pkgutil.resolve_name(LAUNCHERS[name])()
        return made
    found = {entry.name: entry for entry in entry_points(group="benchsuite.launchers")}
    if name not in found:
        raise refuse("--launcher", name, ("auto", *LAUNCHERS, *found), LAUNCHERS_NOT_YET)
    added: Launcher = found[name].load()()
    return added


class Launcher(Protocol):
    """Runs one trial at a time; every process it started is gone when `run` returns."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def run(
        self, spec: TrialSpec, dataset: Path | None, folder: Path, on_progress: Callable[[Progress], None]
    ) -> Outcome:
        """Run the ranks of a trial; each leaves its result, log and heartbeat in `folder`."""
