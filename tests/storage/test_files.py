"""Format `files`: the conformance suite, and what is its own."""

from collections.abc import Callable
from pathlib import Path

import pytest

from storage.files import write
from storage.format import Dataset, DatasetError, Sample
from tests.storage.conformance import FormatConformance
from tests.storage.samples import contents, jpeg


class TestFiles(FormatConformance):
    name = "files"

    def test_each_sample_is_a_plain_jpeg_named_by_its_key(self, dataset: Dataset) -> None:
        for key, (image, _) in contents(dataset).items():
            assert (dataset.folder / f"{key}.jpg").read_bytes() == image

    def test_lanes_differ_by_at_most_one_sample(self, form, dataset: Dataset) -> None:
        assert form.smallest_lane(dataset.manifest, 4) == 26 // 4

    @pytest.mark.parametrize("key", ["../out", "/etc/out", "a/../../out"])
    def test_a_key_that_leads_out_of_the_folder_is_not_written(self, tmp_path: Path, key: str) -> None:
        (tmp_path / "set").mkdir()
        with pytest.raises(DatasetError, match="leads out"):
            list(write(tmp_path / "set", [Sample(key, {"image": jpeg(0), "label": b"0"})]))
        assert [path.name for path in tmp_path.rglob("*")] == ["set"]

    def test_labels_stand_in_the_index(self, small: Callable[[str], Dataset]) -> None:
        dataset = small("files")
        assert dataset.index["label"].tolist() == [0, 0, 0, 1, 1, 1]
        assert dataset.manifest.num_classes == 2
        assert dataset.manifest.files == []
