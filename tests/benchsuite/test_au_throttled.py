"""AU against a disk whose rate the kernel limits: over a long window the truth follows from that rate."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchsuite.inprocess import plan_trial, run_forked
from storage.convert import generate_dataset
from storage.format import open_dataset

pytestmark = pytest.mark.quiet

BLKIO = Path("/sys/fs/cgroup/blkio")
RATE_BYTES_PER_S = 16_000_000
BATCH, STEP_S = 8, 0.030
NUM_SAMPLES = 640


def block_device(path: Path) -> str:
    """The disk that holds a path, as major:minor; a partition's whole disk."""
    number = os.stat(path).st_dev
    name = f"{os.major(number)}:{os.minor(number)}"
    folder = Path("/sys/dev/block") / name
    if not folder.exists():
        pytest.skip(f"{path} lies on no block device")
    return (folder.parent / "dev").read_text().strip() if (folder / "partition").exists() else name


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[None]:
    """What this process starts reads at most RATE_BYTES_PER_S."""
    group = BLKIO / f"benchsuite-test-{os.getpid()}"
    device = block_device(tmp_path)
    try:
        group.mkdir()
        (group / "blkio.throttle.read_bps_device").write_text(f"{device} {RATE_BYTES_PER_S}")
    except OSError as error:
        pytest.skip(f"reads cannot be limited here: cgroup v1 blkio and root are needed: {error}")
    before = next(
        (line.split(":")[2] for line in Path("/proc/self/cgroup").read_text().splitlines() if ":blkio:" in line), "/"
    )
    (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        for pid in (group / "cgroup.procs").read_text().split():  # helpers of this process may live on
            (BLKIO / before.lstrip("/") / "cgroup.procs").write_text(pid)
        group.rmdir()


@pytest.mark.full
def test_au_follows_from_the_rate_of_the_disk(tmp_path: Path, limited: None) -> None:
    generate_dataset(tmp_path / "files", "resnet50", "tiny", "files", NUM_SAMPLES, kind="image")
    dataset = open_dataset(tmp_path / "files")
    pages = -(-dataset.index["bytes"] // 4096) * 4096  # the kernel reads whole pages
    batch_s = BATCH * float(np.mean(pages)) / RATE_BYTES_PER_S
    record = run_forked(
        plan_trial(
            {
                "workload": "resnet50",
                "variant": "tiny",
                "device": f"emulated:{STEP_S * 1e3:g}ms",
                "batch_size": BATCH,
                "data": {"root": str(tmp_path / "files"), "loader": "threads", "cache": "cold", "num_workers": 2},
                "measure": {"steps": 60, "warmup_steps": 2},
            }
        )
    )
    assert (record.status, record.reason) == ("ok", None)
    assert record.figures.au == pytest.approx(STEP_S / batch_s, abs=0.03)
