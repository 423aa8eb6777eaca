"""What remedies would gain, reckoned by hand from the model of docs/method.md ("What a remedy would gain")."""

from dataclasses import replace
from typing import Any

import pytest

from benchsuite.analysis.judging.verdict import Judgement
from benchsuite.inside.samples import RankSamples, Reads
from benchsuite.watcher.answer import Told, figures
from tests.analysis.judging.test_verdict import (
    BATCH,
    BOUND,
    CROWD,
    DECODING,
    EXCHANGES,
    IN_HDF5,
    LOOPS,
    STARTS,
    TRIALS,
    Case,
    Words,
    at,
    fed,
    fed_ranks,
    judged_loop,
    judged_trial,
    loop,
    of_body,
    said,
    seen,
    trial,
)

NOTHING_GAINS = "nothing that benchsuite knows of"
DECODES = {"decode": 80.0}
"""Workers do nothing else, and wait for no file."""
LITTLE_WAIT = 0.0005
"""Seconds: a loop that gets its input in time."""


def names(judged: Judgement) -> list[str]:
    return [each.name for each in judged.remedies]


def named(judged: Judgement, name: str) -> Any:
    """The one remedy of this name."""
    (found,) = [each for each in judged.remedies if each.name == name]
    return found


def sentence(judged: Judgement) -> str:
    return str(judged.figures()["bottleneck_remedy"])


def about(seconds: float) -> Any:
    return pytest.approx(seconds, rel=0.1)


def decoding(
    workers: int, load_s: float, other_s: float, cores: int, cpu_s: float, ranks: int = 1, **how: Any
) -> RankSamples:
    """A rank whose workers decode; each of `ranks` on its node computes for `cpu_s` a step."""
    step_s, cpus = load_s + other_s, tuple(range(cores))
    used: dict[str, Any] = {"cpus": cpus, "all_cores": cores, "own_cpu_s": 100 * cpu_s}
    used |= {"everyone_cpu_s": 100 * (ranks * cpu_s + 0.05 * step_s), "node": how.pop("node", "node")}
    used |= {"idle_cores": max(cores - 0.05 - ranks * cpu_s / step_s, 0.0)}
    step, who = {"load": load_s, "other": other_s}, {"cpus": cpus}
    if workers:
        return loop(DECODES, workers=workers, step=step, who=who, used=used, **how)
    return loop({}, load=DECODES, workers=0, step=step, who=who, used=used, **how)


MORE_WORKERS = {
    # 198 ms of reading, 10 ms of loop: 208 ms of computing a step. 2 cores: 208 / 2; two workers: 198 / 2
    "one worker on two cores": (decoding(1, 0.188, 0.010, 2, 0.208), 2, 0.104, 2.0),
    # 8 cores: 208 / 8 = 26 ms; seven workers: 198 / 7 = 28 ms, eight: 25 ms
    "one worker on eight cores": (decoding(1, 0.188, 0.010, 8, 0.208), 8, 0.026, 8.0),
    # Reading 2 x 120 = 240 ms: six workers 40 ms, less than the loop's 42; computing 282 / 8 = 35 ms; 282 / 42 = 6.7
    "two workers until the loop is longest": (decoding(2, 0.078, 0.042, 8, 0.282), 6, 0.042, 6.7),
    # Reading 398 ms, loop 2 ms, computing 400 / 64 = 6 ms; not more than 32 workers: 398 / 32; 400 / 12.4 = 32.2
    "no more than 32 workers": (decoding(1, 0.396, 0.002, 64, 0.400), 32, 0.01244, 32.2),
    # Reading 70 ms is the wait itself: three workers 23 ms, less than the loop's 30; 100 / 30 = 3.3
    "no worker on eight cores": (decoding(0, 0.070, 0.030, 8, 0.100), 3, 0.030, 3.3),
    # Computing 100 / 2 = 50 ms; one worker 70 ms, two 35 ms
    "no worker on two cores": (decoding(0, 0.070, 0.030, 2, 0.100), 2, 0.050, 2.0),
}


@pytest.mark.parametrize(("rank", "workers", "step_s", "busy"), MORE_WORKERS.values(), ids=MORE_WORKERS.keys())
def test_more_workers_until_something_else_is_longest(
    rank: RankSamples, workers: int, step_s: float, busy: float
) -> None:
    assert rank.seen_readers and rank.used_cores
    judged = judged_loop(rank)
    more = named(judged, "more_workers")
    assert said(judged) == "preprocessing/decode"
    assert (more.workers, more.workers_now) == (workers, rank.seen_readers.num_readers)
    assert (more.step_s, more.now_s) == (about(step_s), about(rank.blocks[0].steps_s / 100))
    assert (more.cores, more.of_cores) == (about(busy), about(len(rank.used_cores.cpus)))
    assert not more.at_best


def test_the_sentence_says_what_a_step_takes_then_and_now() -> None:
    told = sentence(judged_loop(decoding(1, 0.188, 0.010, 2, 0.208)))
    assert "2 workers instead of 1 (about " in told
    assert "a step instead of 198; needs " in told and " of 2 cores)" in told


@pytest.mark.parametrize(("threads", "told"), [(2, None), (8, "fewer threads (torch.set_num_threads(2); now 8)")])
def test_more_threads_of_torch_than_cores(threads: int, told: str | None) -> None:
    rank = fed({"runs": 95.0}, used={"cpus": (0, 1), "all_cores": 2, "idle_cores": 0.9, "threads": threads})
    found = figures([rank], Told("mine", cores=2))
    assert (found["bottleneck"], found["bottleneck_remedy"]) == ("compute", told)


def test_what_is_promised_comes_before_what_is_given_at_best() -> None:
    """Without any decoding the loop's 10 ms are left, which is less than with two workers."""
    judged = judged_loop(decoding(1, 0.188, 0.010, 2, 0.208))
    cheaper = named(judged, "cheaper_data")
    assert names(judged).index("more_workers") < names(judged).index("cheaper_data")
    assert (cheaper.step_s, cheaper.at_best) == (about(0.010), True)


@pytest.mark.parametrize("one", [*LOOPS.values(), *TRIALS.values()], ids=[*LOOPS.keys(), *TRIALS.keys()])
def test_the_order_of_remedies(one: Case) -> None:
    """Promised ones (more cores last), those at best, those without a number; each by what is left of the step."""
    is_trial = len(one.ranks[0].blocks) > 1
    judged = judged_trial(*one.ranks, **one.setting) if is_trial else judged_loop(*one.ranks, **one.setting)
    kinds = [2 if each.step_s is None else int(each.at_best) for each in judged.remedies]
    buys = [kind == 0 and each.name == "more_cores" for kind, each in zip(kinds, judged.remedies, strict=True)]
    keys = list(zip(kinds, buys, [each.step_s or 0.0 for each in judged.remedies], strict=True))
    assert keys == sorted(keys)


def test_more_workers_gain_nothing_where_two_fill_two_cores() -> None:
    """Computing 195 / 2 = 97.5 ms of a step of 100 ms: 2.5 %."""
    judged = judged_loop(decoding(2, 0.080, 0.020, 2, 0.195))
    assert said(judged) == "preprocessing/decode"
    assert "instead of 2 (" not in sentence(judged)
    assert named(judged, "cheaper_data").step_s == about(0.020)


def test_nothing_is_promised_where_the_model_does_not_give_the_measured_step() -> None:
    """It computes for 260 ms a step on two cores: 130 ms, where 100 were measured."""
    judged = judged_loop(decoding(2, 0.080, 0.020, 2, 0.260))
    assert said(judged) == "preprocessing/decode"
    assert judged.remedies and all(each.step_s is None for each in judged.remedies)


def ranks_of(nodes: tuple[str, ...]) -> list[RankSamples]:
    """Each with one worker, on nodes of eight cores."""
    return [
        decoding(1, 0.188, 0.010, 8, 0.208, ranks=nodes.count(node), node=node, rank=rank)
        for rank, node in enumerate(nodes)
    ]


SHARING = {
    # Computing of four ranks 832 / 8 = 104 ms; two workers each: 99 ms
    "four ranks share eight cores": (("a", "a", "a", "a"), 2, 0.104),
    # 416 / 8 = 52 ms; three workers 66 ms, four 50 ms
    "two ranks on each of two nodes": (("a", "a", "b", "b"), 4, 0.052),
    # As a rank alone
    "each of four ranks has a node": (("a", "b", "c", "d"), 8, 0.026),
}


@pytest.mark.parametrize(("nodes", "workers", "step_s"), SHARING.values(), ids=SHARING.keys())
def test_ranks_that_share_cores_leave_each_other_fewer(nodes: tuple[str, ...], workers: int, step_s: float) -> None:
    more = named(judged_loop(*ranks_of(nodes)), "more_workers")
    assert (more.workers, more.step_s) == (workers, about(step_s))
    assert more.cores == about(8.0) and more.of_cores == about(8.0)


@pytest.mark.parametrize("nodes", ["a", "aa", "aaaa", "aabb"])
def test_cheaper_data_is_cheaper_for_all_ranks(nodes: str) -> None:
    """No rank decodes any more: computing 10 ms of each loop, at most 40 / 8 = 5; a loop takes 10 ms."""
    cheaper = named(judged_loop(*ranks_of(tuple(nodes))), "cheaper_data")
    assert (cheaper.step_s, cheaper.at_best) == (about(0.010), True)


def test_workers_that_looks_see_idle_need_less_for_a_batch() -> None:
    """Nine tenths of 2 x 100 ms: the model's step is 90 ms; five workers 36 ms, the loop 40: 100 x 40 / 90 are told."""
    judged = judged_loop(loop({"decode": 72.0, "idle": 8.0}, step={"load": 0.06, "other": 0.04}))
    more = named(judged, "more_workers")
    assert (more.workers, more.step_s, more.now_s) == (5, pytest.approx(0.0444, rel=0.03), about(0.1))


@pytest.mark.parametrize("readers", [DECODES, at("reads")])
def test_nothing_is_promised_where_threads_read(readers: Words) -> None:
    """The loop waits for threads of its own process, which keep two cores busy: of how many, no one knows."""
    who = {"fed_cores": 2.0, "loading_thread_busy_fraction": 0.0}
    judged = judged_loop(loop(readers, load={"waits_for_readers": 80.0}, workers=0, who=who))
    assert "more_workers" in names(judged) and all(each.step_s is None for each in judged.remedies)


def test_more_workers_of_a_trial() -> None:
    """Loop 100 ms, step 192: reading 385 ms, four workers 96 ms; computing 485 / 8 = 61 ms."""
    computed = {"load": 0.0, "h2d": 0.0, "forward": 0.04, "backward": 0.04, "optimizer": 0.02}
    judged = judged_trial(trial(DECODES, DECODING, stall=0.48, computed=computed))
    more = named(judged, "more_workers")
    assert (more.workers, more.workers_now, more.at_best) == (4, 2, False)
    assert (more.step_s, more.now_s) == (about(0.1), about(0.192))


NO_SLEEP: dict[str, tuple[RankSamples, float]] = {
    # Reading 200 ms, of which a tenth is left: 20 / 2 = 10 ms; the loop takes 20
    "two workers": (loop(at("sleep")), 0.020),
    # Loop and reading take turns: 20 + 8 ms
    "no worker": (loop({}, load=at("sleep"), workers=0), 0.028),
}


@pytest.mark.parametrize(("rank", "step_s"), NO_SLEEP.values(), ids=NO_SLEEP.keys())
def test_readers_that_sleep_no_more(rank: RankSamples, step_s: float) -> None:
    judged = judged_loop(rank)
    less = named(judged, "no_sleep")
    assert (less.step_s, less.now_s, less.at_best) == (about(step_s), about(0.1), True)


def sleeping_body(busy: float) -> RankSamples:
    """The body sleeps for 85 of its 95 looks, while its one worker computes for so much of the time."""
    readers = {"decode": 100 * busy, "idle": 100 * (1 - busy)}
    used = {"own_cpu_s": 10 * busy + 1.0, "everyone_cpu_s": 10 * busy + 1.5, "idle_cores": 7.95 - busy - 0.1}
    step = {"load": LITTLE_WAIT, "other": 0.1 - LITTLE_WAIT}
    return loop(readers, body=of_body("sleep"), step=step, workers=1, used=used)


# A tenth of the body is left, 10.5 ms: of a worker that computes for half of the time 50 ms of reading are longer
@pytest.mark.parametrize(("busy", "step_s"), [(0.01, 0.0105), (0.5, 0.050)])
def test_a_body_that_sleeps_no_more_waits_for_its_worker_instead(busy: float, step_s: float) -> None:
    judged = judged_loop(sleeping_body(busy))
    less = named(judged, "no_sleep")
    assert said(judged) == "waiting/sleep"
    assert (less.step_s, less.at_best) == (about(step_s), True)


def test_nothing_is_left_of_a_step_that_only_sleeps() -> None:
    judged = judged_loop(loop({"idle": 5.0}, body={"sleep": 95.0}, step={"load": 0.0, "other": 0.1}))
    less = named(judged, "no_sleep")
    assert (less.step_s, less.cores, less.at_best) == (0.0, 0.0, True)


def test_the_answer_says_where_nothing_gains() -> None:
    """The body sleeps, but its worker needs 97 of 100 ms for a batch: 3 %."""
    judged = judged_loop(sleeping_body(0.97))
    assert said(judged) == "waiting/sleep"
    assert sentence(judged) == NOTHING_GAINS


def test_workers_that_stay_take_the_beginnings_away() -> None:
    """Workers start for 2 s before each 25 steps, 80 of 100 ms a step: 20 are left."""
    looks = replace(seen({"start": 80.0}, None, None), start_s=[2.0] * 8)
    judged = judged_loop(loop({"start": 80.0}, looks=looks, **STARTS))
    stay = named(judged, "staying_workers")
    assert said(judged) == "waiting/worker_start"
    assert (stay.step_s, stay.now_s, stay.at_best) == (about(0.020), about(0.1), True)


RECEIVING = {"hand_over": 79.0, "waits_for_readers": 1.0}
HAND_OVER: dict[str, tuple[int, Words, Words | None, float, bool]] = {
    # Reading 200 ms, a tenth is left: 10 ms of two workers; the loop takes 20
    "workers pickle 400 tensors": (400, at("hand_over"), None, 0.020, True),
    # Reading 20 + 180 / 4 = 65 ms, of two workers 32.5
    "workers pickle 2 tensors": (2, at("hand_over"), None, 0.0325, False),
    # Loop 20 + 79 ms of receiving, of which nothing is left
    "the loop receives 400 tensors": (400, at("idle"), RECEIVING, 0.020, True),
    # 20 + 79 / 4
    "the loop receives 2 tensors": (2, at("idle"), RECEIVING, 0.0398, False),
}


@pytest.mark.parametrize(("tensors", "readers", "load", "step_s", "at_best"), HAND_OVER.values(), ids=HAND_OVER.keys())
def test_tensors_that_are_handed_over(
    tensors: int, readers: Words, load: Words | None, step_s: float, at_best: bool
) -> None:
    judged = judged_loop(loop(readers, load=load, who={"batch_arrays": tensors}))
    fewer = named(judged, "fewer_tensors" if tensors == 400 else "smaller_tensors")
    assert said(judged) == "preprocessing/hand_over"
    assert (fewer.step_s, fewer.now_s, fewer.at_best) == (about(step_s), about(0.1), at_best)


def test_more_cores_for_a_loop_whose_cores_are_full() -> None:
    """Computing 190 / 4 = 47.5 ms; eight workers wait for no core any more: a quarter of 8 x 100 ms, 25 ms a step."""
    judged = judged_loop(loop(DECODES, **CROWD))
    more = named(judged, "more_cores")
    assert said(judged) == "client_cpu/cores"
    assert names(judged)[0] == "more_cores" and "instead of 8 (" not in sentence(judged)
    assert (more.step_s, more.now_s, more.at_best) == (about(0.0475), about(0.1), False)
    assert (more.cores, more.of_cores) == (about(4.0), about(4.0))


def test_four_workers_that_may_use_idle_cores() -> None:
    """Three quarters of 4 x 100 ms were waits for the one core: 100 / 4 = 25 ms; the loop takes 20."""
    judged = judged_loop(loop(DECODES, workers=4, **(BOUND | {"used": BOUND["used"] | {"idle_cores": 6.9}})))
    first = judged.remedies[0]
    assert said(judged) == "client_cpu/affinity"
    assert (first.step_s, first.at_best) == (about(0.025), False)


def test_idle_cores_are_no_more_than_the_node_has() -> None:
    """Computing 105 / 8 = 13.1 ms; sixteen workers a sixteenth of 1600 / 16 ms, the loop 5 ms."""
    who = {"cpus": (0,), "queued_fraction": 0.9375}
    used = {"own_cpu_s": 10.5, "everyone_cpu_s": 11.0, "idle_cores": 6.9}
    step = {"load": 0.095, "other": 0.005}
    judged = judged_loop(loop(DECODES, workers=16, step=step, who=who, used=used))
    first = judged.remedies[0]
    assert said(judged) == "client_cpu/affinity"
    assert (first.step_s, first.of_cores) == (about(0.0131), about(8.0))


def test_reads_where_nothing_more_is_known_of_the_disk() -> None:
    """Without reads a tenth of 200 ms is left, 20 / 2 ms; the loop takes 20. More workers may gain nothing."""
    judged = judged_loop(loop(at("reads")))
    staging = named(judged, "staging")
    assert said(judged) == "storage/reads"
    assert (staging.step_s, staging.at_best) == (about(0.020), True)
    assert all(each.step_s is None for each in judged.remedies if each.name == "more_workers")
    assert all(each.at_best for each in judged.remedies if each.step_s is not None)


def test_a_loop_that_reads_by_itself_may_take_all_that_its_disk_gives() -> None:
    """A disk with a limit gives the loop's own time back after it: beside the loop it may give no more."""
    judged = judged_loop(loop({}, load={"reads": 95.0, "decode": 5.0}, workers=0, step={"load": 0.08, "other": 0.02}))
    assert said(judged) == "storage/reads"
    assert named(judged, "more_workers").step_s is None


@pytest.mark.parametrize(("what", "remedy"), [("sleep", "no_sleep"), ("child_process", "in_process")])
def test_what_readers_waited_for_computes_no_longer(what: str, remedy: str) -> None:
    """Somebody else computes meanwhile, for 120 ms on one of two cores: at best the 7 ms of the loop are left."""
    used = {"cpus": (0, 1), "all_cores": 2, "own_cpu_s": 12.7, "everyone_cpu_s": 12.7, "idle_cores": 0.95}
    judged = judged_loop(loop(at(what), workers=1, step={"load": 0.120, "other": 0.007}, used=used))
    gone = named(judged, remedy)
    assert gone.at_best and gone.step_s < 0.02, "a tenth of what workers do is something else"


READS_MOSTLY = {"read_s": 0.92, "read_cpu_s": 0.02, "decode_s": 0.08}
# Reading 2 x 200 = 400 ms, of which 360 wait for files: a disk of 360 / 2 = 180 ms, or as much less; loop 40 ms
CEILINGS = [
    (1.2, 3, 0.167),  # Hardly more: all is the disk's, 200 / 1.2 ms; three workers 133
    (1.3, 3, 0.138),  # Disk 138 ms; two workers 200 ms, three 133
    (2, 5, 0.090),  # Disk 90 ms; four workers 100 ms, five 80
    (4, 9, 0.045),  # Disk 45 ms; eight workers 50 ms, nine 44.4
]


@pytest.mark.parametrize(("times", "workers", "step_s"), CEILINGS)
def test_reads_of_a_trial_whose_disk_gave_a_plain_reader_more(times: float, workers: int, step_s: float) -> None:
    got = {"io_bytes_per_s": 20_000.0, "storage_bytes_per_s": 20_000.0, "storage_ceiling_bytes_per_s": 20_000.0 * times}
    judged = judged_trial(trial(at("reads"), READS_MOSTLY), more=got)
    more = named(judged, "more_workers")
    assert said(judged) == "storage/reads"
    assert (more.workers, more.step_s, more.at_best) == (workers, pytest.approx(step_s, rel=0.03), False)
    assert named(judged, "staging").step_s == about(0.040)  # The loop


def test_more_workers_gain_nothing_where_a_plain_reader_got_no_more() -> None:
    """All of the wait is the disk's."""
    got = dict.fromkeys(("io_bytes_per_s", "storage_bytes_per_s", "storage_ceiling_bytes_per_s"), 20_000.0)
    judged = judged_trial(trial(at("reads"), READS_MOSTLY), more=got)
    assert said(judged) == "storage/reads" and "more_workers" not in names(judged)


# Reading 2 x 100 ms, of which 180 wait for files; of two workers (20 + 180 / 20) / 2 and (20 + 180 / 5) / 2
@pytest.mark.parametrize(("times", "step_s"), [(20, 0.0145), (5, 0.028)])
def test_chunks_of_one_sample(times: int, step_s: float) -> None:
    reads = Reads(times * 100 * BATCH, times * 100 * BATCH, seconds=10.0)
    judged = judged_loop(loop(at("reads"), step={"load": 0.095, "other": 0.005}, reads=reads, looks=IN_HDF5))
    first = judged.remedies[0]
    assert said(judged) == "storage/amplification"
    assert (first.step_s, first.at_best) == (about(step_s), False)


def test_as_many_shards_as_workers() -> None:
    """Reading 4 x 100 ms; three of four looks saw workers with nothing to read: 100 / 4 = 25 ms, the loop takes 20."""
    judged = judged_loop(loop({"ended": 60.0, "decode": 20.0}, workers=4))
    first = judged.remedies[0]
    assert said(judged) == "waiting/no_shard"
    assert (first.step_s, first.at_best) == (about(0.025), False)


def test_a_checkpoint_in_the_body() -> None:
    """Of 99.5 ms 85 looks of 95 see it write, 89 ms: half of it is left, at best (in the background) none."""
    step = {"load": LITTLE_WAIT, "other": 0.1 - LITTLE_WAIT}
    judged = judged_loop(loop({"idle": 5.0}, body=of_body("writes"), step=step))
    gains = [(each.step_s, each.at_best) for each in judged.remedies if each.step_s is not None]
    assert said(judged) == "waiting/checkpoint"
    assert gains[0] == (about(0.055), False)
    assert (about(0.0105), True) in gains[1:]


def test_what_faster_links_gain_is_not_known() -> None:
    judged = judged_loop(*fed_ranks({"runs": 45.0, "exchange": 50.0}, EXCHANGES))
    assert said(judged) == "communication/communication"
    assert judged.remedies and all(each.step_s is None for each in judged.remedies)
