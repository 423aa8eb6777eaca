"""`benchsuite nightly init DIR`: a results repository for a site."""

import json
import shutil
import sys
from importlib.resources import as_file, files
from pathlib import Path

from benchsuite.contract.errors import UserError
from benchsuite.nightly.measuring import CONFIG
from benchsuite.nightly.night import git

IGNORED = ".asv/\n__pycache__/\n"
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


def make(folder: Path, sweep: Path | None) -> None:
    """Write the files, and commit them.

    Args:
        folder: a new or empty one.
        sweep: the first of the site's sweeps; default: a small one on data that is made.

    Raises:
        UserError: something is in the folder, or it cannot be written.
    """
    folder = folder.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if [*folder.iterdir()]:
            raise UserError(f"{folder}: not empty; name a new folder")
        _write(folder, sweep)
    except OSError as error:
        raise UserError(f"{error.filename or folder}: {error.strerror}") from error
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "A results repository, by benchsuite nightly init")


def _write(folder: Path, sweep: Path | None) -> None:
    command = f"{sys.executable} -m benchsuite"
    words = {"folder": folder, "name": folder.name, "benchsuite": command, "python": sys.executable}
    with as_file(files("benchsuite.nightly") / "template") as site:
        shutil.copytree(site / "benchmarks", folder / "benchmarks", ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "sweeps").mkdir()
        shutil.copyfile(
            sweep or site / "sweeps" / "nightly.yaml", folder / "sweeps" / (sweep.name if sweep else "nightly.yaml")
        )
        for name in TEXTS:
            (folder / name).write_text((site / name).read_text(encoding="utf-8").format(**words), encoding="utf-8")
    (folder / CONFIG).write_text(json.dumps(asv_config(folder.name), indent=4) + "\n", encoding="utf-8")
    (folder / ".gitignore").write_text(IGNORED, encoding="utf-8")
