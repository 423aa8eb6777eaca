"""Conversion from every format into every other one, where neither is `files`: the same samples, byte by byte."""

from itertools import permutations
from pathlib import Path

import pytest

from benchsuite.storage import FORMATS
from benchsuite.storage.create.convert import Wanted, convert_dataset, in_order
from benchsuite.storage.dataset.manifest import DatasetError
from benchsuite.storage.dataset.verify import same_samples, verify_dataset
from tests.helpers.turns import covering
from tests.storage.conftest import Made
from tests.storage.samples import PARAMS, STORED, facts, small_shards, some_samples

COUNT = 7
PAIRS = [
    (kind, first, second)
    for kind in PARAMS
    for first, second in permutations(sorted(form for form, stored in STORED if stored == kind and form != "files"), 2)
]
OTHER_OPTIONS = {
    "webdataset": {"shard_samples": 4},
    "tfrecord": {"shard_samples": 4},
    "mds": {"shard_samples": 4},
    "parquet": {"shard_samples": 4, "row_group_samples": 3},
    "hdf5": {"file_samples": 3, "chunk_bytes": 512, "compression": "gzip"},
}
"""So that neither shards nor chunks lie as they did before."""


def test_every_pair_is_there() -> None:
    assert len(PAIRS) == 2 * 6 * 5 + 5 * 4 + 7 * 6  # image and mlm; volume; tokens
    assert {form for _, first, second in PAIRS for form in (first, second)} == set(FORMATS) - {"files"}


@pytest.mark.parametrize(("kind", "first", "second"), covering(PAIRS, (0, 1), (0, 2)))
def test_the_samples_stay_as_they_are(tmp_path: Path, made: Made, kind: str, first: str, second: str) -> None:
    source = made(first, kind, None, COUNT)
    options, params = OTHER_OPTIONS.get(second, {}), PARAMS[kind]
    if kind != "volume":
        options = {name: value for name, value in options.items() if name.endswith("_samples")}
    convert_dataset(
        source.folder, tmp_path / "new", Wanted("any", "tiny", second, kind=kind, params=params, options=options)
    )
    new = verify_dataset(tmp_path / "new")
    same_samples(source, new)
    assert [facts(sample) for sample in in_order(new)] == [facts(sample) for sample in some_samples(COUNT, kind)]
    for name in ("kind", "num_samples", "num_classes", "params", "fields", "dataset_id"):
        assert getattr(new.manifest, name) == getattr(source.manifest, name), name
    assert (new.manifest.format, new.manifest.options) == (second, options)


@pytest.mark.parametrize(
    ("kind", "first", "second"), covering([pair for pair in PAIRS if pair[0] == "tokens"], (1,), (2,))
)
def test_there_and_back_changes_no_sample_and_no_count_of_files(
    tmp_path: Path, made: Made, kind: str, first: str, second: str
) -> None:
    source = made(first, kind, small_shards(first, 2), COUNT)
    for folder, target, form in ((source.folder, "new", second), (tmp_path / "new", "back", first)):
        options = small_shards(form, 2)
        convert_dataset(
            folder, tmp_path / target, Wanted("any", "tiny", form, kind=kind, params=PARAMS[kind], options=options)
        )
    back = verify_dataset(tmp_path / "back")
    assert [(info.path, info.num_samples) for info in back.manifest.files] == [
        (info.path, info.num_samples) for info in source.manifest.files
    ]
    assert back.index.tolist() == source.index.tolist()


@pytest.mark.parametrize("kind", sorted(set(PARAMS) - {"tokens"}))
def test_into_tokens_go_only_tokens(tmp_path: Path, made: Made, kind: str) -> None:
    source = made("hdf5", kind, None, COUNT).folder
    with pytest.raises(DatasetError, match=f"format tokens stores tokens samples, not {kind}"):
        convert_dataset(source, tmp_path / "new", Wanted("any", "tiny", "tokens", kind=kind, params=PARAMS[kind]))
    assert list(tmp_path.iterdir()) == []
