"""`tf.train.Example` on the wire: numbers of all sizes, and damage."""

import numpy as np
import pytest

from benchsuite.storage.dataset.sample import Sample
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.formats.tf_example import FEW_BYTES, decode, encode, features
from tests.storage.samples import some_samples

EXTREMES = [0, 1, 127, 128, 300, 2**31, 2**63 - 1, -1, -(2**63)]


def example(values: np.ndarray) -> bytes:
    return b"".join(encode(Sample("k", {"tokens": values})))


@pytest.mark.parametrize("count", [0, 1, 2, FEW_BYTES - 1, FEW_BYTES, FEW_BYTES + 1, 500])
def test_few_and_many_numbers_are_the_same_as_written(count: int) -> None:
    for values in (np.resize(EXTREMES, count), np.arange(count) % 128):
        found = features(memoryview(example(values)))
        assert found["tokens"].dtype == np.int64
        assert found["tokens"].tolist() == values.tolist()
        assert [bytes(value) for value in found["key"]] == [b"k"]


@pytest.mark.parametrize("kind", ["image", "mlm", "tokens", "volume"])
def test_an_example_cut_anywhere_is_told_or_lacks_a_feature(kind: str) -> None:
    whole = b"".join(encode(some_samples(1, kind)[0]))
    for kept in {*range(min(200, len(whole))), *range(0, len(whole), 97)}:
        with pytest.raises(DatasetError, match="record 0"):
            decode(kind, whole[:kept], "record 0")


@pytest.mark.parametrize(
    "content",
    [b"\xff" * 9 + b"\x02\x00", b"\xff" * 200, b"\x0a" + b"\xff" * 9 + b"\x01", b"\x0b", b"\x09\0\0", b"\x0d\0"],
)
def test_fields_that_are_none(content: bytes) -> None:
    with pytest.raises(DatasetError, match=r"record 0: not a tf\.train\.Example"):
        decode("image", content, "record 0")


def test_fields_that_are_not_known_are_skipped() -> None:
    whole = b"".join(encode(some_samples(1)[0]))
    before = b"\x10\x96\x01" + b"\x19" + bytes(8) + b"\x25" + bytes(4) + b"\x2a\x02hi"
    assert decode("image", before + whole, "")[0] == decode("image", whole, "")[0] == some_samples(1)[0].key


def test_numbers_that_are_not_packed() -> None:
    """As protocol buffers of the second version write them."""
    pair = b"\x0a\x01n" + b"\x12\x09" + b"\x1a\x07" + b"\x08\x05" + b"\x08\xac\x02" + b"\x08\x00"
    found = features(memoryview(b"\x0a" + bytes([len(pair) + 2]) + b"\x0a" + bytes([len(pair)]) + pair))
    assert found["n"].tolist() == [5, 300, 0]
