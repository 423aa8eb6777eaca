"""Configurations for tests of the predictor, and published rows."""

from dataclasses import replace
from typing import Any

import numpy as np

from benchsuite_plan.layout.cost import constants_of
from benchsuite_plan.layout.step import Constants
from benchsuite_plan.tables.configurations import Configurations
from benchsuite_plan.tables.layout_fit import priors
from planner.tests.small import IDEAL as NOTHING_ELSE
from planner.tests.small import job

VTRAIN_MULTI_NODE = [
    # billions, global batch, microbatch, hidden, heads, layers, tp, dp, pp, ms
    (3.6, 512, 8, 3072, 32, 30, 1, 64, 1, 3566.5),
    (3.6, 512, 8, 3072, 32, 30, 2, 32, 1, 3975.2),
    (3.6, 512, 2, 3072, 32, 30, 1, 64, 1, 3700.5),
    (3.6, 512, 4, 3072, 32, 30, 2, 32, 1, 4078.2),
    (3.6, 512, 16, 3072, 32, 30, 4, 16, 1, 4492.1),
    (3.6, 512, 4, 3072, 32, 30, 4, 16, 1, 4764.0),
    (3.6, 512, 4, 3072, 32, 30, 1, 32, 2, 4382.1),
    (3.6, 512, 8, 3072, 32, 30, 1, 32, 2, 5045.6),
    (3.6, 512, 32, 3072, 32, 30, 8, 8, 1, 4972.3),
    (3.6, 512, 8, 3072, 32, 30, 8, 8, 1, 5178.0),
    (3.6, 512, 4, 3072, 32, 30, 8, 8, 1, 5618.0),
    (3.6, 512, 16, 3072, 32, 30, 16, 4, 1, 10719.3),
    (3.6, 512, 4, 3072, 32, 30, 16, 4, 1, 11960.1),
    (18.4, 1024, 8, 6144, 48, 40, 8, 32, 1, 9603.6),
    (18.4, 1024, 2, 6144, 48, 40, 8, 32, 1, 10453.3),
    (18.4, 1024, 8, 6144, 48, 40, 4, 32, 2, 10856.3),
    (18.4, 1024, 2, 6144, 48, 40, 4, 32, 2, 10031.6),
    (18.4, 1024, 4, 6144, 48, 40, 1, 32, 8, 12379.0),
    (18.4, 1024, 8, 6144, 48, 40, 8, 4, 8, 11026.1),
    (18.4, 1024, 8, 6144, 48, 40, 2, 16, 8, 13157.5),
]
"""Megatron-DeepSpeed on A100 nodes of 8, every layer recomputed, s 2048, V 50257 (VIA-Research/vTrain, data/; MIT)."""


def configured(**changes: Any) -> Configurations:
    """One GPT per element of the longest change: 24 layers of 2048, microbatches of 2 x 1024 tokens, one device."""
    base = {
        "microbatch": 2,
        "num_microbatches": 1,
        "seq_len": 1024,
        "num_layers": 24,
        "hidden_size": 2048,
        "num_heads": 16,
        "vocab_size": 50257,
        "tensor": 1,
        "pipeline": 1,
        "data": 1,
        "zero": 0,
        "recompute": 0,
        "flash": 0,
        "ranks_per_node": 8,
    }
    columns = np.broadcast_arrays(*(np.atleast_1d(np.asarray(value, float)) for value in (base | changes).values()))
    return Configurations(**dict(zip(base, (column.copy() for column in columns), strict=True)))


IDEAL = replace(constants_of(job(), NOTHING_ELSE), flops_per_s=220e12)
"""Nothing but products costs: 220 TFLOP/s whatever their size. Wires are those of the small machine."""


def constants(**changes: float) -> Constants:
    """Medians of the priors, some of them changed."""
    return replace(IDEAL, **{name: prior.median for name, prior in priors().items()} | changes)


def published(rows: list[tuple[float, ...]] = VTRAIN_MULTI_NODE) -> tuple[Configurations, Any]:
    """vTrain's rows and their seconds."""
    table = np.array(rows, dtype=float)
    _, batch, micro, hidden, heads, layers, tensor, data, pipeline, ms = table.T
    runs = configured(
        microbatch=micro,
        num_microbatches=batch / data / micro,
        seq_len=2048,
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        tensor=tensor,
        data=data,
        pipeline=pipeline,
        recompute=1,
    )
    return runs, ms / 1e3
