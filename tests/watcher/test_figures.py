"""Figures, verdicts and words of watched loops from made-up ones; ranks that tell each other; samples in a batch."""

import json
import re
from collections import UserDict
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed import HashStore

from benchsuite.watcher import ranks as ranks_module
from benchsuite.watcher.batch_rows import RowCounter
from benchsuite.watcher.figures import caveats, figures, foreign_cores, lines
from benchsuite.watcher.rank_loop import RankLoop, Told
from benchsuite.watcher.ranks import Ranks

TOLD = Told("mine", cores=8)


def made_loop(rank: int = 0, steps: int = 100, **changes: Any) -> RankLoop:
    """Steps of 100 ms, of which 50 are waited for input from two workers that rest."""
    fields: dict[str, Any] = {
        "device": "cpu",
        "num_steps": steps,
        "num_uncounted": 5,
        "num_passes": 1,
        "samples": 16 * steps,
        "parts_s": {"load": 0.05 * steps, "other": 0.05 * steps},
        "step_s": (0.1, 0.11, 0.12),
        "wall_s": 0.1 * steps,
        "run_queue_s": 0.0,
        "read_call_bytes": 10**6 * steps,
        "storage_bytes": 5 * 10**5 * steps,
        "num_readers": 2,
        "reader_busy_fraction": 0.1,
        "first_batch_s": 0.3,
    }
    return RankLoop(rank, **(fields | changes))


@pytest.mark.parametrize(
    ("changes", "bottleneck", "evidence", "remedy"),
    [
        ({}, "storage", "2 worker processes are busy for 10%", "more than 2 workers: 8 cores are there"),
        (
            {"num_readers": 8},
            "storage",
            "they wait for reads",
            "data staged to a faster folder, or in fewer and larger",
        ),
        ({"reader_busy_fraction": 0.9}, "preprocessing", "busy for 90% of the time: decoding", "more than 2 workers"),
        (
            {"reader_busy_fraction": 0.9, "num_readers": 9},
            "preprocessing",
            "9 worker",
            "cheaper decoding.* more cores than 8",
        ),
        ({"reader_busy_fraction": 0.5}, "mixed", "busy for 50%", "more than 2 workers"),
        ({"reader_busy_fraction": None}, "mixed", "cannot be seen here", "more than 2 workers"),
        (
            {"reader_busy_fraction": 1.0, "num_readers": 0},
            "preprocessing",
            "in this process, is busy for 100%",
            "num_workers",
        ),
        ({"refill_s": 2.5}, "storage", "50% of that wait is for the first batch of a pass", "persistent_workers=True"),
        ({"parts_s": {"load": 0.1, "other": 9.9}}, "compute", "1% of the step waits for input", None),
        ({"parts_s": {"load": 0.1, "other": 5.0, "communication": 4.9}}, "communication", "exchange is 49%", None),
        ({"parts_s": {"load": 0.1, "other": 5.0, "bubble": 4.9}}, "communication", "other stages .* 49%", None),
        (
            {"parts_s": {"load": 0.1, "other": 9.9}, "ceiling_steps": 32, "ceiling_s": 2.2}
            | {"between_steps": 96, "between_s": 9.6, "run_queue_s": 2.5},
            "preprocessing",
            "AU 0.69; 1% .* 25% for a core; readers take cores",
            "fewer readers, or more cores",
        ),
        (
            {"parts_s": {"load": 0.1, "other": 9.9}, "ceiling_steps": 32, "ceiling_s": 2.2}
            | {"between_steps": 96, "between_s": 9.6, "run_queue_s": 0.0},
            "mixed",
            "AU 0.69; 1% .* 0% for a core; what else makes it slower .* cannot be told",
            None,
        ),
        (
            {"parts_s": {"load": 0.7, "other": 3.3, "communication": 6.0}},
            "communication",
            "^7% of the step waits for input, .*; exchange is 60% of the step",
            None,
        ),
        (
            {"parts_s": {"load": 0.7, "other": 3.3, "bubble": 6.0}},
            "communication",
            "^7% .*; waiting for other stages of the pipeline is 60% of the step",
            None,
        ),
        (
            {"parts_s": {"load": 3.0, "other": 4.0, "communication": 3.0}},
            "mixed",
            "^30% of the step waits for input, .* wait for reads; exchange is 30% of the step",
            "more than 2 workers",
        ),
        (
            {"parts_s": {"load": 5.0, "other": 4.0, "communication": 1.0}},
            "storage",
            "^50% of the step waits for input, .* wait for reads; exchange is 10% of the step",
            "more than 2 workers",
        ),
    ],
)
def test_verdicts(changes: dict[str, Any], bottleneck: str, evidence: str, remedy: str | None):
    found = figures([made_loop(**changes)], TOLD)
    assert found["bottleneck"] == bottleneck
    assert re.search(evidence, found["bottleneck_evidence"]), found["bottleneck_evidence"]
    if remedy is None:
        assert found["bottleneck_remedy"] is None
    else:
        assert re.search(remedy, found["bottleneck_remedy"]), found["bottleneck_remedy"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"own_s_per_step": 0.1089},
            "watching takes 108.9% of a step of 100,000.0 us; above 5% it hides what the loop does",
        ),
        ({"own_s_per_step": 0.0051}, "watching takes 5.1% of a step"),
        ({"reader_busy_fraction": 1.02}, "its worker processes are busy for 102% of the time, which no share can be"),
        ({"reader_busy_fraction": 1.09}, "its worker processes are busy for 109% of the time, which no share can be"),
        ({"reader_busy_fraction": 1.09, "num_readers": 0}, "its loader is busy for 109% of the time"),
        ({"loader_busy_fraction": 1.09}, "its loading thread is busy for 109% of the time"),
        ({"run_queue_s": 10.9}, "it waits for a core 109% of the time"),
        ({"run_queue_s": -1.0}, "it waits for a core -10% of the time"),
        (
            {"ceiling_steps": 32, "ceiling_s": 3.2, "between_steps": 96, "between_s": 4.8},
            "AU 2.00 is above 1 by more than its noise",
        ),
    ],
)
def test_no_verdict_where_a_share_is_above_one_or_watching_takes_too_much(changes: dict[str, Any], reason: str):
    loop = made_loop(**changes)
    found = figures([loop], TOLD)
    assert (found["bottleneck"], found["bottleneck_remedy"]) == ("cannot_tell", None)
    assert reason in found["bottleneck_evidence"]
    assert f"-> What holds it back cannot be told: {reason}" in lines([loop], TOLD, found)[1]
    assert (found["worker_busy_fraction"], found["cpu_contention_fraction"]) == (
        loop.reader_busy_fraction,
        (loop.run_queue_s or 0.0) / 10,
    )  # as measured, and not cut to fit


def test_a_share_above_one_of_any_rank_leaves_no_verdict():
    of_ranks = figures([made_loop(), made_loop(1, reader_busy_fraction=1.09, own_s_per_step=1e-5)], TOLD)
    assert of_ranks["bottleneck"] == "cannot_tell" and "109% of the time on rank 1" in of_ranks["bottleneck_evidence"]
    of_ranks = figures([made_loop(own_s_per_step=1e-5), made_loop(1, own_s_per_step=0.02)], TOLD)
    assert of_ranks["bottleneck"] == "cannot_tell" and "us on rank 1; above 5%" in of_ranks["bottleneck_evidence"]
    assert of_ranks["overhead_fraction"] == pytest.approx(0.2)


def test_a_worker_that_never_rests_is_not_above_one():
    """The kernel's counters are a tick late; and 5 % is not above 5 %."""
    found = figures([made_loop(reader_busy_fraction=1.004, own_s_per_step=0.005)], TOLD)
    assert found["bottleneck"] == "preprocessing" and "busy for 100%" in found["bottleneck_evidence"]


@pytest.mark.parametrize(
    ("changes", "bottleneck", "evidence"),
    [
        ({"fed_cores": 0.1}, "storage", "is busy for 10% of the time: else they wait for reads"),
        ({"fed_cores": 0.3}, "mixed", "threads that load for it keep 0.3 cores busy"),
        ({"fed_cores": 2.9}, "preprocessing", "threads that load for it keep 2.9 cores busy meanwhile: decoding"),
        ({"fed_cores": 2.9, "beside_cores": 1.0}, "preprocessing", "threads that load for it keep 2.9 cores busy"),
        ({"beside_cores": 2.9}, "cannot_tell", "2.9 cores busy meanwhile, and whether they load"),
        ({"fed_cores": 0.1, "beside_cores": 1.0}, "cannot_tell", "1.0 cores busy meanwhile, and whether they load"),
        ({"beside_cores": 0.1}, "storage", "else they wait for reads"),
        ({"beside_cores": 2.9, "reader_busy_fraction": 0.9}, "preprocessing", "in this process, is busy for 90%"),
        ({"beside_cores": 2.9, "num_readers": 2}, "storage", "2 worker processes are busy for 10%"),
        (
            {"loader_busy_fraction": 0.8, "num_readers": 2},
            "preprocessing",
            "80% of what it waits: it takes batches over",
        ),
    ],
)
def test_what_threads_beside_the_loop_tell(changes: dict[str, Any], bottleneck: str, evidence: str):
    found = figures([made_loop(**({"num_readers": 0} | changes))], TOLD)
    assert found["bottleneck"] == bottleneck
    assert evidence in found["bottleneck_evidence"]


@pytest.mark.parametrize(
    ("ranks", "cpus", "busy", "remedy"),
    [
        (3, [range(8)] * 3, 0.1, "more than 2 workers a rank: 8 cores are there for 3 ranks"),
        (4, [range(8)] * 4, 0.1, "data staged to a faster folder, or in fewer and larger files"),
        (4, [range(8)] * 4, 0.9, "cheaper decoding and augmentation, or more cores than 8"),
        (4, [range(n, n + 8) for n in (0, 8, 16, 24)], 0.9, "more than 2 workers: 8 cores are there"),
    ],
)
def test_ranks_of_a_node_share_its_cores(ranks: int, cpus: list[range], busy: float, remedy: str):
    """Two workers a rank: three ranks have six on eight cores, four have eight, unless each is bound to its own."""
    loops = [made_loop(rank, cpus=tuple(cpus[rank]), reader_busy_fraction=busy) for rank in range(ranks)]
    assert figures(loops, TOLD)["bottleneck_remedy"] == remedy
    elsewhere = [made_loop(rank, node=f"n{rank}", cpus=tuple(range(8))) for rank in range(ranks)]
    assert figures(elsewhere, TOLD)["bottleneck_remedy"] == "more than 2 workers: 8 cores are there"


def test_waiting_in_the_exchange_for_a_rank_without_input_is_not_communication():
    """Rank 0 waits half of the step for its input, rank 1 as long for rank 0."""
    waiting = {"parts_s": {"load": 0.0, "other": 5.0, "communication": 5.01}}
    found = figures([made_loop(), made_loop(1, **waiting)], TOLD)
    assert (found["bottleneck"], found["communication_s"]) == ("storage", 0.0501)


def test_the_slowest_rank_counts():
    slow = {"parts_s": {"load": 2.0, "other": 18.0}, "step_s": (0.2, 0.3, 0.4), "peak_memory_bytes": 9}
    found = figures([made_loop(), made_loop(1, **slow)], TOLD)
    assert (found["step_s_mean"], found["step_s_p95"], found["other_s"]) == (0.2, 0.3, 0.18)
    assert found["input_stall_fraction"] == 0.5  # of the hungriest
    assert found["samples_per_s"] == 2 * 1600 / 20.0
    assert found["world_size"] == 2 and found["peak_memory_bytes"] == 9


def test_bytes_are_told_as_far_as_they_were_counted():
    def bytes_of(counted: bool | None, **changes: Any) -> tuple[Any, Any, Any]:
        found = figures([made_loop(**changes), made_loop(1, **changes)], Told("mine", reads_counted=counted))
        return found["read_call_bytes_per_s"], found["storage_bytes_per_s"], found["cache_hit_fraction"]

    assert bytes_of(True) == (2e7, 1e7, 0.5)
    assert bytes_of(None) == (2e7, 1e7, None)
    assert bytes_of(False) == (2e7, None, None)
    assert bytes_of(True, storage_bytes=0) == (2e7, 0.0, 1.0)
    assert bytes_of(True, storage_bytes=2 * 10**8) == (2e7, 4e7, 0.0)
    assert figures([made_loop(storage_bytes=2 * 10**8)], Told("m", reads_counted=True))["read_amplification"] == 2.0
    assert bytes_of(None, storage_bytes=0) == (2e7, None, None)
    assert bytes_of(True, storage_bytes=None) == (2e7, None, None)
    assert bytes_of(True, read_call_bytes=None) == (None, 1e7, None)


def test_what_is_unknown_stays_unknown():
    found = figures([made_loop(samples=None, run_queue_s=None, own_s_per_step=None, first_batch_s=None)], TOLD)
    names = ("samples_per_s", "cpu_contention_fraction", "overhead_fraction", "first_batch_s", "peak_memory_bytes")
    assert {found[name] for name in names} == {None}
    assert "10.0 steps/s" in "\n".join(lines([made_loop(samples=None)], TOLD, found))


def test_caveats_have_their_arithmetic():
    told = Told("mine", ranks_missing=(2, 3), cut_short_by="KeyboardInterrupt")
    assert caveats([made_loop(queue_batches=40)], told) == [
        ("not_steady", "100 counted steps cover the loader's queue of 40 batches less than 3 times"),
        ("ranks_missing", "ranks 2, 3 did not report; the figures are those of the others"),
        ("cut_short", "the loop ended by KeyboardInterrupt"),
    ]
    assert caveats([made_loop()], TOLD) == []


SPUN = {"node": "a", "cpus": (0, 1), "everyone_cpu_s": 19.0, "own_cpu_s": 4.0}
"""10 s of a loop on two cores: 1.9 busy, 0.4 of them its own."""
OTHERS = "other processes kept 1.5 of 2 cores busy"


@pytest.mark.parametrize("changes", [{}, {"num_readers": 0, "reader_busy_fraction": 1.0}, {"refill_s": 2.5}])
def test_no_more_workers_where_others_keep_the_cores_busy(changes: dict[str, Any]):
    loop = made_loop(**(SPUN | {"num_readers": 1, "run_queue_s": 7.3} | changes))
    found = figures([loop], Told("mine", cores=2))
    assert found["foreign_cpu_cores"] == pytest.approx(1.5)
    assert found["bottleneck_remedy"] == f"measure again on idle cores, this says nothing of the job itself: {OTHERS}"
    assert f"caveat: foreign_load: {OTHERS}" in lines([loop], TOLD, found)


def test_no_more_workers_where_the_loop_itself_lacks_cores():
    loop = made_loop(**(SPUN | {"own_cpu_s": 19.0, "num_readers": 1, "run_queue_s": 7.3, "reader_busy_fraction": 0.9}))
    found = figures([loop], Told("mine", cores=2))
    assert str(found["bottleneck_remedy"]).startswith("more cores, or fewer threads")
    assert caveats([loop], TOLD) == []


def test_cores_that_others_keep_busy_are_those_of_no_rank():
    """Two ranks share two cores, a third has another node to itself, whose load is little."""
    ranks = [made_loop(rank, **(SPUN | {"own_cpu_s": own})) for rank, own in enumerate((4.0, 9.0))]
    ranks.append(made_loop(2, **(SPUN | {"node": "b", "everyone_cpu_s": 5.0})))
    assert foreign_cores(ranks, TOLD) == (pytest.approx(0.6), 2)
    assert foreign_cores(ranks[2:], TOLD) == (pytest.approx(0.1), 2)
    assert caveats(ranks[2:], TOLD) == []  # 5 % of the cores
    apart = made_loop(**(SPUN | {"cpus": (2, 3), "own_cpu_s": 19.0}))
    assert foreign_cores([ranks[0], apart], TOLD) == (pytest.approx(1.5), 4)


def test_what_others_keep_busy_is_unknown_without_every_rank():
    loop = made_loop(**SPUN)
    for told in (Told("mine", ranks_missing=(1,)), Told("mine", ranks_apart=True)):
        assert foreign_cores([loop], told) is None
    assert foreign_cores([loop, made_loop(1)], TOLD) is None
    assert foreign_cores([made_loop(**(SPUN | {"wall_s": 0.4}))], TOLD) is None
    assert figures([made_loop()], TOLD)["foreign_cpu_cores"] is None


def test_what_is_printed():
    loop = made_loop(parts_s={"load": 5.0, "forward": 2.0, "backward": 2.999, "other": 0.001}, own_s_per_step=1e-5)
    said = lines([loop], Told("mine", num_replayed=40, cores=8), figures([loop], TOLD))
    assert said[0] == "mine · 100 steps counted, 5 before · cpu"
    assert said[1].startswith("-> Held back by storage: 50% of the step waits for input, 0% for a core; its 2 worker")
    assert [line.split() for line in said if line.startswith(" ") and "%" in line] == [
        ["load", "50.0", "50%"],
        ["forward", "20.0", "20%"],
        ["backward", "30.0", "30%"],
        ["step", "100.0", "100%", "p50", "100.0", "·", "p95", "110.0", "·", "p99", "120.0"],
    ]
    assert "160 samples/s · 10.0 MB/s asked for in read calls · 5.0 MB/s from storage" in said
    assert "utilization 0.50 = 1 - share of the step that waits for input; not AU, which needs ceiling='replay'" in said
    assert "watching took 0.010% of the step, by calibration" in said
    assert said[-1] == "40 steps were trained on batches seen before"


def test_a_ranks_loop_survives_json():
    loop = made_loop(3, own_s_per_step=1e-6, **SPUN)
    assert RankLoop.from_json(json.dumps(asdict(loop))) == loop


def of_group(monkeypatch: pytest.MonkeyPatch, store: Any, rank: int, world_size: int = 3) -> Ranks:
    """This rank's view of a group."""
    dist = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=lambda: rank,
        get_world_size=lambda: world_size,
        distributed_c10d=SimpleNamespace(_get_default_store=lambda: store),
    )
    monkeypatch.setattr(ranks_module.sys, "modules", {**ranks_module.sys.modules, "torch.distributed": dist})
    made = Ranks()
    made.meet("mine")
    monkeypatch.undo()
    return made


def test_rank_0_hears_those_that_watch(monkeypatch: pytest.MonkeyPatch):
    store = HashStore()
    first, second = (of_group(monkeypatch, store, rank) for rank in (0, 1))
    mine = made_loop(1)
    assert second.gathered(mine, wait=True) == (None, ())
    assert first.gathered(made_loop(0), wait=True) == ([made_loop(0), mine], (2,))  # rank 2 does not watch


def test_rank_0_waits_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch):
    store = HashStore()
    first, _second = (of_group(monkeypatch, store, rank) for rank in (0, 1))
    monkeypatch.setattr(ranks_module, "WAIT_S", 0.1)
    assert first.gathered(made_loop(0), wait=True) == ([made_loop(0)], (1, 2))
    assert first.gathered(made_loop(0), wait=False) == ([made_loop(0)], (1, 2))


def test_a_group_without_a_store_leaves_rank_0_alone(monkeypatch: pytest.MonkeyPatch):
    assert of_group(monkeypatch, None, 0).gathered(made_loop(0), wait=True) == ([made_loop(0)], (1, 2))
    assert of_group(monkeypatch, None, 1).gathered(made_loop(1), wait=True) == (None, ())


@pytest.mark.parametrize(
    ("batch", "rows"),
    [
        (torch.zeros(7, 3), 7),
        (np.zeros((7, 3)), 7),
        ([torch.zeros(7, 3), torch.zeros(7)], 7),
        (({"ids": torch.zeros(7, 3)}, None), 7),
        (UserDict(label="x", pixels=torch.zeros(7)), 7),
        ({"name": ["a"] * 7, "image": np.zeros((7, 2))}, 7),
        (torch.tensor(1.0), None),
        (["a", "b"], None),
        (3, None),
    ],
)
def test_samples_in_a_batch(batch: Any, rows: int | None):
    assert RowCounter([], None)(batch) == rows


def test_samples_follow_the_batches_and_what_was_given():
    counter = RowCounter(SimpleNamespace(batch_size=4), None)
    assert [counter(torch.zeros(rows, 2)) for rows in (4, 4, 3)] == [4, 4, 3]
    assert RowCounter([], 9)(torch.zeros(4)) == 9
    listed = RowCounter(SimpleNamespace(batch_size=4), None)
    assert listed(([torch.zeros(3, 8, 8)] * 4, [0] * 4)) == 4
    small = RowCounter(SimpleNamespace(batch_size=32), None)
    assert small((torch.zeros(7, 3), torch.zeros(7))) == 7
