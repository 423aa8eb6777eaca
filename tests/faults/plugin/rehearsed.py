"""A launcher that runs nothing: trials take REHEARSED_S seconds, so that what sweeps do around them can be tested.

Where REHEARSED_FILE names a file, they end as soon as it is there. As with ranks, one whose work folder is removed
ends without a result.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

from benchsuite.contract.outcome import Outcome, RankExit
from benchsuite.contract.rank_samples import Progress
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.inside.samples import Block, RankSamples

STEP = {"load": 0.0, "h2d": 0.0, "forward": 0.01, "backward": 0.02, "optimizer": 0.01}


class RehearsedLauncher:
    """Each trial ends well, with figures made up."""

    def __enter__(self) -> "RehearsedLauncher":
        return self

    def __exit__(self, *_: object) -> None: ...

    def run(
        self, spec: TrialSpec, dataset: Path | None, folder: Path, on_progress: Callable[[Progress], None]
    ) -> Outcome:
        (folder / "progress-0").touch()
        ends = time.monotonic() + float(os.environ.get("REHEARSED_S", "0.05"))
        awaited = os.environ.get("REHEARSED_FILE")
        while (left := ends - time.monotonic()) > 0 and not (awaited and Path(awaited).exists()):
            time.sleep(min(left, 0.05))
        parts = {name: [seconds] * 4 for name, seconds in STEP.items()}
        block = Block("plain", 0.0, 0.16, parts, run_queue_s=0.0, consumed_samples=16)
        try:
            RankSamples(0, "ok", phase="done", blocks=[block]).write(folder / "rank-0.json")
        except FileNotFoundError:
            return Outcome([RankExit(0, 1)])
        return Outcome([RankExit(0, 0)])
