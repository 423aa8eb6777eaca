"""Memory of the fullest device of every layout: model states, activations, and what is gathered; closed forms."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchsuite.predict.theory.arrays import Floats
from benchsuite_plan.layout.candidates import RECOMPUTE, Job, Layouts, layers_of, padded_vocab
from benchsuite_plan.layout.machines import PURE
from benchsuite_plan.layout.models import Model, Shape, shape_of, widths
from benchsuite_plan.theory.memory import ADAM_BYTES, activation_bytes_per_layer, interleave_factor, state_bytes
from benchsuite_plan.theory.pipeline import in_flight

FULL = RECOMPUTE.index("full")
Stages = tuple[Any, Any, Any]
"""Layers of the first rank of each pipeline, the most of any, and those of the last (`layers_of`)."""
RESERVED_BYTES = 1.5e9
"""Memory of the device's context, libraries and communication buffers."""
FRAGMENTED = 0.05
"""Share of the memory that is lost between blocks of unlike sizes."""


@dataclass(frozen=True)
class Bytes:
    """What a parameter takes: weight, gradient, Adam's states, and a `cast` to 16 bits that autograd keeps.

    `sent`: of a gradient on its way to other replicas.
    """

    weight: int
    gradient: int
    optimizer: int
    cast: int = 0
    sent: int = 2


def bytes_of(job: Job) -> Bytes:
    """Bytes a parameter under a recipe and precision.

    Megatron-LM adds gradients up in fp32 and keeps a master copy: 2 + 4 + 12; NeMo's recipes for speed add them up in
    16 bits: 2 + 2 + 12. Trials compute in bf16, fp16 and fp8 by autocast over fp32 weights: 4 + 4 + 8 and the copies
    that autocast makes of matrices, with gradients exchanged in fp32; pure_bf16 has 16 bits of everything: 2 + 2 + 4.
    """
    if job.element_bytes == 4:
        return Bytes(4, 4, 8, sent=4)
    if job.precision == PURE:
        return Bytes(2, 2, 4)
    if job.recipe == "trial":
        return Bytes(4, 4, 8, cast=2, sent=4)
    return Bytes(2, 2 if job.recipe == "nemo" else 4, ADAM_BYTES)


TRIAL_LAYERS = {
    "llama": {"mixed": (30, 6, 22, 6, 8), "pure": (28, 4, 20, 6, 8), "single": (40, 8, 24, 12, 16)},
    "gpt2": {"mixed": (20, 4, 12, 0, 4), "pure": (16, 4, 8, 0, 4), "single": (32, 8, 16, 0, 8)},
    "neox": {"mixed": (22, 4, 8, 0, 4), "pure": (20, 4, 6, 0, 4), "single": (40, 8, 12, 0, 8)},
    "bert": {"mixed": (26, 8, 18, 0, 4), "pure": (18, 4, 10, 0, 4), "single": (34, 8, 18, 0, 8)},
}
"""Bytes that a token keeps in a trial's layer, as `trial --validate` counts them (torch 2.13): of h, then of it what tp
does not split with and without sequence parallelism, of k, and of f (`widths`). Attention never stores scores; BERT's
two masks of dropout are a byte each, as on CUDA devices."""
LOSS_BYTES = {"mixed": 6, "pure": 4, "single": 8}
"""Bytes of a logit in a trial as the loss's backward pass begins, beside what was kept: its gradient, before and after
the softmax. `mixed` was measured (an H200, BENCHMARKS.md: eight peaks within 3 %), the others follow from widths."""
CONV_COPIES = 2
"""Each convolution's output, and that of the normalisation after it."""


@dataclass(frozen=True)
class Footprint:
    """Bytes of the fullest device; `activations` is NaN where a model's are not known.

    `loss`: what the loss's backward pass takes besides, less gradients that are not made by then; `update`: what the
    optimizer's step takes besides, when activations are gone. Both 0 where only what is kept is known.
    """

    states: Floats
    activations: Floats
    usable: float
    loss: Floats
    update: Floats

    @property
    def total(self) -> Floats:
        """What is known of the peak."""
        return self.states + np.maximum(np.nan_to_num(self.activations) + self.loss, self.update)

    def take(self, index: Any) -> "Footprint":
        """The footprints at these places."""
        each = (self.states, self.activations, self.loss, self.update)
        states, activations, loss, update = (values[index] for values in each)
        return Footprint(states, activations, self.usable, loss, update)


def stage_params(model: Model, shape: Shape, of: Layouts, layers: Stages | None = None) -> tuple[Floats, Floats]:
    """Parameters of the fullest device before ZeRO, and those of its experts; `layers` as of `layers_of`.

    Of a pipeline the fullest of the first stage with the embedding, the last with the head (and its own copy of a tied
    embedding), and the one with most layers.
    """
    first, most, last = layers or layers_of(model, of)
    padding = (padded_vocab(model.vocab, of.tp) - (model.vocab or 0)) * model.width
    embedding = shape.embedding_params + padding
    head = shape.head_params + (embedding if model.tied_embeddings else padding)
    ends = embedding + shape.head_params + (0 if model.tied_embeddings else padding)
    per_layer = shape.layer_params - shape.expert_params
    fullest = np.maximum(np.maximum(first * per_layer + embedding, last * per_layer + head), most * per_layer)
    dense = np.where(of.pp > 1, fullest, first * per_layer + ends) / of.tp
    return dense, most * shape.expert_params / of.ep


def usable_bytes(job: Job) -> float:
    """What a layout may need of a device's memory."""
    return (1 - FRAGMENTED) * job.machine.device.memory_bytes - RESERVED_BYTES


def footprint(job: Job, of: Layouts) -> Footprint:
    """Memory of every layout's fullest device.

    States of Megatron-LM (`bytes_of` has the others): 18 P, ZeRO-1 (6 + 12/d) P, ZeRO-2 (2 + 16/d) P, ZeRO-3 18 P/d
    and two gathered layers. Trials' ZeRO-2 (FSDP) has a whole copy of 16 bits besides, and so has their ZeRO-3 in a
    pipeline; there ZeRO-2 and 3 keep whole gradients until the last microbatch. Activations: those of the first stage
    (arXiv:2205.05198), one layer's more where layers are recomputed, or the last stage's with its logits.
    """
    shape = shape_of(job.model)
    dense, experts = stage_params(job.model, shape, of)
    each = bytes_of(job)
    kinds = each.weight, each.gradient, each.optimizer
    replicas = of.dp * of.cp
    states = state_bytes(dense, replicas, of.zero, *kinds)
    if job.model.num_experts:
        states = states + state_bytes(experts, replicas // of.ep, of.zero, *kinds)
    gathered = np.where(of.zero == 3, 2 * job.element_bytes * _largest(job.model, shape, of), 0.0)
    if job.recipe == "trial":
        stays_whole = (of.zero == 2) | ((of.zero == 3) & (of.pp > 1))
        gathered = np.where(stays_whole, job.element_bytes * dense, gathered)
        gathered = gathered + np.where(of.tp > 1, each.gradient * shape.embedding_params * (1 - 1 / of.tp), 0.0)
    held = np.where((of.zero > 1) & (of.pp > 1), each.gradient * dense * (1 - 1 / replicas), 0.0)
    activations, of_last = _activations(job, of)
    usable = usable_bytes(job)
    loss, update = _passing(job, of, dense, each)
    loss = np.where(of.pp > 1, np.maximum(0.0, of_last + loss - activations), loss)  # the last stage alone has logits
    return Footprint(states + gathered + held, activations, usable, loss, update)


def _passing(job: Job, of: Layouts, dense: Floats, each: Bytes) -> tuple[Floats, Floats]:
    """What a trial's step holds for moments: while its loss's backward pass begins, and while its optimizer steps.

    Without another replica gradients are made in the backward pass and freed after the step; DDP's buckets stay.
    Adam's `foreach` makes a tensor as large as the weights that a rank updates.
    """
    model, replicas = job.model, of.dp * of.cp
    if not _is_counted(job):
        return np.zeros(len(of)), np.zeros(len(of))
    logits = of.microbatch / of.cp * (model.predictions or model.tokens) * (model.vocab or 0)
    not_made = (replicas == 1) & (of.pp == 1) & (of.num_microbatches == 1)
    update = each.weight * dense / np.where(of.zero > 0, replicas, 1)
    return LOSS_BYTES[_kind(job)] * logits - not_made * each.gradient * dense, update


def _largest(model: Model, shape: Shape, of: Layouts) -> Floats:
    """Parameters of the largest unit that ZeRO-3 gathers at once."""
    return np.asarray(max(shape.layer_params, shape.embedding_params if model.shaped else 0.0) / of.tp)


def _activations(job: Job, of: Layouts) -> tuple[Floats, Floats]:
    """Activations of the fullest stage of a pipeline, and of its last."""
    model = job.model
    if not model.shaped:
        each = (model.activations_per_sample or float("nan")) * job.element_bytes * CONV_COPIES
        return np.asarray(of.microbatch * each), np.asarray(of.microbatch * each)
    by_recompute = _kept_in_trials(job, of) if _is_counted(job) else _kept(job, of)
    kept = np.choose(of.recompute, by_recompute)
    working = np.where(of.recompute == FULL, by_recompute[0], 0.0)
    p, t, b = of.pp, of.tp, of.microbatch / of.cp
    first, most, last = layers_of(model, of)
    token = b * model.tokens * model.width
    flying = in_flight("1f1b", p, of.num_microbatches, 0)
    second = np.minimum(flying, np.maximum(p - 1, 1))
    words = b * (model.predictions or model.tokens)
    if _is_counted(job):  # every rank of tp gets all logits, unless loss_parallel is asked for
        logits = 10 * token / t + (2 if job.precision == PURE else 4) * words * (model.vocab or 0)
    else:
        logits = job.element_bytes / 2 * (4 * token / t + 4 * words * padded_vocab(model.vocab, t) / t)
    more = interleave_factor(p, of.interleave)
    mask = 0.0 if _is_counted(job) else job.element_bytes / 2 * token / t
    begin = first * kept * flying * more + mask * flying + np.where(p == 1, logits, 0.0)
    middle = np.where(p > 2, most * kept * second * more, 0.0)
    end = working + last * kept + logits
    return np.maximum(working + np.maximum(begin, middle), end), end


def _is_counted(job: Job) -> bool:
    """Whether a trial's layers are those of TRIAL_LAYERS: without experts, and no scores stored."""
    of_one = job.model.kind in ("decoder", "encoder") and not job.model.num_experts
    return job.recipe == "trial" and of_one and job.flash_attention


def _kind(job: Job) -> str:
    """The kind of precision."""
    return "pure" if job.precision == PURE else "mixed" if job.element_bytes == 2 else "single"


def _kept(job: Job, of: Layouts) -> list[Floats]:
    """What a layer keeps of a microbatch without recomputation, with selective, and with full."""
    normal = sharded_mode(job)
    modes = (normal, f"{normal}_selective", "full")
    scale = job.element_bytes / 2
    # NeMo trains without dropout, whose masks are 2 h, and fuses a gate with its product: 2 f less.
    h, _, _, f = widths(job.model)
    fused = of.microbatch * job.model.tokens / of.cp * (2 * h + 2 * f * job.model.gated_mlp) / of.tp
    less: tuple[Any, ...] = (fused, fused, 0.0) if job.recipe == "nemo" else (0.0, 0.0, 0.0)
    every = (layer_activation_bytes(job, of, mode, job.flash_attention) for mode in modes)
    return [scale * (kept - without) for kept, without in zip(every, less, strict=True)]


def _kept_in_trials(job: Job, of: Layouts) -> list[Floats]:
    """Bytes that a trial's layer keeps: selective what matrix products and attention return, full a layer's input."""
    model, t = job.model, of.tp
    decoder = "llama" if model.rms_norm else "gpt2" if model.learned_positions else "neox"
    row, kind = TRIAL_LAYERS["bert" if model.kind == "encoder" else decoder], _kind(job)
    of_h, sharded, whole, of_k, of_f = row[kind]
    h, q, k, f = widths(model)
    unsplit = np.where(t > 1, sharded if job.sequence_parallel else whole, 0)
    tokens = of.microbatch * model.tokens / of.cp
    cast = np.where(of.zero < 2, bytes_of(job).cast * _matrix_params(model) / t, 0.0)
    none = tokens * (unsplit * h + ((of_h - unsplit) * h + of_k * k + of_f * f) / t) + cast
    full = tokens * h * (2 if kind == "pure" else 4) / np.where(job.sequence_parallel, t, 1)
    products = tokens * job.element_bytes * (2 * q + 2 * k + 2 * h + (3 if model.gated_mlp else 1) * f) / t
    return [none, full + products, full]


def _matrix_params(model: Model) -> int:
    """Parameters of a layer's matrices."""
    h, q, k, f = widths(model)
    return 2 * h * q + 2 * h * k + (3 if model.gated_mlp else 2) * h * f


def sharded_mode(job: Job) -> str:
    """How a tensor-parallel layer keeps its activations."""
    return "tp_sp" if job.sequence_parallel else "tp"


def layer_activation_bytes(job: Job, of: Layouts, mode: str, flash_attention: bool) -> Floats:
    """What a layer keeps of a microbatch at 2 bytes an element: GPT's form, corrected for other widths.

    Of GPT's 24 s b h/t (arXiv:2205.05198, section 4.1) 8 are queries, keys, values and what the projection takes, and
    16 the MLP's 4 h, twice; a gated MLP keeps four tensors instead of two, and of experts top_k are visited. Dropout
    masks count though few models have them today; the second attention of a decoder beside an encoder is left out.
    """
    model = job.model
    b = of.microbatch / of.cp
    kept = activation_bytes_per_layer(b, model.tokens, model.width, model.num_heads, of.tp, mode, flash_attention)
    if mode == "full":
        return np.asarray(kept)
    _, q, k, f = widths(model)
    inner = 4 * (q + k) + (8 if model.gated_mlp else 4) * f * max(1, model.top_k)
    return np.asarray(kept + b * model.tokens * (inner - 24 * model.width) / of.tp)
