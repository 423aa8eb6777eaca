"""Judging ends with a verdict or with none, whatever ranks have seen: zeros, a single look, nothing at all."""

from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchsuite.analysis.judging.setting import Setting
from benchsuite.analysis.judging.verdict import verdict
from benchsuite.analysis.metrics import figures, watched_figures
from benchsuite.inside.samples import Looks, RankSamples, Reads, SeenReaders, UsedCores
from benchsuite.results.store.verdicts import Cause
from tests.helpers.made import made_block, made_result, made_spec

WORDS = (
    *("reads", "writes", "faults", "decode", "collate", "hand_over", "shuffle", "runs", "start", "lock", "socket"),
    *("local_socket", "pipe", "writes_pipe", "child_process", "sleep", "save", "other", "exchange", "ended", "idle"),
    *("waits_for_readers", "unknown", "hidden", "memory"),
)
SHARES = st.none() | st.floats(0, 1)
SECONDS = st.sampled_from([0.0, 1e-6, 0.01, 3.0]) | st.floats(0, 1)
SOME_SECONDS, STEPS = st.sampled_from([1e-6, 0.01, 3.0]), st.sampled_from([5, 20, 40])
WORDS_SEEN = st.dictionaries(st.sampled_from(WORDS), st.sampled_from([0.0, 1.0]) | st.floats(0, 200), max_size=4)
INSIDE = st.builds(
    Looks,
    st.just({}),
    WORDS_SEEN,
    st.just({}),
    st.just({}),
    st.just([]),
    start_s=st.lists(SECONDS, max_size=2),
    collate_and_cpu_s=st.tuples(SECONDS, SECONDS),
)
LOOKS = st.none() | st.builds(
    Looks,
    WORDS_SEEN,
    WORDS_SEEN,
    WORDS_SEEN,
    st.dictionaries(st.just("/data"), st.integers(0, 50), max_size=1),
    st.just([]),
    collate_and_cpu_s=st.tuples(SECONDS, SECONDS),
    inside=st.none() | INSIDE,
)
READERS = st.builds(
    SeenReaders,
    st.integers(0, 3),
    SHARES,
    SHARES,
    SHARES,
    SHARES,
    SECONDS,
    st.integers(0, 4),
    st.booleans(),
    SHARES,
    SHARES,
    SHARES,
    st.lists(st.integers(0, 7), max_size=3, unique=True).map(tuple),
    st.integers(0, 1000),
    st.integers(1, 3),
)
CORES = st.builds(
    UsedCores,
    st.just("node"),
    st.lists(st.integers(0, 7), min_size=1, max_size=3, unique=True).map(tuple),
    st.floats(0.1, 10),
    SECONDS,
    SECONDS,
    SHARES,
    SHARES,
    st.none() | st.integers(1, 8),
    SHARES,
)
READS = st.none() | st.builds(Reads, *[st.none() | st.integers(0, 10**6)] * 3)


@st.composite
def ranks_of(draw: st.DrawFn, kinds: tuple[str, ...], parts: tuple[str, ...]) -> list[RankSamples]:
    """One to three ranks with the same kinds of blocks, each in its own time; those of a trial step alike."""
    found = []
    steps = draw(STEPS)
    for rank in range(draw(st.integers(1, 3))):
        blocks, start_s = [], 0.0
        for kind in kinds:
            step = {"load": draw(SECONDS), **{name: draw(SOME_SECONDS) for name in parts}}
            block = made_block(kind, start_s, step, steps if len(parts) > 1 else draw(STEPS))
            blocks.append(block if len(parts) > 1 else replace(block, totals=(block.num_steps, block.parts_s())))
            start_s = block.end_s
        seen = {"looks": draw(LOOKS), "seen_readers": draw(READERS), "used_cores": draw(st.none() | CORES)}
        found.append(made_result(rank, blocks, reads=draw(READS), **seen))
    return found


def is_answer(judged: Any) -> None:
    assert judged is None or judged.cause in (None, *get_args(Cause))


@settings(max_examples=100, deadline=None)
@given(ranks=ranks_of(("loader",), ("other",)), counted=st.sampled_from([None, False, True]), heard=st.booleans())
def test_of_a_watched_loop(ranks: list[RankSamples], counted: bool | None, heard: bool) -> None:
    setting = Setting(2, len(ranks), 2, watched=True)
    is_answer(verdict(watched_figures(ranks, counted, heard), setting, ranks))


TRIAL = ("ceiling", "loader", "ceiling", "loader", "ceiling")


@pytest.mark.parametrize(
    ("kinds", "source", "parts"),
    [
        (TRIAL, "storage", ("forward", "backward", "optimizer")),
        (TRIAL, "storage", ("forward", "backward", "communication", "optimizer")),
        (("plain",), "synthetic", ("forward", "backward", "optimizer")),
        (("loader",), "storage", ("forward", "backward", "optimizer")),
    ],
)
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_of_a_trial(data: st.DataObject, kinds: tuple[str, ...], source: str, parts: tuple[str, ...]) -> None:
    ranks = data.draw(ranks_of(kinds, parts))
    mode = "none" if len(ranks) == 1 else data.draw(st.sampled_from(["ddp", "fsdp"]))
    spec = made_spec(world_size=len(ranks), parallelism=mode, data={"source": source})
    setting = Setting(data.draw(st.integers(0, 2)), len(ranks), cores=8, threads=1)
    is_answer(verdict(figures(spec, ranks), setting, ranks))
