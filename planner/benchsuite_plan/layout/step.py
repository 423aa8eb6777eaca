"""Seconds of a training step: one function of what is computed and moved (`work.Work`) and of constants.

The constants are assumed (`cost.constants_of`: data sheets and published efficiencies), fitted to measured steps
(`tables.layout_fit`), or measured (`probe device`, `probe comm`).
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from benchsuite.predict.theory.arrays import Floats
from benchsuite_plan.layout.work import Exchange, Work

MOST_HIDDEN = 0.95
"""Share of an exchange that may be hidden: its last bucket has nothing left to hide behind."""
SHARP = 4
"""How sharply a layer turns from bound by launches to bound by arithmetic: the p of the p-norm of both times."""


@dataclass(frozen=True)
class Constants:
    """Numbers, or columns of draws that broadcast over layouts."""

    flops_per_s: Any
    """Rate of large matrix products on one device, in 16 bits."""
    half_area: Any
    """Tokens times width over tp of a microbatch at which products run at half that rate."""
    memory_bytes_per_s: Any
    """Rate at which activations that a layer keeps are made, all passes through memory together."""
    launch_s: Any
    """Least time of one pass through one layer."""
    attention_weight: Any
    """Time of attention's products over that of as many FLOPs elsewhere."""
    head_weight: Any
    """Time of the vocabulary's head over what its FLOPs and bytes say."""
    link_bytes_per_s: Any
    """Device to device within a node."""
    link_growth: Any
    """Power by which that rate grows with the ranks of a tensor-parallel exchange over 2."""
    node_bytes_per_s: Any
    """Node to node, all devices of a node together."""
    link_latency_s: Any
    network_latency_s: Any
    data_overlap: Any
    """Share of the computation beside it that exchange between replicas may hide behind."""
    exposed_sends: Any
    """Share of sends between stages, and of keys and values, that is not hidden."""
    update_s_per_param: Any
    jitter: Any
    """Spread of a device's step over the step; the slowest counts."""
    narrow: Any = 1.0
    """Rate of layers' matrix products over flops_per_s."""
    unaligned_weight: Any = 1.0
    """Time of the head's products where the vocabulary is unaligned over what it is else."""
    dispatch_weight: Any = 1.0
    """Least time of a pass through a layer where operations go through Python over launch_s."""


@dataclass(frozen=True)
class Cost:
    """Seconds of a step, which the parts add up to; arrays over layouts (and draws)."""

    compute_s: Floats
    recompute_s: Floats
    tensor_s: Floats
    context_s: Floats
    """Keys and values that ranks with parts of one sequence hand on."""
    expert_s: Floats
    """Tokens on their way to experts and back."""
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
        """What is not hidden of tensor, context, expert, pipeline and data parallelism."""
        return self.tensor_s + self.context_s + self.expert_s + self.pipeline_s + self.data_s


def step(of: Work, c: Constants) -> Cost:
    """The parts of a step for every layout.

    Equal devices; 1F1B, whose slowest stage sets the pace (the last computes the head too); tensor-parallel exchange
    is exposed. A layer's pass is its products, at a rate that saturates with their size, and its traffic to memory.
    """
    rate = c.flops_per_s / (1 + c.half_area / of.area)
    attention = of.attention_flops * c.attention_weight / rate
    scores = of.score_bytes / c.memory_bytes_per_s
    busy = of.matrix_flops / (rate * c.narrow) + attention + of.kept_bytes / c.memory_bytes_per_s + scores
    launch = c.launch_s * (1 + of.dispatched * (c.dispatch_weight - 1))
    forward = (busy**SHARP + launch**SHARP) ** (1 / SHARP)
    again = forward * of.repeated + (attention + scores) * (of.rescored - of.repeated)
    slow = 1 + of.unaligned * (c.unaligned_weight - 1)
    head = c.head_weight * (3 * slow * of.head_flops / rate + of.logit_bytes / c.memory_bytes_per_s)
    tensor = (4 + 2 * of.repeated) * _tensor_s(of, c)
    context = (3 + of.repeated) * c.exposed_sends * seconds(of.context, c)
    expert = (4 + 2 * of.repeated) * seconds(of.expert, c)
    one = 3 * forward + again + tensor + context + expert
    is_last = of.last_layers * one + head >= of.most_layers * one
    longest, end = np.where(is_last, of.last_layers, of.most_layers), np.where(is_last, head, 0.0)
    m, p, v = of.microbatches, of.stages, of.interleave
    sends = 2 * v * seconds(of.send, c)
    bubble = (of.layers * one + head - longest * one - end + (p - 1) * sends) / v
    parts = {
        "compute_s": m * (longest * 3 * forward + end),
        "recompute_s": m * longest * again,
        "tensor_s": m * longest * tensor,
        "context_s": m * longest * context,
        "expert_s": m * longest * expert,
        "pipeline_s": m * sends * c.exposed_sends,
        "bubble_s": bubble,
        "data_s": _exposed_s(of, c, longest * forward),
        "optimizer_s": c.update_s_per_param * of.update_params,
    }
    return Cost(**parts, straggling_s=c.jitter * of.slowest * sum(parts.values()), input_s=np.zeros(1))


def seconds(of: Exchange, c: Constants) -> Any:
    """Seconds of messages and bytes, near and far."""
    near = of.near_messages * c.link_latency_s + of.near_bytes / c.link_bytes_per_s
    return near + of.far_messages * c.network_latency_s + of.far_bytes / c.node_bytes_per_s


def _tensor_s(of: Work, c: Constants) -> Any:
    """One all_reduce of activations: within a node as much faster as `link_growth` says of more ranks."""
    grown = (of.tensor_near / 2) ** c.link_growth
    far = of.tensor.far_messages * c.network_latency_s + of.tensor.far_bytes / c.node_bytes_per_s
    return of.tensor.near_messages * c.link_latency_s + of.tensor.near_bytes / (c.link_bytes_per_s * grown) + far


def _exposed_s(of: Work, c: Constants, forward: Any) -> Any:
    """Exchange between replicas that computation does not hide."""
    whole = of.halves * seconds(of.half, c)
    return whole - np.minimum(MOST_HIDDEN * whole, c.data_overlap * of.passes * forward)
