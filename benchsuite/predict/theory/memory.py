"""Memory of training: model states under ZeRO, and activations of a layer. Bytes per device.

P params, d data_parallel, t tensor_parallel, p num_stages, v interleave, b batch_size (of a microbatch), s seq_len,
h hidden_size, a num_heads. Activations are 2 bytes an element, dropout masks 1.

DeepSpeed's own estimates of model states under ZeRO-2 and 3: bytes of a device, and of a node's host memory.

`estimate_zero2_model_states_mem_needs` (deepspeed/runtime/zero/stage_1_and_2.py), `estimate_zero3_...` (stage3.py) and
docs/code-docs/source/memory.rst. P params; d num_nodes devices_per_node. DeepSpeed prints GiB and writes GB. Weights
and gradients in 16 bits, Adam in fp32 beside an fp32 copy and gradient; activations are not in it.
"""

import numpy as np
from numpy.typing import ArrayLike

from benchsuite.contract.errors import UserError, refuse
from benchsuite.predict.theory.arrays import Floats, not_negative, positive, whole

GIB = 2**30
WEIGHT_BYTES = GRADIENT_BYTES = 2
ADAM_BYTES = 12
"""Of mixed precision: an fp32 copy of the weights and Adam's two moments."""
STAGES = (0, 1, 2, 3)
MODES = ("none", "tp", "tp_sp", "tp_selective", "tp_sp_selective", "full")


def zero_bytes(
    params: ArrayLike, data_parallel: ArrayLike, stage: ArrayLike, optimizer_bytes_per_param: ArrayLike = ADAM_BYTES
) -> Floats:
    """Model states under ZeRO in 16-bit mixed precision, with K optimizer bytes a parameter (12: Adam).

    Stage 0 (4 + K) P, 1 (4 + K/d) P, 2 (2 + (2 + K)/d) P, 3 (4 + K)/d P (Rajbhandari et al. 2020, arXiv:1910.02054,
    section 5). Buffers, gathered layers (stage 3) and activations come on top.
    """
    return state_bytes(params, data_parallel, stage, WEIGHT_BYTES, GRADIENT_BYTES, optimizer_bytes_per_param)


def state_bytes(
    params: ArrayLike,
    data_parallel: ArrayLike,
    stage: ArrayLike,
    weights: ArrayLike,
    gradients: ArrayLike,
    optimizer: ArrayLike,
) -> Floats:
    """Model states with so many bytes a parameter, each kind over d ranks from its ZeRO stage on.

    The optimizer's from 1, gradients from 2, weights from 3. Megatron-LM adds gradients up in fp32: 2, 4 and 12 bytes,
    18 P, or (6 + 12/d) P at stage 1, its distributed optimizer (megatron/training/theoretical_memory_usage.py).
    """
    (p,), (d,), z = positive(params=params), whole(data_parallel=data_parallel), np.asarray(stage)
    w, g, k = not_negative(weights=weights, gradients=gradients, optimizer=optimizer)
    if not np.all(np.isin(z, STAGES)):
        raise refuse("stage", stage, map(str, STAGES))
    sharded = [np.where(z >= first, d, 1.0) for first in (1, 2, 3)]
    return p * (k / sharded[0] + g / sharded[1] + w / sharded[2])


def activation_bytes_per_layer(
    batch_size: ArrayLike,
    seq_len: ArrayLike,
    hidden_size: ArrayLike,
    num_heads: ArrayLike,
    tensor_parallel: ArrayLike = 1,
    mode: str = "tp",
    flash_attention: bool = False,
) -> Floats:
    """What one layer keeps of one microbatch for its backward pass.

    none s b h (34 + 5as/h), t ignored | tp s b h (10 + 24/t + 5as/ht) | tp_sp s b h/t (34 + 5as/h) | tp_selective
    s b h (10 + 24/t) | tp_sp_selective 34 s b h/t | full 2 s b h, t ignored (Korthikanti et al. 2022, arXiv:2205.05198,
    Table 2): GPT with an MLP of 4 h, dropout, 16-bit. `flash_attention` drops the 5as/h term (scores and their
    dropout are never stored), as selective recomputation does.
    """
    if mode not in MODES:
        raise refuse("mode", mode, MODES)
    b, s, h, a = positive(batch_size=batch_size, seq_len=seq_len, hidden_size=hidden_size, num_heads=num_heads)
    (t,) = whole(tensor_parallel=tensor_parallel)
    if mode in ("none", "full"):
        t = np.ones_like(t)
    scores = 5 * a * s / h / t * (0 if flash_attention or mode.endswith("selective") else 1)
    if mode == "full":
        return 2 * s * b * h * t
    whole_part = 10 / (t if "sp" in mode.split("_") else 1)
    return s * b * h * (whole_part + 24 / t + scores)


def interleave_factor(num_stages: ArrayLike, interleave: ArrayLike = 1) -> Floats:
    """How much more the first stage keeps where it runs v > 1 chunks: 1 + (p - 1)/(p v); 1 for v = 1.

    Korthikanti et al. 2022, section 4.2.3.
    """
    p, v = whole(num_stages=num_stages, interleave=interleave)
    return np.where(v > 1, 1 + (p - 1) / (p * v), 1.0)[()]


BUFFER_FACTOR = 1.5
"""`additional_buffer_factor`: host memory is asked for with half as much again."""
FORMS = ("code", "documentation")


def zero2_bytes(
    params: ArrayLike, data_parallel: ArrayLike, offload_optimizer: bool = False, form: str = "code"
) -> Floats:
    """Of a device: 2 P with the optimizer offloaded, else 2 P + 18 P/d by the code, 4 P + 16 P/d by the documentation.

    The two disagree: the documentation's example (t5-3b on 8 devices) prints 15.93 GB where the code gives 11.28.
    """
    if form not in FORMS:
        raise refuse("form", form, FORMS)
    (p,), (d,) = positive(params=params), whole(data_parallel=data_parallel)
    if offload_optimizer:
        return 2 * p * np.ones_like(d)
    return 2 * p + 18 * p / d if form == "code" else 4 * p + 16 * p / d


def zero2_host_bytes(
    params: ArrayLike, devices_per_node: ArrayLike, num_nodes: ArrayLike = 1, offload_optimizer: bool = False
) -> Floats:
    """Of a host: 4 P a device while it loads the weights; with the optimizer offloaded P max(4 d, 16). Times 1.5."""
    (p,) = positive(params=params)
    g, nodes = whole(devices_per_node=devices_per_node, num_nodes=num_nodes)
    each = np.maximum(4 * g * nodes, 16) if offload_optimizer else 4 * g
    return BUFFER_FACTOR * p * each


def zero3_bytes(
    params: ArrayLike,
    largest_layer_params: ArrayLike,
    data_parallel: ArrayLike,
    offload_optimizer: bool = False,
    offload_params: bool = False,
) -> Floats:
    """Of a device: 4 largest + 18 P/d; with the optimizer offloaded + 2 P/d, with the parameters as well + 0."""
    p, largest = positive(params=params, largest_layer_params=largest_layer_params)
    (d,) = whole(data_parallel=data_parallel)
    return 4 * largest + (18 - _on_host(offload_optimizer, offload_params)) * p / d


def zero3_host_bytes(
    params: ArrayLike,
    largest_layer_params: ArrayLike,
    devices_per_node: ArrayLike,
    num_nodes: ArrayLike = 1,
    offload_optimizer: bool = False,
    offload_params: bool = False,
    sharded_init: bool = True,
) -> Floats:
    """Of a host: 16 or 18 P/nodes for what is offloaded, else 4 largest a device. Times 1.5.

    Without `sharded_init` (`zero.Init`) every device's process first loads all weights: at least 4 P each.
    """
    p, largest = positive(params=params, largest_layer_params=largest_layer_params)
    g, nodes = whole(devices_per_node=devices_per_node, num_nodes=num_nodes)
    on_host = _on_host(offload_optimizer, offload_params)
    needed = on_host * p / nodes if on_host else 4 * largest * g
    loading = 0 * p * g if sharded_init else 4 * p * g
    more: Floats = BUFFER_FACTOR * np.maximum(needed, loading)
    return more


def _on_host(offload_optimizer: bool, offload_params: bool) -> int:
    """Bytes a parameter that are offloaded."""
    if offload_params and not offload_optimizer:
        raise UserError("offload_params without offload_optimizer is not allowed; allowed: the optimizer, or both")
    return 18 if offload_params else 16 if offload_optimizer else 0
