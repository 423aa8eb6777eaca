"""Orders of V-shaped pipeline schedules that hold few activations: V-Half and V-Min (Qi et al. 2024, arXiv:2405.15362).

Chunk 0 of the model goes down the stages, chunk 1 comes back up. A building block says when each stage does the six
pieces of work of one microbatch; it repeats every six units, so no two pieces may meet modulo six. What a stage holds
is how long a block lasts from F to W, over six: with passes that move on by a stage a unit 4p units, a third of 1F1B's;
with two units a stage on the way down 6p units, half of it, and fewer bubbles. The paper's reordering of the first and
last blocks, which saves more bubbles, is not done.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Literal

Kind = Literal["F", "B", "W"]
Piece = tuple[Kind, int]
"""Kind and chunk."""
PERIOD = 6
PACES: Mapping[str, tuple[int, int]] = {"v-half": (2, 1), "v-min": (1, 1)}
"""Units a stage on the way down (F of chunk 0, B of chunk 1), and on the way up."""


def building_block(p: int, down: int, up: int) -> list[dict[Piece, int]]:
    """When each of p stages does what for the first microbatch, each pass as early as those before it let it."""
    path = (down + up) * (p - 1) + 1
    falling, rising = [down * stage for stage in range(p)], [-up * stage for stage in range(p)]
    turned = _first_free([falling], rising, path)
    lost = _first_free([falling, _later(rising, turned)], falling, turned + 1)
    passes = [falling, _later(rising, turned), _later(falling, lost)]
    ended = _first_free(passes, rising, lost + path)
    pieces: tuple[Piece, ...] = (("F", 0), ("F", 1), ("B", 1), ("B", 0))
    stages = zip(*passes, _later(rising, ended), strict=True)
    return [_with_weights(dict(zip(pieces, starts, strict=True))) for starts in stages]


def _later(starts: Iterable[int], by: int) -> list[int]:
    return [start + by for start in starts]


def _first_free(taken: list[list[int]], wanted: list[int], earliest: int) -> int:
    """By how much a pass is put off at least, so that on no stage it meets another, modulo PERIOD."""
    return next(
        by
        for by in count(earliest)
        if all((start + by - other) % PERIOD for of in taken for start, other in zip(wanted, of, strict=True))
    )


def _with_weights(starts: dict[Piece, int]) -> dict[Piece, int]:
    """With W of each chunk in the first gap after its B."""
    for chunk in (1, 0):
        used = {start % PERIOD for start in starts.values()}
        starts["W", chunk] = next(at for at in count(starts["B", chunk] + 1) if at % PERIOD not in used)
    return starts


def repeated(name: str, stage: int, p: int, m: int) -> Iterator[tuple[Kind, int, int]]:
    """Kind, microbatch and chunk in the order in which a stage comes to them, the block repeated for m microbatches."""
    block = building_block(p, *PACES[name])[stage]
    times = [(start + PERIOD * k, kind, k, chunk) for k in range(m) for (kind, chunk), start in block.items()]
    return ((kind, k, chunk) for _, kind, k, chunk in sorted(times))
