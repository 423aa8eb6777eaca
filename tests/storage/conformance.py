"""What every format must do, for every kind it stores: a format's test class inherits this and states its name."""

from collections import Counter
from collections.abc import Callable
from inspect import signature
from itertools import pairwise, product
from pathlib import Path
from typing import Any, ClassVar

import pytest

from benchsuite.storage import format_of
from benchsuite.storage.create.convert import Wanted, convert_dataset, in_order
from benchsuite.storage.dataset.manifest import (
    Dataset,
    DatasetError,
    Format,
    IndexRow,
    ReaderShare,
    Sample,
    class_label,
    content_digest,
    dataset_id,
    file_digest,
)
from benchsuite.storage.dataset.sample import Recycled
from benchsuite.storage.dataset.verify import verify_dataset
from tests.storage.conftest import Made
from tests.storage.damage import DamageConformance
from tests.storage.samples import contents, digests, facts, jpeg, small_shards, some_samples, store

COUNT = 26
LANES = [1, 2, 3, 4]
SHUFFLED_LANES = [(count, shuffle) for shuffle in (False, True) for count in LANES]
TURNS: dict[str, list[Any]] = {"shuffled": SHUFFLED_LANES, "count": LANES, "mask": [0x01, 0x80, 0xFF]}
"""What a test may vary besides the kind: lanes of which samples are shuffled or not, lanes, and bits that flip."""

IN_FULL = ("files", "hdf5", "webdataset")
"""Formats with a file for each sample, with one for all, and with shards: each test meets each of their kinds."""


def lane(
    index: int = 0, count: int = 1, epoch: int = 0, seed: int = 0, shuffle: bool = True, buffer: int = 4
) -> ReaderShare:
    return ReaderShare(index, count, epoch, seed, shuffle, buffer)


class FormatConformance(DamageConformance):
    """Inherit and set `name`, and `options` and `kinds` where it is one way of storing among several."""

    name: ClassVar[str]
    options: ClassVar[dict[str, int | str]] = {}
    kinds: ClassVar[tuple[str, ...]] = ()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """All kinds; of one way of storing among several the first and the last, where all are not asked for.

        What varies besides takes turns with the kinds, unless all combinations are asked for. Beyond three formats
        kinds take turns with the tests whose own code asks for no kind.
        """
        if "kind" not in metafunc.fixturenames:
            return
        kinds = self.kinds or sorted(format_of(self.name).kinds)
        few = (kinds[0], kinds[-1]) if self.options and not self.kinds else kinds
        if (self.options or self.name not in IN_FULL) and "kind" not in signature(metafunc.function).parameters:
            few = (few[sum(map(ord, metafunc.function.__name__)) % len(few)],)
        (name, values) = next(((name, TURNS[name]) for name in TURNS if name in metafunc.fixturenames), ("", [None]))
        most = max(len(few), len(values))
        chosen = {(few[number % len(few)], values[number % len(values)]) for number in range(most)}
        marked = [
            pytest.param(*(each if name else each[:1]), marks=() if each in chosen else pytest.mark.full)
            for each in product(kinds, values)
        ]
        metafunc.parametrize(("kind", name) if name else ("kind",), marked)

    @pytest.fixture
    def form(self) -> Format:
        return format_of(self.name)

    @pytest.fixture
    def made_dataset(self, made: Made, kind: str) -> Dataset:
        """26 samples; nobody may change them."""
        return made(self.name, kind, {**small_shards(self.name, 3), **self.options}, COUNT)

    @pytest.fixture
    def dataset(self, mine: Made, kind: str) -> Dataset:
        """Six samples to damage."""
        return mine(self.name, kind, {**small_shards(self.name), **self.options})

    def keys(self, form: Format, dataset: Dataset, share: ReaderShare) -> list[str]:
        return [sample.key for sample in form.read(dataset, share)]

    def test_it_is_registered_under_its_own_name(self, form: Format) -> None:
        assert form.name == self.name
        assert set(form.kinds) <= {"image", "volume", "mlm", "tokens"}

    def test_what_was_written_is_read(self, made_dataset: Dataset, kind: str) -> None:
        """Identical bytes; identical dtypes, shapes and values."""
        for stored, sample in zip(in_order(made_dataset), some_samples(COUNT, kind), strict=True):
            assert facts(stored) == facts(sample)

    def test_recycled_memory_holds_the_same(self, form: Format, made_dataset: Dataset, kind: str) -> None:
        """Each sample is looked at before the next one is drawn."""
        written = {sample.key: facts(sample) for sample in some_samples(COUNT, kind)}
        allocate = Recycled()
        for epoch in range(2):
            share = ReaderShare(0, 1, epoch, 0, True, 5, allocate)
            read = {sample.key: facts(sample) for sample in form.read(made_dataset, share)}
            assert read == written

    def test_index_rows_say_what_was_stored(self, form: Format, tmp_path: Path, kind: str) -> None:
        samples = some_samples(7, kind)
        rows = list(form.write(tmp_path, iter(samples), **self.options))
        assert [(row.key, row.digest, row.label) for row in rows] == [
            (sample.key, content_digest(sample), class_label(sample)) for sample in samples
        ]
        assert all((tmp_path / row.file).is_file() for row in rows)
        if "compression" not in self.options:
            assert [row.bytes for row in rows] == [sample.stored_bytes for sample in samples]

    def test_rows_come_while_writing(self, form: Format, tmp_path: Path, kind: str) -> None:
        """Progress shows at once, and a long dataset is not held in memory before the first sample is on disk."""
        taken: list[Sample] = []

        def source():
            for sample in some_samples(9, kind):
                taken.append(sample)
                yield sample

        rows = form.write(tmp_path, source(), **{**small_shards(self.name), **self.options})
        assert isinstance(next(iter(rows)), IndexRow)
        assert len(taken) < 9
        rows.close()

    def test_unshuffled_order_is_that_of_the_index(self, form: Format, made_dataset: Dataset) -> None:
        samples = [(sample.index, sample.key) for sample in in_order(made_dataset)]
        assert samples == [(row, made_dataset.key(row)) for row in range(COUNT)]
        first, second = (self.keys(form, made_dataset, lane(epoch=epoch, shuffle=False)) for epoch in (0, 1))
        assert first == second == [key for _, key in samples]

    def test_lanes_partition_every_epoch(
        self, form: Format, made_dataset: Dataset, kind: str, shuffled: tuple[int, bool]
    ) -> None:
        count, shuffle = shuffled
        written = Counter(sample.key for sample in some_samples(COUNT, kind))
        if form.problem(made_dataset.manifest, count):
            pytest.skip(f"{self.options} give fewer shards than readers")
        for epoch in range(3):
            shares = [
                self.keys(form, made_dataset, lane(index, count, epoch, shuffle=shuffle, buffer=100))
                for index in range(count)
            ]
            assert Counter(key for share in shares for key in share) == written

    def test_the_smallest_lane_is_never_smaller_than_said(
        self, form: Format, made_dataset: Dataset, count: int
    ) -> None:
        said = form.smallest_lane(made_dataset.manifest, count)
        sizes = [
            len(self.keys(form, made_dataset, lane(index, count, epoch)))
            for epoch in range(4)
            for index in range(count)
        ]
        assert 0 < said <= min(sizes)
        assert count > 1 or said == COUNT

    def test_the_order_is_a_function_of_seed_and_epoch(self, form: Format, made_dataset: Dataset) -> None:
        def order(epoch: int, seed: int) -> list[str]:
            return self.keys(form, made_dataset, lane(0, 2, epoch, seed))

        assert order(0, 5) == order(0, 5)
        assert order(0, 5) != order(1, 5)
        assert order(0, 5) != order(0, 6)
        assert order(1, 5) == order(1, 5)

    def test_shuffling_moves_samples_far(self, form: Format, made_dataset: Dataset) -> None:
        """A buffer as large as the dataset: neighbours in the index are rarely neighbours in the epoch."""
        rows = [sample.index for sample in form.read(made_dataset, lane(buffer=100))]
        assert sorted(rows) == list(range(COUNT))
        assert sum(after == before + 1 for before, after in pairwise(rows)) < 6

    def test_too_many_readers_are_refused_with_the_arithmetic(self, form: Format, made_dataset: Dataset) -> None:
        manifest = made_dataset.manifest
        units = sum(info.num_samples is not None for info in manifest.files) if form.sequential else COUNT
        assert form.problem(manifest, units) is None
        trouble = form.problem(manifest, units + 1)
        assert trouble is not None
        assert str(units) in trouble and str(units + 1) in trouble

    def test_data_files_are_all_there_is_besides_manifest_and_index(self, made_dataset: Dataset) -> None:
        folder = made_dataset.folder
        listed = [path.relative_to(folder) for path in made_dataset.data_files()]
        found = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
        assert found - set(listed) == {Path("manifest.json"), Path("index.npy")}
        assert set(listed) < found
        assert len(set(listed)) == len(listed)

    def test_listed_files_have_sizes_and_digests(self, form: Format, made_dataset: Dataset) -> None:
        for info in made_dataset.manifest.files:
            assert (made_dataset.folder / info.path).stat().st_size == info.bytes
            assert info.digest.startswith("blake3")
            assert file_digest(made_dataset.folder / info.path, info.digest) == info.digest
        assert bool(made_dataset.manifest.files) or form.file_per_sample

    def test_samples_name_the_file_they_came_from(self, made_dataset: Dataset) -> None:
        files = {str(path) for path in made_dataset.data_files()}
        sources = {sample.source for sample in in_order(made_dataset)}
        named = {str(made_dataset.folder / bytes(name).decode()) for name in made_dataset.index["file"]}
        assert sources == named
        assert sources <= files

    def test_the_id_is_that_of_its_samples(self, made_dataset: Dataset, kind: str) -> None:
        """So it is the same in every format and with every option."""
        manifest = made_dataset.manifest
        assert manifest.dataset_id == dataset_id(digests(some_samples(COUNT, kind)).items())
        assert manifest.num_samples == COUNT
        assert manifest.stored_bytes == sum(sample.stored_bytes for sample in in_order(made_dataset))

    def test_fields_are_described(self, made_dataset: Dataset, kind: str) -> None:
        described = {info.name: (info.dtype, info.shape) for info in made_dataset.manifest.fields}
        if kind == "image":
            assert described == {"image": ("jpeg", None), "label": ("int64", [])}
            return
        fields = some_samples(1, kind)[0].fields
        assert described == {
            name: (value.dtype.name, None if kind == "volume" else list(value.shape)) for name, value in fields.items()
        }

    def test_two_samples_of_one_key_are_refused(self, form: Format, tmp_path: Path, kind: str) -> None:
        first = some_samples(1, kind)
        if kind == "tokens" and self.name == "tokens":
            pytest.skip("the same window twice does not chain, which is refused before")
        with pytest.raises(DatasetError, match=r"two samples have the key|comes twice"):
            store(first * 2, kind, tmp_path / "set", self.name, self.options)
        assert not (tmp_path / "set").exists()


ODD_NAMES = [
    "__background__/0",
    "__meta__",
    "x/__meta__/y",
    "_/_",
    "-dash/--x",
    "l" * 120 + "/" + "k" * 200,
    "tab\tbell\a",
    "quote'\"$`",
    "naïve/日本",
]


class ImageConformance:
    """For formats that store images: what files may be called."""

    name: ClassVar[str]

    def test_what_file_names_may_hold(self, class_folder: Path, small: Callable[[str], Dataset]) -> None:
        dataset = small(self.name)
        source = [path.read_bytes() for path in sorted(class_folder.rglob("*")) if path.is_file()]
        assert set(contents(dataset)) == {"cat/a", "cat/b_c", "cat/d_v1", "dog/a", "dog/é", "dog/deep/er"}
        assert sorted(image for image, _ in contents(dataset).values()) == sorted(source)
        assert {key: label for key, (_, label) in contents(dataset).items()} == {
            key: int(key.startswith("dog")) for key in contents(dataset)
        }

    def test_folders_that_convert_can_be_read(self, tmp_path: Path) -> None:
        for number, name in enumerate(ODD_NAMES):
            path = tmp_path / "odd" / "class" / f"{name}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(jpeg(number))
            flat = tmp_path / f"odd-{number}" / f"{name}.jpg"
            flat.parent.mkdir(parents=True)
            flat.write_bytes(jpeg(number))
            convert_dataset(
                tmp_path / f"odd-{number}", tmp_path / f"set-{number}", Wanted("resnet50", "tiny", self.name)
            )
            dataset = verify_dataset(tmp_path / f"set-{number}")
            assert [image for image, _ in contents(dataset).values()] == [jpeg(number)], name
        convert_dataset(
            tmp_path / "odd", tmp_path / "set", Wanted("resnet50", "tiny", self.name, options=small_shards(self.name))
        )
        images = [image for image, _ in contents(verify_dataset(tmp_path / "set")).values()]
        assert sorted(images) == sorted(jpeg(number) for number in range(len(ODD_NAMES)))
