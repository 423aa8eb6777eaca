"""The folder of a store in which the processes of one `benchsuite run` leave what they measure, and whose it is."""

import json
import os
import re
import secrets
import shutil
import socket
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchsuite.contract.terminal import echo
from benchsuite.inside.files import own_folders, write_new
from benchsuite.inside.inherited import LOOKS_FOLDER, Inherited
from benchsuite.results.store.place import StoreError, check_writable
from benchsuite.storage.dataset.partial import has_ended, this_process

HOOK = Path(__file__).parents[1] / "inside" / "hook"

RUNS = "runs"
"""The folder of a store in which runs that go on keep what they have measured."""
SILENT_TIMES, LEAST_S = 5, 60.0
"""A `benchsuite run` that has not written for so many of its intervals, or minutes, has ended."""


@dataclass(frozen=True)
class Parent:
    """A `benchsuite run`, as it is written in the folder of its run: what has to be known to conclude in its place."""

    owner: str
    """Its process (`benchsuite.storage.dataset.partial.this_process`)."""
    session: str
    name: str | None
    started_at: str
    every_s: float

    def write(self, folder: Path, parent: str) -> None:
        """Write it; again now and then, which shows that it lives."""
        write_new(folder / f"parent-{parent}.json", json.dumps(asdict(self)))

    @staticmethod
    def forget(folder: Path, parent: str) -> None:
        """Say that it is at its end, and has concluded."""
        (folder / f"parent-{parent}.json").unlink(missing_ok=True)
        remove_unused(folder)


OF_WATCH = "watch"
"""What a watched loop calls the parent of its reports, which is rank 0 itself."""


def is_over(parent: Parent, path: Path) -> bool:
    """Whether a `benchsuite run` has ended: of another host when it has not shown for long that it lives."""
    newest_s = max(each.stat().st_mtime for each in path.parent.glob("*.json"))
    return has_ended(parent.owner) or time.time() - newest_s > SILENT_TIMES * max(parent.every_s, LEAST_S)


def remove_unused(folder: Path) -> None:
    """Remove the folder of a run that no `benchsuite run` uses any more."""
    if not any(folder.glob("parent-*.json")):
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Options:
    """What a run was asked for."""

    store: Path
    name: str | None = None
    session: str = "default"
    every_s: float = 60.0
    replays: bool = False


class Run:
    """A run: its folder, and who speaks for it."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.parent = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self.folder, self.why_unstored = _make_folder(options.store, self.parent)
        began = datetime.now(UTC).isoformat(timespec="microseconds")
        self.known = Parent(this_process(), options.session, options.name, began, options.every_s)
        self.show_life()
        self.ended_by: str | None = None
        """The signal that asked for an end."""

    def show_life(self) -> None:
        """Write who this is, so that others can conclude for it once it is gone."""
        with suppress(OSError):
            self.known.write(self.folder, self.parent)

    def environment(self) -> dict[str, str]:
        """The variables of the command: they carry the hook to all that it starts."""
        job, options = os.environ.get("SLURM_JOB_ID"), self.options
        told = Inherited(self.folder, self.parent, job, options.replays, options.every_s)
        paths = [str(HOOK), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {**os.environ, **told.as_variable(), "PYTHONPATH": os.pathsep.join(paths)}

    def remove(self) -> None:
        """Leave the folder, which the last one removes."""
        with suppress(OSError):
            Parent.forget(self.folder, self.parent)


def _make_folder(store: Path, parent: str) -> tuple[Path, str | None]:
    """The folder of the run; and why nothing can be stored, where it is a temporary one."""
    try:
        check_writable(store)
        folder = store.absolute() / RUNS / (_common_name() or parent)
        own_folders(folder / LOOKS_FOLDER)
        return folder, None
    except (StoreError, OSError) as error:
        echo(f"warning: {error}: the answer will be printed, and not stored", err=True)
        folder = Path(tempfile.mkdtemp(prefix="benchsuite-run-"))
        (folder / LOOKS_FOLDER).mkdir()
        return folder, str(error)


def _common_name() -> str | None:
    """What all tasks of this job step have in common, where it has several: `srun benchsuite run -- ...`."""
    env = os.environ
    if int(env.get("SLURM_NTASKS", "1")) > 1 and "SLURM_STEP_ID" in env:
        return "-".join(["slurm", env["SLURM_JOB_ID"], env["SLURM_STEP_ID"], env.get("SLURM_RESTART_COUNT", "0")])
    if int(env.get("OMPI_COMM_WORLD_SIZE", "1")) > 1 and "PMIX_NAMESPACE" in env:
        return "mpi-" + re.sub(r"[^\w.-]", "_", env["PMIX_NAMESPACE"])
    return None


def say(*lines: str) -> None:
    """Print to stderr; where that leads nowhere any more, as when srun has ended, the record is kept all the same."""
    with suppress(OSError, ValueError):
        echo(*lines, err=True)
