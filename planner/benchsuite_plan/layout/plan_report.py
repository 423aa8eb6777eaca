"""A plan as people and programs get it: columns and cells, sentences, and one object."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchsuite.results.render.tables import ABSENT
from benchsuite_plan.layout import assumptions
from benchsuite_plan.layout.candidates import Job
from benchsuite_plan.layout.layout_search import EQUAL, LEAST_FASTER, NUM_DRAWS, QUANTILES, Figure, Plan, Planned
from benchsuite_plan.layout.memory import usable_bytes
from benchsuite_plan.layout.models import params
from benchsuite_plan.layout.staged import in_words

COLUMNS: Mapping[str, str] = {
    "tp": "tensor-parallel ranks",
    "pp": "pipeline stages",
    "dp": "data-parallel replicas",
    "cp": "ranks that share a sequence (context parallelism)",
    "ep": "data-parallel ranks that share a layer's experts",
    "zero": "ZeRO stage, what replicas keep a share of only (1 optimizer, 2 gradients too, 3 weights too)",
    "mb": "samples a microbatch x microbatches a step",
    "v": "chunks a stage (interleaving)",
    "recompute": "which activations the backward pass computes again",
    "s/step": "seconds a step",
    "TFLOP/s": "of one device, without what is computed again",
    "MFU": "that over the device's peak",
    "memory GB": "GB (10^9 bytes) of the fullest device, of what it has (> where activations are not known)",
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


def as_object(job: Job, found: Plan, under: Mapping[str, Planned], samples: float | None, top: int) -> dict[str, Any]:
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
        "layouts": [asdict(each) for each in found.best[:top]],
        "not_runnable": [asdict(each) for each in found.refused[:top]],
        "why": why(found),
        "limits": limits(found, job),
        "helps": dict(found.savings),
        "too_large": None if found.too_large is None else asdict(found.too_large),
        "what_if": {name: asdict(each) for name, each in under.items()},
        "staging": None if found.staging is None else asdict(found.staging),
        "basis": basis(job),
        "notes": list(notes(job, found)),
        "measured": dict(job.measured),
        "assumptions": {
            name: asdict(each) for name, each in assumptions.ranges(job.machine.device.name, job.recipe).items()
        },
        "sources": [job.model.source, *job.machine.sources, *assumptions.sources(job.machine.device.name, job.recipe)],
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
        *(str(number) for number in (of.tp, of.pp, of.dp, of.cp, of.ep, of.zero)),
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
    return f"{share.value:.1%}".replace("-0.0%", "0.0%") if share.high > 0 else "0%"


PARTS = {
    "compute_s": "computation",
    "recompute_s": "recomputation",
    "tensor_s": "tensor-parallel exchange",
    "context_s": "exchange of keys and values",
    "expert_s": "tokens to experts and back",
    "pipeline_s": "sends between stages",
    "bubble_s": "bubble",
    "data_s": "exchange between replicas",
    "optimizer_s": "optimizer",
    "straggling_s": "stragglers",
    "input_s": "input",
}
LEAST_TOLD = 0.02
"""Share of a step from which on a part of it, or what would save it, is told."""


def words(found: Plan, job: Job) -> Iterator[str]:
    """What stands below the table: the best layout, why the second loses, what limits it, and what would help."""
    first = found.first
    rate = "" if first.mfu is None else f", {first.mfu.value:.0%} of the devices' peak"
    which = "The best layout that trials run" if found.best else "The fastest layout that fits"
    yield f"{which} is {first.name}: {_interval(first.step_s)} s a step{rate}."
    yield why(found)
    yield limits(found, job)
    if found.savings:
        listed = ", ".join(f"{change} saves {share:.0%}" for change, share in found.savings.items())
        yield f"What would help: {listed}."
    yield from excluded(found)


def why(found: Plan) -> str:
    """A sentence: how far the second of the best is behind, through which parts, and in what share of the draws."""
    if not found.best:
        first = found.refused[0]
        alone = len({each.reason for each in found.refused}) == 1
        which = "" if alone else f"the fastest of them ({first.name}) is refused: "
        return f"No layout that fits can run as a trial: {which}{first.reason}."
    if len(found.best) < 2:
        return f"No other layout {'that fits can run as a trial' if found.refused else 'fits'}."
    first, second = found.best[:2]
    lost = second.step_s.value - first.step_s.value
    named = f"The second-best layout ({second.name})"
    if lost < EQUAL * first.step_s.value:
        return f"{named} takes as long: nothing that is computed here tells them apart."
    by = {words: second.parts_s[name] - first.parts_s[name] for name, words in PARTS.items()}
    told = sorted((words for words in by if abs(by[words]) > 0.1 * lost), key=by.__getitem__, reverse=True)
    listed = ", ".join(f"{words} {by[words]:+.3g} s" for words in told)
    ahead = f"{named} takes {lost:.3g} s a step ({lost / first.step_s.value:.1%}) more: {listed}"
    slower = found.second_slower or 0.0
    doubt = ": too close to call" if QUANTILES[0] < slower < QUANTILES[1] else ""
    return f"{ahead}. It is the slower one in {slower:.0%} of {NUM_DRAWS:,} random draws of what is assumed{doubt}."


def limits(found: Plan, job: Job) -> str:
    """A sentence: the largest parts of the best layout's step, and its memory."""
    first = found.first
    shares = {words: first.parts_s[name] / first.step_s.value for name, words in PARTS.items()}
    told = sorted((words for words in shares if shares[words] >= LEAST_TOLD), key=shares.__getitem__, reverse=True)
    listed = ", ".join(f"{words} {shares[words]:.0%}" for words in told[:4])
    memory = f"{first.memory_bytes / 1e9:.0f} of {job.machine.device.memory_bytes / 1e9:.0f} GB"
    usable = f"Usable are {usable_bytes(job) / 1e9:.1f} GB of it; a GB is 10^9 bytes."
    return f"Its step goes to {listed}; a device holds {memory}. {usable}"


def excluded(found: Plan) -> Iterator[str]:
    """Faster layouts than the best that is told: those that trials refuse, and those that no device has room for."""
    best = found.first.step_s.value
    refused = found.refused[0] if found.best and found.refused else None
    if refused is not None and refused.step_s.value < best * (1 - LEAST_FASTER):
        yield f"{_faster(refused, best)} is refused by trials: {refused.reason}."
    if found.too_large is not None:
        yield f"{_faster(found.too_large, best)} needs {found.too_large.memory_bytes / 1e9:.0f} GB a device."


def _faster(of: Planned, best_s: float) -> str:
    named = f"{of.name}, microbatch {of.microbatch}, {_interval(of.step_s)} s a step"
    return f"A layout that is {1 - of.step_s.value / best_s:.0%} faster ({named})"


def basis(job: Job) -> str:
    """What the figures rest on, as a warning: what was measured on the machine, if anything."""
    device = job.machine.device.name
    known = assumptions.generation_of(device)
    of = f"on other {known} systems" if known else "on A100 systems"
    measured = " and the device_sample_s that was given" if job.model.device_sample_s is not None else ""
    if job.measured:
        listed = ", ".join(f"{name} {value:.3g}" for name, value in job.measured.items())
        return (
            f"Measured by probes: {listed}; all else of {job.machine.name} is from data sheets and published runs {of}."
        )
    return (
        f"Nothing was measured on {job.machine.name}: computed from its data sheets{measured}, with efficiencies of "
        f"published runs {of} (--explain tells columns and assumptions)."
    )


def notes(job: Job, found: Plan) -> tuple[str, ...]:
    """What is not known of the machine and the model, and what is taken instead."""
    machine, model, told = job.machine, job.model, []
    if machine.inter_node.oversubscription is None and job.nodes > 1:
        told.append(f"oversubscription of {machine.name}'s network is not known: taken as 1")
    told += _of_input(job)
    if machine.node_max_w is None and machine.device.tdp_w is not None:
        share = f"{job.typical.host_power:.0%}"
        told.append(f"power of {machine.name}'s nodes is not known: devices' and {share} for hosts")
    if not model.shaped:
        told.append(f"{model.name} ({model.kind}): planned with data parallelism and ZeRO only")
        if model.activations_per_sample is None:
            told.append(f"activations of {model.name} are not known: only its model states are checked against memory")
    if model.kind == "encoder-decoder":
        told.append("an encoder-decoder's layers count as their mean; activations as of the longer stack")
    if model.num_experts:
        told.append(f"{model.name}: every expert gets as many tokens; experts are dealt to ranks of dp, not split")
    return (*told, *([in_words(found.staging, job)] if found.staging else []))


def _of_input(job: Job) -> list[str]:
    """What is not known of storage and samples."""
    name, storage, model = job.machine.name, job.machine.storage, job.model
    if model.sample_bytes is None and model.bytes_per_token is None:
        return [f"bytes of a stored sample of {model.name} are not known: input is taken to keep up"]
    if storage.shared_read_bytes_per_s is None and job.staged:
        return [f"bandwidth of {name}'s shared file system is not known: nor when copying the dataset pays"]
    if storage.shared_read_bytes_per_s is None:
        return [f"bandwidth of {name}'s shared file system is not known: input is taken to keep up"]
    if storage.local_read_bytes_per_s is None:
        why = f"staging is not compared: storage.local_read_bytes_per_s of {name} is not known"
        return [f"input is assumed to be read from the shared file system ({why})"]
    return []
