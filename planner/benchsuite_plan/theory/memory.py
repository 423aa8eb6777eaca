"""Memory of training: model states under ZeRO, and activations of a layer. Bytes per device.

P params, d data_parallel, t tensor_parallel, p num_stages, v interleave, b batch_size (of a microbatch), s seq_len,
h hidden_size, a num_heads. Activations are 2 bytes an element, dropout masks 1.
"""

import numpy as np
from numpy.typing import ArrayLike

from benchsuite.contract.errors import refuse
from benchsuite.predict.theory.arrays import Floats, not_negative, positive, whole

GIB = 2**30
WEIGHT_BYTES = GRADIENT_BYTES = 2
ADAM_BYTES = 12
"""Bytes a parameter in mixed precision: an fp32 copy of the weights and Adam's two moments."""
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


FORMS = ("code", "documentation")
