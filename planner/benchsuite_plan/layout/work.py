"""What one training step computes and moves, counted: FLOPs and bytes of every layout, which no machine changes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from benchsuite.predict.theory.arrays import Floats
from benchsuite.predict.theory.collectives import terms
from benchsuite_plan.layout.candidates import RECOMPUTE, Ints, Job, Layouts, layers_of, padded_vocab
from benchsuite_plan.layout.memory import Stages, bytes_of, layer_activation_bytes, sharded_mode, stage_params
from benchsuite_plan.layout.models import shape_of, widths
from benchsuite_plan.theory.slowest import of_slowest

FULL, SELECTIVE = RECOMPUTE.index("full"), RECOMPUTE.index("selective")
TILE = 8
"""Elements of 16 bits in the 16 bytes by which matrix units load."""


@dataclass(frozen=True)
class Exchange:
    """Messages and bytes one after another: on a device's links within its node, and on a node's network."""

    near_messages: Floats
    near_bytes: Floats
    far_messages: Floats
    far_bytes: Floats
    """Bytes of all devices that share the node's network."""


@dataclass(frozen=True)
class Work:
    """One layout an element, (n,). Of a layer: of one pass forward of one microbatch on one device."""

    matrix_flops: Floats
    attention_flops: Floats
    head_flops: Floats
    tokens: Floats
    """Tokens of a microbatch on one device."""
    area: Floats
    """Tokens times the model's width over tensor-parallel ranks."""
    kept_bytes: Floats
    """Activations of a layer, without scores."""
    score_bytes: Floats
    logit_bytes: Floats
    unaligned: Floats
    """1 where a rank's part of the vocabulary is no multiple of 8 in 16 bits, for which the head has slow products."""
    dispatched: Floats
    """1 where each operation of a layer goes through Python, as torch's selective checkpointing has it."""
    repeated: Floats
    """1 where every layer's forward pass is done again, else 0; a share where some layers' are."""
    rescored: Floats
    """Like `repeated`, for attention alone."""
    microbatches: Floats
    stages: Floats
    interleave: Floats
    layers: Floats
    """Layers of the model."""
    most_layers: Floats
    """Layers of the stage that has most."""
    last_layers: Floats
    tensor: Exchange
    """One all_reduce of activations."""
    tensor_near: Floats
    """Tensor-parallel ranks within a node."""
    context: Exchange
    """All rounds of one pass, of keys and values."""
    expert: Exchange
    """One all_to_all of tokens."""
    send: Exchange
    """To the next stage."""
    half: Exchange
    """A reduce_scatter or an all_gather of all gradients or weights between replicas, in 16 bits."""
    halves: Floats
    """How many of those a step has, those that are wider counted by their bytes."""
    passes: Floats
    """Forward passes' worth of computation that they may hide behind."""
    update_params: Floats
    """Parameters that one device updates."""
    slowest: Floats
    """Standard deviations by which the slowest of all devices is behind, on average."""

    def take(self, which: Any) -> "Work":
        """The work of the layouts at these places."""
        found: Work = _each([self], lambda columns: columns[0][which])
        return found


def joined(parts: Sequence[Work]) -> Work:
    """The layouts of all, one after another."""
    found: Work = _each(parts, np.concatenate)
    return found


def _each(parts: Sequence[Any], how: Callable[[list[Floats]], Floats]) -> Any:
    """Every column of works or exchanges by `how`."""
    found = {}
    for each in fields(parts[0]):
        values = [getattr(part, each.name) for part in parts]
        found[each.name] = _each(values, how) if isinstance(values[0], Exchange) else how(values)
    return type(parts[0])(**found)


def counted(job: Job, of: Layouts, layers: Stages | None = None) -> Work:
    """The work of every layout of a job; `layers` of stages where they are not as `layers_of` deals them.

    Uniform layers. With fp8 the layers' matrix products alone are narrower: attention and the head compute in 16 bits.
    """
    model, shape = job.model, shape_of(job.model)
    first, most, last = layers or layers_of(model, of)
    share = of.microbatch / of.tp / of.cp
    tokens = of.microbatch * model.tokens / of.cp
    shaped = 1.0 if model.shaped else 0.0
    scale = shaped * job.element_bytes / 2
    mode = sharded_mode(job)
    kept = scale * layer_activation_bytes(job, of, mode, True)
    scores = scale * layer_activation_bytes(job, of, mode, job.flash_attention) - kept
    is_trial = job.recipe == "trial"  # which pads no vocabulary
    vocab = -(-(model.vocab or 0) // of.tp) * of.tp if is_trial else padded_vocab(model.vocab, of.tp)
    padding = np.maximum(vocab / (model.vocab or 1), 1.0)
    words = of.microbatch / of.cp * (model.predictions or model.tokens)
    repeated = (of.recompute == FULL).astype(float)
    devices = of.tp * of.cp * of.dp * of.pp
    half, halves, passes, own = _data(job, of, (first, most, last), devices)
    columns = {
        "matrix_flops": share * (shape.matrix_flops or (1.0 if model.device_sample_s else 0.0)),
        "attention_flops": share * shape.attention_flops,
        "head_flops": share * shape.head_flops * padding,
        "tokens": tokens,
        "area": tokens * model.width / of.tp if model.shaped else np.inf,
        "kept_bytes": kept,
        "score_bytes": scores,
        "logit_bytes": shaped * 4 * words * vocab / of.tp,
        "unaligned": (vocab // of.tp % TILE != 0) & (job.element_bytes == 2),
        "dispatched": (of.recompute == SELECTIVE) & is_trial,
        "repeated": repeated,
        "rescored": np.maximum(repeated, of.recompute == SELECTIVE),
        "microbatches": of.num_microbatches,
        "stages": of.pp,
        "interleave": of.interleave,
        "layers": model.num_layers,
        "most_layers": most,
        "last_layers": last,
        "tensor_near": np.minimum(of.tp, job.machine.devices_per_node),
        "halves": halves,
        "passes": passes,
        "update_params": own,
        "slowest": of_slowest(devices.astype(float)),
    }
    wide: dict[str, Any] = {
        name: np.broadcast_to(np.asarray(each, dtype=np.float64), len(of)) for name, each in columns.items()
    }
    return Work(**wide, **_within_layers(job, of, tokens), half=half)


def _exchange(job: Job, inside: Any, messages: Any, size: Any, sharing: Any) -> Exchange:
    """Within nodes or between, `sharing` devices of a node at once."""
    inside, messages, size, far = np.broadcast_arrays(
        inside, np.asarray(messages, dtype=float), np.asarray(size, dtype=float), size * sharing
    )
    zero = np.zeros(len(inside))
    return Exchange(
        np.where(inside, messages, zero),
        np.where(inside, size, zero),
        np.where(inside, zero, messages),
        np.where(inside, zero, far),
    )


def _within_layers(job: Job, of: Layouts, tokens: Any) -> dict[str, Any]:
    """What a layer exchanges in one pass, and a stage sends.

    Keys and values go round a ring (Liu et al. 2023, arXiv:2310.01889); tensor-parallel ranks send a part each of what
    goes to the next stage.
    """
    model, each = job.model, job.machine.devices_per_node
    sharing = np.minimum(each, of.tp * of.cp * of.dp * of.pp)
    size = tokens * model.width * job.element_bytes if model.shaped else np.zeros(len(of))
    ring = terms("all_reduce", of.tp)
    kept = 2 * tokens * widths(model)[2] / of.tp * job.element_bytes if model.shaped else 0.0 * tokens
    experts, chosen = terms("all_to_all", of.ep), max(model.top_k, 1) * of.cp
    moved = (of.ep > 1) * experts.wire * chosen * size
    return {
        "tensor": _exchange(job, of.tp <= each, ring.latency, ring.wire * size, 1.0),
        "context": _exchange(job, of.tp * of.cp <= each, of.cp - 1, (of.cp - 1) * kept, sharing),
        "expert": _exchange(job, of.ep <= each, experts.latency, moved, sharing),
        "send": _exchange(job, of.tp * of.cp * of.dp * of.pp <= each, of.pp > 1, (of.pp > 1) * size / of.tp, sharing),
    }


def _data(job: Job, of: Layouts, layers: Stages, devices: Ints) -> tuple[Exchange, Any, Any, Any]:
    """Exchange between replicas, hierarchical; how often, what hides it, and the parameters a device updates.

    An all_reduce of the gradients is a reduce_scatter and an all_gather. ZeRO-2 scatters for every microbatch and
    gathers once; ZeRO-3 gathers for the forward and for the backward pass and scatters (arXiv:1910.02054, section 7).
    In a pipeline both scatter once, after the last microbatch, as torch's stages do, and trials' ZeRO-3 gathers once.
    Experts are exchanged among the ranks that hold the same.
    """
    dense, experts = stage_params(job.model, shape_of(job.model), of, layers)
    m, replicas, per_node = of.num_microbatches, of.dp * of.cp, np.maximum(1, job.machine.devices_per_node // of.tp)
    sharing = np.minimum(job.machine.devices_per_node, devices)
    one = _half(job, replicas, per_node, dense, sharing)
    other = _half(job, replicas // of.ep, np.maximum(1, per_node // of.ep), experts, sharing)
    both = Exchange(*(getattr(one, each.name) + getattr(other, each.name) for each in fields(Exchange)))
    scatters = np.where(of.pp > 1, 1, m)
    two, wide = np.full_like(m, 2), bytes_of(job).sent / job.element_bytes
    first = two + 1 if job.recipe == "trial" else two  # trials' ZeRO-1 exchanges all gradients and hands weights round
    gathers = np.where(of.pp > 1, 1, 2 * m) if job.recipe == "trial" else 2 * m
    halves = np.choose(of.zero, [wide * two, wide * first, wide * scatters + 1, wide * scatters + gathers])
    passes = np.choose(of.zero, [two, two, 2 * scatters, scatters + gathers])
    own = np.where(of.zero > 0, dense / of.dp / of.cp + experts * of.ep / of.dp, dense + experts)
    return both, halves, passes, own


def _half(job: Job, replicas: Any, per_node: Any, params: Floats, sharing: Any) -> Exchange:
    """Half of an all_reduce between replicas, `per_node` of them in a full node; none where nothing is held."""
    group = np.gcd(np.minimum(per_node, replicas), replicas)
    near, far = terms("all_gather", group), terms("all_gather", replicas // group)
    size, held = params * job.element_bytes, params > 0
    return Exchange(held * near.latency, near.wire * size, held * far.latency, far.wire * size / group * sharing)
