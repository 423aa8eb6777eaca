"""A rank that is slow all the time is told from one that comes and goes, and from ranks that are slow in turn."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchsuite.analysis.judging.between_ranks import how_often
from benchsuite.inside.samples import Block, RankSamples

STEPS = 100
QUICK, SLOW = 0.1, 0.15


def rank(number: int, own_s: Sequence[float], every: int = 1) -> RankSamples:
    """Steps of which the forward pass is the rank's own: in the exchange it waits for whoever takes longest."""
    parts = {"forward": [*own_s], "communication": [0.2 - each for each in own_s]}
    block = Block("loader", 0.0, 0.2 * len(own_s), parts, every=every)
    return RankSamples(number, "ok", blocks=[block])


def shares(*own_s: Sequence[float]) -> dict[str, float]:
    return how_often([rank(number, each) for number, each in enumerate(own_s)], slowest=1)


def test_a_rank_that_is_always_slow():
    found = shares([QUICK] * STEPS, [SLOW] * STEPS, [QUICK] * STEPS)
    assert found == {"slowest_in_steps_fraction": 1.0, "slowest_of_waiting_fraction": 1.0}


def test_a_rank_that_is_slow_in_every_tenth_step_among_noise():
    """Between these, either rank takes up to 8 % longer."""
    noise = [[QUICK + 0.016 * ((7 * step + 3 * number) % 5) / 4 for step in range(STEPS)] for number in range(2)]
    noise[1] = [SLOW + 0.1 if step % 10 == 0 else own for step, own in enumerate(noise[1])]
    found = shares(*noise)
    assert found["slowest_in_steps_fraction"] == pytest.approx(0.1)
    assert found["slowest_of_waiting_fraction"] > 0.65


def test_ranks_that_are_slow_in_turn():
    turns = [[SLOW if step % 3 == number else QUICK for step in range(99)] for number in range(3)]
    third = pytest.approx(1 / 3)
    assert shares(*turns) == {"slowest_in_steps_fraction": third, "slowest_of_waiting_fraction": third}


def test_what_differs_by_little_holds_nobody_back():
    noise = [[QUICK + 0.004 * (step % 3 == number) for step in range(STEPS)] for number in range(2)]
    assert shares(*noise)["slowest_in_steps_fraction"] == 0.0


def test_steps_that_are_not_the_same_ones_are_not_compared():
    """Ranks that exchange take as long for a step; these do not."""
    one, other = rank(0, [QUICK] * STEPS), rank(1, [SLOW] * STEPS)
    alone = replace(other, blocks=[replace(other.blocks[0], parts={"forward": [SLOW, 0.4] * (STEPS // 2)})])
    assert how_often([one, alone], slowest=1) == {}


@pytest.mark.parametrize(
    "ranks",
    [
        [rank(0, [QUICK] * 20), rank(1, [SLOW] * 20)],
        [rank(0, [QUICK] * STEPS, every=2), rank(1, [SLOW] * STEPS)],
        [rank(0, [QUICK] * STEPS), RankSamples(1, "ok")],
    ],
    ids=["few steps", "other steps of each were kept", "no steps of one"],
)
def test_nothing_is_said_where_steps_are_not_known_one_by_one(ranks: list[RankSamples]):
    assert how_often(ranks, slowest=1) == {}
