"""Records of measured collectives: what was asked, the figures over ranks and samples, and why to doubt them."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any

import numpy as np

from benchsuite.analysis.record_builder import Measuring
from benchsuite.grid.point import Point
from benchsuite.probe.comm.request import DDP_MODES, GRADIENT_DTYPE, Cell, busbw_bytes_per_s, gradient_bytes
from benchsuite.probe.record import Measured
from benchsuite.results.render.words import binary
from benchsuite.results.report.probes import DDP_STEP
from benchsuite.results.store.record import CommFigures

STEADY = 0.25
"""Half the samples within a range of so much of the median: else the cell is not steady."""


def backend_of(point: Point) -> str:
    """Who carries the messages."""
    return "nccl" if point.spec.device == "cuda" else "gloo"


def spec_of(cell: Cell, point: Point, env: Mapping[str, Any]) -> dict[str, Any]:
    """What a record says was asked."""
    return {
        "op": cell.op,
        "algorithm": cell.algorithm,
        "dtype": cell.dtype,
        "num_bytes": cell.num_bytes,
        "in_place": cell.in_place,
        "torus": None,  # the squarest; of another shape in records of earlier versions
        **_where(point, env),
    }


def _where(point: Point, env: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "backend": backend_of(point),
        "device": point.spec.device,
        "world_size": point.spec.ranks,
        "nodes": len(env.get("nodes", [])) or 1,
    }


def ddp_specs(buckets: Sequence[int], point: Point, env: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What a record of training steps says was asked: each mode with each size of bucket."""
    how = {"dtype": GRADIENT_DTYPE[point.spec.device], "batch": "balanced"}
    for bucket_bytes in buckets:
        for mode in DDP_MODES:
            sizes = {"num_bytes": gradient_bytes(point.spec.device), "bucket_bytes": bucket_bytes}
            yield {"op": DDP_STEP, "algorithm": mode, **how, **sizes, **_where(point, env)}


def label_of(spec: Mapping[str, Any]) -> str:
    """What was measured, in words."""
    size = f"buckets of {binary(spec['bucket_bytes'])}" if spec["op"] == DDP_STEP else binary(spec["num_bytes"])
    return f"{spec['op']} {spec['algorithm']} {spec['dtype']} {size} {spec['backend']} {spec['world_size']} ranks"


def record_of(measuring: Measuring, ranks: Sequence[Mapping[str, Any]]) -> Measured:
    """The record of one cell as all ranks saw it."""
    spec, first = measuring.spec, ranks[0]
    if first["status"] != "ok":
        told = ((rank, line["reason"]) for rank, line in enumerate(ranks) if line["reason"])
        rank, reason = next(told, (0, "no reason given"))
        return measuring.record(first["status"], reason=f"rank {rank}: {reason}"), None
    seconds = slowest_s([rank["seconds"] for rank in ranks])
    found = figures(spec, seconds, ranks)
    details = caveats(measuring, seconds)
    samples = {"calls": first["calls"], "ranks": [rank["seconds"] for rank in ranks]}
    if first["extra"]:
        samples["extra"] = [rank["extra"] for rank in ranks]
    return measuring.record("ok", details=details, figures=found), samples


def step_figures(seconds: Sequence[float], extras: Sequence[Mapping[str, Any]]) -> CommFigures:
    """Medians over steps. `seconds`: of the slowest rank, step by step; `extras`: of each rank, seconds by part.

    Exposed communication is told twice: of the rank that waits longest (`communication_s`), and of the one that waits
    least (`communication_min_s`): the slowest of a step, which the others wait for, so that its wait is the wire's and
    not a straggler's. Tables, charts and overlap take the second, and of the exchange alone the same.
    """
    part = {
        name: np.array([extra[name] for extra in extras]) for name in ("forward_s", "backward_s", "communication_s")
    }
    alone_s = median(np.array([extra["alone_s"] for extra in extras]).min(axis=0).tolist())
    exposed_s = part["communication_s"].min(axis=0)
    p50, p95, p99 = np.percentile(seconds, (50, 95, 99))
    return CommFigures(
        forward_s=float(np.median(part["forward_s"].max(axis=0))),
        backward_s=float(np.median(part["backward_s"].max(axis=0))),
        communication_s=float(np.median(part["communication_s"].max(axis=0))),
        communication_min_s=float(np.median(exposed_s)),
        step_s_mean=fmean(seconds),
        step_s_p50=float(p50),
        step_s_p95=float(p95),
        step_s_p99=float(p99),
        comm_s=alone_s,
        overlap_fraction=1 - float(np.median(exposed_s)) / alone_s,
    )


def slowest_s(seconds: Sequence[Sequence[float]]) -> list[float]:
    """Sample by sample, the slowest rank's."""
    return [max(sample) for sample in zip(*seconds, strict=False)]  # one may have been ended a round earlier


def figures(spec: Mapping[str, Any], seconds: Sequence[float], ranks: Sequence[Mapping[str, Any]]) -> CommFigures:
    """Medians and the middle 90 % over samples; of a DDP step what its ranks have told."""
    middle = median(seconds)
    low, high = np.percentile(seconds, (5, 95)).tolist()
    if spec["op"] == DDP_STEP:
        return step_figures(seconds, [rank["extra"] for rank in ranks])
    counted = None not in [rank["messages"] for rank in ranks]
    return CommFigures(
        comm_s=middle,
        comm_s_p5=low,
        comm_s_p95=high,
        algbw_bytes_per_s=spec["num_bytes"] / middle,
        busbw_bytes_per_s=busbw_bytes_per_s(spec["op"], spec["world_size"], spec["num_bytes"], middle),
        comm_messages=sum(rank["messages"] for rank in ranks) if counted else None,
        comm_sent_bytes=sum(rank["sent_bytes"] for rank in ranks) if counted else None,
    )


def caveats(measuring: Measuring, seconds: Sequence[float]) -> list[str]:
    """Why a time must not be trusted blindly: a name, a colon, the arithmetic."""
    details = []
    spec, nodes = measuring.spec, measuring.env.get("nodes", [])
    crowded = [(node["ranks"][1] - node["ranks"][0] + 1, node["cores"]) for node in nodes]
    num_ranks, cores = max(crowded, key=lambda one: one[0] / one[1], default=(spec["world_size"], 1 << 30))
    if spec["device"] == "cpu" and num_ranks > cores:
        details.append(f"oversubscribed: {num_ranks} ranks on {cores} cores")
    low, high = np.percentile(seconds, (25, 75)).tolist()
    if high - low > STEADY * median(seconds):
        details.append(f"not_steady: half of the samples lie {low * 1e6:.0f} to {high * 1e6:.0f} us")
    return details
