"""A third party's launcher, found by its entry point: the local one, which leaves a note of what it ran."""

from collections.abc import Callable
from pathlib import Path

from benchsuite.contract.outcome import Outcome
from benchsuite.contract.rank_samples import Progress
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.launch.starters import LocalLauncher


class NotingLauncher(LocalLauncher):
    """Writes the variant of each trial into the current folder."""

    def run(
        self, spec: TrialSpec, dataset: Path | None, folder: Path, on_progress: Callable[[Progress], None]
    ) -> Outcome:
        with Path("launched.txt").open("a") as note:
            note.write(f"{spec.variant}\n")
        return super().run(spec, dataset, folder, on_progress)
