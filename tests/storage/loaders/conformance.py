"""What every loader must do, whatever the format, kind, ranks and workers: a loader's test class inherits this."""

import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest
import torch
from _pytest.mark import ParameterSet
from torch import Tensor

from benchsuite.storage import FORMATS, KINDS, load, loader_of
from benchsuite.storage.create.convert import in_order
from benchsuite.storage.dataset.kinds import decode_one, sample_rng
from benchsuite.storage.dataset.manifest import Dataset, DatasetError, ReaderShare
from benchsuite.storage.dataset.spec import DataSpec
from benchsuite.storage.loaders import Delivered as DeliveredBatch
from benchsuite.storage.loaders import LoaderProtocol
from benchsuite.storage.loaders.reader import LoaderInput
from tests.helpers.below import below
from tests.storage.conftest import Made
from tests.storage.damage import needed_to_read
from tests.storage.samples import PARAMS, READABLE, STORED, skip_without_library, small_shards, some_samples

SEED = 5
EPOCHS = 2
COUNT = 26
BATCH = 4
"""Divides nothing, so batches straddle epochs."""
JOBS = list(product((1, 2, 4), (0, 1, 2)))
"""Ranks and workers."""
CASES = [(name, kind, *job) for (name, kind), job in product(STORED, JOBS)]
Delivered = dict[tuple[int, int], dict[str, Tensor]]
"""Decoded samples by (epoch, row of the index)."""


def pairwise_part() -> list[tuple[str, str, int, int]]:
    """Cases such that any two of format, kind, ranks and workers meet in all their combinations."""
    missing = {pair for case in CASES for pair in pairs(case)}
    chosen = []
    while missing:
        case = max(CASES, key=lambda case: len(missing & pairs(case)))
        chosen.append(case)
        missing -= pairs(case)
    return chosen


def in_turn(values: Sequence[Any], workers: Sequence[int]) -> list[ParameterSet]:
    """Each value with each number of workers; in CI each value with one of them, which take turns."""
    return [
        pytest.param(value, number, marks=() if at % len(workers) == place else pytest.mark.full)
        for at, value in enumerate(values)
        for place, number in enumerate(workers)
    ]


def pairs(case: tuple[object, ...]) -> set[object]:
    return {(first, case[first], second, case[second]) for first in range(4) for second in range(first)}


@cache
def expected(kind: str, epoch: int, number: int) -> dict[str, Tensor]:
    """A sample as its epoch should deliver it, from the generator and not from any format."""
    sample = some_samples(COUNT, kind)[number]
    return decode_one(load(KINDS, kind), sample, PARAMS[kind], sample_rng(SEED, epoch, sample.key))


def rows(batch: DeliveredBatch) -> list[tuple[int, int]]:
    return list(zip(batch.epochs, batch.rows, strict=True))


class LoaderConformance:
    """Inherit and set `name`, and `reader` where it is not our own."""

    name: ClassVar[str]
    reader: ClassVar[str] = "tuned"

    def same(self, found: Tensor, wanted: Tensor) -> bool:
        """Whether a field of a sample is what it should be."""
        return torch.equal(found, wanted)

    @contextmanager
    def loaders(
        self,
        dataset: Dataset,
        ranks: int = 1,
        workers: int = 0,
        batch_size: int = BATCH,
        seed: int = SEED,
        **spec: object,
    ) -> Iterator[list[LoaderProtocol]]:
        """One loader per rank, as a job of that many ranks would build them."""
        own = {"loader": self.name, "reader": self.reader}
        asked = DataSpec.model_validate({"num_workers": workers, "pin_memory": False, **own, **spec})
        kind, built = dataset.manifest.kind, list[LoaderProtocol]()
        if self.reader == "stock":
            skip_without_library(dataset.manifest.format)
        try:
            for rank in range(ranks):
                reading = LoaderInput(dataset, asked, load(KINDS, kind), PARAMS[kind], batch_size, rank, ranks, seed)
                built.append(loader_of(asked)(reading))
            yield built
        finally:
            for loader in built:
                loader.close()

    def delivered(self, dataset: Dataset, ranks: int, workers: int) -> Delivered:
        """All samples of the first epochs, asserting that none came twice with the same epoch."""
        delivered: Delivered = {}
        seen: dict[int, int] = defaultdict(int)
        with self.loaders(dataset, ranks, workers) as built:
            for _ in range(8 * EPOCHS * COUNT // (ranks * BATCH)):
                for loader in built:
                    batch = next(loader)
                    for at, row in enumerate(rows(batch)):
                        assert row not in delivered, f"(epoch, index) {row} came twice"
                        seen[row[0]] += 1
                        delivered[row] = {name: tensor[at].clone() for name, tensor in batch.batch.items()}
                if all(seen[epoch] == COUNT for epoch in range(EPOCHS)):
                    break
        return {row: fields for row, fields in delivered.items() if row[0] < EPOCHS}

    def check_exactly_once(self, dataset: Dataset, ranks: int, workers: int) -> None:
        kind = dataset.manifest.kind
        delivered = self.delivered(dataset, ranks, workers)
        assert sorted(delivered) == [(epoch, row) for epoch in range(EPOCHS) for row in range(COUNT)]
        for (epoch, row), fields in delivered.items():
            wanted = expected(kind, epoch, row)
            assert fields.keys() == wanted.keys()
            for field, tensor in fields.items():
                assert tensor.dtype == wanted[field].dtype
                assert self.same(tensor, wanted[field]), (epoch, row, field)

    @pytest.mark.parametrize(("form", "kind", "ranks", "workers"), pairwise_part())
    def test_every_epoch_holds_each_sample_once_by_content(
        self, made: Made, form: str, kind: str, ranks: int, workers: int
    ) -> None:
        self.check_exactly_once(made(form, kind, None, COUNT), ranks, workers)

    @pytest.mark.full
    @pytest.mark.parametrize(("form", "kind", "ranks", "workers"), CASES)
    def test_every_combination_holds_each_sample_once_by_content(
        self, made: Made, form: str, kind: str, ranks: int, workers: int
    ) -> None:
        self.check_exactly_once(made(form, kind, None, COUNT), ranks, workers)

    @pytest.mark.parametrize("form", ["mds", "parquet", "webdataset", "tfrecord"])
    def test_with_shards_that_do_not_divide_evenly(self, made: Made, form: str) -> None:
        """Six shards, the last with one sample, over 4 readers."""
        dataset = made(form, "image", {"shard_samples": 5}, COUNT)
        assert [info.num_samples for info in dataset.manifest.files if info.num_samples] == [5] * 5 + [1]
        self.check_exactly_once(dataset, ranks=2, workers=2)

    def taken(self, dataset: Dataset, workers: int, seed: int = SEED, **spec: object) -> list[tuple[int, int]]:
        """(epoch, index) of the first two epochs' worth of samples, in the order of delivery."""
        with self.loaders(dataset, 1, workers, seed=seed, **spec) as (loader,):
            return [row for _ in range(2 * COUNT // BATCH) for row in rows(next(loader))]

    def test_who_reads_is_told(self, made: Made) -> None:
        """Processes and threads that can be looked at."""
        with self.loaders(made("files", "image", None, COUNT), workers=2) as (loader,):
            next(loader)
            processes, threads = loader.reading()
            assert len(processes) + len(threads) >= 2
            assert all(Path(f"/proc/{process}").exists() for process in processes)
            assert {*map(str, threads)} <= {*os.listdir("/proc/self/task")}

    @pytest.mark.parametrize(("stored", "workers"), in_turn(STORED[::3], [0, 2]))
    def test_the_order_is_the_same_for_the_same_seed(self, made: Made, stored: tuple[str, str], workers: int) -> None:
        dataset = made(*stored, None, COUNT)
        assert self.taken(dataset, workers) == self.taken(dataset, workers)

    @pytest.mark.parametrize(("form", "kind"), STORED[1::3])
    def test_the_order_differs_between_seeds_and_epochs(self, made: Made, form: str, kind: str) -> None:
        dataset = made(form, kind, None, COUNT)
        first, other = self.taken(dataset, 0), self.taken(dataset, 0, seed=6)
        assert first != other
        epochs = [[index for epoch, index in first if epoch == number] for number in (0, 1)]
        assert epochs[0][:20] != epochs[1][:20]
        assert epochs[0] != sorted(epochs[0])

    @pytest.mark.parametrize(("form", "kind"), STORED[2::3])
    def test_the_order_is_that_of_the_index_when_nothing_is_shuffled(self, made: Made, form: str, kind: str) -> None:
        taken = self.taken(made(form, kind, None, COUNT), 0, shuffle=False)
        assert taken == [(number // COUNT, number % COUNT) for number in range(len(taken))]

    def test_batches_of_several_readers_come_in_turn(self, made: Made) -> None:
        dataset = made("files", "tokens", None, COUNT)
        with self.loaders(dataset, 1, 2, shuffle=False) as (loader,):
            came = [next(loader).rows for _ in range(4)]
        assert came == [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15]]

    def test_ranks_share_an_epoch_without_overlap_from_the_first_batch(self, made: Made) -> None:
        with self.loaders(made("lmdb", "mlm", None, COUNT), 2, 0) as built:
            batches = [rows(next(loader)) for _ in range(3) for loader in built]
        assert max(Counter(row for batch in batches for row in batch).values()) == 1

    def test_ranks_count_their_own(self, made: Made) -> None:
        with self.loaders(made("files", "image", None, COUNT), 2, 0) as (first, second):
            next(first)
            assert (first.counts().samples, second.counts().samples) == (BATCH, 0)

    @pytest.mark.parametrize(("stored", "workers"), in_turn(STORED[::4], [0, 1, 2]))
    def test_counts_are_those_of_the_index(
        self, made: Made, settled: Callable[..., None], stored: tuple[str, str], workers: int
    ) -> None:
        """At rest, readers have read what was consumed and what the queue holds; the lanes tell which samples."""
        form, dataset = stored[0], made(*stored, None, COUNT)
        consumed, readers = 2, max(1, workers)
        shuffle = self.reader == "tuned"  # libraries mix streams in orders of their own
        with self.loaders(dataset, 1, workers, batch_size=2, prefetch_factor=2, shuffle=shuffle) as (loader,):
            assert loader.queue_batches == 2 * workers
            for number in range(consumed):
                assert loader.counts().samples >= 2 * number
                next(loader)
            produced = 2 * (consumed + loader.queue_batches)
            settled(loader, produced)
            counts = loader.counts()
        stored = 0
        for reader in range(readers):
            lane = ReaderShare(reader, readers, 0, SEED, shuffle, DataSpec().shuffle_buffer)
            indices = [sample.index for sample in load(FORMATS, form).read(dataset, lane)][: produced // readers]
            stored += int(dataset.index["bytes"][indices].sum())
        assert (counts.samples, counts.stored_bytes) == (produced, stored)
        assert counts.read_s >= 0 and counts.decode_s >= 0 and counts.read_s + counts.decode_s > 0
        assert self.reader == "stock" or (counts.read_s and counts.decode_s), "the kernel's own split is by ticks"

    def test_more_readers_than_can_share_are_refused(self, made: Made) -> None:
        for form, kind in READABLE if self.reader == "stock" else STORED:
            dataset = made(form, kind, small_shards(form), 6)
            with pytest.raises(DatasetError) as raised, self.loaders(dataset, 2, 4):
                pass
            assert str(dataset.folder) in str(raised.value)
            assert "8 readers" in str(raised.value)

    def failing(self, dataset: Dataset, workers: int) -> str:
        """What a loader says, twice, of a dataset that its readers stumble over; nobody is left after that."""
        before = helpers()
        with self.loaders(dataset, 1, workers, batch_size=2) as (loader,):
            with pytest.raises(DatasetError) as first:
                for _ in range(40):
                    next(loader)
            assert loader.counts().failed or not workers, "who waits for the queue to fill must not wait in vain"
            with pytest.raises(DatasetError) as second:
                next(loader)
        assert str(first.value) == str(second.value)
        assert helpers(before) == before
        return str(first.value)

    @pytest.mark.parametrize(("form", "workers"), in_turn(["files", "hdf5", "lmdb", "webdataset"], [1, 2, 0]))
    def test_a_corrupt_sample_names_file_and_key(self, mine: Made, form: str, workers: int) -> None:
        dataset = mine(form, "image")
        victim = list(in_order(dataset))[3]
        path = Path(victim.source)
        content = path.read_bytes()
        start = content.index(bytes(victim.fields["image"]))
        path.write_bytes(content[: start + 20] + b"\xff" * 300 + content[start + 320 :])
        assert f"{path}: sample {victim.key!r}: not a whole JPEG" in self.failing(dataset, workers)

    @pytest.mark.parametrize(("form", "workers"), in_turn(sorted(FORMATS), [0, 2]))
    def test_a_file_that_vanished_is_named(self, mine: Made, form: str, workers: int) -> None:
        dataset = mine(form, "tokens")
        victim = [path for path in dataset.data_files() if needed_to_read(form, path)][-1]
        victim.unlink()
        assert victim.name in self.failing(dataset, workers)

    @pytest.mark.parametrize("workers", [0, 1, 2])
    def test_closing_ends_all_readers_and_twice_does_no_harm(self, made: Made, workers: int) -> None:
        before = helpers()
        with self.loaders(made("files", "image", None, COUNT), 1, workers) as (loader,):
            next(loader)
            loader.close()
            assert helpers(before) == before
            loader.close()
            if workers:
                with pytest.raises(StopIteration):
                    next(loader)

    def test_a_loader_that_delivered_nothing_closes(self, made: Made) -> None:
        before = helpers()
        with self.loaders(made("hdf5", "volume", None, COUNT), 1, 2, prefetch_factor=4):
            pass
        assert helpers(before) == before

    @pytest.mark.parametrize("workers", [0, 1, 2])
    def test_the_trainings_number_of_threads_stays(self, made: Made, workers: int) -> None:
        before = torch.get_num_threads()
        with self.loaders(made("files", "image", None, COUNT), 1, workers) as (loader,):
            assert torch.get_num_threads() == before
            next(loader)
            assert torch.get_num_threads() == before
        assert torch.get_num_threads() == before

    def test_after_closing_another_can_be_built(self, made: Made) -> None:
        dataset = made("lmdb", "image", None, COUNT)
        assert self.taken(dataset, 2)[:8] == self.taken(dataset, 2)[:8]


def helpers(awaited: tuple[list[int], int] | None = None) -> tuple[list[int], int]:
    """Processes, and number of threads, that this process has: once they are those awaited, or a while has passed."""
    for _ in range(500):
        found = children(), threading.active_count()
        if awaited in (None, found):
            break
        time.sleep(0.01)
    return found


def children() -> list[int]:
    """Processes that this one has started and that have not ended."""
    alive = [child for child in below() if child.status() != psutil.STATUS_ZOMBIE]
    return sorted(child.pid for child in alive)
