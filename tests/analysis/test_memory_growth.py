"""Which memory grows: of readers that copy pages, of a process that keeps what it makes; not of what only warms up."""

import pytest

from benchsuite.analysis.memory_growth import memory_caveats
from benchsuite.inside.samples import OwnMemory, RankSamples

MB = 1_000_000
COPIES = ([200, 230, 262, 289, 321, 350, 380, 409], [900, 870, 838, 811, 779, 750, 720, 691])
KEEPS = ([500, 530, 559, 590, 620, 652, 680, 711], [100] * 8)
FILLS_A_CACHE = ([200, 290, 340, 360, 363, 364, 364, 365], [900] * 8)
NOISE = ([500, 540, 480, 520, 555, 490, 545, 530], [100] * 8)
LITTLE = ([500, 501, 502, 503, 504, 505, 506, 507], [100] * 8)
HAS_COPIED = ([25, 187, 357, 432, 478, 501, 516, 527], [726, 564, 394, 319, 273, 250, 235, 224])
"""As two workers did that read a list of 3 million strings, and who had started them."""
WAS_COPIED = ([208, 348, 428, 535, 612, 652, 679, 701], [731, 675, 513, 406, 329, 290, 262, 241])
FEW = ([200, 300, 400, 500], [900, 800, 700, 600])
"""MB of its own and shared, every 10 s."""
Readings = tuple[list[int], list[int]]


def memory(readings: Readings, is_reader: bool = True) -> OwnMemory:
    own, shared = (tuple(each * MB for each in values) for values in readings)
    return OwnMemory(7, is_reader, tuple(10.0 * number for number in range(len(own))), own, shared)


def rank(*memory: OwnMemory, shm: float | None = 0.1) -> RankSamples:
    return RankSamples(0, "ok", memory=[*memory], shm_used_fraction=shm)


@pytest.mark.parametrize("readings", [FILLS_A_CACHE, NOISE, LITTLE, FEW])
def test_what_does_not_grow(readings: Readings) -> None:
    assert memory_caveats([rank(memory(readings))]) == []


def test_readers_that_copy_pages() -> None:
    ((name, said),) = memory_caveats([rank(memory(COPIES), memory(COPIES), memory(NOISE, False))])
    assert name == "memory_grows"
    assert "each of 2 readers of rank 0 grows by 179 MB a minute (200 to 409 MB in 1.2 min)" in said
    assert "it copies pages" in said


def test_all_was_copied_soon() -> None:
    ((_, said),) = memory_caveats([rank(memory(HAS_COPIED), memory(HAS_COPIED), memory(WAS_COPIED, False))])
    assert "each of 2 readers of rank 0 grows" in said and "(25 to 527 MB" in said and "it copies pages" in said
    assert memory_caveats([rank(memory(WAS_COPIED, False))]) == []


def test_a_rank_that_keeps_what_it_makes() -> None:
    ((name, said),) = memory_caveats([rank(memory(KEEPS, False))])
    assert name == "memory_grows" and "rank 0 grows by 181 MB a minute" in said and "copies" not in said


def test_a_full_shared_memory() -> None:
    assert memory_caveats([rank(), rank(shm=0.97)]) == [("shared_memory_full", "97% of /dev/shm were in use")]


def test_many_readings_are_thinned() -> None:
    assert memory(COPIES).thinned().private_bytes == tuple(each * MB for each in COPIES[0][::2])
