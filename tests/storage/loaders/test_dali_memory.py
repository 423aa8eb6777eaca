"""Loader `dali`: batches hold until the next, and are few."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchsuite.storage.dataset.manifest import Dataset
from benchsuite.storage.dataset.sample import Sample
from tests.storage.samples import jpeg, store

if find_spec("nvidia") is None or find_spec("nvidia.dali") is None:
    pytest.skip("nvidia.dali is not installed", allow_module_level=True)

MIB = 1 << 20
SLACK_BYTES = 16 * MIB
"""What DALI may take besides: its threads' stacks and decoders; less than a batch."""
SPARE_BATCHES = 1
"""What DALI may keep beyond that, whatever the queue: most machines show none, busy ones at times a batch it has let
go of and not yet freed. One for each batch queued would be four with the deepest queue of JOBS, which fails."""
JOBS = [(0, 3), (2, 1), (2, 4)]
"""Workers and batches prefetched, the least memory first: DALI keeps for the next loader what one has freed."""

SCRIPT = """
import gc, json, sys, time
from pathlib import Path
from benchsuite.storage import KINDS, load
from benchsuite.storage.dataset.manifest import open_dataset
from benchsuite.storage.loaders.dali import DaliLoader
from benchsuite.storage.loaders.reader import LoaderInput
from benchsuite.storage.dataset.spec import DataSpec
from tests.storage.loaders.memory import resident_bytes

folder, params, size, jobs = Path(sys.argv[1]), *map(json.loads, sys.argv[2:])
dataset = open_dataset(folder)
kind = load(KINDS, dataset.manifest.kind)


def build(workers, prefetch, batch_size):
    spec = DataSpec(num_workers=workers, prefetch_factor=prefetch, pin_memory=False)
    return DaliLoader(LoaderInput(dataset, spec, kind, params, batch_size, 0, 1, 0))


def most(workers, prefetch):
    gc.collect()
    found = []
    loader = build(workers, prefetch, size)
    for taken in range(1, 5):
        batch = next(loader)
        deadline = time.monotonic() + 20
        while loader.counts().samples < (taken + loader.queue_batches) * size and time.monotonic() < deadline:
            time.sleep(0.005)
        found.append(resident_bytes() - before)
    loader.close()
    return max(found)


loader = build(2, 2, 1)
for _ in range(8):
    next(loader)
loader.close()
before = resident_bytes()
print(json.dumps([most(*job) for job in jobs]))
"""


def most_bytes(dataset: Dataset, params: Mapping[str, int], batch_size: int) -> list[int]:
    """What each job's loader holds at most, in a process whose malloc gives back at once what is freed."""
    return json.loads(
        subprocess.run(
            [sys.executable, "-c", SCRIPT, dataset.folder, *map(json.dumps, (dict(params), batch_size, JOBS))],
            check=True,
            timeout=120,
            capture_output=True,
            cwd=Path(__file__).parents[3],
            env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "262144", "CUDA_VISIBLE_DEVICES": ""},
        ).stdout
    )


def queue_batches(workers: int, prefetch: int) -> int:
    return prefetch if workers else 0


def test_images_in_memory_are_no_more_than_the_batches_queued_and_two(tmp_path: Path) -> None:
    """Beside each one queued or asked for: the same as it is decoded, windows and resized images, a byte a number."""
    height, width, side, batch_size = 240, 320, 224, 64
    samples = [Sample(f"{number}", {"image": jpeg(number, height, width), "label": b"0"}) for number in range(64)]
    dataset = store(samples, "image", tmp_path / "set", "files")
    batch_bytes = batch_size * 3 * side * side * 4
    decoded_bytes = batch_size * 3 * (height * width + side * side)
    for (workers, prefetch), found in zip(JOBS, most_bytes(dataset, {"image_size": side}, batch_size), strict=True):
        queued = queue_batches(workers, prefetch)
        bound = (queued + 2 + SPARE_BATCHES) * batch_bytes + max(1, queued) * decoded_bytes + SLACK_BYTES
        assert batch_bytes < found < bound
