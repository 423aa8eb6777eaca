"""What every format must do: a format's test class inherits this suite and states its name."""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import pytest

from storage import FORMATS, load
from storage.convert import convert_dataset, in_order
from storage.format import (
    Dataset,
    DatasetError,
    Format,
    IndexRow,
    Lane,
    Sample,
    content_digest,
    dataset_id,
    open_dataset,
)
from storage.verify import verify_dataset
from tests.storage.samples import contents, jpeg, some_samples

LANES = [1, 2, 3, 4]


def lane(index: int = 0, count: int = 1, epoch: int = 0, seed: int = 0, shuffle: bool = True, buffer: int = 4) -> Lane:
    return Lane(index, count, epoch, seed, shuffle, buffer)


class FormatConformance:
    """Inherit and set `name`; `options` make small shards where the format has shards."""

    name: ClassVar[str]
    options: ClassVar[dict[str, int]] = {}

    @pytest.fixture
    def form(self) -> Format:
        return load(FORMATS, self.name, "benchsuite.formats")

    @pytest.fixture
    def dataset(self, tmp_path: Path) -> Dataset:
        """26 samples in a flat folder, converted."""
        for number in range(26):
            path = tmp_path / "flat" / f"{number:04d}.jpg"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(jpeg(number))
        convert_dataset(tmp_path / "flat", tmp_path / "set", "resnet50", "tiny", self.name, self.options)
        return open_dataset(tmp_path / "set")

    def keys(self, form: Format, dataset: Dataset, share: Lane) -> list[str]:
        return [sample.key for sample in form.read(dataset, share)]

    def test_it_is_registered_under_its_own_name(self, form: Format) -> None:
        assert form.name == self.name
        assert "image" in form.kinds

    def test_index_rows_say_what_was_stored(self, form: Format, tmp_path: Path) -> None:
        samples = some_samples(7)
        rows = list(form.write(tmp_path, iter(samples), **self.options))
        assert [(row.key, row.bytes, row.digest, row.label) for row in rows] == [
            (sample.key, sample.stored_bytes, content_digest(sample), number % 3)
            for number, sample in enumerate(samples)
        ]
        assert all((tmp_path / row.file).is_file() for row in rows)

    def test_rows_come_while_writing(self, form: Format, tmp_path: Path) -> None:
        """Progress shows at once, and a long dataset is not held in memory before the first sample is on disk."""
        taken: list[Sample] = []

        def source():
            for sample in some_samples(9):
                taken.append(sample)
                yield sample

        first = next(iter(form.write(tmp_path, source(), **self.options)))
        assert isinstance(first, IndexRow)
        assert len(taken) < 9

    def test_bytes_come_back_as_they_were(self, dataset: Dataset) -> None:
        assert contents(dataset) == {f"{number:04d}": (jpeg(number), 0) for number in range(26)}

    def test_unshuffled_order_is_that_of_the_index(self, form: Format, dataset: Dataset) -> None:
        samples = list(in_order(dataset))
        assert [sample.index for sample in samples] == list(range(26))
        assert [sample.key for sample in samples] == [dataset.key(row) for row in range(26)]
        first, second = (
            [sample.index for sample in form.read(dataset, lane(epoch=epoch, shuffle=False))] for epoch in (0, 1)
        )
        assert first == second

    @pytest.mark.parametrize("shuffle", [False, True])
    @pytest.mark.parametrize("count", LANES)
    def test_lanes_partition_every_epoch(self, form: Format, dataset: Dataset, count: int, shuffle: bool) -> None:
        for epoch in range(3):
            shares = [
                self.keys(form, dataset, lane(index, count, epoch, shuffle=shuffle, buffer=100))
                for index in range(count)
            ]
            assert Counter(key for share in shares for key in share) == Counter(contents(dataset).keys())

    @pytest.mark.parametrize("count", LANES)
    def test_the_smallest_lane_is_never_smaller_than_said(self, form: Format, dataset: Dataset, count: int) -> None:
        said = form.smallest_lane(dataset.manifest, count)
        sizes = [
            len(self.keys(form, dataset, lane(index, count, epoch))) for epoch in range(4) for index in range(count)
        ]
        assert 0 < said <= min(sizes)
        assert count > 1 or said == 26

    def test_the_order_is_a_function_of_seed_and_epoch(self, form: Format, dataset: Dataset) -> None:
        def order(epoch: int, seed: int) -> list[str]:
            return self.keys(form, dataset, lane(0, 2, epoch, seed))

        assert order(0, 5) == order(0, 5)
        assert order(0, 5) != order(1, 5)
        assert order(0, 5) != order(0, 6)
        assert order(1, 5) == order(1, 5)

    def test_shuffling_moves_samples_far(self, form: Format, dataset: Dataset) -> None:
        """A buffer as large as the dataset: neighbours in the index are rarely neighbours in the epoch."""
        rows = [sample.index for sample in form.read(dataset, lane(buffer=100))]
        assert sorted(rows) == list(range(26))
        assert sum(after == before + 1 for before, after in pairwise(rows)) < 6

    def test_too_many_readers_are_refused_with_the_arithmetic(self, form: Format, dataset: Dataset) -> None:
        units = len(dataset.manifest.files) or dataset.manifest.num_samples
        assert form.problem(dataset.manifest, units) is None
        trouble = form.problem(dataset.manifest, units + 1)
        assert trouble is not None
        assert str(units) in trouble and str(units + 1) in trouble

    def test_data_files_are_all_there_is_besides_manifest_and_index(self, dataset: Dataset) -> None:
        listed = {path.relative_to(dataset.folder) for path in dataset.data_files()}
        found = {path.relative_to(dataset.folder) for path in dataset.folder.rglob("*") if path.is_file()}
        assert found - listed == {Path("manifest.json"), Path("index.npy")}
        assert listed < found

    def test_samples_name_the_file_they_came_from(self, dataset: Dataset) -> None:
        files = {str(path) for path in dataset.data_files()}
        assert {sample.source for sample in in_order(dataset)} == files

    def test_a_missing_file_is_named(self, dataset: Dataset) -> None:
        victim = dataset.data_files()[-1]
        victim.unlink()
        with pytest.raises(DatasetError, match=victim.name):
            list(in_order(dataset))

    def test_names_that_lead_out_of_the_dataset_are_refused(self, dataset: Dataset) -> None:
        """A dataset from elsewhere must not make us read, evict or warm files outside its folder."""
        outside = dataset.folder.parent / "out"
        outside.write_bytes(b"secret")
        if dataset.manifest.files:
            dataset.manifest.files[0].path = "../out"
            crafted = dataset
        else:
            index = dataset.index.copy()
            index["file"][0] = b"../out"
            crafted = Dataset(dataset.folder, dataset.manifest, index)
        with pytest.raises(DatasetError, match=r"\.\./out"):
            list(in_order(crafted))
        with pytest.raises(DatasetError, match=r"\.\./out"):
            crafted.data_files()

    def test_what_file_names_may_hold(self, class_folder: Path, small: Callable[[str], Dataset]) -> None:
        dataset = small(self.name)
        source = [path.read_bytes() for path in sorted(class_folder.rglob("*")) if path.is_file()]
        assert set(contents(dataset)) == {"cat/a", "cat/b_c", "cat/d_v1", "dog/a", "dog/é", "dog/deep/er"}
        assert sorted(image for image, _ in contents(dataset).values()) == sorted(source)
        assert {key: label for key, (_, label) in contents(dataset).items()} == {
            key: int(key.startswith("dog")) for key in contents(dataset)
        }

    @pytest.mark.parametrize(
        "name",
        [
            "__background__/0",
            "__meta__",
            "x/__meta__/y",
            "_/_",
            "-dash/--x",
            "l" * 120 + "/" + "k" * 200,
            "tab\tbell\a",
            "quote'\"$`",
            "naïve/日本",
        ],
    )
    def test_a_folder_that_converts_can_be_read(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / "odd" / f"{name}.jpg"
        path.parent.mkdir(parents=True)
        path.write_bytes(jpeg(1))
        convert_dataset(tmp_path / "odd", tmp_path / "set", "resnet50", "tiny", self.name, self.options)
        dataset = verify_dataset(tmp_path / "set")
        assert [image for image, _ in contents(dataset).values()] == [jpeg(1)]

    def test_the_id_is_that_of_its_samples(self, dataset: Dataset) -> None:
        rows = [(sample.key, content_digest(sample)) for sample in in_order(dataset)]
        assert dataset.manifest.dataset_id == dataset_id(rows)
        assert dataset.manifest.num_samples == 26
        assert dataset.manifest.stored_bytes == sum(sample.stored_bytes for sample in in_order(dataset))
