"""Search of layouts: what is valid and fits, ranked by predicted step time; what the first is ahead by; what if.

What trials refuse is ranked apart from what they run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from benchsuite.contract.errors import UserError, refuse
from benchsuite.predict.theory.arrays import Floats
from benchsuite_plan.layout import runnable, staged
from benchsuite_plan.layout.assumptions import Assumptions
from benchsuite_plan.layout.candidates import RECOMPUTE, Choices, Ints, Job, Layouts, layers_of, valid_layouts
from benchsuite_plan.layout.cost import cost
from benchsuite_plan.layout.memory import Footprint, footprint
from benchsuite_plan.layout.models import train_flops_per_sample
from benchsuite_plan.layout.staged import Staging
from benchsuite_plan.layout.step import Cost

NUM_DRAWS = 2000
EQUAL = 1e-3
"""Share of a step below which two layouts count as equal."""
QUANTILES = (0.05, 0.95)
LEAST_FASTER = 0.01
"""Share of a step from which on a layout that was left out is told."""
LEAST_SAVED = 0.02
"""Share of a step from which on what would save it is told."""
EVEN = 64
"""A vocabulary of such a multiple is no slower than its products, on up to eight tensor-parallel ranks."""
STAGING = "staging"
CHANGES = ("network", "storage", "device", "data", STAGING)
"""What `what_if` may change: times a factor; input staged, which has none."""
LEAST_FACTOR, MOST_FACTOR = 1e-6, 1e6
"""Bounds of a what-if's factor."""


@dataclass(frozen=True)
class Figure:
    """A prediction with the bounds of its 90 % interval; the bounds are the value where it is exact."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Planned:
    """One layout with what is predicted of it; None where the machine or the model does not tell."""

    rank: int
    tp: int
    pp: int
    dp: int
    zero: int
    microbatch: int
    num_microbatches: int
    interleave: int
    recompute: str
    cp: int
    ep: int
    stage_layers: tuple[int, int, int]
    """Layers of the first rank of a pipeline, the most of any rank, and those of the last."""
    step_s: Figure
    samples_per_s: Figure
    tflops_per_device: Figure | None
    mfu: Figure | None
    memory_bytes: float
    activation_bytes: float | None
    bubble_share: Figure
    communication_share: Figure
    input_share: Figure
    parts_s: dict[str, float]
    days: Figure | None
    device_hours: Figure | None
    energy_kwh: Figure | None
    runnable: bool
    """Whether trials run it."""
    reason: str | None
    """Why they do not."""
    trial: dict[str, Any] | None
    """The layout as a trial's file has it; None where none can: of an untrained model, of other stages."""

    @property
    def name(self) -> str:
        """The layout in words, without degrees of 1."""
        found = {"tp": self.tp, "cp": self.cp, "pp": self.pp, "dp": self.dp, "ep": self.ep}
        words = [f"{name} {value}" for name, value in found.items() if value > 1 or name not in ("cp", "ep")]
        words += [f"zero {self.zero}", f"recompute {self.recompute}"]
        return " ".join(words) + (f" interleave {self.interleave}" if self.interleave > 1 else "")


@dataclass(frozen=True)
class Ranked:
    """Layouts that fit, fastest first; of those that differ only in microbatch and interleave, the fastest."""

    job: Job
    layouts: Layouts
    cost: Cost
    memory: Footprint
    num_valid: int
    num_fitting: int
    reasons: tuple[str | None, ...] = ()
    """Why trials refuse each layout, None where they run it; empty where nobody has asked."""

    def rank_of(self, **wanted: int) -> int | None:
        """The place, from 1, of the first layout with such degrees (tp=8, pp=35); None where there is none."""
        found = np.ones(len(self.layouts), dtype=bool)
        for name, value in wanted.items():
            found &= getattr(self.layouts, name) == value
        return int(np.argmax(found)) + 1 if found.any() else None


@dataclass(frozen=True)
class Plan:
    """The best layouts of a job, and what stood in the way of better ones."""

    best: tuple[Planned, ...]
    """The best layouts that trials run."""
    refused: tuple[Planned, ...]
    """The best layouts that trials refuse."""
    second_slower: float | None
    """Share of the draws in which the second of the best is slower than the first."""
    too_large: Planned | None
    """The fastest that is valid and does not fit, where it is faster than all that fit."""
    savings: Mapping[str, float]
    """Share of the best layout's step that a change would save, those that save most first."""
    num_valid: int
    num_fitting: int
    num_runnable: int
    staging: Staging | None = None
    """None where the machine or the model does not tell."""

    @property
    def first(self) -> Planned:
        """The best that trials run; where they run none, the best of the others."""
        return (*self.best, *self.refused)[0]


def ranked(job: Job, choices: Choices, given: Assumptions | None = None) -> Ranked:
    """Every layout that is valid and fits, fastest first, whether trials run it or not.

    Raises:
        UserError: nothing is valid, nothing fits (with the least memory and what would help), or input cannot be
            staged as asked.
    """
    return _tuned(_fitting(job, choices, given or job.typical))


def parted(job: Job, choices: Choices) -> tuple[Ranked, Ranked]:
    """The ranking in two: what trials run, and what they refuse. Microbatch and interleave are tuned within each.

    Raises:
        UserError: as `ranked`.
    """
    every = _fitting(job, choices, job.typical)
    reasons = runnable.why_not(job, every.layouts)
    refused = np.array([reason is not None for reason in reasons])
    every = replace(every, reasons=tuple(reasons))
    return _tuned(every, np.flatnonzero(~refused)), _tuned(every, np.flatnonzero(refused))


def _fitting(job: Job, choices: Choices, given: Assumptions) -> Ranked:
    """Every layout that is valid and fits, in no order, of all microbatches and interleaves."""
    check_size(job)
    staged.check(job)
    found = valid_layouts(job.model, job.machine, job.devices, job.batch, _useful(job, choices))
    memory = footprint(job, found)
    fitting = np.flatnonzero(memory.total <= memory.usable)
    if not fitting.size:
        raise _too_large(job, choices, found, memory)
    of = found.take(fitting)
    bytes_ = memory.take(fitting)
    return Ranked(job, of, cost(job, of, given), bytes_, len(found), len(fitting))


def _tuned(every: Ranked, some: Ints | None = None) -> Ranked:
    """The layouts, or some of them, fastest first and each once."""
    index = np.arange(len(every.layouts)) if some is None else some
    num_fitting = len(index)
    if index.size:
        index = index[_fastest_of_each(every.layouts.take(index), _taken(every.cost, index))]
    memory = every.memory.take(index)
    return Ranked(
        every.job,
        every.layouts.take(index),
        _taken(every.cost, index),
        memory,
        every.num_valid,
        num_fitting,
        tuple(every.reasons[at] for at in index) if every.reasons else (),
    )


def plan(job: Job, choices: Choices, samples: float | None = None, top: int = 10, seed: int = 0) -> Plan:
    """The best layouts with their intervals.

    `samples`: of the whole training; None leaves out days, device-hours and energy. Intervals are quantiles over
    `NUM_DRAWS` draws of the assumptions; the same draws for every layout, so that layouts are compared in pairs.
    """
    run, refused = parted(job, choices)
    given = job.drawn(NUM_DRAWS, seed)
    best, others = (_first(of, top, given, samples) for of in (run, refused))
    both = staged.staging(job, run.layouts if best else refused.layouts, samples)
    slower = None
    if len(best) > 1:
        steps = cost(job, run.layouts.take(np.arange(2)), given).step_s
        slower = float(np.mean(steps[:, 1] > steps[:, 0]))
    num_fitting = run.num_fitting + refused.num_fitting
    fastest = min(each.step_s.value for each in (*best[:1], *others[:1]))
    large = _too_large_but_faster(job, choices, given, fastest)
    saved = savings(job, (run if best else refused).layouts.take(np.array([0])))
    return Plan(best, others, slower, large, saved, run.num_valid, num_fitting, run.num_fitting, both)


def savings(job: Job, one: Layouts) -> dict[str, float]:
    """What changes of the machine or the batch would save of a layout's step (of a sample's time), the most first."""
    now = float(cost(job, one, job.typical).step_s[0])
    machines = {
        "a network twice as fast": job.machine.scaled(network=2.0),
        "links in the node twice as fast": job.machine.scaled(links=2.0),
        "storage twice as fast": job.machine.scaled(storage=2.0),
    }
    found = {
        words: 1 - float(cost(replace(job, machine=to), one, job.typical).step_s[0]) / now
        for words, to in machines.items()
    }
    if one.pp[0] > 1:
        twice, longer = replace(job, batch=2 * job.batch), replace(one, num_microbatches=2 * one.num_microbatches)
        found["twice the batch"] = 1 - float(cost(twice, longer, job.typical).step_s[0]) / now / 2
    if job.recipe == "trial" and (words := _even(job.model.vocab)) != job.model.vocab:
        even = replace(job, model=job.model.model_copy(update={"vocab": words}))
        found[f"a vocabulary of {words:,} words"] = 1 - float(cost(even, one, job.typical).step_s[0]) / now
    told = {what: share for what, share in found.items() if share >= LEAST_SAVED}
    return dict(sorted(told.items(), key=lambda each: -each[1]))


def _even(vocab: int | None) -> int | None:
    """A vocabulary whose part of a rank matrix units take whole."""
    return None if vocab is None else -(-vocab // EVEN) * EVEN


def _too_large_but_faster(job: Job, choices: Choices, given: Assumptions, step_s: float) -> Planned | None:
    """The layout that needs least memory of those that are faster than so and that no device has room for."""
    found = valid_layouts(job.model, job.machine, job.devices, job.batch, _useful(job, choices))
    memory = footprint(job, found)
    index = np.flatnonzero(memory.total > memory.usable)
    if not index.size:
        return None
    costs = cost(job, found.take(index), job.typical)
    faster = np.flatnonzero(costs.step_s < step_s * (1 - LEAST_FASTER))
    if not faster.size:
        return None
    at = faster[[int(np.argmin(memory.total[index[faster]]))]]
    bytes_ = memory.take(index[at])
    order = Ranked(job, found.take(index[at]), _taken(costs, at), bytes_, 0, 0, (None,))
    return _first(order, 1, given, None)[0]


def _first(order: Ranked, top: int, given: Assumptions, samples: float | None) -> tuple[Planned, ...]:
    """The first layouts of a ranking, with their intervals."""
    shown = np.arange(min(top, len(order.layouts)))
    draws = cost(order.job, order.layouts.take(shown), given)
    return tuple(_planned(order, draws, given, int(at), samples) for at in shown)


def what_if(
    job: Job, choices: Choices, changes: Mapping[str, float], samples: float | None = None, seed: int = 0
) -> dict[str, Planned]:
    """The best layout as things are, and under each change alone: network, storage, device as fast, data as much.

    `staging` has no factor: input from copies on the nodes' own drives.
    """
    found = {"as it is": plan(job, choices, samples, 1, seed).first}
    for name, factor in changes.items():
        if name not in CHANGES:
            raise refuse("--what-if", name, CHANGES)
        label = name if name == STAGING else f"{name} x{factor:g}"
        much = samples * factor if name == "data" and samples is not None else samples
        found[label] = plan(_changed(job, name, factor), choices, much, 1, seed).first
    return found


def parse_changes(text: str | None) -> dict[str, float]:
    """`network=2,storage=2` as numbers; `staging`, which has none, as 1.

    Raises:
        UserError: no such change, or no number within bounds.
    """
    found: dict[str, float] = {}
    for part in filter(None, (text or "").split(",")):
        name, equals, raw = part.partition("=")
        if name not in CHANGES:
            raise refuse("--what-if", name, CHANGES)
        if name == STAGING and equals:
            raise UserError(f"--what-if {part!r}: staging has no factor; give it alone")
        found[name] = 1.0 if name == STAGING else _factor(name, part, raw)
    return found


def _factor(name: str, part: str, raw: str) -> float:
    try:
        factor = float(raw)
    except ValueError:
        factor = 0.0
    if not LEAST_FACTOR <= factor <= MOST_FACTOR:
        allowed = f"{LEAST_FACTOR:g} to {MOST_FACTOR:g}"
        raise UserError(f"--what-if {part!r}: give {name}=FACTOR, such as {name}=2; allowed: {allowed}")
    return factor


def _changed(job: Job, name: str, factor: float) -> Job:
    """The job under one of CHANGES."""
    if name == STAGING:
        return replace(job, staged=True)
    return job if name == "data" else replace(job, machine=job.machine.scaled(**{name: factor}))


def check_size(job: Job) -> None:
    """Refuse devices that the machine has not, or that leave a node half used."""
    machine, each = job.machine, job.machine.devices_per_node
    if machine.nodes is not None and job.devices > machine.nodes * each:
        most = machine.nodes * each
        raise UserError(f"--devices {job.devices}: {machine.name} has {machine.nodes} nodes x {each} = {most} devices")
    if job.devices > each and job.devices % each:
        below = job.devices // each * each
        raise UserError(
            f"--devices {job.devices} fills no whole nodes of {machine.name} ({each} devices each); "
            f"nearest: {below} or {below + each}"
        )


def _useful(job: Job, choices: Choices) -> Choices:
    """Leave out selective recomputation where there are no scores to recompute, unless it was asked for alone."""
    if not job.flash_attention or len(choices.recompute) == 1:
        return choices
    return replace(choices, recompute=tuple(each for each in choices.recompute if each != "selective"))


def _fastest_of_each(of: Layouts, costs: Cost) -> Ints:
    """Indices of the fastest layout of every key, fastest first; of equals the least busy, the fewest microbatches."""
    shortest = costs.step_s.min()
    step, busy = (np.round(seconds / shortest, 9) for seconds in (costs.step_s, costs.step_s - costs.input_s))
    seen: dict[tuple[int, ...], int] = {}
    for at in np.lexsort((of.num_microbatches, busy, step)):
        seen.setdefault(of.key(int(at)), int(at))
    return np.array(list(seen.values()), dtype=np.int64)


def _taken(costs: Cost, index: Ints) -> Cost:
    """Some layouts' costs; every part as wide as the layouts."""
    wide = len(costs.step_s)
    return Cost(**{each.name: np.broadcast_to(getattr(costs, each.name), wide)[index] for each in fields(Cost)})


def _figure(value: float, drawn_values: Floats) -> Figure:
    """The interval holds the value itself."""
    low, high = np.quantile(drawn_values, QUANTILES)
    return Figure(value, min(float(low), value), max(float(high), value))


def _planned(order: Ranked, draws: Cost, given: Assumptions, at: int, samples: float | None) -> Planned:
    job, of = order.job, order.layouts
    steps, step = draws.step_s[:, at], float(order.cost.step_s[at])
    flops = train_flops_per_sample(job.model)
    rate = _figure(1 / step, 1 / steps)
    tflops = None if flops is None else _times(rate, job.batch * flops / job.devices / 1e12)
    activations = float(order.memory.activations[at])
    total_s = None if samples is None else _times(_figure(step, steps), samples / job.batch)
    return Planned(
        rank=at + 1,
        **{name: int(getattr(of, name)[at]) for name in ("tp", "pp", "dp", "zero", "microbatch")},
        num_microbatches=int(of.num_microbatches[at]),
        interleave=int(of.interleave[at]),
        recompute=RECOMPUTE[of.recompute[at]],
        cp=int(of.cp[at]),
        ep=int(of.ep[at]),
        stage_layers=tuple(int(each[at]) for each in layers_of(job.model, of)),  # type: ignore[arg-type]
        step_s=_figure(step, steps),
        samples_per_s=_times(rate, job.batch),
        tflops_per_device=tflops,
        mfu=None if tflops is None else _times(tflops, 1e12 / job.peak_flops),
        memory_bytes=float(order.memory.total[at]),
        activation_bytes=None if np.isnan(activations) else activations,
        bubble_share=_share(order.cost.bubble_s, draws.bubble_s, step, steps, at),
        communication_share=_share(order.cost.communication_s, draws.communication_s, step, steps, at),
        input_share=_share(order.cost.input_s, draws.input_s, step, steps, at),
        parts_s={each.name: float(getattr(order.cost, each.name)[at]) for each in fields(Cost)},
        days=None if total_s is None else _times(total_s, 1 / 86400),
        device_hours=None if total_s is None else _times(total_s, job.devices / 3600),
        energy_kwh=None if samples is None else _energy(job, step, steps, given, samples / job.batch),
        runnable=order.reasons[at] is None,
        reason=order.reasons[at],
        trial=runnable.trial_of(job, of, at),
    )


def _times(figure: Figure, factor: float) -> Figure:
    return Figure(figure.value * factor, figure.low * factor, figure.high * factor)


def _share(part: Floats, drawn_part: Floats, step: float, steps: Floats, at: int) -> Figure:
    wide = np.broadcast_to(drawn_part, (len(steps), drawn_part.shape[-1]))
    return _figure(float(part[at]) / step, wide[:, at] / steps)


def power_w(job: Job, given: Assumptions) -> Floats | float | None:
    """Watts drawn by the devices' nodes: of the nodes' stated power, else of the devices' and a host's share."""
    machine = job.machine
    if machine.node_max_w is not None:
        return given.power_load * machine.node_max_w * job.devices / machine.devices_per_node
    if machine.device.tdp_w is None:
        return None
    return given.power_load * (1 + given.host_power) * machine.device.tdp_w * job.devices


def _energy(job: Job, step: float, steps: Floats, given: Assumptions, num_steps: float) -> Figure | None:
    typical, draws = power_w(job, job.typical), power_w(job, given)
    if typical is None or draws is None:
        return None
    return _times(_figure(float(typical) * step, np.ravel(draws) * steps), num_steps / 3.6e6)


def _too_large(job: Job, choices: Choices, found: Layouts, memory: Footprint) -> UserError:
    least = int(np.argmin(memory.total))
    gb = 1e-9
    return UserError(
        f"nothing fits: {job.model.name} on {job.devices} devices of {job.machine.name} needs at least "
        f"{memory.total[least] * gb:.1f} GB a device (tp {found.tp[least]} pp {found.pp[least]} dp {found.dp[least]} "
        f"zero {found.zero[least]} recompute {RECOMPUTE[found.recompute[least]]} microbatch {found.microbatch[least]}; "
        f"{memory.states[least] * gb:.1f} GB of it model states), usable are {memory.usable * gb:.1f} of "
        f"{job.machine.device.memory_bytes * gb:.1f} GB; {_help(job, choices)}"
    )


def _help(job: Job, choices: Choices) -> str:
    """What would make it fit: freeing an axis that was fixed, or more devices."""
    freed: Sequence[tuple[str, Choices]] = (
        ("leave --zero free", replace(choices, zero=Choices().zero)),
        ("leave --recompute free", replace(choices, recompute=RECOMPUTE)),
        ("leave --zero, --recompute and the degrees free", Choices()),
    )
    for words, wider in freed:
        if wider != choices and _fits(job, wider):
            return f"it fits if you {words}"
    factors = (2, 4, 8, 16, 32, 64, 128, 256)
    for factor in factors:
        if _fits(replace(job, devices=job.devices * factor), Choices()):
            return f"it would fit on {job.devices * factor} devices"
    for factor in factors:
        if _fits(replace(job, devices=job.devices * factor, batch=job.batch * factor), Choices()):
            return f"it would fit on {job.devices * factor} devices, with {factor} times the global batch"
    return "take devices with more memory"


def _fits(job: Job, choices: Choices) -> bool:
    try:
        found = valid_layouts(job.model, job.machine, job.devices, job.batch, _useful(job, choices))
    except UserError:
        return False
    memory = footprint(job, found)
    return bool(np.any(memory.total <= memory.usable))
