"""The verdict, from figures."""

from typing import Any

import pytest

from benchsuite.diagnose import verdict
from benchsuite.metrics import figures
from tests.benchsuite.made import CEILING, made_block, made_result, made_spec

HELD: dict[str, Any] = {
    "au": 0.5,
    "step_s_mean": 0.08,
    "load_s": 0.04,
    "input_stall_fraction": 0.5,
    "cpu_contention_fraction": 0.0,
    "read_s_per_sample": 0.009,
    "decode_s_per_sample": 0.001,
}
KEEPS_UP: dict[str, Any] = {"au": 0.98, "step_s_mean": 0.1, "load_s": 0.002, "input_stall_fraction": 0.02}


def name(**changes: Any) -> str | None:
    found = verdict(HELD | changes)
    return found and found[0]


def test_readers_that_mostly_read_are_held_by_storage():
    assert name() == "storage"


def test_readers_that_mostly_decode_are_held_by_the_client():
    assert name(read_s_per_sample=0.001, decode_s_per_sample=0.009) == "client"


def test_readers_that_do_both_are_mixed():
    assert name(read_s_per_sample=0.005, decode_s_per_sample=0.005) == "mixed"


@pytest.mark.parametrize(("read", "expected"), [(0.66, "storage"), (0.6, "mixed"), (0.4, "mixed"), (0.34, "client")])
def test_shares_of_the_readers_time(read: float, expected: str):
    assert name(read_s_per_sample=read, decode_s_per_sample=1 - read) == expected


def test_contention_for_cores_counts_as_input():
    figures_found = {"input_stall_fraction": 0.1, "cpu_contention_fraction": 0.3}
    assert name(**figures_found, read_s_per_sample=0.001, decode_s_per_sample=0.009) == "client"


def test_evidence_has_the_numbers():
    found = verdict(HELD)
    assert found is not None
    for number in ("AU 0.50", "50% of the step", "9.00 ms", "1.00 ms"):
        assert number in found[1]
    assert "\n" not in found[1]


def test_exposed_exchange_is_communication():
    found = verdict(KEEPS_UP | {"exchange_s": 0.04, "exchange_min_s": 0.03})
    assert found is not None
    assert found[0] == "communication" and "30%" in found[1]


@pytest.mark.parametrize("exchange", [None, 0.0, 0.019])
def test_otherwise_the_computation(exchange: float | None):
    found = verdict(KEEPS_UP | {"exchange_s": 0.05, "exchange_min_s": exchange})
    assert found is not None
    assert found[0] == "compute" and "AU 0.98" in found[1]


def test_input_comes_before_communication():
    assert name(exchange_s=0.03) == "storage"


@pytest.mark.parametrize("missing", [{"step_s_mean": None}, {"step_s_mean": 0.0}])
def test_no_verdict_without_steps(missing: dict[str, Any]):
    assert verdict(HELD | missing) is None
    assert verdict({}) is None


def test_without_a_pipeline_it_is_computation_or_communication():
    alone = {"au": None, "step_s_mean": 0.1, "load_s": 0.0}
    assert verdict(alone) == ("compute", "input in memory; load is 0% of the step, exposed exchange 0%")
    assert verdict({**alone, "exchange_min_s": 0.03}) == (
        "communication",
        "input in memory; exposed exchange is 30% of the step, stragglers aside",
    )


def test_bytes_that_came_from_memory_do_not_blame_the_storage():
    assert name(read_s_per_sample=0.01, decode_s_per_sample=0.001, cache_hit_fraction=0.0) == "storage"
    assert name(read_s_per_sample=0.01, decode_s_per_sample=0.001, cache_hit_fraction=1.0) == "client"


def test_figures_that_nobody_measured_are_no_crash():
    assert name(cpu_contention_fraction=None, read_s_per_sample=None, decode_s_per_sample=None) == "client"


def test_readers_that_take_cores_from_the_computation_are_the_client():
    """Half of the step is lost, and little of it in waiting: whatever the readers do, it is not storage that holds."""
    found = verdict(HELD | {"input_stall_fraction": 0.1, "load_s": 0.008})
    assert found is not None
    assert found[0] == "client" and "keeps up" not in found[1]


def test_waiting_for_a_starved_rank_is_not_communication():
    """Rank 0 waits 40 ms for its input, rank 1 as long for rank 0 (and 0.1 ms more, so it counts as the slowest)."""
    starved, waiting = {**CEILING, "load": 0.04, "exchange": 0.001}, {**CEILING, "load": 0.0, "exchange": 0.0411}
    kinds = ("ceiling", "loader", "ceiling", "loader", "ceiling")
    ranks = [
        made_result(
            rank,
            [
                made_block(kind, 10.0 * n, step if kind == "loader" else CEILING, read_s=0.1 * (kind == "loader"))
                for n, kind in enumerate(kinds)
            ],
        )
        for rank, step in enumerate((starved, waiting))
    ]
    found = figures(made_spec(world_size=2, parallelism="ddp"), ranks)
    assert found["au"] == pytest.approx(0.5, abs=0.01)
    judged = verdict(found)
    assert judged is not None and judged[0] == "storage"


def test_a_pipelines_bubble_is_communication():
    found = verdict(KEEPS_UP | {"bubble_s": 0.03})
    assert found is not None and found[0] == "communication"
    assert "waiting for other stages of the pipeline is 30% of the step" in found[1]
