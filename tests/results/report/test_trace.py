"""The timeline of a trial: slices by the Trace Event Format, as long as the steps that were kept."""

import json
from collections import defaultdict
from typing import Any

import pytest

from benchsuite.results.report.trace import BLOCKS, PARTS, STEPS, trace

STEP = {"load": 0.004, "h2d": 0.0, "forward": 0.01, "backward": 0.0200004, "communication": 0.003, "optimizer": 1e-7}


def made_samples(ranks: int = 2, blocks: int = 3, steps: int = 4, start_s: float = 5000.25) -> dict[str, Any]:
    """Blocks a second apart, each rank a little later than the one before it."""
    return {
        "record_id": "one",
        "ranks": [
            {
                "rank": rank,
                "blocks": [
                    {
                        "kind": "loader" if number % 2 else "ceiling",
                        "start_s": start_s + number + 0.0001 * rank,
                        "end_s": start_s + number + 0.0001 * rank + steps * sum(STEP.values()),
                        "parts": {part: [seconds] * steps for part, seconds in STEP.items()},
                    }
                    for number in range(blocks)
                ],
            }
            for rank in range(ranks)
        ],
    }


def slices(made: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in made["traceEvents"] if event["ph"] == "X"]


def by_thread(made: dict[str, Any]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    found: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in slices(made):
        found[event["pid"], event["tid"]].append(event)
    return found


def test_events_are_of_the_trace_event_format() -> None:
    made = json.loads(json.dumps(trace(made_samples(), "files")))
    assert made["displayTimeUnit"] == "ms" and made["otherData"] == {"trial": "files"}
    for event in made["traceEvents"]:
        assert isinstance(event["name"], str) and isinstance(event["pid"], int) and isinstance(event["tid"], int)
        assert event["ph"] in ("X", "M")
        if event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] >= 0
        else:
            assert event["name"] in ("process_name", "thread_name") and isinstance(event["args"]["name"], str)
    named = {event["pid"]: event["args"]["name"] for event in made["traceEvents"] if event["name"] == "process_name"}
    assert named == {0: "rank 0", 1: "rank 1"}


def test_slices_of_a_thread_follow_one_another_without_overlapping() -> None:
    for events in by_thread(trace(made_samples())).values():
        ends = [event["ts"] + event["dur"] for event in events]
        assert all(end <= after["ts"] + 1e-6 for end, after in zip(ends, events[1:], strict=False))


def test_parts_add_up_to_their_steps_and_steps_to_their_blocks() -> None:
    found = by_thread(trace(made_samples()))
    for rank in (0, 1):
        blocks, steps, parts = (found[rank, thread] for thread in (BLOCKS, STEPS, PARTS))
        assert (len(blocks), len(steps), len(parts)) == (3, 12, 60)  # h2d took no time and has no slice
        assert [step["dur"] for step in steps] == pytest.approx([1e6 * sum(STEP.values())] * 12, abs=0.01)
        assert sum(part["dur"] for part in parts) == pytest.approx(sum(step["dur"] for step in steps), abs=0.01)
        assert sum(block["dur"] for block in blocks) == pytest.approx(sum(step["dur"] for step in steps), abs=0.01)
        for step in steps:
            inside = [part for part in parts if step["ts"] <= part["ts"] < step["ts"] + step["dur"]]
            assert [part["name"] for part in inside] == ["load", "forward", "backward", "communication", "optimizer"]
            assert [part["dur"] for part in inside] == pytest.approx(
                [1e6 * seconds for seconds in STEP.values() if seconds], abs=0.01
            )


def test_blocks_begin_where_the_host_clock_says() -> None:
    found = by_thread(trace(made_samples()))
    for rank in (0, 1):
        assert [block["ts"] for block in found[rank, BLOCKS]] == pytest.approx(
            [1e6 * (number + 0.0001 * rank) for number in range(3)], abs=0.01
        )
        assert [block["name"] for block in found[rank, BLOCKS]] == ["ceiling block", "loader block", "ceiling block"]


def test_ranks_of_another_machine_begin_together() -> None:
    samples = made_samples()
    for block in samples["ranks"][1]["blocks"]:
        block["start_s"] += 86_400
    found = by_thread(trace(samples))
    assert found[0, BLOCKS][0]["ts"] == found[1, BLOCKS][0]["ts"] == 0
    assert found[1, BLOCKS][1]["ts"] == pytest.approx(1e6)


def test_the_order_is_that_in_which_parts_were_marked() -> None:
    samples = made_samples(ranks=1, blocks=1, steps=1)
    samples["ranks"][0]["blocks"][0]["parts"] = {
        "load": [1.0],
        "communication": [2.0],
        "forward": [3.0],
        "bubble": [4.0],
    }
    parts = by_thread(trace(samples))[0, PARTS]
    assert [part["name"] for part in parts] == ["load", "communication", "forward", "bubble"]
    assert [part["ts"] for part in parts] == [0, 1e6, 3e6, 6e6]


def test_samples_without_blocks_give_no_slices() -> None:
    assert trace({"ranks": [{"rank": 0, "blocks": []}]})["traceEvents"] == []
