"""Loader `torch`: every sample exactly once an epoch, by content, whatever the format, ranks and workers."""

import gc
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import torch
from torch import Tensor

from storage import FORMATS, load
from storage.convert import convert_dataset, in_order
from storage.format import Dataset, DatasetError, Lane, Sample, open_dataset
from storage.generate import image_sample
from storage.iostat import ProcessIO
from storage.kinds import IMAGE, sample_rng
from storage.loaders import Delivered as DeliveredBatch
from storage.loaders.torch import TorchLoader
from storage.pagecache import evict, warm
from storage.spec import DataSpec
from tests.conftest import NUM_SAMPLES
from tests.storage.samples import file_system

PARAMS = {"image_size": 32}
SEED = 5
EPOCHS = 2
BATCH = 5
"""Divides nothing, so batches straddle epochs."""

every_format = pytest.mark.parametrize("name", sorted(FORMATS))
Delivered = dict[tuple[int, int], tuple[Tensor, int]]
"""Pixels and label by (epoch, row of the index)."""


@contextmanager
def loaders(
    dataset: Dataset, ranks: int, workers: int, seed: int = SEED, **spec: object
) -> Iterator[list[TorchLoader]]:
    """One loader per rank, as a job of that many ranks would build them."""
    asked = DataSpec.model_validate({"num_workers": workers, "pin_memory": False, **spec})
    built = [TorchLoader(dataset, asked, IMAGE, PARAMS, BATCH, rank, ranks, seed) for rank in range(ranks)]
    try:
        yield built
    finally:
        for loader in built:
            loader.close()


def rows(batch: DeliveredBatch) -> list[tuple[int, int]]:
    return list(zip(batch.epochs, batch.rows, strict=True))


def deliver(dataset: Dataset, ranks: int, workers: int) -> Delivered:
    """All samples of the first epochs, asserting that none came twice with the same epoch."""
    delivered: Delivered = {}
    seen: dict[int, int] = defaultdict(int)
    size = dataset.manifest.num_samples
    with loaders(dataset, ranks, workers) as built:
        for turn in range(4 * EPOCHS * size // (ranks * BATCH)):
            for loader in built:
                batch = next(loader)
                assert batch.batch["image"].shape == (BATCH, 3, 32, 32), turn
                for row, image, label in zip(
                    rows(batch), batch.batch["image"], batch.batch["label"].tolist(), strict=True
                ):
                    assert row not in delivered, f"(epoch, index) {row} came twice"
                    seen[row[0]] += 1
                    delivered[row] = (image.clone(), label)
            if all(seen[epoch] == size for epoch in range(EPOCHS)):
                break
    return {row: value for row, value in delivered.items() if row[0] < EPOCHS}


@pytest.fixture(scope="module")
def originals() -> list[Sample]:
    """The samples as the generator makes them, not as any format returned them."""
    classes = max(2, NUM_SAMPLES // 32)
    return [image_sample(3, index, classes) for index in range(NUM_SAMPLES)]


@pytest.fixture(scope="module")
def expected(originals: list[Sample]) -> dict[tuple[int, str], tuple[Tensor, int]]:
    """Pixels and label of every sample in each epoch, by (epoch, key), computed from the original bytes."""
    return {
        (epoch, sample.key): (
            IMAGE.decode(sample, PARAMS, sample_rng(SEED, epoch, sample.key))["image"],
            int(sample.fields["label"]),
        )
        for epoch in range(EPOCHS)
        for sample in originals
    }


def check_delivered(
    dataset: Dataset, delivered: Delivered, expected: dict[tuple[int, str], tuple[Tensor, int]]
) -> None:
    by_key = {(epoch, dataset.key(index)): value for (epoch, index), value in delivered.items()}
    assert by_key.keys() == expected.keys()
    for row, (image, label) in by_key.items():
        assert torch.equal(image, expected[row][0]), row
        assert label == expected[row][1], row


class TestExactlyOnce:
    @every_format
    @pytest.mark.parametrize("ranks", [1, 2])
    @pytest.mark.parametrize("workers", [0, 1, 2])
    def test_every_epoch_holds_each_sample_once_by_content(
        self,
        dataset_root: Path,
        expected: dict[tuple[int, str], tuple[Tensor, int]],
        name: str,
        ranks: int,
        workers: int,
    ) -> None:
        dataset = open_dataset(dataset_root / name)
        check_delivered(dataset, deliver(dataset, ranks, workers), expected)

    def test_with_shards_that_do_not_divide_evenly(
        self, dataset_root: Path, tmp_path: Path, expected: dict[tuple[int, str], tuple[Tensor, int]]
    ) -> None:
        """14 shards, the last shorter, over 4 readers."""
        convert_dataset(
            dataset_root / "files", tmp_path / "set", "resnet50", "tiny", "webdataset", {"shard_samples": 7}
        )
        dataset = open_dataset(tmp_path / "set")
        assert len(dataset.manifest.files) == 14
        check_delivered(dataset, deliver(dataset, ranks=2, workers=2), expected)

    def test_formats_deliver_the_same_pixels_bit_for_bit(self, dataset_root: Path) -> None:
        sets = [open_dataset(dataset_root / name) for name in sorted(FORMATS)]
        one, other = (
            {(epoch, dataset.key(index)): value for (epoch, index), value in deliver(dataset, 1, 2).items()}
            for dataset in sets
        )
        assert one.keys() == other.keys() and len(one) == EPOCHS * NUM_SAMPLES
        for row, (image, label) in one.items():
            assert torch.equal(image, other[row][0]) and label == other[row][1], row


class TestOrder:
    def taken(self, dataset: Dataset, workers: int, seed: int = SEED, **spec: object) -> list[tuple[int, int]]:
        """(epoch, index) of the first two epochs' worth of samples, in the order of delivery."""
        with loaders(dataset, 1, workers, seed, **spec) as (loader,):
            return [row for _ in range(2 * NUM_SAMPLES // BATCH) for row in rows(next(loader))]

    @every_format
    @pytest.mark.parametrize("workers", [0, 2])
    def test_is_the_same_for_the_same_seed(self, dataset_root: Path, name: str, workers: int) -> None:
        dataset = open_dataset(dataset_root / name)
        assert self.taken(dataset, workers) == self.taken(dataset, workers)

    @every_format
    def test_differs_between_seeds_and_epochs(self, dataset_root: Path, name: str) -> None:
        dataset = open_dataset(dataset_root / name)
        first, other = self.taken(dataset, 0), self.taken(dataset, 0, seed=6)
        assert first != other
        epochs = [[index for epoch, index in first if epoch == number] for number in (0, 1)]
        assert epochs[0][:90] != epochs[1][:90]
        assert epochs[0] != sorted(epochs[0])

    @every_format
    def test_is_that_of_the_index_when_nothing_is_shuffled(self, dataset_root: Path, name: str) -> None:
        dataset = open_dataset(dataset_root / name)
        taken = self.taken(dataset, 0, shuffle=False)
        assert taken == [(number // NUM_SAMPLES, number % NUM_SAMPLES) for number in range(len(taken))]

    @every_format
    def test_ranks_share_an_epoch_without_overlap_from_the_first_batch(self, dataset_root: Path, name: str) -> None:
        dataset = open_dataset(dataset_root / name)
        with loaders(dataset, 2, 0) as built:
            batches = [rows(next(loader)) for _ in range(4) for loader in built]
        assert max(Counter(row for batch in batches for row in batch).values()) == 1


class TestRefusals:
    @every_format
    def test_more_readers_than_can_share(self, small: Callable[[str], Dataset], name: str) -> None:
        dataset = small(name)
        with pytest.raises(DatasetError) as raised, loaders(dataset, 2, 4):
            pass
        assert str(dataset.folder) in str(raised.value)
        assert "8 readers" in str(raised.value)

    @every_format
    @pytest.mark.parametrize("workers", [0, 2])
    def test_a_corrupt_jpeg_names_file_and_key(self, small: Callable[[str], Dataset], name: str, workers: int) -> None:
        dataset = small(name)
        victim = list(in_order(dataset))[3]
        path = Path(victim.source)
        content = path.read_bytes()
        start = content.index(victim.fields["image"])
        path.write_bytes(content[: start + 20] + b"\xff" * 300 + content[start + 320 :])
        with pytest.raises(DatasetError) as raised, loaders(dataset, 1, workers) as (loader,):
            for _ in range(4):
                next(loader)
        assert f"{path}: sample {victim.key!r}: not a whole JPEG" in str(raised.value)

    @every_format
    @pytest.mark.parametrize("workers", [0, 1])
    def test_a_file_that_vanished_is_named(self, small: Callable[[str], Dataset], name: str, workers: int) -> None:
        dataset = small(name)
        victim = dataset.data_files()[1]
        victim.unlink()
        with pytest.raises(DatasetError, match=victim.name), loaders(dataset, 1, workers) as (loader,):
            for _ in range(4):
                next(loader)


def settled(loader: TorchLoader, samples: int) -> bool:
    """Whether the readers come to rest, queue full, at that many samples."""
    for _ in range(2000):
        if loader.counts().samples == samples:
            return True
        time.sleep(0.01)
    return False


class TestCounts:
    @every_format
    @pytest.mark.parametrize("workers", [0, 1, 2])
    def test_are_those_of_the_index(self, dataset_root: Path, name: str, workers: int) -> None:
        """At rest, readers have read what was consumed and what the queue holds; the lanes tell which samples."""
        dataset = open_dataset(dataset_root / name)
        consumed = 8
        with loaders(dataset, 1, workers, prefetch_factor=3) as (loader,):
            assert loader.queue_batches == 3 * workers
            for number in range(consumed):
                assert loader.counts().samples >= number * BATCH
                next(loader)
            produced = (consumed + loader.queue_batches) * BATCH
            assert settled(loader, produced)
            counts = loader.counts()
        readers = max(1, workers)
        form = load(FORMATS, name)
        stored = 0
        for reader in range(readers):
            lane = Lane(reader, readers, 0, SEED, True, DataSpec().shuffle_buffer)
            indices = [sample.index for sample in form.read(dataset, lane)][: produced // readers]
            assert len(indices) == produced // readers
            stored += int(dataset.index["bytes"][indices].sum())
        assert (counts.samples, counts.stored_bytes) == (produced, stored)
        assert counts.read_s > 0 and counts.decode_s > 0

    @every_format
    def test_ranks_count_their_own(self, dataset_root: Path, name: str) -> None:
        with loaders(open_dataset(dataset_root / name), 2, 0) as (first, second):
            next(first)
            assert (first.counts().samples, second.counts().samples) == (BATCH, 0)


class TestStorageBytes:
    @every_format
    @pytest.mark.parametrize("workers", [0, 2])
    def test_grow_by_the_datasets_size_when_cold_and_not_when_warm(
        self, dataset_root: Path, name: str, workers: int
    ) -> None:
        if file_system(dataset_root) in ("tmpfs", "ramfs"):
            pytest.skip("the temporary folder lies in memory: nothing is read from storage there")
        dataset = open_dataset(dataset_root / name)
        size = sum(path.stat().st_size for path in dataset.data_files())

        def fetched() -> int:
            with loaders(dataset, 1, workers) as (loader,):
                before = loader.storage_bytes() if not workers else 0
                while loader.counts().samples < NUM_SAMPLES + 2 * BATCH * max(1, workers):
                    next(loader)
                after = loader.storage_bytes()
            assert before is not None and after is not None
            return after - before

        evict(dataset.data_files())
        assert 0.97 * size < fetched() < 1.1 * size
        warm(dataset.data_files())
        assert fetched() < 0.01 * size

    def test_are_unknown_as_soon_as_one_workers_are(self, dataset_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        answers = iter([ProcessIO(1, 2), ProcessIO(1, 40), ProcessIO(1, 2), None])
        monkeypatch.setattr("storage.loaders.torch.process_io", lambda pid: next(answers))
        with loaders(open_dataset(dataset_root / "files"), 1, 2) as (loader,):
            assert loader.storage_bytes() == 42
            assert loader.storage_bytes() is None


class TestWorkers:
    def workers(self, before: set[int]) -> list[psutil.Process]:
        return [
            child
            for child in psutil.Process().children()
            if child.pid not in before and child.status() != psutil.STATUS_ZOMBIE
        ]

    @pytest.mark.parametrize("count", [0, 1, 2])
    def test_start_with_the_loader_and_stop_with_it(self, dataset_root: Path, count: int) -> None:
        before = {child.pid for child in psutil.Process().children()}
        with loaders(open_dataset(dataset_root / "files"), 1, count) as (loader,):
            assert len(self.workers(before)) == count
            next(loader)
        assert self.workers(before) == []

    def test_stop_while_the_error_that_ended_them_is_handled(self, small: Callable[[str], Dataset]) -> None:
        """An exception keeps the iterator that raised it alive; closing must not depend on that."""
        dataset = small("files")
        dataset.data_files()[1].unlink()
        before = {child.pid for child in psutil.Process().children()}
        try:
            with pytest.raises(DatasetError) as raised, loaders(dataset, 1, 2) as (loader,):
                for _ in range(4):
                    next(loader)
            assert raised.value is not None
            assert self.workers(before) == []
        finally:
            del raised
            gc.collect()

    def test_closing_twice_does_no_harm(self, dataset_root: Path) -> None:
        with loaders(open_dataset(dataset_root / "files"), 1, 1) as (loader,):
            loader.close()
            with pytest.raises(StopIteration):
                next(loader)

    def test_default_settings_warn_of_nothing(self, dataset_root: Path) -> None:
        """pin_memory is on by default and documented as without effect on a machine without an accelerator."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loader = TorchLoader(
                open_dataset(dataset_root / "files"), DataSpec(num_workers=1), IMAGE, PARAMS, BATCH, 0, 1, SEED
            )
            next(loader)
            loader.close()
