"""What is said to be needed on the disk before writing, and what writing takes."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchsuite.storage import FORMATS, load
from benchsuite.storage.create.convert import (
    FILE_OVERHEAD_BYTES,
    Wanted,
    convert_dataset,
    generate_dataset,
    needed_bytes,
)
from benchsuite.storage.dataset.manifest import Format
from benchsuite.storage.dataset.sample import Sample
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.sources import Source, open_source
from tests.helpers.turns import covering
from tests.storage.samples import MLM_PARAMS, STORED, jpeg, some_samples, store

BLOCK_BYTES = 4096


def tokens(low: int, high: int, dtype: str, count: int = 200, length: int = 128) -> list[Sample]:
    """Windows of a stream whose ids lie between low and high."""
    stream = np.random.default_rng(0).integers(low, high, count * length + 1).astype(dtype)
    return [Sample(f"{n:08d}", {"tokens": stream[n * length : (n + 1) * length + 1]}) for n in range(count)]


def images(count: int, more_bytes: int) -> list[Sample]:
    made = [jpeg(number) + bytes(more_bytes) for number in range(3)]
    fields = [{"image": made[number % 3], "label": b"1"} for number in range(count)]
    return [Sample(f"class{number % 3}/{number:06d}", field) for number, field in enumerate(fields)]


SETS: dict[str, tuple[str, list[Sample]]] = {
    "images of 1 KB": ("image", images(200, 0)),
    "images of 9 KB": ("image", images(100, 8000)),
    "volumes": ("volume", some_samples(26, "volume")),
    "mlm": ("mlm", some_samples(200, "mlm")),
    "tokens of 1 byte as varints": ("tokens", tokens(1, 128, "uint16")),
    "tokens of 3 bytes as varints": ("tokens", tokens(1 << 14, 1 << 16, "uint16")),
    "tokens of 5 bytes as varints": ("tokens", tokens(1 << 28, (1 << 31) - 1, "int32")),
    "short windows": ("tokens", tokens(1, 1 << 16, "uint16", 300, 8)),
}
SIZED = {
    "webdataset": ({}, {"shard_samples": 4}),
    "tfrecord": ({}, {"shard_samples": 4}),
    "mds": ({}, {"shard_samples": 4}),
    "parquet": ({}, {"shard_samples": 4}, {"row_group_samples": 2, "compression": "none"}),
    "hdf5": ({}, {"file_samples": 4}, {"chunk_bytes": 4096}),
}


def cases() -> Iterator[tuple[str, str, dict[str, int | str]]]:
    for name, (kind, _) in SETS.items():
        for form in (form for form, stored in STORED if stored == kind):
            for options in SIZED.get(form, ({},)):
                yield name, form, options


def taken(folder: Path) -> tuple[int, int]:
    """Bytes of all files, and of the blocks that hold them."""
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return sum(sizes), sum(-(-size // BLOCK_BYTES) * BLOCK_BYTES for size in sizes)


def said(samples: list[Sample], kind: str, form: Format, options: dict[str, int | str]) -> int:
    size = sum(sample.stored_bytes for sample in samples)
    return needed_bytes(Source(len(samples), size, iter(())), kind, form, options)


@pytest.mark.parametrize(("name", "form", "options"), covering(cases(), (0,), (1, 2)))
def test_what_is_said_is_enough_and_not_far_too_much(
    tmp_path: Path, name: str, form: str, options: dict[str, int | str]
) -> None:
    kind, samples = SETS[name]
    loaded: Format = load(FORMATS, form)
    needed = said(samples, kind, loaded, options)
    size, blocks = taken(store(samples, kind, tmp_path / "set", form, options).folder)
    assert size <= blocks <= needed
    added = len(samples) * loaded.sample_overhead_bytes + FILE_OVERHEAD_BYTES * max(1, len(samples) // 4)
    assert needed <= 2.1 * size + added


def test_large_volumes_as_tfrecords_need_hardly_more_than_their_bytes() -> None:
    """A factor for integers must not refuse a conversion of a terabyte for want of half another."""
    source = Source(100, 100 * 10**9, iter(()))
    for kind in ("image", "volume"):
        assert needed_bytes(source, kind, load(FORMATS, "tfrecord"), {}) < 1.06 * source.size_bytes
    assert needed_bytes(source, "tokens", load(FORMATS, "tfrecord"), {}) >= 1.5 * source.size_bytes


def test_sequences_are_counted_by_their_bytes_where_only_reading_tells() -> None:
    known = Source(1000, 1000 * 2 * 33, iter(()), {"seq_len": 32, "vocab_size": 512})
    form = load(FORMATS, "files")
    assert needed_bytes(replace(known, count=None), "tokens", form, {}) == needed_bytes(known, "tokens", form, {})
    assert needed_bytes(known, "tokens", form, {}) > 1000 * form.sample_overhead_bytes


def test_small_integers_of_tfrecords_are_counted_as_what_they_become(tmp_path: Path) -> None:
    """A varint of one byte is stored as four elsewhere."""
    samples = some_samples(50, "mlm")
    own = store(samples, "mlm", tmp_path / "own", "tfrecord").folder
    (own / "manifest.json").unlink()
    source = open_source(own, "mlm", MLM_PARAMS)
    assert source.size_bytes == sum(sample.stored_bytes for sample in samples) == 50 * (5 * 32 + 8 * 5 + 1)


def test_a_disk_between_the_samples_bytes_and_what_they_need_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = SETS["tokens of 3 bytes as varints"][1]
    size = sum(sample.stored_bytes for sample in samples)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=int(1.45 * size)))
    with pytest.raises(DatasetError, match=r"\d [KMG]B free"):
        store(samples, "tokens", tmp_path / "set", "tfrecord")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", ["hdf5", "tfrecord"])
def test_small_shards_need_more(tmp_path: Path, form: str) -> None:
    loaded, option = load(FORMATS, form), {"hdf5": "file_samples", "tfrecord": "shard_samples"}[form]
    samples = SETS["short windows"][1]
    few, many = (said(samples, "tokens", loaded, {option: count}) for count in (300, 2))
    assert many - few == 149 * FILE_OVERHEAD_BYTES


class TestVocabulary:
    """A dataset with ids that the variant does not know is refused when it is converted, not when it is trained on."""

    @pytest.mark.parametrize("kind", ["mlm", "tokens"])
    def test_a_larger_one_is_refused(self, tmp_path: Path, kind: str) -> None:
        params = {"seq_len": 32, "max_predictions": 5, "vocab_size": 600}
        workload = {"mlm": "bert", "tokens": "gpt_neox"}[kind]
        generate_dataset(tmp_path / "a", Wanted(workload, "any", "files", kind=kind, params=params), 3, num_workers=1)
        fewer = {**params, "vocab_size": 599}
        with pytest.raises(DatasetError) as raised:
            convert_dataset(tmp_path / "a", tmp_path / "b", Wanted(workload, "any", "hdf5", kind=kind, params=fewer))
        assert str(raised.value) == (
            f"{tmp_path / 'a'}: has a vocabulary of 600, the variant knows 599; give the variant that it was made for"
        )
        for vocab_size in (600, 700):
            asked, target = {**params, "vocab_size": vocab_size}, tmp_path / str(vocab_size)
            manifest = convert_dataset(tmp_path / "a", target, Wanted(workload, "any", "hdf5", kind=kind, params=asked))
            assert manifest.params["vocab_size"] == 600
