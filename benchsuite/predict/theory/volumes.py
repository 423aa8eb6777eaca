"""Bytes that parallel training sends, a device and step unless said otherwise, by rings: (d - 1)/d of an array a pass.

P params, d data_parallel, t tensor_parallel, p num_stages, v interleave, m num_microbatches, l num_layers, b batch_size
(of a microbatch), s seq_len, h hidden_size. For times see `collectives`: a pass is one reduce_scatter or all_gather.
"""

import numpy as np
from numpy.typing import ArrayLike

from benchsuite.contract.errors import refuse
from benchsuite.predict.theory.arrays import Floats, not_negative, positive, whole
from benchsuite.predict.theory.pipeline import p2p_bytes

ZERO_STAGES = (0, 1, 2, 3)
ALL_REDUCES_A_LAYER = {"none": 4, "selective": 4, "full": 6}
"""Of tensor parallelism: two in forward, two in backward, two more where the forward pass is done again."""


def data_parallel_passes(
    stage: int,
    num_microbatches: ArrayLike = 1,
    sync_every_microbatch: bool | None = None,
    reshard_after_forward: bool = True,
    gathers_for_recompute: bool = False,
) -> Floats:
    """How often a step passes all parameters or gradients through one reduce_scatter or all_gather.

    One microbatch: 2 for DDP and ZeRO 0 to 2, 3 for ZeRO-3 and FSDP (Rajbhandari et al. 2020, arXiv:1910.02054,
    section 7). Gradients are reduced once a step or for every microbatch (None: as DDP's no_sync and DeepSpeed do, once
    in stages 0 and 1, every time in 2 and 3). Stage 3 gathers weights for each microbatch's forward and backward pass,
    once a microbatch without `reshard_after_forward`, and once more where checkpointing wraps the sharded units
    (`gathers_for_recompute`). Times the number of units: how many collectives there are, for their latency.
    """
    if stage not in ZERO_STAGES:
        raise refuse("stage", stage, map(str, ZERO_STAGES))
    (m,) = whole(num_microbatches=num_microbatches)
    every = stage >= 2 if sync_every_microbatch is None else sync_every_microbatch
    syncs = m if every else np.ones_like(m)
    if stage < 3:
        return (1 + syncs) if stage else 2 * syncs
    return syncs + m * (1 + reshard_after_forward + gathers_for_recompute)


def data_parallel_bytes(
    params: ArrayLike,
    data_parallel: ArrayLike,
    stage: int = 0,
    num_microbatches: ArrayLike = 1,
    bytes_per_element: ArrayLike = 2,
    sync_every_microbatch: bool | None = None,
    reshard_after_forward: bool = True,
    gathers_for_recompute: bool = False,
) -> Floats:
    """`data_parallel_passes` P (d - 1)/d elements: 2 P (d - 1)/d for DDP and ZeRO 0 to 2, 3 P (d - 1)/d for FSDP."""
    p, size = positive(params=params, bytes_per_element=bytes_per_element)
    (d,) = whole(data_parallel=data_parallel)
    passes = data_parallel_passes(
        stage, num_microbatches, sync_every_microbatch, reshard_after_forward, gathers_for_recompute
    )
    return passes * p * (d - 1) / d * size


def hybrid_shard_bytes(
    params: ArrayLike, shard: ArrayLike, replicate: ArrayLike, bytes_per_element: ArrayLike = 2
) -> tuple[Floats, Floats]:
    """HSDP with one microbatch: inside a shard group 3 P (g - 1)/g, between r replicas an all_reduce of P/g.

    Zhao et al. 2023 (arXiv:2304.11277), section 3.2.2.
    """
    p, size = positive(params=params, bytes_per_element=bytes_per_element)
    g, r = whole(shard=shard, replicate=replicate)
    return 3 * p * (g - 1) / g * size, 2 * p / g * (r - 1) / r * size


def tensor_parallel_layer_bytes(
    batch_size: ArrayLike,
    seq_len: ArrayLike,
    hidden_size: ArrayLike,
    tensor_parallel: ArrayLike,
    recompute: str = "none",
    bytes_per_element: ArrayLike = 2,
) -> Floats:
    """Of one layer and microbatch: 4 all_reduces of b s h, 8 b s h (t - 1)/t elements; 6 and 12 with `full` recompute.

    Shoeybi et al. 2019 (arXiv:1909.08053), section 3; Narayanan et al. 2021 (arXiv:2104.04473), section 3.2. Sequence
    parallelism sends the same: a reduce_scatter and an all_gather in place of each all_reduce (Korthikanti et al.
    2022); the layer's input, gathered once more in backward, is hidden there behind computation and not counted.
    """
    if recompute not in ALL_REDUCES_A_LAYER:
        raise refuse("recompute", recompute, ALL_REDUCES_A_LAYER)
    b, s, h, size = positive(
        batch_size=batch_size, seq_len=seq_len, hidden_size=hidden_size, bytes_per_element=bytes_per_element
    )
    (t,) = whole(tensor_parallel=tensor_parallel)
    return ALL_REDUCES_A_LAYER[recompute] * 2 * b * s * h * (t - 1) / t * size


def pipeline_bytes(
    batch_size: ArrayLike,
    seq_len: ArrayLike,
    hidden_size: ArrayLike,
    num_stages: ArrayLike,
    num_microbatches: ArrayLike,
    interleave: ArrayLike = 1,
    tensor_parallel: ArrayLike = 1,
    scatter_gather: bool = False,
    bytes_per_element: ArrayLike = 2,
) -> Floats:
    """What all stages of one pipeline send to each other: 2 m (p v - 1) b s h elements, forward and backward.

    `scatter_gather`: each of t ranks sends 1/t of them (`pipeline.p2p_bytes`). Interleaving: v times as
    much, nearly (section 2.2.2). With one stage nothing is sent.
    """
    p, m, v = whole(num_stages=num_stages, num_microbatches=num_microbatches, interleave=interleave)
    boundaries = np.where(p > 1, p * v - 1, 0.0)
    one = p2p_bytes(batch_size, seq_len, hidden_size, tensor_parallel, scatter_gather, bytes_per_element)
    return 2 * m * boundaries * one


def expert_parallel_layer_bytes(
    batch_size: ArrayLike,
    seq_len: ArrayLike,
    hidden_size: ArrayLike,
    expert_parallel: ArrayLike,
    top_k: ArrayLike = 1,
    capacity_factor: ArrayLike = 1.0,
    bytes_per_element: ArrayLike = 2,
) -> Floats:
    """Of one mixture-of-experts layer: 4 all_to_alls (dispatch, combine; forward, backward) of k c b s h elements each.

    (e - 1)/e of them leave the device: Lepikhin et al. 2020 (GShard, arXiv:2006.16668); tokens spread evenly.
    """
    b, s, h, size = positive(
        batch_size=batch_size, seq_len=seq_len, hidden_size=hidden_size, bytes_per_element=bytes_per_element
    )
    k, e = whole(top_k=top_k, expert_parallel=expert_parallel)
    (capacity,) = positive(capacity_factor=capacity_factor)
    return 4 * k * capacity * b * s * h * (e - 1) / e * size


def parameter_server_bytes_per_s(
    num_workers: ArrayLike, model_bytes: ArrayLike, updates_per_s: ArrayLike, shards: ArrayLike = 1
) -> Floats:
    """Bytes a second into each of `shards` parameter servers, and as many out: K M rate / shards.

    Gradients come in and weights go out, from and to every worker (Li et al. 2014); a worker's own are M rate each.
    """
    k, s = whole(num_workers=num_workers, shards=shards)
    size, rate = not_negative(model_bytes=model_bytes, updates_per_s=updates_per_s)
    return k * size * rate / s
