"""A plan as people and programs get it: columns and cells, sentences, and one object."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchsuite.predict.layout.assumptions import RANGES
from benchsuite.predict.layout.job import Job
from benchsuite.predict.layout.layout_search import Figure, Plan, Planned
from benchsuite.predict.layout.messages import basis
from benchsuite.predict.layout.shape import params
from benchsuite.results.render.tables import ABSENT

COLUMNS: Mapping[str, str] = {
    "tp": "tensor-parallel ranks",
    "pp": "pipeline stages",
    "dp": "data-parallel replicas",
    "zero": "ZeRO stage, what replicas keep a share of only (1 optimizer, 2 gradients too, 3 weights too)",
    "mb": "samples a microbatch x microbatches a step",
    "v": "chunks a stage (interleaving)",
    "recompute": "which activations the backward pass computes again",
    "s/step": "seconds a step",
    "TFLOP/s": "of one device, without what is computed again",
    "MFU": "that over the device's peak",
    "memory GB": "of the fullest device, of what it has (> where activations are not known)",
    "bubble": "share of the step that stages wait for each other",
    "comm": "share of the step that goes to exchange which computation does not hide",
    "input": "share of the step that waits for input",
    "days": "the whole training",
    "device-h": "the same in hours of one device",
    "kWh": "energy of it, hosts included",
}
"""Headings, and what stands below them."""
INTERVAL = "[ ]: 90 % interval over the ranges of what is assumed (--format json lists them)"


def explained(headings: Iterable[str] = COLUMNS) -> str:
    """Headings with what they are, as one paragraph."""
    return "; ".join([*(f"{heading}: {COLUMNS[heading]}" for heading in headings), INTERVAL]) + "."


HEADINGS = tuple(COLUMNS)


def as_object(job: Job, found: Plan, under: Mapping[str, Planned], samples: float | None) -> dict[str, Any]:
    """Everything for JSON, the assumptions with their ranges included."""
    return {
        "model": job.model.name,
        "machine": job.machine.name,
        "devices": job.devices,
        "batch": job.batch,
        "precision": job.precision,
        "staged": job.staged,
        "samples": samples,
        "interval": 0.9,
        "valid": found.num_valid,
        "fitting": found.num_fitting,
        "runnable": found.num_runnable,
        "layouts": [asdict(each) for each in found.best],
        "not_runnable": [asdict(each) for each in found.refused],
        "why": found.why,
        "what_if": {name: asdict(each) for name, each in under.items()},
        "staging": None if found.staging is None else asdict(found.staging),
        "basis": basis(job),
        "notes": list(found.notes),
        "assumptions": {name: asdict(each) for name, each in RANGES.items()},
        "sources": [job.model.source, *job.machine.sources],
    }


def reasons(refused: Sequence[Planned]) -> dict[str, str]:
    """Each reason why trials refuse layouts, with the numbers of these."""
    found: dict[str, list[str]] = {}
    for each in refused:
        found.setdefault(str(each.reason), []).append(str(each.rank))
    return {reason: ", ".join(ranks) for reason, ranks in found.items()}


def title(job: Job, samples: float | None) -> tuple[str, ...]:
    """What is planned."""
    model, machine = job.model, job.machine
    size = f"{params(model) / 1e9:.4g} billion parameters"
    length = f", {model.tokens} tokens a sample" if model.shaped else ""
    far = "" if samples is None else f", {samples * model.tokens:.3g} {'tokens' if model.shaped else 'samples'} in all"
    return (
        f"{model.name} ({size}{length}) on {job.devices} x {machine.device.name} of {machine.name}, "
        f"{job.batch} samples a step, {job.precision}{far}",
    )


def cells(of: Planned, memory_bytes: float) -> tuple[str, ...]:
    """One for each of HEADINGS."""
    return (
        *(str(number) for number in (of.tp, of.pp, of.dp, of.zero)),
        f"{of.microbatch} x {of.num_microbatches}",
        str(of.interleave),
        of.recompute,
        _interval(of.step_s),
        ABSENT if of.tflops_per_device is None else f"{of.tflops_per_device.value:.0f}",
        _interval(of.mfu, digits=2),
        f"{'' if of.activation_bytes is not None else '>'}{of.memory_bytes / 1e9:.1f} of {memory_bytes / 1e9:.0f}",
        *(_percent(share) for share in (of.bubble_share, of.communication_share, of.input_share)),
        _interval(of.days),
        *(ABSENT if figure is None else f"{figure.value:,.0f}" for figure in (of.device_hours, of.energy_kwh)),
    )


def _interval(figure: Figure | None, digits: int | None = None) -> str:
    """A value and its bounds, to three digits of the value."""
    if figure is None:
        return ABSENT
    if digits is None:
        digits = max(0, 2 - math.floor(math.log10(figure.value))) if figure.value > 0 else 0
    return f"{figure.value:,.{digits}f} [{figure.low:,.{digits}f}, {figure.high:,.{digits}f}]"


def _percent(share: Figure) -> str:
    return f"{share.value:.1%}" if share.high > 0 else "0%"
