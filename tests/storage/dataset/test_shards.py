"""Too few samples or shards for their readers: the arithmetic, and what helps in each case."""

import itertools

import pytest

from benchsuite.storage.dataset.manifest import FileInfo, Manifest, by_sample_problem
from benchsuite.storage.dataset.shards import default_shards, problem, shard_sizes

READERS = "readers (ranks x workers; without workers or with dali one a rank)"
FEWER = "fewer ranks, fewer workers where a rank has several readers"


def of_shards(*sizes: int) -> Manifest:
    """A manifest of shards with so many samples, and of an index beside each."""
    shards = [FileInfo(path=f"{number}.tar", bytes=1, digest="", num_samples=size) for number, size in enumerate(sizes)]
    beside = [FileInfo(path=f"{number}.tar.idx", bytes=1, digest="") for number in range(len(sizes))]
    return Manifest(
        workload="resnet50",
        variant="tiny",
        kind="image",
        format="webdataset",
        num_samples=sum(sizes),
        stored_bytes=1,
        fields=[],
        files=[*shards, *beside],
        dataset_id="",
        created={},
    )


@pytest.mark.parametrize(
    ("sizes", "lanes", "remedy"),
    [
        ((8,) * 12, 13, "convert with -o shard_samples=7 or less"),  # 96 / 7: 14 shards
        ((5, 1), 3, "convert with -o shard_samples=2 or less"),
        ((3, 3), 4, "convert with -o shard_samples=1"),
        ((3, 3), 7, "more samples: there are 6"),  # one in each would not do
    ],
)
def test_too_few_shards(sizes: tuple[int, ...], lanes: int, remedy: str) -> None:
    found = problem(of_shards(*sizes), lanes)
    assert found == f"{len(sizes)} shards < {lanes} {READERS}: {FEWER}, or {remedy}"


def test_too_few_samples() -> None:
    manifest = of_shards(3, 3)
    assert by_sample_problem(manifest, 6) is None
    assert by_sample_problem(manifest, 8) == f"6 samples < 8 {READERS}: {FEWER}, or more samples"


def test_a_shard_for_each_reader_is_enough() -> None:
    assert problem(of_shards(1, 7), 2) is None


@pytest.mark.parametrize("count", [1, 15, 16, 100, 400, 1024, 5000, 100_000])
def test_shards_are_balanced_and_enough_for_the_readers_that_are_likely(count: int) -> None:
    sizes = list(itertools.islice(shard_sizes(count), default_shards(count)))
    assert sum(sizes) == count and max(sizes) - min(sizes) <= 1 and max(sizes) <= 128
    assert len(sizes) % 16 == 0 or len(sizes) == count < 16


def test_shards_of_as_many_samples_as_are_asked_for_or_of_an_unknown_number() -> None:
    assert list(itertools.islice(shard_sizes(400, 64), 7)) == [64] * 7
    assert list(itertools.islice(shard_sizes(0), 3)) == [128] * 3
    assert list(itertools.islice(shard_sizes(20), 18))[-2:] == [2, 2], "more than were counted"
