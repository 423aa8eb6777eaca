"""Exposed communication by a trace of PyTorch's profiler, Kineto's: where steps cannot be marked, and beside marks."""

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Span = tuple[float, float]
WAIT = "_c10d_functional::wait_tensor"
COMPILED = "## Call CompiledFxGraph"
"""What the profiler calls the run of a compiled graph, with the graph's name behind it."""


def exposed_s(trace: Path, steps: int) -> float:
    """Seconds a step in which kernels of NCCL ran and no other, of so many steps in a trace."""
    spans: dict[bool, list[Span]] = {True: [], False: []}
    for kernel in _events(trace):
        if kernel.get("cat") == "kernel":
            spans["nccl" in kernel["name"].lower()].append(_span(kernel))
    return (_covered(spans[True] + spans[False]) - _covered(spans[False])) / 1e6 / steps


def waited_in_compiled_s(trace: Path, steps: int) -> float:
    """Seconds a step in which compiled graphs waited for collectives on a CPU, of so many steps in a trace."""
    events = [event for event in _events(trace) if event.get("ph") == "X"]
    graphs = [event for event in events if event["name"].startswith(COMPILED)]
    total_us = 0.0
    for thread in {event["tid"] for event in graphs}:
        inside = [_span(event) for event in graphs if event["tid"] == thread]
        waits = [_span(event) for event in events if event["tid"] == thread and event["name"] == WAIT]
        total_us += _covered(inside) + _covered(waits) - _covered(inside + waits)
    return total_us / 1e6 / steps


def _events(trace: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    return events


def _span(event: dict[str, Any]) -> Span:
    return event["ts"], event["ts"] + event["dur"]


def _covered(spans: Iterable[Span]) -> float:
    """The length of a union of spans."""
    total, end = 0.0, float("-inf")
    for begin, stop in sorted(spans):
        total += max(0.0, stop - max(begin, end))
        end = max(end, stop)
    return total
