"""What processes of a command inherit from the `benchsuite run` above them, in a variable of their environment."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

VARIABLE = "BENCHSUITE_RUN"
LOOKS_FOLDER = "looks"


@dataclass(frozen=True)
class Inherited:
    """The run that a process belongs to."""

    folder: Path
    parent: str
    job: str | None
    """The scheduler's job in which it was started."""
    replays: bool
    every_s: float
    """How often something is said of it."""

    def as_variable(self) -> dict[str, str]:
        """The variable that says it."""
        return {VARIABLE: json.dumps(asdict(self), default=str)}

    @classmethod
    def here(cls) -> "Inherited | None":
        """The run of this process; None where it has ended, or this is another job that inherited its environment."""
        told = json.loads(os.environ[VARIABLE])
        run = cls(Path(told["folder"]), told["parent"], told["job"], told["replays"], told["every_s"])
        is_other = run.job is not None and os.environ.get("SLURM_JOB_ID", run.job) != run.job
        return None if is_other or not run.folder.is_dir() else run
