"""Where the staged copies of trials lie on this node, and the removal of those whose trials have ended."""

from pathlib import Path

from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.storage.dataset.partial import remove_abandoned
from benchsuite.storage.staging.stage import node_local_folder

NAME = "benchsuite-staged"
"""What copies of trials are called, with their writers beside it."""


def copies_folder(spec: TrialSpec) -> Path:
    """Where the copies of trials on this node go; named after their writers beside `NAME`."""
    return node_local_folder(spec.data.staging_dir)


def remove_left(spec: TrialSpec, folder: Path | None = None) -> None:
    """Remove copies of trials whose processes have ended on this node."""
    if spec.data.staging != "none":
        remove_abandoned((folder or copies_folder(spec)) / NAME)
