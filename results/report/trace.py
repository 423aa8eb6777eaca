"""The steps of a trial as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing: a process per rank.

The form is the Trace Event Format's: complete events (`ph` X) with `ts` and `dur` in microseconds, and names of
processes and threads as metadata (`ph` M).
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

Event = dict[str, Any]
BLOCKS, STEPS, PARTS = 1, 2, 3
THREADS = {BLOCKS: "blocks", STEPS: "steps", PARTS: "parts of steps"}
OTHER_CLOCK_S = 1.0
"""Ranks begin their first block together; one that seems to do so later is on a machine with another clock."""


def trace(samples: Mapping[str, Any], name: str = "") -> dict[str, Any]:
    """The trace of a trial's raw samples, as `ResultsStore.samples` gives them.

    Slices of a step are its parts (load, h2d, forward, backward, bubble, communication, optimizer) in the order in
    which they were first marked, each as long as the clock kept: a part that was marked several times in a step, as
    with gradient accumulation, is drawn as one slice of their sum. Steps outside the counted blocks were not kept and
    are gaps.
    """
    ranks = [rank for rank in samples["ranks"] if rank["blocks"]]
    starts = {rank["rank"]: rank["blocks"][0]["start_s"] for rank in ranks}
    earliest = starts[ranks[0]["rank"]] if ranks else 0.0
    near = [start for start in starts.values() if abs(start - earliest) <= OTHER_CLOCK_S]
    origin = min(near, default=0.0)
    events: list[Event] = []
    for rank in ranks:
        start = starts[rank["rank"]]
        zero = origin if abs(start - earliest) <= OTHER_CLOCK_S else start
        events += _named(rank["rank"])
        events += sorted(_slices(rank["rank"], rank["blocks"], zero), key=lambda event: (event["tid"], event["ts"]))
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"trial": name}}


def _named(rank: int) -> list[Event]:
    process = {"name": "process_name", "ph": "M", "pid": rank, "tid": 0, "args": {"name": f"rank {rank}"}}
    threads = [
        {"name": "thread_name", "ph": "M", "pid": rank, "tid": thread, "args": {"name": name}}
        for thread, name in THREADS.items()
    ]
    return [process, *threads]


def _slices(rank: int, blocks: Sequence[Mapping[str, Any]], zero: float) -> Iterator[Event]:
    """A rank's blocks, their steps, and the parts of these, one after another."""
    for number, block in enumerate(blocks):
        parts: Mapping[str, Sequence[float]] = block["parts"]
        steps = list(zip(*parts.values(), strict=True))
        start = block["start_s"] - zero
        ends = list(accumulate((seconds for step in steps for seconds in step), initial=start))
        yield _slice(rank, BLOCKS, f"{block['kind']} block", start, ends[-1], {"block": number, "steps": len(steps)})
        for at in range(len(steps)):
            own = ends[at * len(parts) : (at + 1) * len(parts) + 1]
            step = at * block.get("every", 1)  # of a watched loop only some may have been kept
            yield _slice(rank, STEPS, f"step {step}", own[0], own[-1], {"block": number})
            for part, begin, end in zip(parts, own[:-1], own[1:], strict=True):
                if end > begin:
                    yield _slice(rank, PARTS, part, begin, end, {})


def _slice(rank: int, thread: int, name: str, start_s: float, end_s: float, args: Mapping[str, Any]) -> Event:
    """A slice in whole nanoseconds, so that neighbours meet without overlapping."""
    begin, end = round(start_s * 1e9), round(end_s * 1e9)
    place = {"pid": rank, "tid": thread}
    return {"name": name, "ph": "X", "cat": THREADS[thread], "ts": begin / 1e3, "dur": (end - begin) / 1e3, **place} | (
        {"args": dict(args)} if args else {}
    )
