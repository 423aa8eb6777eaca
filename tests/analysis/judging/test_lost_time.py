"""Looks against clocks: shares of what readers do, as far as the kernel's clocks allow them."""

from dataclasses import replace

import pytest

from benchsuite.analysis.judging.lost_time import Where, of_input
from benchsuite.inside.samples import Looks, SeenReaders

DECODE, READS = Where("preprocessing", "decode"), Where("storage", "reads")
SEEN = Looks({"waits_for_readers": 50.0}, {}, {}, {}, [], inside=Looks({}, {"decode": 50.0, "reads": 50.0}, {}, {}, []))


def shares(
    busy: float | None, loading: float, readers: dict[str, float], cores: float | None = None
) -> dict[Where, float]:
    return of_input(replace(SEEN, readers=readers), SeenReaders(2, busy, cores=cores), loading)


HALF = {"decode": 50.0, "reads": 50.0}


@pytest.mark.parametrize(
    ("busy", "loading", "decode"),
    [
        (0.2, 1.0, 0.2),  # always waited for: seen to compute too often
        (0.2, 0.5, 0.4),  # all of what they computed may fall into the waiting
        (0.8, 1.0, 0.8),  # seen too rarely
        (0.6, 0.5, 0.5),  # between a fifth and all of it: looks decide
        (None, 1.0, 0.5),
    ],
)
def test_clocks_bound_what_looks_say(busy: float | None, loading: float, decode: float) -> None:
    assert shares(busy, loading, HALF) == pytest.approx({DECODE: decode, READS: 1 - decode})


def test_threads_of_a_worker_compute_for_it() -> None:
    """Its main thread rests meanwhile."""
    assert shares(0.1, 1.0, HALF, cores=0.9)[DECODE] == pytest.approx(0.5)


def test_readers_that_rest_while_others_are_waited_for() -> None:
    found = shares(0.1, 1.0, {"decode": 30.0, "reads": 30.0, "idle": 40.0})
    computed, read = 10.0, 90.0 * 30 / 70  # of 100 looks
    assert found == pytest.approx({DECODE: computed / (computed + read), READS: read / (computed + read)})


def test_readers_that_wait_for_a_thread_which_waits_for_an_answer() -> None:
    """From outside both are waits in memory."""
    inside = replace(SEEN, inside=Looks({}, {"socket": 70.0, "lock": 30.0}, {}, {}, []))
    answers, locks = Where("waiting", "socket"), Where("waiting", "lock")
    for readers, answered in (({"lock": 50.0}, 0.7), ({"lock": 15.0, "socket": 35.0}, 0.7), ({"socket": 50.0}, 1.0)):
        found = of_input(replace(inside, readers=readers), SeenReaders(2, 0.0), 1.0)
        assert (found[answers], found.get(locks, 0.0)) == pytest.approx((answered, 1 - answered))


def test_time_that_no_look_explains_is_not_named() -> None:
    found = shares(0.2, 1.0, {"decode": 80.0})
    assert found[DECODE] == pytest.approx(0.2) and found[Where("cannot_tell")] == pytest.approx(0.8)
