"""DeepSpeed's own estimates of model states under ZeRO-2 and 3: bytes of a device, and of a node's host memory.

`estimate_zero2_model_states_mem_needs` (deepspeed/runtime/zero/stage_1_and_2.py), `estimate_zero3_...` (stage3.py) and
docs/code-docs/source/memory.rst. P params; d num_nodes devices_per_node. DeepSpeed prints GiB and writes GB. Weights
and gradients in 16 bits, Adam in fp32 beside an fp32 copy and gradient; activations are not in it.
"""

import numpy as np
from numpy.typing import ArrayLike

from benchsuite.errors import UserError, refuse
from benchsuite.predict.arrays import Floats, positive, whole

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
