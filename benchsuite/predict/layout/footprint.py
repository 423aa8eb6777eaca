"""Memory of the fullest device of a layout: model states, activations, and what cannot be used."""

from dataclasses import dataclass

import numpy as np

from benchsuite.predict.layout.candidates import RECOMPUTE, Layouts, padded_vocab
from benchsuite.predict.layout.job import Job
from benchsuite.predict.layout.models import Model
from benchsuite.predict.layout.shape import Shape, shape_of, widths
from benchsuite.predict.theory.arrays import Floats
from benchsuite.predict.theory.memory import ADAM_BYTES, activation_bytes_per_layer, interleave_factor, state_bytes
from benchsuite.predict.theory.pipeline import in_flight

RESERVED_BYTES = 1.5e9
"""Of the device's context, libraries and communication buffers."""
FRAGMENTED = 0.05
"""Of the memory, lost between blocks of unlike sizes."""
WEIGHT, GRADIENT = 2, 4
"""Bytes a parameter in mixed precision, gradients added up in fp32 as Megatron-LM does: 18 P with Adam's 12."""
CONV_COPIES = 2
"""Each convolution's output, and that of the normalisation after it."""


@dataclass(frozen=True)
class Footprint:
    """Bytes of the fullest device; `activations` is NaN where a model's are not known."""

    states: Floats
    activations: Floats
    usable: float

    @property
    def total(self) -> Floats:
        """What is known of it."""
        return self.states + np.nan_to_num(self.activations)


def stage_params(model: Model, shape: Shape, of: Layouts) -> Floats:
    """Parameters of the fullest device before ZeRO: a stage's layers and the larger of the pipeline's two ends."""
    padding = (padded_vocab(model.vocab, of.tp) - (model.vocab or 0)) * model.width
    ends = shape.embedding_params + padding + shape.head_params + (0 if model.tied_embeddings else padding)
    tied = (shape.embedding_params + padding) if model.tied_embeddings else 0.0
    one_end = np.maximum(shape.embedding_params + padding, shape.head_params + tied)
    return np.asarray((model.num_layers / of.pp * shape.layer_params + np.where(of.pp > 1, one_end, ends)) / of.tp)


def footprint(job: Job, of: Layouts) -> Footprint:
    """Memory of every layout's fullest device.

    States: 18 P, ZeRO-1 (6 + 12/d) P, ZeRO-2 (2 + 16/d) P, ZeRO-3 18 P/d and two gathered layers. Activations: those of
    the first stage (arXiv:2205.05198), one layer's more where layers are recomputed, or the last stage's with its
    logits. fp32 training (fp32, tf32) keeps 16 P and twice the activations.
    """
    shape = shape_of(job.model)
    params = stage_params(job.model, shape, of)
    wide = job.element_bytes == 4
    weight, gradient, adam = (4, 4, 8) if wide else (WEIGHT, GRADIENT, ADAM_BYTES)
    states = state_bytes(params, of.dp, of.zero, weight, gradient, adam)
    gathered = np.where(of.zero == 3, 2 * weight * _largest(job.model, shape, of), 0.0)
    activations = job.element_bytes / 2 * _activations(job, of)
    usable = (1 - FRAGMENTED) * job.machine.device.memory_bytes - RESERVED_BYTES
    return Footprint(states + gathered, activations, usable)


def _largest(model: Model, shape: Shape, of: Layouts) -> Floats:
    """Parameters of the largest unit that ZeRO-3 gathers at once."""
    return np.asarray(max(shape.layer_params, shape.embedding_params if model.shaped else 0.0) / of.tp)


def _activations(job: Job, of: Layouts) -> Floats:
    """At 2 bytes an element."""
    model = job.model
    if not model.shaped:
        each = (model.activations_per_sample or float("nan")) * 2 * CONV_COPIES
        return np.asarray(of.microbatch * each)
    normal = sharded_mode(job)
    modes = (normal, f"{normal}_selective", "full")
    kept = np.choose(of.recompute, [layer_activation_bytes(job, of, mode, job.flash_attention) for mode in modes])
    again = layer_activation_bytes(job, of, normal, job.flash_attention)
    working = np.where(of.recompute == RECOMPUTE.index("full"), again, 0.0)
    p, t, b = of.pp, of.tp, of.microbatch
    layers, token = model.num_layers / p, b * model.tokens * model.width
    flying = in_flight("1f1b", p, of.num_microbatches, 0)
    logits = 4 * token / t + 4 * b * (model.predictions or model.tokens) * padded_vocab(model.vocab, t) / t
    first = layers * kept * flying * interleave_factor(p, of.interleave) + token / t * flying
    last = layers * kept + logits
    return np.asarray(working + np.maximum(first + np.where(p == 1, logits, 0.0), last))


def sharded_mode(job: Job) -> str:
    """How a tensor-parallel layer keeps its activations."""
    return "tp_sp" if job.sequence_parallel else "tp"


def layer_activation_bytes(job: Job, of: Layouts, mode: str, flash_attention: bool) -> Floats:
    """What a layer keeps of a microbatch at 2 bytes an element: GPT's form, corrected for other widths.

    Of GPT's 24 s b h/t (arXiv:2205.05198, section 4.1) 8 are queries, keys, values and what the projection takes, and
    16 the MLP's 4 h, twice; a gated MLP keeps four tensors instead of two. Dropout masks count though few models have
    them today; the second attention of a decoder beside an encoder is left out.
    """
    model = job.model
    kept = activation_bytes_per_layer(
        of.microbatch, model.tokens, model.width, model.num_heads, of.tp, mode, flash_attention
    )
    if mode == "full":
        return np.asarray(kept)
    _, q, k, f = widths(model)
    inner = 4 * (q + k) + (8 if model.gated_mlp else 4) * f
    return np.asarray(kept + of.microbatch * model.tokens * (inner - 24 * model.width) / of.tp)
