"""What every loader must do with memory: batches are used again, hold until the next, and are few."""

import gc
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import psutil
import pytest
import torch

from benchsuite.storage import LOADERS, load
from benchsuite.storage.create.convert import in_order
from benchsuite.storage.dataset.kinds import VOLUME
from benchsuite.storage.dataset.manifest import Dataset
from benchsuite.storage.dataset.spec import DataSpec
from benchsuite.storage.loaders import LoaderProtocol
from benchsuite.storage.loaders.reader import LoaderInput
from tests.helpers.below import below
from tests.storage.conftest import Made
from tests.storage.loaders.conformance import in_turn
from tests.storage.loaders.conftest import PATCH, VOLUME_BYTES

BATCH = 2
BATCH_BYTES = BATCH * PATCH**3 * 5
SLACK_BYTES = 20 << 20
"""What a process may take besides: allocator caches, imports on first use, h5py's chunk cache, and in a forked worker
its own copies of what it touches of the test session's objects; less than another sample for each reader."""
SAMPLES_HELD = {"files": 1, "hdf5": 1, "lmdb": 1, "mds": 3, "tfrecord": 3, "webdataset": 4}
"""Samples in a reader's memory: those of shards are parsed, wait in the buffer that mixes them, and are decoded."""


class MemoryConformance:
    """Beside `LoaderConformance`, whose `loaders` it uses."""

    name: ClassVar[str]

    def one_loader(self, dataset: Dataset, workers: int, prefetch: int) -> AbstractContextManager[list[LoaderProtocol]]:
        building = partial(self.loaders, dataset, 1, workers)  # type: ignore[attr-defined]
        return building(prefetch_factor=prefetch)

    def queue_batches_and_readers(self, workers: int, prefetch: int) -> tuple[int, int]:
        return workers * prefetch, max(1, workers)

    def warm_up(self, dataset: Dataset) -> None:
        """Have the loader's library use what memory it uses from the start."""

    @pytest.mark.parametrize(
        ("workers", "prefetch", "kind"),
        [
            pytest.param(*how, kind, marks=() if (place + turn) % 2 else pytest.mark.full)
            for place, how in enumerate([(0, 1), (0, 3), (1, 4), (1, 1), (2, 1), (2, 3)])
            for turn, kind in enumerate(("image", "mlm"))
        ],
    )
    def test_batches_in_memory_are_no_more_than_queued_and_two(
        self, made: Made, workers: int, prefetch: int, kind: str
    ) -> None:
        seen: dict[str, set[int]] = {}
        with self.one_loader(made("files", kind), workers, prefetch) as (loader,):
            for _ in range(60):
                for name, tensor in next(loader).batch.items():
                    seen.setdefault(name, set()).add(tensor.data_ptr())
        for places in seen.values():
            assert len(places) <= workers * prefetch + 2

    @pytest.mark.parametrize(("form", "workers"), in_turn(["files", "lmdb", "webdataset"], [2, 0, 1]))
    def test_a_batch_is_intact_until_the_next_is_asked_for(self, made: Made, form: str, workers: int) -> None:
        """Readers run ahead meanwhile, as far as the queue lets them."""
        with self.one_loader(made(form, "volume"), workers, 2) as (loader,):
            for _ in range(12):
                batch = next(loader).batch
                before = {name: tensor.clone() for name, tensor in batch.items()}
                time.sleep(0.01)
                assert all(torch.equal(tensor, before[name]) for name, tensor in batch.items())

    def test_rows_of_a_batch_are_of_the_samples_it_names(self, made: Made) -> None:
        """Also when the same memory is filled for the tenth time."""
        dataset = made("files", "tokens")
        with self.one_loader(dataset, 2, 1) as (loader,):
            for _ in range(40):
                delivered = next(loader)
                for at, row in enumerate(delivered.rows):
                    tokens = np.load(dataset.data_files()[row])
                    assert delivered.batch["tokens"][at].tolist() == tokens.tolist()

    @pytest.mark.parametrize(("form", "workers"), in_turn([*SAMPLES_HELD], [0, 2]))
    def test_memory_stays_within_what_is_said(
        self, large_volumes: Callable[[str], Dataset], made: Made, form: str, workers: int
    ) -> None:
        """Resident: the batches, and for each reader the samples it holds; also after 30 batches."""
        dataset = large_volumes(form)
        params = {"patch_size": PATCH}
        prefetch = 2
        queue_batches, readers = self.queue_batches_and_readers(workers, prefetch)
        buffers = 1.125 * VOLUME_BYTES * SAMPLES_HELD[form]
        spec = DataSpec(num_workers=workers, prefetch_factor=prefetch, pin_memory=False, shuffle_buffer=1)
        pytest.importorskip("webdataset")  # imported by readers, else, and counted as theirs
        list(in_order(dataset))
        self.warm_up(made(form, "volume"))
        gc.collect()
        before = resident_bytes()
        loader = load(LOADERS, self.name)(LoaderInput(dataset, spec, VOLUME, params, BATCH, 0, 1, 0))
        try:
            after = []
            for number in range(30):
                assert next(loader).batch["image"].shape == (BATCH, 1, PATCH, PATCH, PATCH)
                if number in (10, 29):
                    after.append(resident_bytes())
        finally:
            loader.close()
        bound = (queue_batches + 2) * BATCH_BYTES + readers * buffers + SLACK_BYTES * (1 + workers)
        assert max(after) - before <= bound


def resident_bytes() -> int:
    """Memory of this process and its children: shared pages divided by those who share them, files' pages left out."""
    total = 0
    for process in [psutil.Process(), *below()]:
        if process.status() == psutil.STATUS_ZOMBIE:  # of an earlier test, not waited for: it has no memory
            continue
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in ("Pss_Anon", "Pss_Shmem"):
                total += int(value.split()[0]) << 10
    return total
