"""Every valid way to spread a model over devices, as columns of numbers."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from itertools import product

import numpy as np
from numpy.typing import NDArray

from benchsuite.contract.errors import UserError
from benchsuite.predict.layout.machines import Machine
from benchsuite.predict.layout.models import Model
from benchsuite.predict.layout.shape import ffn

Ints = NDArray[np.int64]
RECOMPUTE = ("none", "selective", "full")
ZERO = (0, 1, 2, 3)
VOCAB_MULTIPLE = 128


@dataclass(frozen=True)
class Choices:
    """What a search may choose from; None leaves an axis free."""

    zero: tuple[int, ...] = ZERO
    recompute: tuple[str, ...] = RECOMPUTE
    microbatch: tuple[int, ...] | None = None
    interleave: tuple[int, ...] | None = None
    tensor_parallel: tuple[int, ...] | None = None
    pipeline_parallel: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Layouts:
    """Candidates, one an index; `recompute` is an index of RECOMPUTE. Ranks count innermost first: tp, dp, pp."""

    tp: Ints
    pp: Ints
    dp: Ints
    zero: Ints
    microbatch: Ints
    num_microbatches: Ints
    interleave: Ints
    recompute: Ints

    def __len__(self) -> int:
        return len(self.tp)

    def take(self, index: Ints) -> "Layouts":
        """Some of them."""
        return Layouts(**{each.name: getattr(self, each.name)[index] for each in fields(self)})

    def key(self, at: int) -> tuple[int, ...]:
        """What makes a layout another one than its neighbours; microbatch and interleave are tuned within it."""
        return tuple(int(getattr(self, name)[at]) for name in ("tp", "pp", "dp", "zero", "recompute"))


def divisors(number: int) -> list[int]:
    """Ascending."""
    small = [k for k in range(1, int(number**0.5) + 1) if number % k == 0]
    return sorted({*small, *(number // k for k in small)})


def valid_layouts(model: Model, machine: Machine, devices: int, batch: int, choices: Choices) -> Layouts:
    """Every valid candidate.

    tp divides heads (and key-value heads), width and MLP, and nodes whole; pp x interleave divides the layers; tp pp dp
    = devices; dp x microbatch divides the batch; interleaving needs at least 2 stages and microbatches in multiples of
    them; with pipelines ZeRO is at most 1: sharded gradients or weights would be gathered and scattered again for every
    microbatch (DeepSpeed refuses ZeRO-2 and 3 with pipelines).

    Raises:
        UserError: nothing is valid; says which rule leaves nothing.
    """
    if not model.shaped and "none" not in choices.recompute:
        raise UserError(
            f"--recompute {choices.recompute[0]}: not modelled for {model.name} ({model.kind}); allowed: none"
        )
    recomputes = choices.recompute if model.shaped else ("none",)
    rows = [
        (tp, pp, dp, zero, microbatch, batch // dp // microbatch, interleave, RECOMPUTE.index(recompute))
        for tp, pp, dp in degrees(model, machine, devices, choices)
        if batch % dp == 0
        for microbatch in microbatches(model, batch // dp, choices)
        for interleave in interleaves(model, pp, batch // dp // microbatch, choices)
        for zero, recompute in product(choices.zero, recomputes)
        if not (zero >= 2 and pp > 1) and (zero == 0 or dp > 1 or len(choices.zero) == 1)
    ]
    if not rows:
        raise _nothing(model, machine, devices, batch, choices)
    return Layouts(*np.array(rows, dtype=np.int64).T)


def degrees(model: Model, machine: Machine, devices: int, choices: Choices) -> list[tuple[int, int, int]]:
    """Legal (tp, pp, dp)."""
    tps = [tp for tp in tensor_degrees(model, machine, choices) if devices % tp == 0]
    asked = choices.pipeline_parallel
    pps = [pp for pp in divisors(model.num_layers) if asked is None or pp in asked]
    return [(tp, pp, devices // tp // pp) for tp in tps for pp in pps if devices // tp % pp == 0]


def tensor_degrees(model: Model, machine: Machine, choices: Choices) -> list[int]:
    """Tensor-parallel degrees that the model's shape and the nodes allow."""
    if not model.shaped:
        found = [1]
    else:
        heads = model.kv_heads or model.num_heads
        per_node = machine.devices_per_node
        found = [
            tp
            for tp in divisors(heads)
            if model.width % tp == 0 and ffn(model) % tp == 0 and (per_node % tp == 0 or tp % per_node == 0)
        ]
    return [tp for tp in found if choices.tensor_parallel is None or tp in choices.tensor_parallel]


def microbatches(model: Model, per_replica: int, choices: Choices) -> Iterable[int]:
    """Samples a microbatch: divisors of a replica's batch, above 32 powers of two only."""
    found = [size for size in divisors(per_replica) if size <= 32 or size & (size - 1) == 0 or not model.shaped]
    return [size for size in found if choices.microbatch is None or size in choices.microbatch]


def interleaves(model: Model, pp: int, num_microbatches: int, choices: Choices) -> Iterable[int]:
    """Chunks of layers a stage holds; none where what was asked for cannot be."""
    found = [1]
    if pp > 1 and num_microbatches % pp == 0:
        found = divisors(model.num_layers // pp)
    return [chunks for chunks in found if choices.interleave is None or chunks in choices.interleave]


def padded_vocab(vocab: int | None, tp: Ints) -> Ints:
    """Rows of an embedding that tp splits evenly, in multiples of 128 each, as Megatron-LM pads; 0 without one."""
    multiple = VOCAB_MULTIPLE * tp
    return -(-(vocab or 0) // multiple) * multiple


def _nothing(model: Model, machine: Machine, devices: int, batch: int, choices: Choices) -> UserError:
    found = degrees(model, machine, devices, choices)
    if not found:
        tps = tensor_degrees(model, machine, choices)
        kind = "" if model.shaped else f" ({model.kind}: planned with data parallelism and ZeRO only)"
        return UserError(
            f"no layout of {model.name}{kind} fills {devices} devices: tp may be {_listed(tps)}, pp a divisor of "
            f"{model.num_layers} layers; take a number of devices that their product divides"
        )
    dps = sorted({dp for _, _, dp in found})
    if not any(batch % dp == 0 for dp in dps):
        return UserError(
            f"--batch {batch} is no multiple of any data-parallel degree that {devices} devices allow "
            f"({_listed(dps)}); nearest: {_nearest_multiple(batch, min(dps))}"
        )
    return UserError(
        f"no valid layout of {model.name} on {devices} devices with batch {batch} under zero {_listed(choices.zero)}, "
        f"recompute {_listed(choices.recompute)}, microbatch {_listed(choices.microbatch or ('any',))}, interleave "
        f"{_listed(choices.interleave or ('any',))}: pipelines take zero 0 or 1, dp x microbatch must divide the "
        f"batch, and pp x interleave the {model.num_layers} layers, with 2 stages or more and microbatches in "
        "multiples of them"
    )


def _listed(values: Iterable[object]) -> str:
    return ", ".join(str(value) for value in values) or "none"


def _nearest_multiple(number: int, of: int) -> int:
    return max(1, round(number / of)) * of
