"""The known picture, small: a shared disk starves the second accelerator, node-local copies and BERT starve none."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.staging import Line, Scale, figure, measure, table
from bench.throttle import CannotThrottle
from tests.storage.samples import file_system

pytestmark = pytest.mark.quiet

SMALL = Scale(
    disk_bytes_per_s=60_000_000,
    ranks=(1, 2),
    step="emulated:64ms",
    batches={"unet3d": 2, "bert": 2},
    measure={"repeats": 1, "steps": 8, "warmup_steps": 1, "ceilings": "false"},
)
"""Volumes of 1.5 MB: one accelerator takes 47 MB/s, two ask for 94 of the 60 that the disk gives."""


@pytest.mark.full
@pytest.mark.parametrize("workloads", [("unet3d",), ("unet3d", "bert")], ids="-".join)
def test_the_published_observation(tmp_path: Path, workloads: tuple[str, ...]) -> None:
    if file_system(tmp_path) in ("tmpfs", "ramfs") or not Path("/dev/shm").is_dir():
        pytest.skip("a disk for the shared file system and /dev/shm for the node's own are needed")
    try:
        scale = replace(SMALL, num_samples=dict.fromkeys(workloads, 100))
        lines = measure(tmp_path, Path(f"/dev/shm/benchsuite-{tmp_path.name}"), scale)
    except CannotThrottle as error:
        pytest.skip(str(error))
    found = {(line.workload, line.staging): line for line in lines}
    shared, local = found["unet3d", "none"], found["unet3d", "copy"]
    assert shared.au[0] > 0.85 and shared.au[1] < 0.8
    assert shared.bottleneck == "storage" and shared.stage_s is None
    assert min(local.au) > 0.9 and local.bottleneck == "none" and local.stage_s is not None
    assert all(min(line.au) > 0.9 for line in lines if line.workload == "bert")


def test_table_and_figure_of_it() -> None:
    lines = [
        Line("unet3d", "none", (1, 2), (1.0, 0.614), "storage", None),
        Line("unet3d", "copy", (1, 2), (1.0, 0.996), "none", 2.5),
    ]
    assert table(lines).splitlines() == [
        "| workload | read from | AU at 1 | AU at 2 | verdict at most |",
        "| --- | --- | --- | --- | --- |",
        "| unet3d | shared disk | 1.00 | 0.61 | storage |",
        "| unet3d | node-local copy | 1.00 | 1.00 | none |",
    ]
    drawn = figure(lines)
    assert drawn.count("<polyline") == 2 and drawn.count("<circle") == 4 and "unet3d, node-local copy" in drawn
