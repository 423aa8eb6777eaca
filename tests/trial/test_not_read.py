"""Readers that hand on, mapped, what nobody has read: a rate that no core copies."""

from typing import Any

import pytest

from benchsuite.analysis.caveats import caveats
from benchsuite.inside.samples import Block
from benchsuite.trial.costs import SUSPICIOUS_BYTES_PER_S, copy_bytes_per_s
from tests.helpers.made import CEILING, LOADER, made_block, made_result, made_spec


def loader_block(produced_bytes: int, read_s: float, samples: int = 4) -> Block:
    return made_block("loader", 0.0, LOADER, produced_bytes=produced_bytes, produced_samples=samples, read_s=read_s)


def test_a_core_is_asked_how_fast_it_copies_only_where_readers_are_fast() -> None:
    slow, fast = (loader_block(int(share * SUSPICIOUS_BYTES_PER_S), 1.0) for share in (0.9, 1.1))
    assert copy_bytes_per_s([slow]) is None
    assert copy_bytes_per_s([]) is None and copy_bytes_per_s([made_block("ceiling", 0.0, CEILING)]) is None
    for block in (fast, loader_block(4000, 0.0)):
        found = copy_bytes_per_s([block])
        assert found is not None and found > 0


@pytest.mark.parametrize(
    ("read_s", "copies", "expected"),
    [
        (0.010, 8e9, True),  # 40 GB/s
        (0.040, 8e9, False),  # 10 GB/s: a core copies about as much
        (0.0, 8e9, True),
        (0.010, None, False),
    ],
)
def test_more_than_a_core_copies_was_not_read(read_s: float, copies: float | None, expected: bool) -> None:
    blocks = [
        made_block("ceiling", 0.0, CEILING),
        loader_block(400_000_000, read_s),
        made_block("ceiling", 9.0, CEILING),
    ]
    found: dict[str, Any] = dict(caveats(made_spec(), [made_result(0, blocks, copy_bytes_per_s=copies)], 8, True))
    assert ("not_read" in found) == expected
    few = [blocks[0], loader_block(40_000_000, 0.0), blocks[2]]
    assert "not_read" not in dict(caveats(made_spec(), [made_result(0, few, copy_bytes_per_s=copies)], 8, True))
    in_bucket = made_spec(data={"source": "storage", "format": "files", "root": "s3://bucket/data"})
    assert "not_read" not in dict(caveats(in_bucket, [made_result(0, blocks, copy_bytes_per_s=copies)], 8, True))
    if expected and read_s:
        assert found["not_read"] == (
            "a reader of rank 0 gives 40.0 GB/s while it reads, a core copies 8.0 GB/s: bytes were handed on that "
            "nobody has read"
        )
