"""Schedules as data: valid, complete, in the order PyTorch runs them in, and delayed by transfers as they must be."""

from itertools import pairwise
from typing import Any

import pytest

from benchsuite.predict.theory import schedules
from benchsuite.predict.theory.schedules import ORDERS, SPLIT, V_SHAPED, schedule
from benchsuite.results.report.modelled import Slot

CASES = [(name, 4, 8, 1) for name in ORDERS] + [("interleaved", 4, 8, 2), ("zero_bubble", 2, 6, 3), ("gpipe", 1, 1, 1)]


def places(name: str, stage: int, p: int, chunk: int) -> int:
    """Where a chunk lies in the model."""
    return (stage, 2 * p - 1 - stage)[chunk] if name in V_SHAPED else chunk * p + stage


@pytest.mark.parametrize(("name", "p", "m", "v"), CASES)
class TestAll:
    def test_all_work_is_done_once(self, name: str, p: int, m: int, v: int) -> None:
        chunks = 2 if name in V_SHAPED else v
        kinds = "FBW" if name in SPLIT else "FB"
        for stage, slots in enumerate(schedule(name, p, m, v)):
            assert {slot.stage for slot in slots} == {stage}
            done = sorted((slot.kind, slot.microbatch, slot.chunk) for slot in slots)
            assert done == sorted((kind, k, chunk) for kind in kinds for k in range(m) for chunk in range(chunks))

    def test_nothing_starts_before_what_it_needs(self, name: str, p: int, m: int, v: int) -> None:
        found = schedule(name, p, m, v, 1.0, 1.25, 0.75, 0.5)
        chunks = 2 if name in V_SHAPED else v
        at = {
            (slot.kind, slot.microbatch, places(name, slot.stage, p, slot.chunk)): slot
            for slots in found
            for slot in slots
        }
        for (kind, microbatch, place), slot in at.items():
            needed = {
                "F": [("F", place - 1)],
                "B": [("F", place), ("B", place + 1)],
                "W": [("B", place)],
            }[kind]
            for other_kind, other in needed:
                if 0 <= other < p * chunks:
                    before = at[other_kind, microbatch, other]
                    assert slot.start_s >= before.end_s + (0.5 if before.stage != slot.stage else 0)

    def test_a_stage_does_one_thing_at_a_time(self, name: str, p: int, m: int, v: int) -> None:
        for slots in schedule(name, p, m, v, 1.0, 1.25, 0.75, 0.1):
            assert all(first.end_s <= second.start_s for first, second in pairwise(slots))

    def test_no_work_could_start_earlier(self, name: str, p: int, m: int, v: int) -> None:
        """Every slot begins at 0, where the one before ends, or where something it needs ends."""
        found = schedule(name, p, m, v, 1.0, 1.25, 0.75)
        ends = {slot.end_s for slots in found for slot in slots} | {0.0}
        assert all(slot.start_s in ends for slots in found for slot in slots)

    def test_durations(self, name: str, p: int, m: int, v: int) -> None:
        chunks = 2 if name in V_SHAPED else v
        expected = {"F": 3.0, "B": 6.0 if name in SPLIT else 15.0, "W": 9.0}
        for slot in (slot for slots in schedule(name, p, m, v, 3.0, 6.0, 9.0) for slot in slots):
            assert slot.end_s - slot.start_s == pytest.approx(expected[slot.kind] / chunks)


def test_1f1b_by_hand() -> None:
    """2 stages, 3 microbatches, backward twice as long."""
    first, last = schedule("1f1b", 2, 3)
    assert [(slot.kind, slot.microbatch, slot.start_s) for slot in first] == [
        ("F", 0, 0), ("F", 1, 1), ("B", 0, 4), ("F", 2, 6), ("B", 1, 7), ("B", 2, 10),
    ]  # fmt: skip
    assert [(slot.kind, slot.microbatch, slot.start_s) for slot in last] == [
        ("F", 0, 1), ("B", 0, 2), ("F", 1, 4), ("B", 1, 5), ("F", 2, 7), ("B", 2, 8),
    ]  # fmt: skip
    assert first[0] == Slot(stage=0, kind="F", microbatch=0, chunk=0, start_s=0.0, end_s=1.0)
    assert schedules.makespan((first, last)) == 12
    assert schedules.idle_fractions((first, last)) == [0.25, 0.25]
    assert schedules.bubbles((first, last)) == [3, 0]
    assert schedules.peak_in_flight((first, last)) == [2, 1]


def test_zb_h1_by_hand() -> None:
    """2 stages, 2 microbatches: W fills where 1F1B waits."""
    first, last = schedule("zb-h1", 2, 2)
    assert [(slot.kind, slot.microbatch, slot.start_s) for slot in first] == [
        ("F", 0, 0), ("F", 1, 1), ("B", 0, 3), ("W", 0, 4), ("B", 1, 5), ("W", 1, 6),
    ]  # fmt: skip
    assert [(slot.kind, slot.microbatch, slot.start_s) for slot in last] == [
        ("F", 0, 1), ("B", 0, 2), ("F", 1, 3), ("B", 1, 4), ("W", 0, 5), ("W", 1, 6),
    ]  # fmt: skip


def test_transfers_are_on_the_way_of_the_first_microbatch() -> None:
    """GPipe: p - 1 of them forward and p - 1 back; between, they hide behind other microbatches."""
    alone = schedules.makespan(schedule("gpipe", 4, 8))
    assert schedules.makespan(schedule("gpipe", 4, 8, p2p_s=0.25)) == pytest.approx(alone + 6 * 0.25)


def test_unequal_work_is_paced_by_its_longest() -> None:
    assert schedules.makespan(schedule("gpipe", 3, 5, t_f=2.0, t_b=0.0, t_w=0.0)) == 2 * (5 + 2)


TORCH = [
    ("interleaved", "ScheduleInterleaved1F1B", (2, 3)),
    ("zero_bubble", "ScheduleInterleavedZeroBubble", (1, 2, 3)),
    ("zbv", "ScheduleZBVZeroBubble", (2,)),
]
KINDS = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "B", "BACKWARD_WEIGHT": "W"}


def order_of_torch(name: str, p: int, m: int, v: int, rank: int) -> list[tuple[str, int, int]]:
    """What PyTorch's schedule makes a rank do, without stages to run: kind, microbatch, place in the model."""
    from torch.distributed.pipelining import schedules as theirs

    made: Any = getattr(theirs, name).__new__(getattr(theirs, name))
    if not hasattr(made, "_calculate_single_rank_operations"):
        pytest.skip("this version of PyTorch does not tell a rank's order")
    made.pp_group_size, made._n_microbatches, made.n_local_stages, made.num_stages = p, m, v, p * v
    made.number_of_rounds = max(1, m // p)
    made.microbatches_per_round = m // made.number_of_rounds
    actions = [action for action in made._calculate_single_rank_operations(rank) if action is not None]
    return [(KINDS[action.computation_type.name], action.microbatch_index, action.stage_index) for action in actions]


@pytest.mark.parametrize(("name", "theirs", "chunks"), TORCH)
@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 16)])
def test_order_is_that_of_pytorch(name: str, theirs: str, chunks: tuple[int, ...], p: int, m: int) -> None:
    for v in chunks:
        for rank, slots in enumerate(schedule(name, p, m, 1 if name == "zbv" else v)):
            ours = [(slot.kind, slot.microbatch, places(name, rank, p, slot.chunk)) for slot in slots]
            assert ours == order_of_torch(theirs, p, m, v, rank)


def test_stages_may_take_unequal_times() -> None:
    # the second stage, three times as slow, never waits once it has begun; the first waits for it
    first, last = schedule("gpipe", 2, 3, 1, [1.0, 3.0], [2.0, 6.0], 0.0)
    assert [(slot.start_s, slot.end_s) for slot in last] == [(1, 4), (4, 7), (7, 10), (10, 16), (16, 22), (22, 28)]
    assert [(slot.start_s, slot.end_s) for slot in first] == [(0, 1), (1, 2), (2, 3), (16, 18), (22, 24), (28, 30)]
    assert schedule("1f1b", 2, 3, 1, [1.0, 1.0]) == schedule("1f1b", 2, 3)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (("1f1b", 4, 8, 1, -1.0), "t_f -1 is not allowed; allowed: a finite number, 0 or above"),
        (("pipedream", 4, 8), "schedule 'pipedream' is unknown; nearest: gpipe; allowed: naive, gpipe, 1f1b, "),
        (("gpipe", 4, 0), "num_microbatches 0 is not allowed"),
        (
            ("zb-h1", 4, 8, 2),
            "interleave 2 with schedule 'zb-h1' is not allowed; allowed: 1, or interleaved, zero_bubb",
        ),
        (("interleaved", 4, 6, 2), "interleaved: num_microbatches 6 % num_stages 4 = 2; allowed: 0"),
        (("gpipe", 3, 2, 1, [1.0, 2.0]), "t_f has 2 values; allowed: one, or num_stages = 3"),
        (("zbv", 4, 6), "zbv: num_microbatches 6 < 2 num_stages - 1 = 7; allowed: that or more"),
    ],
)
def test_refuses(given: tuple[Any, ...], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        schedule(*given)
