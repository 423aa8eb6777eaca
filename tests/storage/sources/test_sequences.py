"""Windows of .bin/.idx pairs, and BERT's samples in HDF5 and TFRecord."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from tfrecord.writer import TFRecordWriter

from benchsuite.storage.dataset.manifest import DatasetError
from benchsuite.storage.dataset.verify import same_samples
from benchsuite.storage.formats.tokens import read_index
from benchsuite.storage.sources import open_source
from benchsuite.workloads.facts import FACTS
from tests.helpers.snapshots import compare_messages
from tests.storage.sources.made import arrays, converted, refusal

LENGTH, PREDICTIONS, VOCABULARY = 128, 20, 512
CODES = {"u1": 1, "i1": 2, "i2": 3, "i4": 4, "i8": 5, "u2": 8}


def ids(count: int, end: int = VOCABULARY) -> np.ndarray:
    return np.random.default_rng(count).integers(0, end, count)


def pair(prefix: Path, tokens: np.ndarray, dtype: str = "u2", documents: int = 3) -> Path:
    """A pair as Megatron-LM's indexed dataset lays it out, packed by hand."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    lengths = [len(part) for part in np.array_split(tokens, documents)]
    places = [sum(lengths[:number]) * np.dtype(dtype).itemsize for number in range(documents)]
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, CODES[dtype], documents, documents + 1)
    body = struct.pack(f"<{documents}i", *lengths) + struct.pack(f"<{documents}q", *places)
    prefix.with_name(f"{prefix.name}.idx").write_bytes(
        head + body + struct.pack(f"<{documents + 1}q", *range(documents + 1))
    )
    prefix.with_name(f"{prefix.name}.bin").write_bytes(tokens.astype(f"<{dtype}").tobytes())
    return prefix


def check_windows(source: Path, tokens: np.ndarray, dtype: Any, form: str = "files") -> None:
    result = [fields["tokens"] for fields in arrays(source, "gpt_neox", form).values()]
    assert len(result) == (len(tokens) - 1) // LENGTH
    for number, window in enumerate(result):
        assert window.dtype == dtype
        assert window.tolist() == tokens[number * LENGTH : (number + 1) * LENGTH + 1].tolist()


class TestWidths:
    """The same token ids in types of another width are the same samples; their datasets keep the ids that they had."""

    def test_the_same_ids(self, tmp_path: Path) -> None:
        tokens = ids(1000)
        narrow = converted(pair(tmp_path / "narrow", tokens, "u2"), "gpt_neox", "tokens")
        wide = converted(pair(tmp_path / "wide", tokens, "i4"), "gpt_neox", "hdf5")
        assert narrow.manifest.dataset_id == "db9f8929f0d00a0960f50d0e2ec4dc28"
        assert wide.manifest.dataset_id == "3b20d75ed3b61a77b0d99196ce6ba9fa"
        same_samples(narrow, wide)

    def test_other_ids_are_told(self, tmp_path: Path) -> None:
        tokens = ids(1000)
        narrow = converted(pair(tmp_path / "narrow", tokens, "u2"), "gpt_neox")
        tokens[LENGTH + 5] ^= 1
        wide = converted(pair(tmp_path / "wide", tokens, "i4"), "gpt_neox")
        with pytest.raises(DatasetError, match="differ, first at sample '00000001': 1 with other content"):
            same_samples(narrow, wide)


class TestPairs:
    @pytest.mark.parametrize("name", ["text_document", "text_document.bin", "text_document.idx", "."])
    @pytest.mark.parametrize("form", ["files", "tokens", "hdf5"])
    def test_content(self, tmp_path: Path, name: str, form: str) -> None:
        tokens = ids(1000)
        pair(tmp_path / "in" / "text_document", tokens)
        (tmp_path / "in" / "README.txt").write_text("not what is wanted")
        check_windows(tmp_path / "in" / name, tokens, np.uint16, form)

    @pytest.mark.parametrize(
        ("dtype", "stored", "end"),
        [("u2", "u2", 512), ("i4", "i4", 512), ("i8", "u2", 512), ("i2", "u2", 512), ("u1", "u2", 256)],
    )
    def test_types(self, tmp_path: Path, dtype: str, stored: str, end: int) -> None:
        tokens = ids(400, end)
        check_windows(pair(tmp_path / "a", tokens, dtype), tokens, stored)

    @pytest.mark.parametrize(("count", "dropped"), [(129, 0), (130, 1), (256, 127), (257, 0), (1000, 103)])
    def test_what_fills_no_window_is_counted(self, tmp_path: Path, count: int, dropped: int) -> None:
        manifest = converted(pair(tmp_path / "a", ids(count)), "gpt_neox").manifest
        assert manifest.created["dropped_tokens"] == dropped
        assert manifest.num_samples == (count - 1) // LENGTH
        assert manifest.params == {"seq_len": LENGTH, "vocab_size": VOCABULARY}

    def test_an_id_beyond_the_vocabulary(self, tmp_path: Path) -> None:
        tokens = ids(1000)
        tokens[300] = 512
        source = pair(tmp_path / "a", tokens)
        expected = f"{source}.bin: window 2 (from token 256): tokens holds 512, needed: 0..511 (vocab_size 512)"
        assert refusal(source, "gpt_neox") == expected
        tokens[300] = -1
        assert "window 2 (from token 256): tokens holds -1" in refusal(pair(source, tokens, "i4"), "gpt_neox")

    def test_too_short(self, tmp_path: Path) -> None:
        assert "128 tokens, a window needs 129" in refusal(pair(tmp_path / "a", ids(128)), "gpt_neox")

    def test_cut_and_mixed_up(self, tmp_path: Path) -> None:
        source = pair(tmp_path / "a", ids(1000))
        bin_path, idx_path = tmp_path / "a.bin", tmp_path / "a.idx"
        whole_bin, whole_idx = bin_path.read_bytes(), idx_path.read_bytes()
        for size in (0, 20, len(whole_idx) - 1):
            idx_path.write_bytes(whole_idx[:size])
            assert refusal(source, "gpt_neox").startswith(f"{idx_path}: ")
        idx_path.write_bytes(whole_idx[:54] + b"\xff" + whole_idx[55:])
        assert "do not lie one after another" in refusal(source, "gpt_neox")
        idx_path.write_bytes(whole_idx)
        bin_path.write_bytes(whole_bin[:-1])
        assert "truncated" in refusal(source, "gpt_neox")
        bin_path.write_bytes(whole_bin + b"\0\0")
        assert "not a pair" in refusal(source, "gpt_neox")

    def test_which_of_several(self, tmp_path: Path) -> None:
        pair(tmp_path / "in" / "a", ids(200))
        pair(tmp_path / "in" / "b", ids(200))
        message = refusal(tmp_path / "in", "gpt_neox")
        assert message == f"{tmp_path / 'in'}: 2 files a.bin, b.bin and so on; give one of them"

    def test_a_missing_partner(self, tmp_path: Path) -> None:
        source = pair(tmp_path / "a", ids(200))
        (tmp_path / "a.idx").unlink()
        assert refusal(source, "gpt_neox") == f"{source}.bin: its index a.idx is missing"
        pair(source, ids(200))
        (tmp_path / "a.bin").unlink()
        assert refusal(tmp_path / "a.idx", "gpt_neox").startswith(f"{source}.bin: ")


class TestDocuments:
    """Format tokens keeps those of its source, for Megatron-LM and GPT-NeoX to shuffle."""

    def test_of_a_pair_are_kept_whatever_token_ends_them(self, tmp_path: Path) -> None:
        tokens = ids(LENGTH * 7 + 1)
        assert np.count_nonzero(tokens == 0)
        source = pair(tmp_path / "a", tokens, documents=5)
        dataset = converted(source, "gpt_neox", "tokens")
        assert (dataset.folder / "tokens.bin").read_bytes() == (tmp_path / "a.bin").read_bytes()
        assert (dataset.folder / "tokens.idx").read_bytes() == (tmp_path / "a.idx").read_bytes()

    def test_the_last_one_ends_with_the_last_window(self, tmp_path: Path) -> None:
        dataset = converted(pair(tmp_path / "a", ids(1000), documents=4), "gpt_neox", "tokens")
        index = read_index(dataset.folder / "tokens.idx")
        assert index.lengths.tolist() == [250, 250, 250, 7 * LENGTH + 1 - 750]
        assert index.documents.tolist() == [0, 1, 2, 3, 4]

    def test_are_kept_from_dataset_to_dataset(self, tmp_path: Path) -> None:
        first = converted(pair(tmp_path / "a", ids(1000), documents=6), "gpt_neox", "tokens").folder
        second = converted(first, "gpt_neox", "tokens").folder
        assert (second / "tokens.idx").read_bytes() == (first / "tokens.idx").read_bytes()
        assert len(arrays(first, "gpt_neox", "lmdb")) == 7

    def test_that_do_not_follow_one_another_are_refused(self, tmp_path: Path) -> None:
        source = pair(tmp_path / "a", ids(400))
        whole = (tmp_path / "a.idx").read_bytes()
        for bounds in ([0, 2, 1, 3], [1, 1, 2, 3], [0, 1, 2, 4], [-1, 1, 2, 3]):
            (tmp_path / "a.idx").write_bytes(whole[:-32] + struct.pack("<4q", *bounds))
            expected = f"{tmp_path / 'a.idx'}: its documents do not follow one another from sequence 0 to 3"
            assert refusal(source, "gpt_neox") == expected


def bert(count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(count)
    return {
        "input_ids": rng.integers(0, VOCABULARY, (count, LENGTH)),
        "input_mask": np.ones((count, LENGTH), int),
        "segment_ids": rng.integers(0, 2, (count, LENGTH)),
        "masked_lm_positions": rng.integers(0, LENGTH, (count, PREDICTIONS)),
        "masked_lm_ids": rng.integers(0, VOCABULARY, (count, PREDICTIONS)),
        "next_sentence_labels": rng.integers(0, 2, count),
    }


def check_bert(source: Path, rows: dict[str, np.ndarray], form: str = "files") -> None:
    result = list(arrays(source, "bert", form).values())
    assert len(result) == len(rows["input_ids"])
    dtypes = {"segment_ids": np.int8, "next_sentence_label": np.int8}
    for number, fields in enumerate(result):
        assert set(fields) == {*rows} - {"input_mask", "next_sentence_labels"} | {"next_sentence_label"}
        for name, values in fields.items():
            expected = rows["next_sentence_labels" if name == "next_sentence_label" else name][number]
            assert values.dtype == dtypes.get(name, np.int32)
            assert values.tolist() == expected.tolist()


def bert_h5(path: Path, rows: dict[str, np.ndarray]) -> Path:
    with h5py.File(path, "w") as file:
        for name, values in rows.items():
            file.create_dataset(name, data=values.astype("i4"), compression="gzip")
    return path


def bert_records(path: Path, rows: dict[str, np.ndarray]) -> Path:
    writer = TFRecordWriter(str(path))
    for number in range(len(rows["input_ids"])):
        features: dict[str, Any] = {name: (np.atleast_1d(values[number]), "int") for name, values in rows.items()}
        writer.write(features | {"masked_lm_weights": (np.ones(PREDICTIONS), "float")})
    writer.close()
    return path


BERT_WRITERS: list[tuple[str, Callable[[Path, dict[str, np.ndarray]], Path]]] = [
    ("a.hdf5", bert_h5),
    ("part-00000-of-00001", bert_records),
]
every_writer = pytest.mark.parametrize(("name", "write"), BERT_WRITERS)


class TestBert:
    @every_writer
    @pytest.mark.parametrize("form", ["files", "webdataset", "hdf5", "lmdb", "tfrecord"])
    def test_content(self, tmp_path: Path, name: str, write: Callable[..., Path], form: str) -> None:
        check_bert(write(tmp_path / name, bert(5)), bert(5), form)

    def test_compressed_rows_are_counted_whole(self, tmp_path: Path) -> None:
        rows = {name: np.zeros_like(values) for name, values in bert(500).items()}
        source = bert_h5(tmp_path / "a.h5", rows)
        stored = converted(source, "bert", "hdf5").manifest.stored_bytes
        assert source.stat().st_size < stored / 3
        assert open_source(source, "mlm", FACTS["bert"].variants["tiny"].sample).size_bytes == stored

    def test_blocks_and_files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("benchsuite.storage.sources.hdf5.BLOCK_ROWS", 2)
        (tmp_path / "in").mkdir()
        rows = bert(7)
        bert_h5(tmp_path / "in" / "0.hdf5", {name: values[:5] for name, values in rows.items()})
        bert_h5(tmp_path / "in" / "1.hdf5", {name: values[5:] for name, values in rows.items()})
        check_bert(tmp_path / "in", rows)

    @every_writer
    def test_refused(self, tmp_path: Path, name: str, write: Callable[..., Path]) -> None:
        cases = {
            "longer sequences": {"input_ids": np.zeros((3, 512), int)},
            "more predictions": {"masked_lm_ids": np.zeros((3, 80), int)},
            "a token beyond the vocabulary": {"input_ids": np.full((3, LENGTH), 512)},
            "a negative token": {"masked_lm_ids": np.full((3, PREDICTIONS), -1)},
            "a position beyond the sequence": {"masked_lm_positions": np.full((3, PREDICTIONS), 128)},
            "a third segment": {"segment_ids": np.full((3, LENGTH), 2)},
            "a label of 7": {"next_sentence_labels": np.full(3, 7)},
            "no segments": {"segment_ids": None},
        }

        def message(changed: dict[str, Any]) -> str:
            rows = {field: values for field, values in (bert(3) | changed).items() if values is not None}
            source = write(tmp_path / name, rows)
            message = refusal(source, "bert")
            assert message.startswith(f"{source}: ")
            return message.removeprefix(f"{source}: ")

        compare_messages(f"{write.__name__}", cases, message, {str(tmp_path): "FOLDER"})

    def test_another_length_says_which(self, tmp_path: Path) -> None:
        source = bert_h5(tmp_path / "a.h5", bert(3) | {"input_ids": np.zeros((3, 512), int)})
        expected = f"{source}: input_ids has shape (3, 512), needed: (3, 128) for seq_len 128"
        assert refusal(source, "bert") == expected
