"""What is to be planned, and every valid way to spread it over devices, as columns of numbers."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import product
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from benchsuite.contract.errors import UserError, refuse
from benchsuite_plan.layout.assumptions import Assumptions, drawn, typical
from benchsuite_plan.layout.machines import ELEMENT_BYTES, PRECISIONS, PURE, Machine
from benchsuite_plan.layout.models import Model, ffn

Ints = NDArray[np.int64]
Recipe = Literal["trial", "megatron", "nemo"]
RECIPES: tuple[Recipe, ...] = get_args(Recipe)
RECOMPUTE = ("none", "selective", "full")
ZERO = (0, 1, 2, 3)
VOCAB_MULTIPLE = 128
LEAST_PART = 4096
"""Tokens that a rank of context parallelism keeps at least, where its degree is free."""


@dataclass(frozen=True)
class Job:
    """What is to be trained, where, and how far; samples a step in `batch`."""

    model: Model
    machine: Machine
    devices: int
    batch: int
    precision: str = "bf16"
    sequence_parallel: bool = True
    flash_attention: bool = True
    staged: bool = False
    """Input is read from copies on the nodes' own drives, not from the shared file system."""
    recipe: Recipe = "megatron"
    """Who trains: whose bytes a parameter and an activation has (`memory.bytes_of`), and whose kernels."""

    measured: Mapping[str, float] = field(default_factory=dict)
    """What was measured of the machine, in the place of what is assumed (`measured.of_store`)."""

    @property
    def element_bytes(self) -> int:
        """Bytes of an element of activations and gradients as they are sent."""
        return ELEMENT_BYTES[self.precision]

    @property
    def peak_flops(self) -> float:
        """Dense peak of one device at the job's precision, FLOP/s."""
        return self.machine.peak_flops(self.precision)

    @property
    def nodes(self) -> int:
        """Nodes that the devices fill, the last one perhaps not."""
        return -(-self.devices // self.machine.devices_per_node)

    @property
    def typical(self) -> Assumptions:
        """What is measured or assumed of its devices."""
        return replace(typical(self.machine.device.name, self.recipe), **self.measured)

    def drawn(self, count: int, seed: int = 0) -> Assumptions:
        """Draws of what is assumed of its devices; what was measured stays."""
        return replace(drawn(count, seed, self.machine.device.name, self.recipe), **self.measured)


def checked_precision(machine: Machine, asked: str | None) -> str:
    """The precision asked for; else bf16 where the device has a peak of it, else fp16, else what it has.

    Raises:
        UserError: there is no such precision, or the device has no peak of it.
    """
    peaks = machine.device.peak_flops
    precision = asked or next((name for name in ("bf16", "fp16") if name in peaks), next(iter(peaks)))
    if precision not in (*PRECISIONS, PURE):
        raise refuse("--precision", precision, (*PRECISIONS, PURE))
    machine.peak_flops(precision)
    return precision


def samples_of(model: Model, tokens: float | None, samples: float | None) -> float | None:
    """Samples of the whole training: as asked, else as published; None where neither is known."""
    if tokens is not None and samples is not None:
        raise UserError("--tokens and --samples are both given; give one")
    if samples is not None:
        return samples
    if tokens is not None and not model.shaped:
        raise UserError(f"--tokens: samples of {model.name} ({model.kind}) have no tokens; give --samples")
    tokens = tokens or model.published_tokens
    return model.published_samples if tokens is None else tokens / model.tokens


@dataclass(frozen=True)
class Choices:
    """What a search may choose from; None leaves an axis free."""

    zero: tuple[int, ...] = ZERO
    recompute: tuple[str, ...] = RECOMPUTE
    microbatch: tuple[int, ...] | None = None
    interleave: tuple[int, ...] | None = None
    tensor_parallel: tuple[int, ...] | None = None
    pipeline_parallel: tuple[int, ...] | None = None
    context_parallel: tuple[int, ...] | None = None
    expert_parallel: tuple[int, ...] | None = None
    ends_count: tuple[bool, ...] = (False, True)
    """Whether a pipeline's embedding and head count as a layer each (`stage_layers`)."""


@dataclass(frozen=True)
class Layouts:
    """Candidates, one an index; `recompute` is an index of RECOMPUTE. Ranks count innermost first: tp, cp, dp, pp.

    `ep` ranks of dp share a layer's experts.
    """

    tp: Ints
    pp: Ints
    dp: Ints
    zero: Ints
    microbatch: Ints
    num_microbatches: Ints
    interleave: Ints
    recompute: Ints
    cp: Ints
    ep: Ints
    ends_count: Ints

    def __len__(self) -> int:
        return len(self.tp)

    def take(self, index: Ints) -> "Layouts":
        """The layouts at these places."""
        return Layouts(**{each.name: getattr(self, each.name)[index] for each in fields(self)})

    def key(self, at: int) -> tuple[int, ...]:
        """What makes a layout another one than its neighbours; the rest is tuned within it."""
        return tuple(int(getattr(self, name)[at]) for name in ("tp", "pp", "dp", "zero", "recompute", "cp", "ep"))


def divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    small = [k for k in range(1, int(number**0.5) + 1) if number % k == 0]
    return sorted({*small, *(number // k for k in small)})


@cache
def stage_layers(num_layers: int, pp: int, interleave: int, ends_count: bool, first_ends: int = 1) -> tuple[int, ...]:
    """Layers of each rank of a pipeline, () where there is no such pipeline.

    Without `ends_count` every stage has equally many, as Megatron-LM asks for. With it the embedding (`first_ends`
    pieces) and the head count as a layer each, as by its --account-for-embedding-in-pipeline-split and
    --account-for-loss-in-pipeline-split, and stages have equally many pieces or, the first of them, one more, as in
    trials (workloads.parallel.pipeline.cut): 126 layers on 16 stages are 7, 14 x 8, 7.
    """
    stages = pp * interleave
    if not ends_count or pp == 1:
        return (num_layers // pp,) * pp if num_layers % stages == 0 else ()
    size, longer = divmod(num_layers + first_ends + 1, stages)
    if size < 1 or size + (longer > 0) <= first_ends or (size < 2 and stages > 1):
        return ()
    of_stages = [size + (stage < longer) for stage in range(stages)]
    of_stages[0] -= first_ends
    of_stages[-1] -= 1
    return tuple(sum(of_stages[rank::pp]) for rank in range(pp)) if min(of_stages) >= 0 else ()


def valid_layouts(model: Model, machine: Machine, devices: int, batch: int, choices: Choices) -> Layouts:
    """Every valid candidate.

    tp divides heads (and key-value heads), width and MLP, and nodes whole; stages are those of `stage_layers`; tp cp pp
    dp = devices; 2 cp divides a sequence; ep divides experts and dp; dp x microbatch divides the batch; interleaving
    needs at least 2 stages and microbatches in multiples of them. These are what can be predicted; which of them a
    trial runs, its own rules say (`runnable`).

    Raises:
        UserError: nothing is valid; says which rule leaves nothing.
    """
    if not model.shaped and "none" not in choices.recompute:
        raise UserError(
            f"--recompute {choices.recompute[0]}: not modelled for {model.name} ({model.kind}); allowed: none"
        )
    recomputes = choices.recompute if model.shaped else ("none",)
    rows = [
        (tp, pp, dp, zero, microbatch, batch // dp // microbatch, v, RECOMPUTE.index(recompute), cp, ep, ends)
        for tp, cp, pp, dp in degrees(model, machine, devices, choices)
        if batch % dp == 0
        for microbatch in microbatches(model, batch // dp, choices)
        for v, ends in interleaves(model, pp, batch // dp // microbatch, choices)
        for ep in expert_degrees(model, tp, cp, dp, choices)
        for zero, recompute in product(choices.zero, recomputes)
        if (zero == 0 or dp * cp > 1 or len(choices.zero) == 1) and (ep == 1 or zero < 2)
    ]
    if not rows:
        raise _nothing(model, machine, devices, batch, choices)
    return Layouts(*np.array(rows, dtype=np.int64).T)


def degrees(model: Model, machine: Machine, devices: int, choices: Choices) -> list[tuple[int, int, int, int]]:
    """Legal (tp, cp, pp, dp)."""
    inner = [
        (tp, cp)
        for tp in tensor_degrees(model, machine, choices)
        for cp in context_degrees(model, choices)
        if devices % (tp * cp) == 0
    ]
    return [
        (tp, cp, pp, devices // tp // cp // pp)
        for tp, cp in inner
        for pp in divisors(devices // tp // cp)
        if pp in pipeline_degrees(model, pp, choices)
    ]


def tensor_degrees(model: Model, machine: Machine, choices: Choices) -> list[int]:
    """Tensor-parallel degrees that the model's shape and the nodes allow; 1 for experts, which are dealt instead."""
    found = divisors(model.kv_heads or model.num_heads) if model.shaped and not model.num_experts else [1]
    asked = choices.tensor_parallel
    return [tp for tp in found if (asked is None or tp in asked) and not why_not_tensor(model, machine, tp)]


def why_not_tensor(model: Model, machine: Machine, tp: int) -> str | None:
    """The limit that a tensor-parallel degree breaks, with the arithmetic; None where it breaks none."""
    if tp > 1 and model.num_experts:
        return f"{model.name} has experts, which are dealt to ranks (--expert-parallel) and not split: tp is 1"
    heads = {"kv_heads": model.kv_heads, "heads": model.num_heads, "hidden": model.width, "ffn_hidden": ffn(model)}
    for name, size in heads.items():
        if size and size % tp:
            return f"{name} {size} % tp {tp} = {size % tp}"
    each = machine.devices_per_node
    if each % tp and tp % each:
        return f"{each} devices of a node % tp {tp} = {each % tp}"
    return None


def context_degrees(model: Model, choices: Choices) -> list[int]:
    """Ranks that may share a sequence: powers of two, by which each keeps LEAST_PART tokens, or as asked."""
    if choices.context_parallel is not None:
        return [cp for cp in choices.context_parallel if cp == 1 or (_causal(model) and model.tokens % (2 * cp) == 0)]
    most = model.tokens // LEAST_PART if _causal(model) else 1
    return [1, *(1 << k for k in range(1, most.bit_length()) if model.tokens % (2 << k) == 0)]


def _causal(model: Model) -> bool:
    return model.kind == "decoder"


def expert_degrees(model: Model, tp: int, cp: int, dp: int, choices: Choices) -> list[int]:
    """Ranks of dp that may share experts."""
    asked = choices.expert_parallel
    found = divisors(np.gcd(model.num_experts, dp)) if model.num_experts and tp * cp == 1 else [1]
    return [ep for ep in found if asked is None or ep in asked]


def pipeline_degrees(model: Model, pp: int, choices: Choices) -> Iterator[int]:
    """A number of stages, if there is such a pipeline."""
    asked = choices.pipeline_parallel
    if (asked is None or pp in asked) and any(_layers(model, pp, 1, ends) for ends in choices.ends_count):
        yield pp


def _layers(model: Model, pp: int, interleave: int, ends_count: bool) -> tuple[int, ...]:
    """`stage_layers` of a model; two stacks have no ends that could count."""
    if not model.shaped:
        return (1,) if pp == 1 else ()
    if ends_count and model.kind == "encoder-decoder":
        return ()
    return stage_layers(model.num_layers, pp, interleave, ends_count, 1 + model.learned_positions)


def layers_of(model: Model, of: Layouts) -> tuple[Ints, Ints, Ints]:
    """For each layout, the layers of the first rank of its pipeline, the most of any rank, and those of the last."""
    kinds, places = np.unique(np.stack([of.pp, of.interleave, of.ends_count], axis=1), axis=0, return_inverse=True)
    found = [_layers(model, int(pp), int(v), bool(ends)) for pp, v, ends in kinds]
    first, most, last = (np.array(each) for each in ([e[0] for e in found], [*map(max, found)], [e[-1] for e in found]))
    where = places.reshape(-1)
    return first[where], most[where], last[where]


def microbatches(model: Model, per_replica: int, choices: Choices) -> Iterable[int]:
    """Samples a microbatch: divisors of a replica's batch, above 32 powers of two only."""
    found = [size for size in divisors(per_replica) if size <= 32 or size & (size - 1) == 0 or not model.shaped]
    return [size for size in found if choices.microbatch is None or size in choices.microbatch]


def interleaves(model: Model, pp: int, num_microbatches: int, choices: Choices) -> Iterable[tuple[int, bool]]:
    """Chunks of layers a rank holds, and whether a pipeline's ends count; none where what was asked for cannot be.

    Several chunks are of equally many pieces each; two of them, as trials hold, may differ. Where ranks hold the same
    layers either way, ends count: that is how trials cut.
    """
    if pp == 1:
        return [(1, False)] if choices.interleave is None or 1 in choices.interleave else []
    chunks = [1]
    if num_microbatches % pp == 0:
        chunks = [
            v
            for v in range(1, (model.num_layers + 2) // pp + 1)
            if choices.interleave is None or v in choices.interleave
        ]
    pieces = model.num_layers + 2 + model.learned_positions
    found = [
        (v, ends)
        for v, ends in product(chunks, choices.ends_count)
        if (choices.interleave is None or v in choices.interleave)
        and _layers(model, pp, v, ends)
        and (v <= 2 or not ends or pieces % (pp * v) == 0)
    ]
    alike = {v for v, ends in found if ends and _layers(model, pp, v, True) == _layers(model, pp, v, False)}
    return [(v, ends) for v, ends in found if ends or v not in alike]


def padded_vocab(vocab: int | None, tp: Ints) -> Ints:
    """Rows of an embedding that tp splits evenly, in multiples of 128 each, as Megatron-LM pads; 0 without one."""
    multiple = VOCAB_MULTIPLE * tp
    return -(-(vocab or 0) // multiple) * multiple


def _nothing(model: Model, machine: Machine, devices: int, batch: int, choices: Choices) -> UserError:
    """Why there is no layout: the rule that leaves nothing, with its arithmetic."""
    found = degrees(model, machine, devices, choices)
    if not found:
        return UserError(
            f"no layout of {model.name} fills {devices} devices: {_limit(model, machine, devices, choices)}"
        )
    dps = sorted({dp for *_, dp in found})
    if not any(batch % dp == 0 for dp in dps):
        return UserError(
            f"--batch {batch} is no multiple of any data-parallel degree that {devices} devices allow "
            f"({_listed(dps)}); nearest: {_nearest_multiple(batch, min(dps))}"
        )
    return UserError(
        f"no valid layout of {model.name} on {devices} devices with batch {batch} under zero {_listed(choices.zero)}, "
        f"recompute {_listed(choices.recompute)}, microbatch {_listed(choices.microbatch or ('any',))}, interleave "
        f"{_listed(choices.interleave or ('any',))}: dp x microbatch must divide the "
        f"batch, and interleaving needs 2 stages or more, microbatches in multiples of them, and as many of the "
        f"{model.num_layers} layers as pp x interleave"
    )


def _limit(model: Model, machine: Machine, devices: int, choices: Choices) -> str:
    """The degree that was asked for and cannot be, or what the degrees may be."""
    if not model.shaped:
        return f"{model.kind} models are planned with data parallelism and ZeRO only"
    for tp in choices.tensor_parallel or ():
        if wrong := why_not_tensor(model, machine, tp):
            return wrong
    for cp in choices.context_parallel or ():
        if cp not in context_degrees(model, choices):
            return (
                f"seq_len {model.tokens} % (2 x cp {cp}) = {model.tokens % (2 * cp)}, and only decoders share sequences"
            )
    for pp in choices.pipeline_parallel or ():
        if pp not in pipeline_degrees(model, pp, choices):
            return f"{model.num_layers} layers on pp {pp} stages: each needs a layer"
    fixed = [choices.tensor_parallel, choices.context_parallel, choices.pipeline_parallel]
    names = [f"{name} {asked[0]}" for name, asked in zip(("tp", "cp", "pp"), fixed, strict=True) if asked]
    product_ = int(np.prod([asked[0] for asked in fixed if asked]))
    if names and devices % product_:
        return f"{devices} devices % ({' x '.join(names)}) = {devices % product_}"
    tps = tensor_degrees(model, machine, choices)
    return f"tp may be {_listed(tps)}, pp at most {model.num_layers}, and their product must divide the devices"


def _listed(values: Iterable[object]) -> str:
    return ", ".join(str(value) for value in values) or "none"


def _nearest_multiple(number: int, of: int) -> int:
    return max(1, round(number / of)) * of
