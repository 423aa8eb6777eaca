"""`benchsuite nightly init DIR`: a results repository for a site."""

import json
import shlex
import shutil
import sys
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from benchsuite.contract.errors import UserError
from benchsuite.host.signals import Terminated
from benchsuite.nightly.measuring import CONFIG, nightly_of
from benchsuite.nightly.night import git
from benchsuite.nightly.proposal import propose

IGNORED = ".asv/\n__pycache__/\n"
OF_ONE_NODE = "  world_size: [1, 2]\n"
"""A line of the small sweep."""
TEXTS = ("README.md", "crontab", "scrontab")


def asv_config(name: str) -> dict[str, object]:
    """asv's configuration of a site's repository."""
    return {
        "version": 1,
        "project": name,
        "repo": ".",
        "branches": ["HEAD"],
        "environment_type": "existing",
        "launch_method": "forkserver",
        "benchmark_dir": "benchmarks",
        "env_dir": ".asv/env",
        "results_dir": ".asv/results",
        "html_dir": ".asv/html",
        "default_benchmark_timeout": 60,
        "regressions_thresholds": {".*seconds_per_sample.*": 0.1, ".*": 0.05},
    }


@dataclass(frozen=True)
class Size:
    """How much a night may be."""

    hours: float | None = None
    """None: sweeps stay as they are."""
    nodes: int = 1

    @property
    def limit(self) -> str:
        """The time limit of a night's job, HH:MM:SS."""
        minutes = round(60 * (self.hours or 2))
        return f"{minutes // 60:02}:{minutes % 60:02}:00"


def make(folder: Path, sweep: Path | None, size: Size = Size()) -> list[str]:
    """Write the files, and commit them; what was said of sweeps that were cut.

    Args:
        folder: a new or empty one.
        sweep: the first of the site's sweeps; default: a small one on data that is made.
        size: of a night.

    Raises:
        UserError: something is in the folder, or it cannot be written, or no night fits.
    """
    folder = folder.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if [*folder.iterdir()]:
            raise UserError(f"{folder}: not empty; name a new folder")
        _write(folder, sweep, size)
    except OSError as error:
        raise UserError(f"{error.filename or folder}: {error.strerror}") from error
    try:
        said = propose(nightly_of(folder / "benchmarks"), size.hours, size.nodes) if size.hours is not None else []
    except BaseException as stop:
        shutil.rmtree(folder, ignore_errors=True)  # so that the same command may be tried with other hours
        if isinstance(stop, KeyboardInterrupt | Terminated):
            stop.args = (f"{folder} was not finished and is removed again: the same command begins anew",)
        raise
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "A results repository, by benchsuite nightly init")
    return said


def _write(folder: Path, sweep: Path | None, size: Size) -> None:
    command = f"{shlex.quote(sys.executable)} -m benchsuite"
    words = {
        "folder": folder,
        "quoted": shlex.quote(str(folder)),
        "name": folder.name,
        "benchsuite": command,
        "python": sys.executable,
    }
    words |= {"nodes": size.nodes, "time": size.limit}
    with as_file(files("benchsuite.nightly") / "template") as site:
        shutil.copytree(site / "benchmarks", folder / "benchmarks", ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "sweeps").mkdir()
        (folder / ".asv").mkdir()  # logs of jobs lie there, from the first night on
        first = folder / "sweeps" / (sweep.name if sweep else "nightly.yaml")
        shutil.copyfile(sweep or site / "sweeps" / "nightly.yaml", first)
        if sweep is None and size.nodes > 1:  # over nodes its ranks follow from those
            first.write_text(first.read_text(encoding="utf-8").replace(OF_ONE_NODE, ""), encoding="utf-8")
        for name in TEXTS:
            (folder / name).write_text((site / name).read_text(encoding="utf-8").format(**words), encoding="utf-8")
    (folder / CONFIG).write_text(json.dumps(asv_config(folder.name), indent=4) + "\n", encoding="utf-8")
    (folder / ".gitignore").write_text(IGNORED, encoding="utf-8")
