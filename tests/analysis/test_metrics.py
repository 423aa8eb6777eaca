"""From hand-made blocks to figures and caveats."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import t as student

from benchsuite.analysis.caveats import caveats
from benchsuite.analysis.metrics import (
    ceiling_step_s,
    counted_figures,
    figures,
    noise_of_steps,
    part_means,
    slowest_rank,
    step_figures,
    utilization,
    utilization_error,
    whole_epoch_utilization,
    windows,
)
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.inside.samples import Block, RankSamples
from benchsuite.results.store.record import TrialFigures
from tests.helpers.made import CEILING, LOADER, made_block, made_result, made_spec

KINDS = ("ceiling", "loader", "ceiling", "loader", "ceiling")


def with_loader(**changes: Any) -> RankSamples:
    """A rank whose loader blocks are changed; where the queue is, no step of theirs waits for its input."""
    result, of = made_result(), _fed if "produced_samples" in changes else lambda block: block
    blocks = [replace(of(block), **changes) if block.kind == "loader" else block for block in result.blocks]
    return made_result(blocks=blocks)


def _fed(block: Block) -> Block:
    """A block whose steps take as long, and compute all the time."""
    loads = block.parts["load"]
    forward = [one + load for one, load in zip(block.parts["forward"], loads, strict=True)]
    return replace(block, parts=block.parts | {"load": [0.0] * len(loads), "forward": forward})


def names(found: list[tuple[str, str]]) -> list[str]:
    return [name for name, _ in found]


def two_ranks(**changes: Any) -> TrialSpec:
    return made_spec(world_size=2, parallelism="ddp", **changes)


def test_parts_add_up_to_the_step():
    blocks = [
        made_block("loader", 0.0, {"load": 0.013, "forward": 0.0071, "backward": 0.0209}),
        made_block("loader", 1.0, {"load": 0.031, "forward": 0.0057, "backward": 0.0003}, steps=7),
    ]
    assert sum(part_means(blocks).values()) == pytest.approx(step_figures(blocks)["step_s_mean"], rel=1e-12)


def test_parts_of_the_figures_add_up_to_the_step():
    found = figures(made_spec(), [made_result()])
    parts = [found[f"{name}_s"] for name in ("load", "h2d", "forward", "backward", "optimizer")]
    assert parts == pytest.approx([0.04, 0.0, 0.01, 0.02, 0.01])
    assert sum(parts) == pytest.approx(found["step_s_mean"], rel=1e-12)
    assert found["step_s_mean"] == pytest.approx(0.08)


def test_percentiles_of_the_step():
    steps = [float(number) for number in range(1, 101)]
    found = step_figures(
        [Block("plain", 0.0, 1.0, {"forward": steps[:50]}), Block("plain", 2.0, 3.0, {"forward": steps[50:]})]
    )
    assert found["step_s_mean"] == 50.5
    assert found["step_s_p50"] == 50.5
    assert found["step_s_p95"] == pytest.approx(95.05)
    assert found["step_s_p99"] == pytest.approx(99.01)


def test_slowest_rank_counts_only_its_kind_of_block():
    quick = [made_block("ceiling", 0.0, {"forward": 9.0}), made_block("loader", 40.0, {"load": 1.0})]
    slow = [made_block("ceiling", 0.0, {"forward": 1.0}), made_block("loader", 40.0, {"load": 2.0})]
    results = [made_result(0, quick), made_result(1, slow)]
    assert slowest_rank(results, "loader") == 1
    assert slowest_rank(results, "ceiling") == 0


def test_steps_are_those_of_the_slowest_rank():
    slow = [made_block(kind, 10.0 * n, {**CEILING, "load": 0.06 * (kind == "loader")}) for n, kind in enumerate(KINDS)]
    found = figures(two_ranks(), [made_result(0), made_result(1, slow)])
    assert found["load_s"] == pytest.approx(0.06)
    assert found["step_s_mean"] == pytest.approx(0.10)


@pytest.mark.parametrize("first", [0, 1])
def test_the_breakdown_is_that_of_the_rank_that_others_wait_for(first: int):
    """In step, all ranks take as long: what tells is who waits, not a rounding of the sums."""
    busy = made_block("plain", 0.0, {"load": 0.01, "forward": 0.07, "communication": 0.02})
    waiting = made_block("plain", 0.0, {"load": 0.0, "forward": 0.02, "communication": 0.08001})
    ranks = [waiting, busy] if first else [busy, waiting]
    spec = made_spec(world_size=2, parallelism="ddp", data={"source": "memory"})
    found = figures(spec, [made_result(rank, [block]) for rank, block in enumerate(ranks)])
    assert (found["forward_s"], found["communication_s"]) == (pytest.approx(0.07), pytest.approx(0.02))
    assert found["imbalance_s"] == pytest.approx(0.06, rel=1e-3)
    assert found["imbalance_mean_s"] == pytest.approx(0.03, rel=1e-3)
    assert found["load_mean_s"] == pytest.approx(0.005)
    assert found["slowest_rank"] == first


def test_rate_is_samples_over_latest_end_minus_earliest_start():
    early = made_block("plain", 10.0, {"forward": 1.0}, end_s=14.0)
    late = made_block("plain", 11.0, {"forward": 1.0}, end_s=16.0)
    spec = made_spec(world_size=2, parallelism="ddp", data={"source": "memory"})
    found = figures(spec, [made_result(0, [early]), made_result(1, [late])])
    assert found["samples_per_s"] == pytest.approx((16 + 16) / (16.0 - 10.0))


def test_rate_over_several_blocks_is_all_samples_over_all_time():
    fast = made_block("loader", 0.0, LOADER, end_s=1.0)
    slow = made_block("loader", 5.0, LOADER, end_s=8.0)
    ceilings = [made_block("ceiling", at, CEILING) for at in (20.0, 30.0, 40.0)]
    found = figures(made_spec(), [made_result(blocks=[ceilings[0], fast, ceilings[1], slow, ceilings[2]])])
    assert found["samples_per_s"] == pytest.approx(32 / 4.0)


def test_au_is_ceiling_over_step():
    assert ceiling_step_s([made_result()]) == pytest.approx(0.04)
    assert utilization([made_result()], 0.04) == pytest.approx(0.5)
    assert figures(made_spec(), [made_result()])["au"] == pytest.approx(0.5)


def test_the_ceiling_of_a_step_is_its_slowest_rank():
    slow = [
        made_block(kind, 10.0 * n, {"forward": 0.06 if kind == "ceiling" else 0.12}) for n, kind in enumerate(KINDS)
    ]
    results = [made_result(0), made_result(1, slow)]
    assert ceiling_step_s(results) == pytest.approx(0.06)
    assert utilization(results, 0.06) == pytest.approx(0.5)


def test_au_is_never_clipped():
    fast = [
        made_block(kind, 10.0 * n, {"forward": 0.05 if kind == "ceiling" else 0.04}) for n, kind in enumerate(KINDS)
    ]
    assert utilization([made_result(blocks=fast)], 0.05) == pytest.approx(1.25)


def test_what_the_queue_lost_lowers_rate_and_au():
    full, drained = figures(made_spec(), [made_result()]), figures(made_spec(), [with_loader(produced_samples=12)])
    assert drained["samples_per_s"] == pytest.approx(full["samples_per_s"] * 12 / 16)
    assert drained["au"] == pytest.approx(full["au"] * 12 / 16)
    assert drained["io_bytes_per_s"] == pytest.approx(full["io_bytes_per_s"] * 12 / 16)
    assert drained["step_s_mean"] == full["step_s_mean"], "steps are what they were"


def test_what_the_queue_gained_raises_nothing():
    full, refilled = figures(made_spec(), [made_result()]), figures(made_spec(), [with_loader(produced_samples=24)])
    assert refilled["samples_per_s"] == full["samples_per_s"]
    assert refilled["au"] == full["au"]


def test_the_rank_whose_queue_lost_most_sets_the_pace():
    found = windows([made_result(0), replace(with_loader(produced_samples=8), rank=1)], "loader")
    assert [(window.consumed, window.sustained) for window in found] == [(32, 16), (32, 16)]


@pytest.mark.parametrize(("needed_s", "sustained"), [(0.8, 32), (1.6, 16), (0.4, 44)])
def test_readers_that_tell_what_they_need_are_not_counted(needed_s: float, sustained: int):
    """Two that took 0.8 s for 40 samples give 100 a second, 32 in 320 ms, whatever they finished in those."""
    paced = {"readers": 2, "paced_samples": 40, "paced_s": needed_s, "consumed_samples": 44}
    (window, _) = windows([with_loader(produced_samples=3, **paced)], "loader")
    assert window.seconds == pytest.approx(0.32)
    assert window.sustained == pytest.approx(sustained)


def test_ranks_that_begin_one_after_another_make_no_step_longer():
    """One begins and ends each block 40 ms after the other: throughput is that of the whole window."""
    later = [replace(one, start_s=one.start_s + 0.04, end_s=one.end_s + 0.04) for one in made_result().blocks]
    both, alone = [made_result(), made_result(1, later)], [made_result()]
    assert (ceiling_step_s(both), utilization(both, 0.04)) == (ceiling_step_s(alone), utilization(alone, 0.04))
    assert windows(both, "loader")[0].seconds == pytest.approx(0.36)
    assert figures(two_ranks(), both)["samples_per_s"] == pytest.approx(2 * 16 / 0.36)


def test_a_queue_that_is_empty_loses_nothing():
    """From the first step that waits for its input to the last one, what comes in goes out."""
    starved, (first, *_) = with_loader(produced_samples=8), windows([with_loader(produced_samples=8)], "loader")
    assert first.lasting == pytest.approx(0.5)
    blocks = list(starved.blocks)
    for waiting, lasting in (([1], 0.5), ([0, 1], 0.75), ([0, 3], 1.0), ([1, 2, 3], 0.875)):
        loads = [0.04 if place in waiting else 0.0 for place in range(4)]
        blocks[1] = replace(blocks[1], parts=blocks[1].parts | {"load": loads})
        assert windows([made_result(blocks=blocks)], "loader")[0].lasting == pytest.approx(lasting)


def test_noise_is_students_interval_of_the_mean_turn_of_readers():
    blocks = [made_block("loader", 10.0 * n, {"load": 0.0, "forward": 0.04}) for n in range(2)]
    assert noise_of_steps([made_result(blocks=blocks)]) == pytest.approx(0.0)
    parts = {"load": [0.0, 0.02, 0.0, 0.02], "forward": [0.04] * 4}
    noisy, in_turn = ([replace(block, parts=parts, readers=readers) for block in blocks] for readers in (1, 2))
    alone = student.ppf(0.975, 7) * np.std([0.04, 0.06] * 4, ddof=1) / 0.05 / 8**0.5
    assert noise_of_steps([made_result(blocks=noisy)]) == pytest.approx(alone)
    assert noise_of_steps([made_result(blocks=in_turn)]) == pytest.approx(0.0)


def test_the_utilization_of_an_epoch_that_was_taken_to_its_end():
    """Six steps of 40 ms after a first batch and its own step; the last ones found theirs in the queue."""
    counted = made_block("loader", 0.0, {"load": 0.06, "forward": 0.04}, steps=2, uncounted_step_s=[0.04, 0.08])
    rest = replace(made_block("loader", 1.0, {"load": 0.0, "forward": 0.04}, steps=2), kind="rest")
    whole = [made_result(blocks=[counted, rest], first_batch_s=0.5)]
    assert whole_epoch_utilization(whole, 0.04) == pytest.approx(7 * 0.04 / (0.5 + 0.04 + 0.12 + 0.2 + 0.08))
    assert whole_epoch_utilization(whole, None) is None, "a step of no known time"
    assert whole_epoch_utilization([made_result(blocks=[counted], first_batch_s=0.5)], 0.04) is None
    plain = [made_result(blocks=[made_block("plain", 0.0, {"forward": 0.04})])]
    assert whole_epoch_utilization(plain, 0.04) is None, "its input lies in memory"
    assert figures(made_spec(), whole)["samples_per_s"] == pytest.approx(8 / 0.2), "only steps that count"


def test_the_error_of_utilization_is_of_the_steps_on_both_sides_of_it():
    """AU 0.04 / 0.05: of the loader's steps the mean is off by a, of the ceiling's by b, and AU by both."""
    loads = {"load": [0.0, 0.02, 0.0, 0.02], "forward": [0.04] * 4}
    alone = {"forward": [0.039, 0.041, 0.039, 0.041]}
    blocks = [replace(made_block("ceiling", 0.0, {"forward": 0.04}), parts=alone)]
    blocks += [replace(made_block("loader", 1.0, {"load": 0.0, "forward": 0.04}), parts=loads)]
    a, b = (
        student.ppf(0.975, 3) * np.std(steps, ddof=1) / np.mean(steps) / 2
        for steps in ([0.04, 0.06] * 2, [0.039, 0.041] * 2)
    )
    result = [made_result(blocks=blocks)]
    assert utilization_error(result, 0.8, known=False) == pytest.approx(0.8 * np.hypot(a, b))
    assert utilization_error(result, 0.8, known=True) == pytest.approx(0.8 * a)
    assert utilization_error(result, None, known=True) is None
    same = [made_result(blocks=[made_block("loader", 1.0, {"load": 0.01, "forward": 0.04})])]
    assert utilization_error(same, 0.8, known=True) is None, "one mean of steps, and no spread of theirs"


def test_sustained_samples_are_not_rounded_down():
    (window, _) = windows([with_loader(consumed_samples=44, produced_samples=30)], "loader")
    assert window.sustained == pytest.approx(30)


def test_input_stall_and_contention_are_shares_of_the_step():
    found = figures(made_spec(), [with_loader(run_queue_s=0.064)])
    assert found["input_stall_fraction"] == pytest.approx(0.5)
    assert found["cpu_contention_fraction"] == pytest.approx(0.2)


def test_contention_is_null_where_it_is_not_kept():
    untold = figures(made_spec(), [with_loader(run_queue_s=None)])
    assert untold["cpu_contention_fraction"] is None
    assert untold["read_s_per_sample"] is untold["decode_s_per_sample"] is None, "both hold waiting for a core"


def test_bytes_of_the_samples():
    found = figures(made_spec(), [made_result()])
    seconds = 2 * 4 * 0.08
    assert found["io_bytes_per_s"] == pytest.approx(2 * 16_000 / seconds)
    assert found["decoded_bytes_per_s"] == pytest.approx(2 * 16 * 3000 / seconds)


def test_readers():
    found = figures(made_spec(data={"num_workers": 2}), [with_loader(read_s=0.16, decode_s=0.08)])
    assert found["read_s_per_sample"] == pytest.approx(0.01)
    assert found["decode_s_per_sample"] == pytest.approx(0.005)
    assert found["reader_busy_fraction"] == pytest.approx((0.16 + 0.08) / (2 * 4 * 0.08))


def test_readers_that_finished_nothing_have_no_cost_per_sample():
    found = figures(made_spec(), [with_loader(produced_samples=0, produced_bytes=0, read_s=1.0)])
    assert found["read_s_per_sample"] is None and found["decode_s_per_sample"] is None


def test_exchange_is_a_part_and_its_least_is_the_wire():
    early = {**LOADER, "communication": 0.05}
    late = {**LOADER, "load": 0.08, "communication": 0.01}
    first = [made_block(kind, 10.0 * n, early if kind == "loader" else CEILING) for n, kind in enumerate(KINDS)]
    second = [made_block(kind, 10.0 * n, late if kind == "loader" else CEILING) for n, kind in enumerate(KINDS)]
    results = [made_result(0, first), made_result(1, second)]
    assert figures(two_ranks(), results)["communication_min_s"] == pytest.approx(0.01)


def test_what_was_not_measured_is_null():
    spec = made_spec(data={"source": "memory"})
    rank = made_result(
        blocks=[made_block("plain", 0.0, CEILING)],
        peak_memory_bytes=None,
        host_memory_bytes=None,
        first_batch_s=None,
        startup_s=None,
        decoded_sample_bytes=None,
    )
    found = TrialFigures.model_validate(figures(spec, [rank])).model_dump()
    measured = {name for name, value in found.items() if value is not None}
    parts = {"load_s", "h2d_s", "forward_s", "backward_s", "optimizer_s"}
    steps = {"step_s_mean", "step_s_p50", "step_s_p95", "step_s_p99"}
    assert measured == {"samples_per_s", "cpu_contention_fraction", "final_loss", *parts, *steps}


def test_memory_and_start_are_those_of_all_ranks():
    second = made_result(
        1, peak_memory_bytes=3000, host_memory_bytes=700, first_batch_s=0.3, startup_s=0.1, final_loss=4.0
    )
    found = figures(two_ranks(), [made_result(0), second])
    assert (found["peak_memory_bytes"], found["host_memory_bytes"]) == (3000, 1200)
    assert (found["first_batch_s"], found["startup_s"], found["final_loss"]) == (0.3, 0.2, 3.0)


def test_host_memory_is_null_when_one_rank_cannot_tell():
    found = figures(two_ranks(), [made_result(0), made_result(1, host_memory_bytes=None)])
    assert found["host_memory_bytes"] is None


def test_a_clean_trial_has_no_caveat():
    assert caveats(made_spec(), [made_result()], cores=2, cache_visible=True) == []


@pytest.mark.parametrize(
    ("spec", "cores", "found"),
    [
        (made_spec(threads_per_rank=3), 2, ["oversubscribed"]),
        (made_spec(threads_per_rank=2), 2, []),
        (made_spec(threads_per_rank=3, device="cuda"), 2, []),
        (made_spec(threads_per_rank=3, data={"source": "memory"}), 2, ["oversubscribed"]),
    ],
)
def test_oversubscribed(spec: TrialSpec, cores: int, found: list[str]):
    assert names(caveats(spec, [made_result()], cores, cache_visible=True)) == found


def test_oversubscribed_shows_its_arithmetic():
    """Loader workers are named and not counted."""
    spec = made_spec(world_size=4, parallelism="ddp", threads_per_rank=2, data={"num_workers": 3})
    ranks = [made_result(rank) for rank in range(4)]
    text = "4 ranks x 2 threads > 2 cores; their 12 loader workers are not counted"
    assert ("oversubscribed", text) in caveats(spec, ranks, 2, cache_visible=True)
    idle = made_spec(world_size=4, parallelism="ddp", threads_per_rank=1, data={"source": "memory"})
    assert ("oversubscribed", "4 ranks x 1 thread > 2 cores") in caveats(idle, ranks, 2, cache_visible=True)
    many_readers = made_spec(threads_per_rank=2, data={"num_workers": 9})
    assert "oversubscribed" not in names(caveats(many_readers, [made_result()], 2, True))


@pytest.mark.parametrize(
    ("foreign", "found"),
    [(None, []), (0.0, []), (0.3, []), (0.31, ["foreign_load"]), (1.9, ["foreign_load"])],
)
def test_foreign_load_above_a_share_of_the_cores(foreign: float | None, found: list[str]):
    assert names(caveats(made_spec(), [made_result()], 2, True, foreign)) == found


def test_foreign_load_shows_its_arithmetic():
    assert caveats(made_spec(), [made_result()], 2, True, 1.25) == [
        ("foreign_load", "other processes kept 1.2 of 2 cores busy")
    ]


@pytest.mark.parametrize(
    ("cache", "resident", "visible", "found"),
    [
        ("cold", 0.0, True, []),
        ("cold", 0.01, True, []),
        ("cold", 0.02, True, ["not_cold"]),
        ("cold", None, True, ["cache_unverified"]),
        ("cold", 0.0, False, ["cache_unverified"]),
        ("warm", 1.0, True, []),
        ("warm", 0.99, True, []),
        ("warm", 0.98, True, ["not_warm"]),
        ("warm", None, True, ["cache_unverified"]),
    ],
)
def test_cache_state(cache: str, resident: float | None, visible: bool, found: list[str]):
    result = made_result(cache_resident_before=resident)
    assert names(caveats(made_spec(data={"cache": cache}), [result], 2, visible)) == found


def test_cache_state_is_told_by_the_rank_that_measured_it():
    ranks = [made_result(0, cache_resident_before=0.5), made_result(1, cache_resident_before=None)]
    assert names(caveats(two_ranks(), ranks, 2, cache_visible=True)) == ["not_cold"]
    assert figures(two_ranks(), ranks)["cache_resident_before"] == 0.5


def two_nodes(cache: str, first: dict[str, Any], second: dict[str, Any]) -> list[tuple[str, str]]:
    """Two ranks, each the first of its node."""
    ranks = [made_result(n, **{"cache_measured_fraction": 1.0, **of}) for n, of in enumerate((first, second))]
    return caveats(two_ranks(data={"cache": cache}), ranks, 2, cache_visible=True)


SEEN = {"cache_resident_before": 0.0, "cache_resident_after": 0.0}
HIDDEN = {"cache_resident_before": None, "cache_resident_after": None, "cache_measured_fraction": 0.0}


@pytest.mark.parametrize("cache", ["cold", "warm", "direct"])
def test_one_node_that_hides_its_cache_verifies_nothing(cache: str):
    seen = {"cache_resident_before": 1.0 if cache == "warm" else 0.0, "cache_resident_after": 0.0}
    assert two_nodes(cache, seen, seen) == []
    [(name, why)] = two_nodes(cache, seen, HIDDEN)
    assert name == "cache_unverified"
    assert why == f"{cache} asked for, residency unknown on 1 of 2 nodes: the kernel hides it from this user"


def test_what_the_other_node_shows_is_said_all_the_same():
    assert names(two_nodes("cold", SEEN | {"cache_resident_before": 0.5}, HIDDEN)) == ["not_cold"]
    assert names(two_nodes("direct", SEEN | {"cache_resident_after": 0.5}, HIDDEN)) == ["not_direct"]


def test_direct_reads_are_not_certified_where_what_they_left_is_hidden():
    assert names(two_nodes("direct", SEEN, SEEN | {"cache_resident_after": None})) == ["cache_unverified"]
    assert two_nodes("cold", SEEN, SEEN | {"cache_resident_after": None}) == []


def test_other_sources_have_no_cache_or_queue_to_doubt():
    rank = made_result(blocks=[made_block("plain", 0.0, CEILING)], cache_resident_before=None)
    assert caveats(made_spec(data={"source": "memory"}), [rank], 2, cache_visible=False) == []


def unsteady(spec: TrialSpec, result: RankSamples) -> list[str]:
    found = caveats(spec, [result], 2, cache_visible=True)
    assert set(names(found)) <= {"not_steady"}
    return [why for _, why in found]


def test_not_steady_with_too_few_turns_of_the_queue():
    spec = made_spec(data={"num_workers": 2, "prefetch_factor": 2}, measure={"steps": 18})
    (why,) = unsteady(spec, made_result())
    assert "10 steps" in why and "queue of 4 batches" in why and "measure.steps 24" in why
    assert (
        unsteady(made_spec(data={"num_workers": 2, "prefetch_factor": 2}, measure={"steps": 24}), made_result()) == []
    )


def test_not_steady_when_the_queue_lost_much():
    (why,) = unsteady(made_spec(), with_loader(produced_samples=12))
    assert "lost 25%" in why
    assert unsteady(made_spec(), with_loader(produced_samples=15)) == [], "6 % is not much"


def test_not_steady_when_blocks_differ():
    result = made_result()
    blocks = list(result.blocks)
    blocks[3] = made_block("loader", 30.0, {**CEILING, "load": 0.06})
    (why,) = unsteady(made_spec(), made_result(blocks=blocks))
    assert "differ by 22%" in why, "80 ms against 100 ms a step"
    blocks[3] = made_block("loader", 30.0, {**CEILING, "load": 0.05})
    assert unsteady(made_spec(), made_result(blocks=blocks)) == []


def test_not_steady_when_ceiling_blocks_differ():
    blocks = list(made_result().blocks)
    blocks[4] = made_block("ceiling", 40.0, {"forward": 0.056})
    (why,) = unsteady(made_spec(), made_result(blocks=blocks))
    assert "ceiling blocks differ by 32%" in why, "two of 40 ms and one of 56 ms a step"
    blocks[4] = made_block("ceiling", 40.0, {"forward": 0.044})
    assert unsteady(made_spec(), made_result(blocks=blocks)) == []


def test_not_steady_when_readers_worked_during_a_ceiling_block():
    blocks = list(made_result().blocks)
    blocks[2] = replace(blocks[2], queue_full=False)
    (why,) = unsteady(made_spec(), made_result(blocks=blocks))
    assert "ceiling block" in why


def counting(**counted: float) -> RankSamples:
    """A rank whose loader blocks, of 0.4 s each, counted so much each."""
    result = made_result()
    blocks = [
        replace(block, counted=dict(counted) if block.kind == "loader" else {"energy_j": 1e6})
        for block in result.blocks
    ]
    return replace(result, blocks=blocks)


def test_what_devices_counted_is_of_the_counted_steps_alone():
    hot = {"power_brake_s": 0.0, "too_hot_driver_s": 0.1, "too_hot_hardware_s": 0.1}
    ranks = [
        counting(energy_j=100.0, busy_s=0.2, power_capped_s=0.1, **dict.fromkeys(hot, 0.0)),
        counting(energy_j=60.0, busy_s=0.4, power_capped_s=0.0, **hot),
    ]
    seconds = made_result().blocks[1].end_s - made_result().blocks[1].start_s
    found = counted_figures(ranks, "loader", 40)
    assert found["energy_j"] == pytest.approx(320) and found["energy_j_per_sample"] == pytest.approx(8)
    assert found["gpu_busy_fraction"] == pytest.approx(0.3 / seconds)
    assert found["power_capped_fraction"] == pytest.approx(0.1 / seconds), "of the worst device"
    assert found["too_hot_fraction"] == pytest.approx(0.2 / seconds)
    assert found["nvlink_bytes_per_s"] is None


def test_on_cpus_one_rank_of_a_node_tells_its_energy():
    found = counted_figures([counting(energy_j=50.0), counting()], "loader", 40)
    assert found["energy_j"] == pytest.approx(100)
    assert {*counted_figures([counting(), counting()], "loader", 40).values()} == {None}


def test_a_block_without_its_first_steps_keeps_its_share_of_what_was_counted():
    block = replace(made_result().blocks[1], counted={"energy_j": 10.0})
    steps = block.num_steps
    assert block.after(steps // 2).counted["energy_j"] == pytest.approx(5.0, rel=0.2)


def test_communication_within_compiled_blocks_is_what_a_profile_saw_or_null() -> None:
    """Marks see what lies between the blocks: a tenth of it would pass for all."""
    spec = made_spec(world_size=2, parallelism="tp", compile=True)
    parts = {"load": 0.0, "forward": 0.03, "communication": 0.001, "backward": 0.04}
    ranks = [made_result(rank=rank, blocks=[made_block("loader", 0.0, parts)]) for rank in range(2)]
    unseen = ("communication_s", "communication_min_s", "imbalance_s", "imbalance_mean_s", "slowest_rank")
    assert {figures(spec, ranks)[name] for name in unseen} == {None}
    assert figures(spec, [replace(ranks[0], exposed_s=0.02), ranks[1]])["communication_s"] is None
    profiled = figures(
        spec, [replace(rank, exposed_s=exposed) for rank, exposed in zip(ranks, (0.02, 0.03), strict=True)]
    )
    assert (profiled["communication_s"], profiled["communication_min_s"]) == (0.02, 0.02)
    assert profiled["imbalance_s"] is None
    eager = figures(made_spec(world_size=2, parallelism="tp"), ranks)
    assert eager["communication_s"] == pytest.approx(0.001)
