"""Format `tokens`: the conformance suite, and Megatron-LM's .bin/.idx pair byte by byte."""

import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from benchsuite.storage.create.convert import in_order
from benchsuite.storage.dataset.manifest import Dataset, DatasetError, Sample
from benchsuite.storage.dataset.verify import verify_dataset
from benchsuite.storage.formats.tokens import BIN, IDX, Documents, open_stream, read_index, write, write_index
from tests.storage.conformance import FormatConformance
from tests.storage.conftest import Made
from tests.storage.damage import one_line
from tests.storage.samples import TOKEN_PARAMS, facts, some_samples, store

SEQ_LEN = TOKEN_PARAMS["seq_len"]
CODES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""Codes of types in .idx files, as Megatron-LM's IndexedDataset has them."""


class TestTokens(FormatConformance):
    name = "tokens"


def packed_by_hand(code: int, lengths: list[int], documents: list[int]) -> bytes:
    """An .idx file as Megatron-LM's writer packs it."""
    width = np.dtype(CODES[code]).itemsize
    pointers = [sum(lengths[:number]) * width for number in range(len(lengths))]
    return b"".join(
        [
            b"MMIDIDX\0\0",
            struct.pack("<Q", 1),
            struct.pack("<B", code),
            struct.pack("<Q", len(lengths)),
            struct.pack("<Q", len(documents)),
            struct.pack(f"<{len(lengths)}i", *lengths),
            struct.pack(f"<{len(lengths)}q", *pointers),
            struct.pack(f"<{len(documents)}q", *documents),
        ]
    )


def windows(stream: list[int], length: int, dtype: str = "<u2") -> list[Sample]:
    """Samples that chain: windows of a stream, each one token longer than their distance."""
    count = (len(stream) - 1) // length
    return [
        Sample(f"{number:04d}", {"tokens": np.array(stream[number * length : (number + 1) * length + 1], dtype)})
        for number in range(count)
    ]


class TestIndexFile:
    @pytest.mark.parametrize("code", CODES)
    def test_is_what_megatron_writes(self, tmp_path: Path, code: int) -> None:
        write_index(tmp_path / "x.idx", np.dtype(CODES[code]), [5, 1, 7, 300], [0, 2, 3, 4])
        assert (tmp_path / "x.idx").read_bytes() == packed_by_hand(code, [5, 1, 7, 300], [0, 2, 3, 4])

    @pytest.mark.parametrize("code", CODES)
    def test_of_others_is_read(self, tmp_path: Path, code: int) -> None:
        (tmp_path / "x.idx").write_bytes(packed_by_hand(code, [3, 4], [0, 1, 2]))
        index = read_index(tmp_path / "x.idx")
        assert index.dtype == np.dtype(CODES[code])
        assert index.lengths.tolist() == [3, 4]
        assert index.places.tolist() == [0, 3 * index.dtype.itemsize]
        assert index.documents.tolist() == [0, 1, 2]

    @pytest.mark.parametrize("code", CODES)
    def test_stream_of_others_is_read(self, tmp_path: Path, code: int) -> None:
        tokens = np.array([5, 6, 7, 0, 9, 10, 0], CODES[code])
        (tmp_path / "x.idx").write_bytes(packed_by_hand(code, [4, 3], [0, 1, 2]))
        (tmp_path / "x.bin").write_bytes(tokens.tobytes())
        stream = open_stream(tmp_path / "x.bin", read_index(tmp_path / "x.idx"))
        assert stream.dtype == tokens.dtype
        assert np.array_equal(stream, tokens)

    def test_without_sequences(self, tmp_path: Path) -> None:
        write_index(tmp_path / "x.idx", np.dtype("u2"), [], [0])
        assert (tmp_path / "x.idx").read_bytes() == packed_by_hand(8, [], [0])

    def test_places_pass_two_gigabytes(self, tmp_path: Path) -> None:
        write_index(tmp_path / "x.idx", np.dtype("<i4"), [2**30] * 3, [0, 3])
        assert read_index(tmp_path / "x.idx").places.tolist() == [0, 2**32, 2**33]

    @pytest.mark.parametrize("code", [0, 6, 7, 9, 255])
    def test_of_floats_or_unknown_types_is_refused(self, tmp_path: Path, code: int) -> None:
        content = bytearray(packed_by_hand(8, [3], [0, 1]))
        content[17] = code
        (tmp_path / "x.idx").write_bytes(content)
        assert f"version 1, type code {code}; readable" in one_line(lambda: read_index(tmp_path / "x.idx"))

    def test_of_another_version_is_refused(self, tmp_path: Path) -> None:
        content = bytearray(packed_by_hand(8, [3], [0, 1]))
        content[9] = 2
        (tmp_path / "x.idx").write_bytes(content)
        assert "version 2" in one_line(lambda: read_index(tmp_path / "x.idx"))

    @pytest.mark.parametrize("content", [b"", b"MMIDIDX\0\0", b"TNTIDX\0\0" + b"\0" * 60])
    def test_something_else_is_refused(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "x.idx").write_bytes(content)
        assert "does not begin with MMIDIDX" in one_line(lambda: read_index(tmp_path / "x.idx"))

    def test_cut_anywhere_is_refused(self, tmp_path: Path) -> None:
        whole = packed_by_hand(8, [3, 4], [0, 1, 2])
        for kept in range(len(whole)):
            (tmp_path / "x.idx").write_bytes(whole[:kept])
            assert str(tmp_path / "x.idx") in one_line(lambda: read_index(tmp_path / "x.idx"))

    @pytest.mark.parametrize("at", [18, 26])
    def test_a_promise_of_too_much_is_refused(self, tmp_path: Path, at: int) -> None:
        content = bytearray(packed_by_hand(8, [3, 4], [0, 1, 2]))
        content[at : at + 8] = struct.pack("<Q", 2**60)
        (tmp_path / "x.idx").write_bytes(content)
        assert "truncated" in one_line(lambda: read_index(tmp_path / "x.idx"))

    def test_a_stream_shorter_than_promised_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "x.idx").write_bytes(packed_by_hand(8, [3, 4], [0, 1, 2]))
        (tmp_path / "x.bin").write_bytes(b"\1\0" * 6)
        index = read_index(tmp_path / "x.idx")
        assert "12 bytes, its .idx promises 14: truncated" in one_line(lambda: open_stream(tmp_path / "x.bin", index))

    def test_a_sequence_too_long_for_it_is_refused(self, tmp_path: Path) -> None:
        write_index(tmp_path / "x.idx", np.dtype("u2"), [2**31 - 1, 3], [0, 2])
        assert read_index(tmp_path / "x.idx").lengths.tolist() == [2**31 - 1, 3]
        message = one_line(lambda: write_index(tmp_path / "y.idx", np.dtype("u2"), [3, 2**31], [0, 2]))
        expected = "a document of 2147483648 tokens or more; an .idx file can say at most 2147483647"
        assert message == f"y.idx: {expected}"
        assert not (tmp_path / "y.idx").exists()

    def test_missing_files_are_named(self, tmp_path: Path) -> None:
        assert str(tmp_path / "x.idx") in one_line(lambda: read_index(tmp_path / "x.idx"))
        (tmp_path / "x.idx").write_bytes(packed_by_hand(8, [3], [0, 1]))
        index = read_index(tmp_path / "x.idx")
        assert str(tmp_path / "x.bin") in one_line(lambda: open_stream(tmp_path / "x.bin", index))


class TestWrittenDatasets:
    def test_stream_and_documents_byte_by_byte(self, tmp_path: Path) -> None:
        """A document ends with 0: also where that is the first or the last token of a window, or stands alone."""
        stream = [7, 8, 0, 9, 0, 0, 11, 12, 13, 14, 15, 0, 17]
        dataset = store(windows(stream, 4), "tokens", tmp_path / "set", "tokens", None)
        assert (dataset.folder / BIN).read_bytes() == np.array(stream, "<u2").tobytes()
        assert (dataset.folder / IDX).read_bytes() == packed_by_hand(8, [3, 2, 1, 6, 1], [0, 1, 2, 3, 4, 5])

    def test_a_stream_that_ends_with_a_document_has_no_empty_one(self, tmp_path: Path) -> None:
        dataset = store(windows([7, 8, 9, 0, 5, 6, 0], 3), "tokens", tmp_path / "set", "tokens", None)
        assert (dataset.folder / IDX).read_bytes() == packed_by_hand(8, [4, 3], [0, 1, 2])

    @pytest.mark.parametrize(
        ("lengths", "bounds", "kept", "kept_bounds"),
        [
            ([5, 8], None, [5, 8], [0, 1, 2]),
            ([5, 4, 4], [0, 1, 3], [5, 4, 4], [0, 1, 3]),
            ([5, 4, 40], [0, 2, 3], [5, 4, 4], [0, 2, 3]),
            ([13, 9], [0, 1, 2], [13], [0, 1]),
            ([12, 9, 9], [0, 1, 3], [12, 1], [0, 1, 2]),
            ([12, 9, 9], [0, 3], [12, 1], [0, 2]),
            ([0, 6, 0, 7], [0, 1, 2, 3, 4], [0, 6, 0, 7], [0, 1, 2, 3, 4]),
            ([6, 7], [0], [6, 7], [0, 2]),
        ],
    )
    def test_documents_that_are_known_are_kept(
        self, tmp_path: Path, lengths: list[int], bounds: list[int] | None, kept: list[int], kept_bounds: list[int]
    ) -> None:
        """Token 0 then ends none; what lies behind the last window is left out."""
        stream = [7, 8, 0, 9, 0, 0, 11, 12, 13, 14, 15, 0, 17]
        documents = Documents(lengths, None if bounds is None else np.array(bounds))
        list(write(tmp_path, windows(stream, 4), documents))
        assert (tmp_path / BIN).read_bytes() == np.array(stream, "<u2").tobytes()
        assert (tmp_path / IDX).read_bytes() == packed_by_hand(8, kept, kept_bounds)

    def test_documents_of_another_stream_are_refused(self, tmp_path: Path) -> None:
        message = one_line(lambda: list(write(tmp_path, windows(list(range(13)), 4), Documents([5, 7]))))
        assert message == f"{IDX}: 13 tokens, its documents hold fewer: not those of this stream"

    @pytest.mark.parametrize("dtype", ["<u2", "<i4", "<i8", "u1"])
    def test_ids_keep_their_type(self, tmp_path: Path, dtype: str) -> None:
        samples = windows([number % 90 + 1 for number in range(3 * SEQ_LEN + 1)], SEQ_LEN, dtype)
        dataset = store(samples, "tokens", tmp_path / "set", "tokens")
        assert [facts(sample) for sample in in_order(dataset)] == [facts(sample) for sample in samples]
        assert read_index(dataset.folder / IDX).dtype == np.dtype(dtype)
        verify_dataset(dataset.folder)

    def test_of_generated_samples(self, made: Made) -> None:
        dataset = made("tokens", "tokens")
        samples = [sample.fields["tokens"] for sample in some_samples(26, "tokens")]
        stream = np.concatenate([samples[0], *[tokens[1:] for tokens in samples[1:]]])
        assert (dataset.folder / BIN).read_bytes() == stream.tobytes()
        index = read_index(dataset.folder / IDX)
        assert index.lengths.sum() == len(stream) == 26 * SEQ_LEN + 1
        ends = np.cumsum(index.lengths)[:-1]
        assert np.all(stream[ends - 1] == 0)
        assert np.count_nonzero(stream == 0) in (len(ends), len(ends) + 1)

    def test_neighbours_share_one_token(self, made: Made) -> None:
        for first, second in pairwise(in_order(made("tokens", "tokens"))):
            assert first.fields["tokens"][-1] == second.fields["tokens"][0]


class TestRefusals:
    def test_samples_that_do_not_chain(self, tmp_path: Path) -> None:
        samples = some_samples(6, "tokens")
        with pytest.raises(DatasetError, match="sample '00000003' does not go on where the one before it ends"):
            store([samples[0], samples[1], samples[3]], "tokens", tmp_path / "set", "tokens")
        assert list(tmp_path.iterdir()) == []

    def test_a_document_too_long_for_an_index_at_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("benchsuite.storage.formats.tokens.MAX_SEQUENCE_TOKENS", 10)
        stream = [1, 2, 0, *range(3, 12), 0, 5, 6, 7]
        assert len(store(windows(stream[3:], 2), "tokens", tmp_path / "fits", "tokens").index) == 6
        drawn = iter(windows([1, 2, *stream[3:]], 2))
        message = one_line(lambda: list(write(tmp_path, drawn)))
        assert message == f"{BIN}: a document of 11 tokens or more; an .idx file can say at most 10"
        assert len(list(drawn)) == 2

    def test_samples_whose_type_changes(self, tmp_path: Path) -> None:
        first, second = windows([1, 2, 3, 4, 5], 2)
        other = Sample(second.key, {"tokens": second.fields["tokens"].astype(np.int32)})
        with pytest.raises(DatasetError, match="not windows of one stream"):
            store([first, other], "tokens", tmp_path / "set", "tokens")

    @pytest.mark.parametrize("kind", ["image", "volume", "mlm"])
    def test_other_kinds(self, tmp_path: Path, kind: str) -> None:
        with pytest.raises(DatasetError, match=f"format tokens stores tokens samples, not {kind}"):
            store(some_samples(2, kind), kind, tmp_path / "set", "tokens")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("name", [BIN, IDX])
    def test_a_file_cut_short_where_the_manifest_agrees(self, mine: Made, name: str) -> None:
        dataset = mine("tokens", "tokens")
        path = dataset.folder / name
        path.write_bytes(path.read_bytes()[:-3])
        agree(dataset, name)
        message = one_line(lambda: list(in_order(dataset)))
        assert str(path) in message and "truncated" in message

    def test_an_index_of_another_type_than_the_manifests(self, mine: Made) -> None:
        """int16 is as wide as uint16: sizes agree, and ids from 32768 on would be negative."""
        dataset = mine("tokens", "tokens")
        path = dataset.folder / IDX
        content = bytearray(path.read_bytes())
        assert content[17] == 8
        content[17] = 3
        path.write_bytes(content)
        expected = f"{path}: token ids of type int16, the manifest says uint16: changed"
        assert one_line(lambda: list(in_order(dataset))) == expected

    def test_a_stream_of_fewer_tokens_than_the_samples_need(self, mine: Made) -> None:
        dataset = mine("tokens", "tokens")
        (dataset.folder / BIN).write_bytes(b"\1\0" * 50)
        (dataset.folder / IDX).write_bytes(packed_by_hand(8, [50], [0, 1]))
        agree(dataset, BIN)
        agree(dataset, IDX)
        assert "50 tokens, the manifest's 6 samples of 25 need more" in one_line(lambda: list(in_order(dataset)))


def agree(dataset: Dataset, name: str) -> None:
    """Have the opened manifest agree with a file's size."""
    info = next(info for info in dataset.manifest.files if info.path == name)
    info.bytes = (dataset.folder / name).stat().st_size
