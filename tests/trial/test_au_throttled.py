"""AU against a disk whose rate the kernel limits: over a long window the truth follows from that rate."""

from pathlib import Path

import numpy as np
import pytest

from bench.throttle import CannotThrottle, throttled
from benchsuite.grid.expand import plan_trial
from benchsuite.runner.single_trial import in_processes
from benchsuite.storage.create.convert import Wanted, generate_dataset
from benchsuite.storage.dataset.manifest import open_dataset

pytestmark = pytest.mark.quiet

RATE_BYTES_PER_S = 16_000_000
BATCH, STEP_S = 8, 0.030
NUM_SAMPLES = 1200
STEPS = 120
WORKERS = 4
"""So many that the disk is never idle while they decode."""
TOLERANCE = 0.01


@pytest.mark.full
def test_au_follows_from_the_rate_of_the_disk(tmp_path: Path) -> None:
    generate_dataset(tmp_path / "files", Wanted("resnet50", "tiny", "files", kind="image"), NUM_SAMPLES)
    dataset = open_dataset(tmp_path / "files")
    pages = -(-dataset.index["bytes"] // 4096) * 4096  # the kernel reads whole pages
    batch_s = BATCH * float(np.mean(pages)) / RATE_BYTES_PER_S
    point = plan_trial(
        {
            "workload": "resnet50",
            "variant": "tiny",
            "device": f"emulated:{STEP_S * 1e3:g}ms",
            "batch_size": BATCH,
            "data": {"root": str(tmp_path / "files"), "loader": "threads", "cache": "cold", "num_workers": WORKERS},
            "measure": {"steps": STEPS, "warmup_steps": 2, "ceilings": False},
        }
    )
    try:
        with throttled(tmp_path, RATE_BYTES_PER_S):
            record = in_processes(point)[0]
    except CannotThrottle as error:
        pytest.skip(str(error))
    assert (record.status, record.reason) == ("ok", None)
    assert record.figures.au == pytest.approx(STEP_S / batch_s, abs=TOLERANCE)
