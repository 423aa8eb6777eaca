"""Figures, verdicts and words of watched loops from made-up ones; ranks that tell each other; samples in a batch."""

import json
from collections import UserDict
from collections.abc import Sequence
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed import HashStore

from benchsuite.analysis.metrics import foreign_cores
from benchsuite.contract.rank_samples import parse_result
from benchsuite.inside.loop import RowCounter
from benchsuite.inside.samples import Block, Line, Looks, RankSamples, Reads, SeenReaders, UsedCores
from benchsuite.watcher import ranks as ranks_module
from benchsuite.watcher.answer import Told, caveats, figures, lines
from benchsuite.watcher.ranks import Ranks

TOLD = Told("mine", cores=8)


SEEN = tuple(name for name in SeenReaders.__dataclass_fields__ if name != "cpus")
USED = tuple(UsedCores.__dataclass_fields__)


def made_loop(rank: int = 0, steps: int = 100, **changes: Any) -> RankSamples:
    """Steps of 100 ms, of which 50 are waited for input from two workers that rest."""
    fields: dict[str, Any] = {"first_batch_s": 0.3} | changes
    parts_s = fields.pop("parts_s", {"load": 0.05 * steps, "other": 0.05 * steps})
    wall_s, step_s = fields.pop("wall_s", 0.1 * steps), fields.pop("step_s", (0.1,))
    seconds, queued_s = sum(parts_s.values()), fields.pop("run_queue_s", 0.0)
    queued_s = None if queued_s is None else queued_s * seconds / wall_s
    samples, ceiling_s, between_s = (
        fields.pop(*each) for each in (("samples", 16 * steps), ("ceiling_s", None), ("between_s", None))
    )
    looks = {"load": {"waits_for_readers": 100}, "readers": {"reads": 90, "runs": 10}, "body": {"runs": 100}}
    looks |= {
        name: fields.pop(name) for name in ("load", "readers", "body", "inside", "files", "lines") if name in fields
    }
    seen = {"num_readers": 2, "busy_fraction": 0.1, "body_busy_fraction": 0.95, "queue_batches": 4} | {
        name: fields.pop(name) for name in SEEN if name in fields
    }
    seen |= {"cpus": fields.pop("reader_cpus")} if "reader_cpus" in fields else {}
    used = {"node": "", "everyone_cpu_s": 0.0, "own_cpu_s": 0.0} | {
        name: fields.pop(name) for name in USED if name in fields
    }
    blocks = [made_steps("loader", steps, parts_s, samples, step_s, queued_s)]
    if ceiling_s is not None:
        blocks += [made_steps("ceiling", 32, {"other": ceiling_s}), made_steps("between", 96, {"other": between_s})]
    reads = {name: fields.pop(name, value * steps) for name, value in READ.items()}
    return RankSamples(
        rank,
        "ok",
        blocks=blocks,
        reads=Reads(**reads, seconds=wall_s),
        seen_readers=SeenReaders(**seen),
        looks=Looks(**{"files": {}, "lines": []} | looks),
        used_cores=UsedCores(**used, seconds=wall_s) if "cpus" in used else None,
        **fields,
    )


READ = {"read_call_bytes": 10**6, "storage_bytes": 5 * 10**5}


def made_steps(
    kind: str,
    steps: int,
    parts_s: dict[str, float],
    samples: int | None = 0,
    step_s: Sequence[float] = (0.1,),
    queued_s: float | None = None,
) -> Block:
    """Steps of which a few were kept."""
    kept = {name: [seconds * (name == "other") for seconds in step_s] for name in parts_s}
    return Block(
        kind,
        0.0,
        sum(parts_s.values()),
        kept,
        queued_s,
        consumed_samples=samples,
        produced_samples=None,
        totals=(steps, parts_s),
    )


RUNNING = {"readers": {"runs": 95, "idle": 20, "sleep": 5}, "busy_fraction": 0.9}
HELD = {"load": 0.1, "other": 9.9}


@pytest.mark.parametrize("steps", [12, 19, 20, 29, 30])
def test_few_steps_name_no_cause(steps: int):
    loop = made_loop(steps=steps)
    found = figures([loop], TOLD)
    verdict, cause = ("cannot_tell", None) if steps < 20 else ("storage", None if steps < 30 else "reads")
    assert (found["bottleneck"], found["cause"], found["evidence"]["steps"]) == (verdict, cause, steps)
    if steps < 20:
        told = f"Only {steps} steps were counted: too few for an answer. Run at least 30."
        assert lines([loop], TOLD, found) == [told]


def test_ranks_that_wait_for_one_are_told_by_what_each_does_itself():
    """Both take as long for a step; rank 0 is in the exchange for most of it, rank 1 hardly."""
    waits, works = (
        made_loop(n, parts_s=HELD, body={"exchange": e, "runs": 20}, body_busy_fraction=b)
        for n, e, b in ((0, 80, 0.2), (1, 5, 0.95))
    )
    found = figures([waits, works], TOLD)
    assert (found["bottleneck"], found["cause"]) == ("imbalance", "slow_rank")


def test_marked_parts_of_ranks_are_compared():
    """Rank 0 waits within its backward part for rank 1, whose forward part takes 100 ms."""
    quick, slow = (
        made_loop(rank, parts_s={"load": 0.1, "forward": forward, "backward": 12.0 - forward, "other": 0.0})
        for rank, forward in ((0, 0.04), (1, 10.0))
    )
    found = figures([quick, slow], TOLD)
    assert (found["bottleneck"], found["cause"]) == ("imbalance", "slow_rank")
    named = ("slow_part", "slowest_rank", "slow_part_s", "fastest_rank", "fast_part_s")
    assert [found["evidence"][name] for name in named] == ["forward", 1, 0.1, 0, 0.0004]


def test_a_rank_with_fewer_batches_is_named():
    found = figures([made_loop(steps=100), made_loop(1, steps=80)], TOLD)
    assert (found["bottleneck"], found["cause"]) == ("imbalance", "fewer_batches")


def test_the_rank_that_waits_longest_is_judged():
    """Rank 1 sleeps in its loader, while rank 0 decodes and never waits."""
    fed = made_loop(parts_s=HELD, readers={"runs": 90})
    starved = made_loop(1, num_readers=0, load={"sleep": 90}, loading_thread_busy_fraction=0.0)
    found = figures([fed, starved], TOLD)
    assert (found["bottleneck"], found["cause"], found["evidence"]["rank"]) == ("waiting", "sleep", 1)


def test_the_line_is_named():
    save = Line("body", "save", "torch.save (train.py:41)", 80, 8)
    rest = Line("body", "runs", "step (train.py:30)", 20, 20)
    changes = {"parts_s": HELD, "body": {"save": 80, "runs": 20}, "lines": [save, rest]}
    found = figures([made_loop(**changes)], TOLD)
    named = ("line", "line_fraction", "line_of")
    assert [found["evidence"][name] for name in named] == ["torch.save (train.py:41)", 0.8, "the loop's body"]


@pytest.mark.parametrize(
    ("changes", "doubt", "numbers"),
    [
        ({"instrument_s_per_step": 0.1089}, "overhead", {"overhead_fraction": 1.089}),
        ({"instrument_s_per_step": 0.0102}, "overhead", {"overhead_fraction": 0.102}),
        ({"busy_fraction": 1.02}, "no_share", {"what": "worker_busy_fraction", "fraction": 1.02}),
        ({"busy_fraction": 1.09, "num_readers": 0}, "no_share", {"what": "loading_thread_busy_fraction"}),
        ({"loading_thread_busy_fraction": 1.09}, "no_share", {"what": "loading_thread_busy_fraction"}),
        ({"run_queue_s": 10.9}, "no_share", {"what": "cpu_contention_fraction", "fraction": 1.09}),
        ({"run_queue_s": -1.0}, "no_share", {"what": "cpu_contention_fraction", "fraction": -0.1}),
        ({"ceiling_s": 3.2, "between_s": 4.8}, "au_above_1", {"au": 2.0}),
    ],
)
def test_no_verdict_where_a_share_is_above_one_or_watching_takes_too_much(
    changes: dict[str, Any], doubt: str, numbers: dict[str, Any]
):
    loop = made_loop(**changes)
    found = figures([loop], TOLD)
    assert (found["bottleneck"], found["bottleneck_remedy"]) == ("cannot_tell", None)
    told = {name: found["evidence"][name] for name in numbers}
    assert found["evidence"]["doubt"] == doubt and told == pytest.approx(numbers)
    assert found["bottleneck_evidence"].partition(";")[0] in " ".join(lines([loop], TOLD, found))
    as_measured = changes.get("busy_fraction", 0.1), pytest.approx(changes.get("run_queue_s", 0.0) / 10)
    assert (found["worker_busy_fraction"], found["cpu_contention_fraction"]) == as_measured


def test_a_share_above_one_of_any_rank_leaves_no_verdict():
    of_ranks = figures([made_loop(), made_loop(1, busy_fraction=1.09, instrument_s_per_step=1e-5)], TOLD)
    assert (of_ranks["bottleneck"], of_ranks["evidence"]["rank"]) == ("cannot_tell", 1)
    of_ranks = figures([made_loop(instrument_s_per_step=1e-5), made_loop(1, instrument_s_per_step=0.02)], TOLD)
    assert (of_ranks["bottleneck"], of_ranks["evidence"]["rank"]) == ("cannot_tell", 1)
    assert of_ranks["overhead_fraction"] == pytest.approx(0.2)


def test_a_worker_that_never_rests_is_not_above_one():
    """The kernel's counters are a tick late; and 5 % is not above 5 %."""
    found = figures([made_loop(**RUNNING | {"busy_fraction": 1.004, "instrument_s_per_step": 0.005})], TOLD)
    assert found["bottleneck"] == "preprocessing"


def test_waiting_in_the_exchange_for_a_rank_without_input_is_not_communication():
    """Rank 0 waits half of the step for its input, rank 1 as long for rank 0, whose step is told."""
    waiting = {"parts_s": {"load": 0.0, "other": 5.0, "communication": 5.01}}
    starved = {"parts_s": {"load": 5.0, "other": 5.0, "communication": 0.0}}
    found = figures([made_loop(0, **starved), made_loop(1, **waiting)], TOLD)
    assert (found["bottleneck"], found["load_s"], found["communication_s"]) == ("storage", 0.05, 0.0)


def test_a_rank_that_others_wait_for_is_named():
    """Rank 1 computes twice as long as rank 0, which waits for it in every exchange."""
    quick, slow = ({"load": 0.0, "other": 10.0 - wait, "communication": wait} for wait in (5.0, 0.1))
    found = figures([made_loop(0, parts_s=quick), made_loop(1, parts_s=slow)], TOLD)
    assert (found["bottleneck"], found["cause"], found["slowest_rank"]) == ("imbalance", "slow_rank", 1)


def test_the_slowest_rank_counts():
    slow = {"parts_s": {"load": 2.0, "other": 18.0}, "step_s": (0.2, 0.3, 0.4), "peak_memory_bytes": 9}
    found = figures([made_loop(), made_loop(1, **slow)], TOLD)
    assert (found["step_s_mean"], found["step_s_p50"], found["other_s"]) == (0.2, 0.3, 0.18)
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
    found = figures([made_loop(samples=None, run_queue_s=None, instrument_s_per_step=None, first_batch_s=None)], TOLD)
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


@pytest.mark.parametrize("changes", [{}, {"num_readers": 0, "busy_fraction": 1.0}, {"refill_s": 2.5}])
def test_no_more_workers_where_others_keep_the_cores_busy(changes: dict[str, Any]):
    loop = made_loop(**(SPUN | {"num_readers": 1, "run_queue_s": 7.3} | changes))
    found = figures([loop], Told("mine", cores=2))
    assert found["foreign_cpu_cores"] == pytest.approx(1.5)
    assert (found["bottleneck"], found["remedies"]) == ("cannot_tell", ["idle_cores"])
    crowd = {"doubt": "foreign_load", "foreign_cpu_cores": 1.5, "cores": 2, "cpu_contention_fraction": 0.73}
    assert found["evidence"] == pytest.approx(crowd)
    assert f"caveat: foreign_load: {OTHERS}" in lines([loop], TOLD, found)


def test_a_loop_that_rests_beside_a_crowd_is_not_called_storage():
    """What loads for it may be a program that gets no core, whose waiting nobody counts."""
    rests = SPUN | {"num_readers": 0, "load": {"reads": 90}, "run_queue_s": 0.1, "own_cpu_s": 0.4}
    found = figures([made_loop(**rests)], Told("mine", cores=2))
    assert (found["bottleneck"], found["evidence"]["doubt"]) == ("cannot_tell", "foreign_load")
    idle = figures([made_loop(**rests | {"everyone_cpu_s": 3.0})], Told("mine", cores=2))
    assert idle["bottleneck"] == "storage", idle["bottleneck_evidence"]


def test_no_more_workers_where_the_loop_itself_lacks_cores():
    loop = made_loop(**(SPUN | RUNNING | {"own_cpu_s": 19.0, "num_readers": 1, "run_queue_s": 7.3}))
    found = figures([loop], Told("mine", cores=2))
    assert (found["bottleneck"], found["remedies"]) == ("client_cpu", ["more_cores", "fewer_threads"])
    assert caveats([loop], TOLD) == []


def test_cores_that_others_keep_busy_are_those_of_no_rank():
    """Two ranks share two cores, a third has another node to itself, whose load is little."""
    ranks = [made_loop(rank, **(SPUN | {"own_cpu_s": own})) for rank, own in enumerate((4.0, 9.0))]
    ranks.append(made_loop(2, **(SPUN | {"node": "b", "everyone_cpu_s": 5.0})))
    assert foreign_cores(ranks) == (pytest.approx(0.6), 2)
    assert foreign_cores(ranks[2:]) == (pytest.approx(0.1), 2)
    assert caveats(ranks[2:], TOLD) == []  # 5 % of the cores
    apart = made_loop(**(SPUN | {"cpus": (2, 3), "own_cpu_s": 19.0}))
    assert foreign_cores([ranks[0], apart]) == (pytest.approx(1.5), 4)


def test_what_others_keep_busy_is_unknown_without_every_rank():
    loop = made_loop(**SPUN)
    for told in (Told("mine", ranks_missing=(1,)), Told("mine", ranks_apart=True)):
        assert figures([loop], told)["foreign_cpu_cores"] is None
    assert foreign_cores([loop, made_loop(1)]) is None
    assert foreign_cores([made_loop(**(SPUN | {"wall_s": 0.4}))]) is None
    assert figures([made_loop()], TOLD)["foreign_cpu_cores"] is None


def test_what_is_printed():
    parts_s = {"load": 5.0, "forward": 2.0, "backward": 2.999, "other": 0.001}
    loop = made_loop(parts_s=parts_s, instrument_s_per_step=1e-5, step_s=(0.09, 0.1, 0.11))
    said = lines([loop], Told("mine", num_replayed=40, cores=8, num_uncounted=5), figures([loop], TOLD))
    assert said[0] == "mine · 100 steps counted, 5 before · cpu"
    assert said[1:3] == [
        "Bottleneck: storage. The loop waits for input 50 % of the time. 45 % of the step goes to waiting for",
        "reads of files.",
    ]
    assert " ".join(said[3:5]) == (
        "Try copying the data to a local disk first (at best 50 ms a step instead of 100), faster storage (at best "
        "50 ms a step instead of 100), a sharded format or more workers."
    )
    assert [line.split() for line in said if line.startswith(" ") and "where" not in line] == [
        ["waiting", "for", "input", "50.0", "50", "%", "█" * 10],
        ["forward", "20.0", "20", "%", "█" * 4],
        ["backward", "30.0", "30", "%", "█" * 6],
        ["step", "100.0", "median", "100.0,", "p95", "109.0,", "p99", "109.8"],
    ]
    assert "160 samples/s · 10.0 MB/s asked for in read calls · 5.0 MB/s from storage" in said
    assert "watching took 0.01% of the step" in said
    assert said[-1] == "40 steps were trained on batches seen before"


def test_a_long_start_is_told_in_seconds():
    loop = made_loop(parts_s=HELD, first_batch_s=14.2)
    for before_s, told in ((1.0, False), (15.0, True)):
        said = lines([loop], Told("mine", num_uncounted=5, before_s=before_s), figures([loop], TOLD))
        wanted = "15 s of 25 s went to the 5 steps before, 14 s of them until the first batch: these are not counted"
        assert (wanted in said) == told


@pytest.mark.parametrize(
    ("long", "long_s", "told"),
    [(10, 0.28, True), (10, 0.002, False), (1, 0.28, True), (1, 0.005, False), (50, 0.28, False)],
)
def test_steps_that_are_rarely_long_are_told_by_their_times(long: int, long_s: float, told: bool):
    """Of 100 steps of 0.7 ms some are longer."""
    steps = [0.0007] * (100 - long) + [long_s] * long
    loop = made_loop(parts_s={"load": 0.0, "other": sum(steps)}, step_s=tuple(steps))
    found = figures([loop], TOLD)["evidence"]
    assert ("long_steps_fraction" in found) == told
    if told:
        named = {name: found[name] for name in ("long_steps_fraction", "long_step_s", "other_step_s")}
        assert named == {"long_steps_fraction": long / 100, "long_step_s": long_s, "other_step_s": 0.0007}
        assert found["long_steps_time_fraction"] == pytest.approx(long * long_s / sum(steps))


def test_a_ranks_loop_survives_json():
    loop = made_loop(3, instrument_s_per_step=1e-6, **SPUN)
    assert parse_result(json.dumps(asdict(loop))) == loop


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
