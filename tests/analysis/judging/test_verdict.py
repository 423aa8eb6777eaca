"""What holds a loop back, in situations as engineers meet them: every row of docs/causes.md, and what lies between."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchsuite.analysis.judging.setting import Setting
from benchsuite.analysis.judging.verdict import Judgement, verdict
from benchsuite.analysis.metrics import figures, watched_figures
from benchsuite.inside.samples import Block, Clocks, Line, Looks, RankSamples, Reads, SeenReaders, UsedCores
from tests.helpers.made import made_block, made_result, made_spec

Words = Mapping[str, float]

COMPUTES = {"runs", "decode", "collate", "hand_over", "shuffle", "start"}
CORES = tuple(range(8))
BATCH = 600_000
"""Bytes of a batch's arrays, and of what is read for it where nothing else is said."""
STARVED = {"load": 0.08, "other": 0.02}
"""Of 100 looks, 80 fall into the wait for input."""
FED = {"load": 0.005, "other": 0.095}
MARKED = {"load": 0.005, "forward": 0.085, "communication": 0.01}
"""A loop that marks the parts of its step; a tenth of it goes to exchanging gradients."""
EXCHANGES = {"load": 0.005, "forward": 0.045, "communication": 0.05}
NOTHING = Looks({}, {}, {}, {}, [])
"""A container hides what threads are at."""


def at(word: str) -> Words:
    """Of 80 looks, 72 see readers at this."""
    return {word: 72.0, "decode": 8.0}


def of_body(word: str) -> Words:
    return {word: 85.0, "runs": 10.0}


def computing(words: Words) -> float:
    return sum(looks for word, looks in words.items() if word in COMPUTES) / (sum(words.values()) or 1.0)


def seen(readers: Words, load: Words | None, body: Words | None) -> Looks:
    """Looks as workers have them that look at themselves; without any, as the loop's thread has them."""
    of_load = {"waits_for_readers": sum(readers.values())} if load is None else load
    phase, words = ("readers", readers) if readers else ("load", of_load)
    word = max(words, key=lambda each: words[each])
    line = Line(phase, word, "Photographs.__getitem__ (train.py:12)", int(words[word]), 30)
    inside = replace(NOTHING, readers=dict(readers)) if readers else None
    files = {"/data": int(words["reads"])} if "reads" in words else {}
    looks = Looks(dict(of_load), dict(readers), dict(body or {"runs": 20.0}), files, [line])
    return replace(looks, inside=inside, cost_fraction=0.002)


def readers_of(workers: int, words: Words, load: Words | None, body: Words | None) -> SeenReaders:
    busy, loads, of_body = computing(words), computing(load or {}), computing(body or {"runs": 1.0})
    ran = SeenReaders(workers, busy if workers else loads, loads, busy * workers, 0.0, queue_batches=2 * workers)
    ran = replace(ran, workers_stay=True, body_busy_fraction=of_body, body_cores=of_body, queued_fraction=0.0)
    return replace(ran, cpus=CORES, batch_bytes=BATCH)


def found(blocks: list[Block], readers: Words, load: Words | None, body: Words | None, **how: Any) -> RankSamples:
    """A rank of a node with 8 cores, of which others keep a twentieth of one busy."""
    workers, rank, who, used = (how.pop(name, default) for name, default in KNOWN.items())
    seconds, stalled_s = sum(one.steps_s for one in blocks), sum(one.parts_s()["load"] for one in blocks)
    own_s = computing(readers or load or {}) * max(workers, 1) * stalled_s
    own_s += computing(body or {"runs": 1.0}) * (seconds - stalled_s)
    idle = 7.95 - own_s / seconds
    cores = UsedCores("node", CORES, seconds, own_s + 0.05 * seconds, own_s, None, idle, 8, 0.0)
    fields: dict[str, Any] = {
        "seen_readers": replace(readers_of(workers, readers, load, body), **who),
        "used_cores": replace(cores, **used),
        "looks": seen(readers, load, body),
    }
    return made_result(rank, blocks, **(fields | how))


KNOWN: dict[str, Any] = {"workers": 2, "rank": 0, "who": {}, "used": {}}
"""Fields of SeenReaders are `who`, those of UsedCores `used`."""


def loop(readers: Words, *, load: Words | None = None, body: Words | None = None, **how: Any) -> RankSamples:
    """A rank of a watched loop."""
    step, steps, parts = how.pop("step", STARVED), how.pop("steps", 100), how.pop("parts", None)
    block = made_block("loader", 0.0, dict(step), steps, produced_samples=None, consumed_bytes=0, produced_bytes=0)
    block = replace(block, parts=parts or block.parts, run_queue_s=how.pop("queue_s", 0.0))
    block = replace(block, totals=(steps, block.parts_s()), end_s=block.steps_s)
    reads = Reads(steps * BATCH, None, seconds=block.steps_s)
    return found([block], readers, load, body, **({"reads": reads} | how))


def fed(body: Words, step: Mapping[str, float] = FED, **how: Any) -> RankSamples:
    """A rank whose input comes in time."""
    return loop({"idle": 5.0}, body=body, step=step, **how)


def fed_ranks(body: Words, step: Mapping[str, float] = FED) -> tuple[RankSamples, RankSamples]:
    return fed(body, step), fed(body, step, rank=1)


def judged_loop(*ranks: RankSamples, counted: bool | None = None) -> Judgement:
    who, used = ranks[0].seen_readers, ranks[0].used_cores
    assert who and used
    here = [rank for rank in ranks if rank.used_cores and rank.used_cores.node == used.node]
    setting = Setting(who.num_readers, len(here), len(used.cpus), watched=True)
    judged = verdict(watched_figures(ranks, counted, True), setting, ranks)
    assert judged is not None
    return judged


COMPUTED = {"load": 0.0, "h2d": 0.0, "forward": 0.01, "backward": 0.02, "optimizer": 0.01}
READING = {"read_s": 0.72, "read_cpu_s": 0.02, "decode_s": 0.2}
"""Of each second of a reader, by its own clock."""
DECODING = {"read_s": 0.08, "read_cpu_s": 0.02, "decode_s": 0.9, "collate_s": 0.02}
COLLATING = {"read_s": 0.08, "read_cpu_s": 0.02, "decode_s": 0.9, "collate_s": 0.8}
RESTING = {"read_s": 0.01, "read_cpu_s": 0.005, "decode_s": 0.2}


def trial(readers: Words, clocks: Words | None = None, *, stall: float = 0.8, **how: Any) -> RankSamples:
    """A rank of a trial, C L C L C; what its loader blocks hold beside steps is given as a share of their time."""
    computed, steps, workers = how.pop("computed", COMPUTED), how.pop("steps", 20), how.get("workers", 2)
    body, block, queued = how.pop("body", None), how.pop("block", {}), how.pop("queued", 0.0)
    starved = {**computed, "load": sum(computed.values()) * stall / (1 - stall)}
    blocks: list[Block] = []
    for kind in ("ceiling", "loader", "ceiling", "loader", "ceiling"):
        start_s = blocks[-1].end_s if blocks else 10.0
        one = made_block(kind, start_s, dict(starved if kind == "loader" else computed), steps)
        shares = {"run_queue_s": queued}
        if kind == "loader":
            shares |= {name: share * workers for name, share in (clocks or {}).items()} | block
        held: dict[str, Any] = {name: share * one.steps_s for name, share in shares.items()}
        blocks.append(replace(one, readers=workers, **held))
    return found(blocks, readers, None, body, **({"reads": Reads(160_000, 160_000, 160_000)} | how))


def judged_trial(*ranks: RankSamples, more: Mapping[str, Any] | None = None, **setting: Any) -> Judgement:
    """What holds a trial back; `more` are figures that others add."""
    assert ranks[0].seen_readers is not None
    workers, world = ranks[0].seen_readers.num_readers, len(ranks)
    data, measure = {"num_workers": workers, "prefetch_factor": 2}, {"steps": ranks[0].blocks[0].num_steps}
    spec = made_spec(world_size=world, parallelism="ddp" if world > 1 else "none", data=data, measure=measure)
    known: dict[str, Any] = {"cores": 8, "threads": 1, "file_per_sample": True, "reads_told": True}
    judged = verdict(figures(spec, ranks) | dict(more or {}), Setting(workers, world, **(known | setting)), ranks)
    assert judged is not None
    return judged


def said(judged: Judgement) -> str:
    return judged.bottleneck if judged.cause is None else f"{judged.bottleneck}/{judged.cause}"


def numbers(judged: Judgement) -> Mapping[str, Any]:
    return judged.evidence or {}


class Case(NamedTuple):
    """What is measured, and what is to be said of it."""

    said: str
    ranks: tuple[RankSamples, ...]
    lost: float | None
    """Share of the step that is lost to it; None: more than one mechanism adds to it."""
    setting: dict[str, Any]


def case(said: str, *ranks: RankSamples, lost: float | None = 0.72, **setting: Any) -> Case:
    return Case(said, ranks, lost, setting)


def doubt(rank: RankSamples, **setting: Any) -> Case:
    return Case("cannot_tell", (rank,), None, setting)


DECODE = {"decode": 72.0, "reads": 8.0}
COMPUTE = {"runs": 95.0}
EXCHANGE = {"exchange": 80.0, "runs": 15.0}
WAITS_FOR_CORES = {"queued_fraction": 0.75}
TWO_CORES = {"cpus": (0, 1), "own_cpu_s": 19.0, "everyone_cpu_s": 19.5, "idle_cores": 0.05, "all_cores": 2}
CROWD: dict[str, Any] = {"workers": 8, "who": {"cpus": (0, 1)} | WAITS_FOR_CORES, "used": TWO_CORES}
BOUND: dict[str, Any] = {"who": {"cpus": (0,)} | WAITS_FOR_CORES, "used": {"own_cpu_s": 10.5, "everyone_cpu_s": 11.0}}
QUOTA: dict[str, Any] = {"who": {"queued_fraction": 0.5}, "used": {"throttled_fraction": 0.8, "idle_cores": 6.0}}
OTHERS = {"own_cpu_s": 6.0, "everyone_cpu_s": 78.0, "idle_cores": 0.1}
CHUNKS = Reads(2000 * BATCH, 2000 * BATCH, seconds=10.0)
IN_HDF5 = seen(at("reads"), None, None)
IN_HDF5 = replace(IN_HDF5, lines=[replace(IN_HDF5.lines[0], line="h5py.__getitem__ (train.py:12)")])
MAPPED = Reads(0, 100 * BATCH, seconds=10.0)
LITTLE = Reads(BATCH, 0, seconds=10.0)
PASSES = {"load": ([2.0] + [0.0] * 24) * 4, "other": [0.02] * 100}
"""Four later passes of 25 steps, each of which waits for its first batch alone."""
FILLS: dict[str, Any] = {"parts": PASSES, "who": {"refill_s": 8.0, "passes": 5}}
STARTS: dict[str, Any] = {"parts": PASSES, "who": {"refill_s": 8.0, "passes": 5, "workers_stay": False}}
STARTED = replace(seen({"start": 72.0, "reads": 8.0}, None, None), start_s=[1.8] * 8)
LONGER = {"load": 0.005, "forward": 0.09, "communication": 0.005}
SHORTER = {"load": 0.005, "forward": 0.015, "communication": 0.08}
SLOW_RANK = (fed(EXCHANGE, SHORTER), fed(COMPUTE, LONGER, rank=1))
FEWER_BATCHES = (fed(COMPUTE), fed(COMPUTE, rank=1, steps=60))
IN_NUMPY = replace(IN_HDF5, lines=[replace(IN_HDF5.lines[0], line="numpy.load (train.py:12)")])
IN_PICTURES = replace(IN_HDF5, lines=[replace(IN_HDF5.lines[0], line="PIL.load (train.py:12)")])
FLUSHES = {"save": 84.0, "runs": 3.0}
"""Flushing a mapped file keeps Python's lock: nothing else is seen, and a clock says how much of it computes."""
LOOPS = {
    "two workers open and read small files": case("storage/reads", loop(at("reads"))),
    "a loop without workers reads files": case("storage/reads", loop({}, load=at("reads"), workers=0)),
    "an LMDB file is not in memory": case("storage/mapped_pages", loop(at("faults"), reads=MAPPED)),
    "a chunk of HDF5 holds twenty samples": case(
        "storage/amplification", loop(at("reads"), reads=CHUNKS, looks=IN_HDF5), counted=True
    ),
    "large photographs are made smaller": case("storage/reads", loop(at("reads"), reads=CHUNKS), counted=True),
    "two workers augment photographs": case("preprocessing/decode", loop(DECODE)),
    "a loop without workers decodes": case("preprocessing/decode", loop({}, load=DECODE, workers=0)),
    "workers pad sentences to a batch": case("preprocessing/collate", loop(at("collate"))),
    "the loop always waits while it takes what a worker that collates hands on": case(
        "preprocessing/collate",
        loop(at("collate"), load={"hand_over": 80.0}, who={"loading_thread_busy_fraction": 0.05}),
        lost=0.684,
    ),
    "workers pickle lists of arrays": case("preprocessing/hand_over", loop(at("hand_over"))),
    "the loop unpickles what idle workers have sent": case(
        "preprocessing/hand_over", loop(at("idle"), load={"hand_over": 72.0, "waits_for_readers": 8.0})
    ),
    "workers fill a shuffle buffer in each pass": case(
        "preprocessing/shuffle_buffer", loop({"shuffle": 72.0, "reads": 8.0}, **FILLS), lost=0.8
    ),
    "the loop itself fills a shuffle buffer in each pass": case(
        "preprocessing/shuffle_buffer", loop({}, load={"shuffle": 80.0}, workers=0, **FILLS), lost=0.8
    ),
    "a quota is used up in most periods": case("client_cpu/cores", loop(DECODE, workers=4, **QUOTA), lost=None),
    "eight decoding workers on a machine with two cores": case("client_cpu/cores", loop(DECODE, **CROWD)),
    "four workers bound to one core of eight": case("client_cpu/affinity", loop(DECODE, workers=4, **BOUND)),
    "workers take turns at a file's lock": case("waiting/lock", loop(at("lock"))),
    "the loop's body waits for a lock": case("waiting/lock", fed(of_body("lock")), lost=0.85),
    "workers ask a database for each sample": case("waiting/socket", loop(at("socket"))),
    "workers wait until ffmpeg has ended": case("waiting/child_process", loop(at("child_process"))),
    "workers read what a shell command prints": case("waiting/child_process", loop(at("pipe"))),
    "workers are started in each pass, and import": case(
        "waiting/worker_start", loop({"start": 72.0, "reads": 8.0}, looks=STARTED, **STARTS), lost=0.8
    ),
    "a shard for four workers": case("waiting/no_shard", loop({"ended": 60.0, "decode": 20.0}, workers=4), lost=None),
    "two workers sleep in a rate limiter": case("waiting/sleep", loop(at("sleep"))),
    "the body sleeps between two polls": case("waiting/sleep", fed(of_body("sleep")), lost=0.85),
    "the body flushes a mapped file": case(
        "waiting/checkpoint", fed(FLUSHES, who={"body_busy_fraction": 0.29}), lost=0.94
    ),
    "whole volumes are loaded for one slice each": case(
        "storage/amplification", loop(at("reads"), looks=IN_NUMPY, reads=CHUNKS)
    ),
    "pictures are made smaller": case("storage/reads", loop(at("reads"), looks=IN_PICTURES, reads=CHUNKS)),
    "the body saves its weights in each step": case("waiting/checkpoint", fed(of_body("writes")), lost=0.85),
    "the node swaps": case(
        "waiting/memory", loop(at("faults"), used={"memory_stall_fraction": 0.9}, reads=LITTLE), lost=None
    ),
    "workers wait in a call that no one knows": case("waiting", loop(at("other"))),
    "rank 1 computes longer, and rank 0 waits for it": case("imbalance/slow_rank", *SLOW_RANK, lost=0.75),
    "rank 1 has 60 batches, rank 0 has 100": case("imbalance/fewer_batches", *FEWER_BATCHES, lost=None),
    "a model computes": case("compute/compute", fed(COMPUTE), lost=0.95),
    "readers that are ahead sleep": case("compute/compute", loop({"sleep": 5.0}, body=COMPUTE, step=FED), lost=0.95),
    "gradients take a tenth of a step": case(
        "compute/compute", *fed_ranks({"runs": 85.0, "exchange": 10.0}, MARKED), lost=0.85
    ),
    "gradients take half of a step": case(
        "communication/communication", *fed_ranks({"runs": 45.0, "exchange": 50.0}, EXCHANGES), lost=0.5
    ),
    "two workers read as long as they decode": case("mixed", loop({"reads": 40.0, "decode": 40.0}), lost=None),
    "two ranks wait for each other, which is not marked": case("cannot_tell", *fed_ranks(EXCHANGE), lost=None),
    "another program keeps seven of eight cores busy": case(
        "cannot_tell", loop(DECODE, who={"queued_fraction": 0.6}, used=OTHERS), lost=None
    ),
}


def rows() -> set[str]:
    """Verdicts and causes of docs/causes.md, in the words of `said`."""
    page = Path(__file__).parents[3] / "docs" / "causes.md"
    cells = [line.split("|")[1:3] for line in page.read_text().splitlines() if line.startswith("| `")]
    pairs = [(name.strip(" `"), cause.strip()) for name, cause in cells]
    return {name if cause == "none" else f"{name}/{cause.strip('`')}" for name, cause in pairs}


def test_every_row_of_the_page_has_a_loop() -> None:
    assert {one.said for one in LOOPS.values()} == rows() - {"none"}  # a loop of someone else is not emulated


EXCHANGED = "communication"


def exchanging(computes_s: float, exchanges_s: float, part: str = EXCHANGED, rank: int = 0) -> RankSamples:
    """A rank of a trial whose input keeps up."""
    step = {"load": 0.0, "forward": computes_s / 2, "backward": computes_s / 2, part: exchanges_s}
    body = {"runs": 1000 * computes_s, "exchange": 1000 * exchanges_s}
    return trial({"idle": 1.0}, RESTING, stall=0.0, computed=step, body=body, rank=rank)


READS = trial(at("reads"), READING)
KEEPS_UP = trial({"idle": 2.0}, RESTING, stall=0.02)
CLIENT = trial(at("socket"), {**READING, "read_cpu_s": 0.7}, block={"client_thread_s": 0.97})
AS_LONG = trial({"reads": 40.0, "decode": 40.0}, {"read_s": 0.45, "read_cpu_s": 0.0, "decode_s": 0.45})
SLOWER = (exchanging(0.02, 0.06), exchanging(0.08, 0.0, rank=1))
TENTH, HALF, BUBBLE = (
    tuple(exchanging(computes_s, waits_s, part, rank) for rank in (0, 1))
    for computes_s, waits_s, part in ((0.036, 0.004, EXCHANGED), (0.04, 0.04, EXCHANGED), (0.04, 0.04, "bubble"))
)
TRIALS = {
    "readers read files": case("storage/reads", READS),
    "a library maps files": case("storage/mapped_pages", trial(at("faults")), reads_told=False, maps_files=True),
    "readers decode": case("preprocessing/decode", trial(DECODE, DECODING)),
    "readers stack batches": case("preprocessing/collate", trial(at("collate"), COLLATING)),
    "eight readers share two cores with the model": case(
        "client_cpu/cores", trial({"decode": 80.0}, DECODING, queued=0.1, **CROWD), lost=None, cores=2
    ),
    "a thread of a bucket's client fills its core": case("client_cpu/cores", CLIENT, lost=None),
    "a service is asked, which clocks take for reads": case("waiting/socket", trial(at("socket"), READING)),
    "a dataset sleeps, which clocks take for decoding": case("waiting/sleep", trial(at("sleep"), DECODING)),
    "a dataset waits for a child process": case("waiting/child_process", trial(at("child_process")), reads_told=False),
    "the input keeps up": case("compute/compute", KEEPS_UP, lost=0.98),
    "an emulated device is fed": case("none", KEEPS_UP, lost=None, emulated=True),
    "an emulated device starves": case("storage/reads", READS, emulated=True),
    "a tenth of the step is communication": case("compute/compute", *TENTH, lost=0.9),
    "half of the step is communication": case("communication/communication", *HALF, lost=0.5),
    "half of the step is a pipeline's bubble": case("communication/communication", *BUBBLE, lost=0.5),
    "rank 1 computes four times as long": case("imbalance/slow_rank", *SLOWER, lost=0.75),
    "readers read as long as they decode": case("mixed", AS_LONG, lost=None),
    "nothing tells what readers are at": case(
        "cannot_tell", trial({"reads": 80.0}, looks=NOTHING), lost=None, reads_told=False
    ),
}


MB = 1_000_000
CROWDED = trial({"idle": 2.0}, RESTING, stall=0.02, queued=0.5, used={"idle_cores": 0.02, "everyone_cpu_s": 33.0})
"""In half of its steps the model waits for a core, in its ceilings as well."""
DISTURBED = replace(READS, reads=Reads(100 * MB, 100 * MB, 100 * MB, "diskstats vda", 2000 * MB, True))
"""Others read 1.9 GB while the trial reads 0.1 GB."""
BYTES = {"delivered_bytes": 100 * MB, "read_call_bytes": 100 * MB, "process_storage_bytes": 100 * MB}
MOUNT = BYTES | {"mount_read_bytes": 2000 * MB, "mount_counter": "diskstats vda"}
UNSURE = "cannot_tell or waiting"
NOT_SHOWN = {
    "a loop queued for longer than it lasted": doubt(loop(DECODE, queue_s=14.0)),
    "readers ran 150 %": doubt(loop(DECODE, who={"busy_fraction": 1.5})),
    "readers queued 150 %": doubt(loop(DECODE, who={"queued_fraction": 1.5})),
    "a quota was used up in 150 %": doubt(loop(DECODE, used={"throttled_fraction": 1.5})),
    "memory stalled 150 %": doubt(loop(DECODE, used={"memory_stall_fraction": 1.5})),
    "watching took 40 % of a step": doubt(loop(DECODE, instrument_s_per_step=0.04)),
    "a trial queued for longer than it lasted": doubt(trial(DECODE, DECODING, queued=1.4)),
    "a trial was faster than its input in memory": doubt(KEEPS_UP, more={"au": 1.3}),
    "the harness took 40 % of a step": doubt(replace(READS, instrument_s_per_step=0.08)),
    "others compute": doubt(CROWDED, more={"foreign_cpu_cores": 7.2}),
    "others read": doubt(DISTURBED, more=MOUNT),
    "one of eight cores is taken": case("preprocessing/decode", loop(DECODE, used={"everyone_cpu_s": 28.0})),
    "all steps shuffle": case("preprocessing/decode", loop({"shuffle": 72.0, "reads": 8.0}), lost=0.72),
    "six of eight workers have a shard": case(
        "preprocessing/decode", loop({"ended": 20.0, "decode": 60.0}, workers=8), lost=None
    ),
    "workers are asked for nothing": case(UNSURE, loop({"idle": 80.0}), lost=None),
    "the kernel shows no calls": case(UNSURE, loop({"reads": 80.0}, looks=NOTHING), lost=None),
    "no one looks": case(UNSURE, loop({"reads": 80.0}, looks=None), lost=None),
    "there are two looks": case(UNSURE, loop({"reads": 2.0}, body={"runs": 1.0}), lost=None),
    "the body touches pages, and nothing swaps": case("waiting", fed(of_body("faults")), lost=0.85),
}
SITUATIONS = {**LOOPS, **TRIALS, **NOT_SHOWN}


@pytest.mark.parametrize("one", list(SITUATIONS.values()), ids=SITUATIONS.keys())
def test_what_is_said(one: Case) -> None:
    """It has its number, and something to do where something is lost; alone of what computes is there nothing to do."""
    is_trial = len(one.ranks[0].blocks) > 1
    judged = judged_trial(*one.ranks, **one.setting) if is_trial else judged_loop(*one.ranks, **one.setting)
    assert said(judged) in one.said.split(" or ")
    if one.lost is not None:
        assert numbers(judged)[f"{said(judged)}_fraction"] == pytest.approx(one.lost, abs=0.01)
    if judged.cause is not None and judged.bottleneck != "compute":
        assert judged.remedies and judged.alternatives == ()
    assert judged.cause is None or judged.bottleneck not in ("mixed", "none", "cannot_tell")
    assert numbers(judged)


AS_MUCH = {"load": 0.045, "forward": 0.01, "communication": 0.045}
"""Reads and exchanges take as long."""
BETWEEN = [
    ([loop({"reads": 42.0, "decode": 38.0})], "mixed", {"storage/reads", "preprocessing/decode"}),
    ([loop({"sleep": 40.0, "collate": 40.0})], "mixed", {"waiting/sleep", "preprocessing/collate"}),
    ([loop({"decode": 40.0, "collate": 40.0})], "preprocessing", {"preprocessing/decode", "preprocessing/collate"}),
    ([loop({"lock": 40.0, "socket": 40.0})], "waiting", {"waiting/lock", "waiting/socket"}),
    ([loop({"reads": 16.0, "decode": 64.0})], "preprocessing/decode", set()),
    (
        [loop({"reads": 45.0}, body={"exchange": 45.0, "runs": 10.0}, step=AS_MUCH, rank=rank) for rank in (0, 1)],
        "mixed",
        {"storage/reads", "communication/communication"},
    ),
]


@pytest.mark.parametrize(("ranks", "expected", "alternatives"), BETWEEN)
def test_what_lies_near_is_named_beside(ranks: list[RankSamples], expected: str, alternatives: set[str]) -> None:
    judged = judged_loop(*ranks)
    assert (said(judged), set(judged.alternatives)) == (expected, alternatives)


STEPS = [(19, "cannot_tell"), (20, "preprocessing"), (29, "preprocessing"), (30, "preprocessing/decode")]


@pytest.mark.parametrize(("steps", "expected"), STEPS)
def test_few_steps_bear_no_cause_and_fewer_no_verdict(steps: int, expected: str) -> None:
    assert said(judged_loop(loop(DECODE, steps=steps))) == expected


def test_steps_of_all_blocks_of_a_trial_add_up() -> None:
    """Five blocks of 6: of the loader's there are 12."""
    assert said(judged_trial(trial(at("reads"), READING, steps=6))) == "storage/reads"
    assert said(judged_trial(trial(at("reads"), READING, steps=5))) == "storage"


def test_a_loop_without_steps_has_no_verdict() -> None:
    assert verdict({}, Setting(watched=True), [made_result(blocks=[])]) is None


def test_ranks_that_read_what_their_samples_hold_amplify_nothing() -> None:
    ranks = [loop(at("reads"), workers=1, rank=rank) for rank in range(8)]
    judged = judged_loop(*ranks)
    assert said(judged) == "storage/reads"
    assert numbers(judged)["amplification"] == pytest.approx(1.0)


def test_ranks_without_a_loader_that_exchange_are_judged() -> None:
    """Of synthetic data: their blocks are plain."""
    body = {"exchange": 50.0, "runs": 50.0}
    ranks = [found([made_block("plain", 0.0, COMPUTED, 100)], {}, None, body, workers=0, rank=rank) for rank in (0, 1)]
    spec = made_spec(world_size=2, parallelism="ddp", data={"source": "synthetic"}, measure={"steps": 100})
    judged = verdict(figures(spec, ranks), Setting(0, 2, cores=8, threads=1), ranks)
    assert judged is None or judged.cause is None


def test_ranks_that_only_wait_for_each_other_are_judged() -> None:
    ranks = [
        loop({"idle": 5.0}, body={"exchange": 100.0}, step={"load": 0.0, "body": 0.04}, rank=rank) for rank in (0, 1)
    ]
    assert judged_loop(*ranks).bottleneck != "imbalance"


def test_a_slow_rank_is_named() -> None:
    assert numbers(judged_loop(*SLOW_RANK))["slowest_rank"] == 1
    assert numbers(judged_trial(*SLOWER))["slowest_rank"] == 1


COOL = Clocks(cpu_mhz=3000.0, cpu_throttled=0, device_mhz=1980.0, device_c=61.0)
HOT = Clocks(cpu_mhz=2950.0, cpu_throttled=3, device_mhz=1215.0, device_c=84.0)


@pytest.mark.parametrize(
    ("ranks", "judged_as"), [(SLOW_RANK, judged_loop), (SLOWER, judged_trial)], ids=["loop", "trial"]
)
def test_what_is_different_where_the_slow_rank_runs_is_told(ranks: list[RankSamples], judged_as: Any) -> None:
    told = numbers(judged_as(*(replace(rank, clocks=HOT if rank.rank == 1 else COOL) for rank in ranks)))
    assert (told["slow_device_mhz"], told["fast_device_mhz"], told["slow_device_c"]) == (1215.0, 1980.0, 84.0)
    assert told["slow_cpu_throttled"] == 3 and "slow_cpu_mhz" not in told, "cores of equal parts differ by so much"
    alike = numbers(judged_as(*(replace(rank, clocks=COOL) for rank in ranks)))
    assert not [name for name in alike if name.startswith(("slow_device", "slow_cpu"))]


def test_a_rank_with_fewer_batches_is_told_with_a_number() -> None:
    """Both counts, or how they differ."""
    told = numbers(judged_loop(*FEWER_BATCHES)).values()
    assert {60, 100} <= set(told) or any(each == pytest.approx(value) for each in (40, 0.4, 0.6) for value in told)


COPYING = {"read_s": 0.8, "read_cpu_s": 0.78, "decode_s": 0.1}
"""Bytes come from the page cache."""
CLOCKS: dict[str, tuple[Words, Words, str]] = {
    "reads": ({"reads": 72.0, "decode": 20.0}, READING, "storage/reads"),
    "decodes": ({"decode": 90.0, "reads": 8.0}, DECODING, "preprocessing/decode"),
    "collates": ({"collate": 80.0, "decode": 10.0, "reads": 8.0}, COLLATING, "preprocessing/collate"),
    "copies from memory": ({"runs": 90.0}, COPYING, "preprocessing/decode or preprocessing"),
    "does neither": ({"sleep": 80.0, "decode": 20.0}, RESTING, UNSURE),
    "does not run in what it calls decoding": ({"sleep": 80.0, "decode": 8.0}, DECODING, UNSURE),
}


@pytest.mark.parametrize(("readers", "clocks", "expected"), CLOCKS.values(), ids=CLOCKS.keys())
@pytest.mark.parametrize("looks", [None, NOTHING], ids=["no looks", "empty looks"])
def test_clocks_of_readers_alone(readers: Words, clocks: Words, expected: str, looks: Looks | None) -> None:
    assert said(judged_trial(trial(readers, clocks, looks=looks))) in expected.split(" or ")


def test_bytes_that_came_from_memory_are_never_called_storage() -> None:
    """The kernel saw readers run all the time; which part of it was reading, only their clocks tell."""
    rank = trial({"runs": 80.0}, {"read_s": 0.8, "decode_s": 0.1}, looks=None)
    assert judged_trial(rank, more={"cache_hit_fraction": 1.0}, cache="warm").bottleneck != "storage"


UNCERTAIN = [
    (0.2, 0.02, "storage/reads", set()),
    (0.98, 0.01, "compute/compute", set()),
    (0.98, 0.2, "compute/compute", {"storage/reads"}),
    (0.8, 0.25, "storage/reads", {"compute/compute"}),
]


@pytest.mark.parametrize(("au", "au_error", "expected", "beside"), UNCERTAIN)
def test_the_other_end_of_an_uncertain_au(au: float, au_error: float, expected: str, beside: set[str]) -> None:
    judged = judged_trial(trial(at("reads"), READING, stall=1 - au), more={"au_error": au_error})
    assert (said(judged), set(judged.alternatives) - {expected}) == (expected, beside)


@pytest.mark.parametrize(
    ("au", "waits_for_cores", "expected", "beside"),
    [
        (0.89, 0.056, "mixed", {"compute/compute", "client_cpu/cores"}),
        (0.7, 0.25, "client_cpu/cores", set()),
        (0.7, 0.05, "cannot_tell", set()),
    ],
)
def test_beside_input_no_more_is_lost_for_cores_than_was_waited_for_them(
    au: float, waits_for_cores: float, expected: str, beside: set[str]
) -> None:
    slower = {"au": au, "input_stall_fraction": 0.02, "cpu_contention_fraction": waits_for_cores}
    judged = judged_trial(trial(at("decode"), RESTING, stall=0.02), more=slower)
    assert (said(judged), set(judged.alternatives)) == (expected, beside)


def names(judged: Judgement) -> list[str]:
    return [gain.name for gain in judged.remedies]


DONE: list[tuple[str, dict[str, Any], str]] = [
    ("reads", {"staged": True}, "staging"),
    ("reads", {"file_per_sample": False}, "shards"),
    ("faults", {"staged": True, "maps_files": True}, "staging"),
]


@pytest.mark.parametrize(("word", "setting", "done"), DONE)
def test_nothing_is_advised_that_is_done_already(word: str, setting: dict[str, Any], done: str) -> None:
    remedies = names(judged_trial(trial(at(word)), reads_told=False, **setting))
    assert remedies and done not in remedies


def test_workers_that_stay_are_not_told_to() -> None:
    remedies = names(judged_loop(loop({"shuffle": 80.0}, **FILLS)))
    assert remedies and "staying_workers" not in remedies


def test_what_is_not_done_yet_is_advised() -> None:
    assert {"staging", "shards"} <= set(names(judged_trial(READS)))


@pytest.mark.parametrize(("tensors", "helps"), [(400, "fewer_tensors"), (2, "smaller_tensors")])
def test_what_helps_handing_over_depends_on_the_number_of_tensors(tensors: int, helps: str):
    rank = loop(at("hand_over"), who={"batch_arrays": tensors})
    assert rank.looks is not None and rank.looks.inside is not None
    handing = replace(rank.looks, inside=replace(rank.looks.inside, handed_over=(2.0, 100)))
    judged = judged_loop(replace(rank, looks=handing))
    assert names(judged) == [helps]
    assert (numbers(judged)["batch_tensors"], numbers(judged)["hand_over_s"]) == (tensors, 0.02)


@pytest.mark.parametrize(("known", "cause"), [(True, "amplification"), (False, "reads")])
def test_bytes_beyond_the_samples_are_told_where_a_trial_reads_its_samples(known: bool, cause: str):
    rank = loop(at("reads"), reads=replace(CHUNKS, produced_bytes=BATCH), who={"batch_bytes": 0})
    judged = verdict(watched_figures([rank], True, True), Setting(2, 1, 8, samples_known=known), [rank])
    assert judged is not None and (judged.bottleneck, judged.cause) == ("storage", cause)
