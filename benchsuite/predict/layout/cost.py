"""What one step of a layout costs: computation, exchange, bubble, optimizer and input, from closed forms."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from benchsuite.contract.errors import UserError
from benchsuite.predict.layout.assumptions import Assumptions
from benchsuite.predict.layout.candidates import RECOMPUTE, Layouts, padded_vocab
from benchsuite.predict.layout.footprint import layer_activation_bytes, sharded_mode, stage_params
from benchsuite.predict.layout.job import Job
from benchsuite.predict.layout.shape import Shape, sample_bytes, shape_of
from benchsuite.predict.theory.arrays import Floats
from benchsuite.predict.theory.collectives import hierarchical_time_s, time_s
from benchsuite.predict.theory.pipeline import bubble_s, p2p_bytes

MOST_HIDDEN = 0.95
"""Of an exchange: its last bucket has nothing left to hide behind."""


@dataclass(frozen=True)
class Cost:
    """Seconds of a step, which the parts add up to; arrays over layouts (and draws)."""

    compute_s: Floats
    recompute_s: Floats
    tensor_s: Floats
    pipeline_s: Floats
    bubble_s: Floats
    data_s: Floats
    """Exchange of gradients and weights that the backward pass does not hide."""
    optimizer_s: Floats
    straggling_s: Floats
    input_s: Floats
    """Waiting for storage."""

    @property
    def step_s(self) -> Floats:
        """The whole step."""
        return np.asarray(sum(getattr(self, each.name) for each in fields(self)), dtype=np.float64)

    @property
    def communication_s(self) -> Floats:
        """What is not hidden of tensor, pipeline and data parallelism."""
        return self.tensor_s + self.pipeline_s + self.data_s


@dataclass(frozen=True)
class _Pass:
    """Seconds of one microbatch in one layer, and of the head."""

    forward: Any
    repeated: Any
    head: Any


def cost(job: Job, layouts: Layouts, given: Assumptions) -> Cost:
    """The parts of a step for every layout.

    Conditions: equal devices; a pipeline's stages hold equally many layers, its last one the head too; tensor-parallel
    exchange is exposed; replicas exchange hierarchically, each device with its share of its node's network.
    """
    shape = shape_of(job.model)
    layer = _layer(job, shape, layouts, given)
    m, stage_layers = layouts.num_microbatches, job.model.num_layers / layouts.pp
    work = stage_layers * 3 * layer.forward
    again = stage_layers * layer.repeated
    tensor = stage_layers * _tensor_s(job, layouts, given)
    sends = np.where(layouts.pp > 1, 2 * layouts.interleave * _send_s(job, layouts, given), 0.0)
    shown = sends * (1 - given.pipeline_overlap)
    bubble = bubble_s("1f1b", layouts.pp, m, layouts.interleave, work + again + tensor, 0.0, 0.0)
    bubble = bubble + (layouts.pp - 1) * sends / layouts.interleave
    parts = {
        "compute_s": m * (work + 3 * layer.head),
        "recompute_s": m * again,
        "tensor_s": m * tensor,
        "pipeline_s": m * shown,
        "bubble_s": bubble,
        "data_s": _data_s(job, shape, layouts, given, stage_layers * layer.forward),
        "optimizer_s": _optimizer_s(job, shape, layouts, given),
    }
    return _whole(job, parts, given)


def _whole(job: Job, parts: dict[str, Any], given: Assumptions) -> Cost:
    """With what ranks wait for each other, and for the input where the storage is slower than all that."""
    parts = {name: part * given.unexplained for name, part in parts.items()}
    busy = sum(parts.values())
    straggling = busy * (given.straggling if job.devices > 1 else 0.0)
    waiting = np.maximum(0.0, input_s(job, given) - busy - straggling)
    return Cost(**parts, straggling_s=straggling, input_s=waiting)


def input_s(job: Job, given: Assumptions) -> Any:
    """Seconds to read a step's samples; 0 where their size or the storage's bandwidth is not known."""
    size, rate = sample_bytes(job.model), read_bytes_per_s(job, given)
    return 0.0 if size is None or rate is None else job.batch * size / rate


def read_bytes_per_s(job: Job, given: Assumptions) -> Any:
    """What the job's nodes read together: from their own drives where input is staged, else from the shared file
    system, at its own or the nodes' speed; None where it is not known.
    """
    shared, own = job.machine.storage.shared_read_bytes_per_s, job.machine.storage.local_read_bytes_per_s
    if job.staged:
        return None if own is None else given.storage_efficiency * own * job.nodes
    if shared is None:
        return None
    return np.minimum(given.storage_efficiency * shared, job.nodes * job.machine.node_bytes_per_s)


def _layer(job: Job, shape: Shape, of: Layouts, given: Assumptions) -> _Pass:
    """Seconds of passes; a third of a network's measured or convolutional time counts as its forward pass."""
    model, peak = job.model, job.peak_flops
    if not model.shaped:
        forward = of.microbatch * _sample_s(job, shape, given)
        return _Pass(forward, np.where(of.recompute == RECOMPUTE.index("full"), forward, 0.0), 0.0)
    speed = peak * _efficiency(job, of, given)
    flops = of.microbatch / of.tp
    matrix = flops * (shape.matrix_flops or 0.0) / speed
    attention = flops * shape.attention_flops / (speed * given.attention_efficiency)
    moved = given.memory_passes / (job.machine.device.memory_bytes_per_s * given.memory_efficiency)
    scale = moved * job.element_bytes / 2
    mode = sharded_mode(job)
    every, unscored = (scale * layer_activation_bytes(job, of, mode, flash) for flash in (job.flash_attention, True))
    forward = np.maximum(matrix + attention + every, given.layer_launch_s)
    repeated = np.choose(of.recompute, [np.zeros_like(forward), attention + every - unscored, forward])
    padding = padded_vocab(model.vocab, of.tp) / (model.vocab or 1)
    return _Pass(forward, repeated, flops * shape.head_flops * np.maximum(padding, 1.0) / speed)


def _sample_s(job: Job, shape: Shape, given: Assumptions) -> Any:
    """Forward seconds of one sample of a network that is no stack of transformer layers."""
    if job.model.device_sample_s is not None:
        return job.model.device_sample_s / 3
    if shape.matrix_flops is None:
        raise UserError(
            f"model {job.model.name}: neither its FLOPs nor its time on a device are known; measure one sample on one "
            "device and give device_sample_s in a YAML file of your own"
        )
    return shape.matrix_flops / (job.peak_flops * given.conv_efficiency)


def _efficiency(job: Job, of: Layouts, given: Assumptions) -> Any:
    """Of peak: matrix products fill a device the better the larger they are, tokens x width/tp of a microbatch."""
    area = of.microbatch * job.model.tokens * job.model.width / of.tp
    limit = given.matrix_efficiency * (job.machine.device.matrix_efficiency_factor or 1.0)
    return limit * area / (area + given.half_area)


def _tensor_s(job: Job, of: Layouts, given: Assumptions) -> Any:
    """A layer's all_reduces of one microbatch: two in each pass, forward, backward and the repeated forward."""
    if not job.model.shaped:
        return np.zeros(len(of))
    size = of.microbatch * job.model.tokens * job.model.width * job.element_bytes
    inside = of.tp <= job.machine.devices_per_node
    alpha_in, beta_in, alpha_out, _ = _links(job, given)
    node = 1 / (job.machine.node_bytes_per_s * given.network_efficiency)
    alpha, beta = np.where(inside, alpha_in, alpha_out), np.where(inside, beta_in, np.maximum(beta_in, node))
    passes = np.where(of.recompute == RECOMPUTE.index("full"), 6, 4)
    return passes * time_s("all_reduce", of.tp, size, alpha, beta)


def _send_s(job: Job, of: Layouts, given: Assumptions) -> Any:
    """A microbatch's activations over one boundary; tensor-parallel ranks send a part each."""
    if not job.model.shaped:
        return np.zeros(len(of))
    size = p2p_bytes(of.microbatch, job.model.tokens, job.model.width, of.tp, True, job.element_bytes)
    alpha_in, beta_in, alpha_out, beta_out = _links(job, given)
    inside = of.tp * of.dp * of.pp <= job.machine.devices_per_node
    return np.where(inside, alpha_in + size * beta_in, alpha_out + size * beta_out)


def _data_s(job: Job, shape: Shape, of: Layouts, given: Assumptions, forward: Any) -> Any:
    """Exposed communication between replicas: all_reduce; sharded from ZeRO-2 on, for every microbatch.

    An all_reduce of the gradients is a reduce_scatter and an all_gather. ZeRO-2 scatters for every microbatch and
    gathers once; ZeRO-3 gathers for the forward and for the backward pass and scatters (arXiv:1910.02054, section 7).
    """
    size = stage_params(job.model, shape, of) * job.element_bytes
    per_node = np.maximum(1, job.machine.devices_per_node // of.tp)
    group = np.gcd(np.minimum(per_node, of.dp), of.dp)
    half = hierarchical_time_s(of.dp // group, group, size, *_links(job, given)) / 2
    m = of.num_microbatches
    halves = np.choose(of.zero, [np.full_like(m, 2), np.full_like(m, 2), m + 1, 3 * m])
    passes = np.choose(of.zero, [np.full_like(m, 2), np.full_like(m, 2), 2 * m, 3 * m])
    total = halves * half
    return total - np.minimum(MOST_HIDDEN * total, given.data_overlap * passes * forward)


def _optimizer_s(job: Job, shape: Shape, of: Layouts, given: Assumptions) -> Any:
    own = stage_params(job.model, shape, of) / np.where(of.zero > 0, of.dp, 1)
    return own * given.optimizer_bytes / (job.machine.device.memory_bytes_per_s * given.memory_efficiency)


def _links(job: Job, given: Assumptions) -> tuple[Any, Any, Any, Any]:
    """Alpha and beta within a node and, for one device's share of it, between nodes."""
    intra, inter, machine = job.machine.intra_node, job.machine.inter_node, job.machine
    alpha_in = given.link_latency_s if intra.latency_s is None else intra.latency_s
    alpha_out = given.network_latency_s if inter.latency_s is None else inter.latency_s
    share = machine.node_bytes_per_s / min(machine.devices_per_node, job.devices)
    return alpha_in, 1 / (intra.bytes_per_s * given.link_efficiency), alpha_out, 1 / (share * given.network_efficiency)
