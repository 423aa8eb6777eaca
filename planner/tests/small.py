"""A small machine and a small model whose costs can be worked out on paper."""

from dataclasses import fields, replace
from typing import Any

import numpy as np

from benchsuite_plan.layout import machines, models
from benchsuite_plan.layout.assumptions import typical
from benchsuite_plan.layout.candidates import Job, Layouts
from benchsuite_plan.layout.machines import Machine
from benchsuite_plan.layout.models import Model

GB = 1e9
IDEAL = replace(
    typical(),
    matrix_efficiency=0.5,
    attention_efficiency=1.0,
    half_area=0.0,
    head_weight=1.0,
    memory_passes=1e-12,
    layer_launch_s=0.0,
    link_efficiency=1.0,
    link_growth=0.0,
    network_efficiency=1.0,
    link_latency_s=0.0,
    network_latency_s=0.0,
    storage_efficiency=1.0,
    data_overlap=0.0,
    pipeline_overlap=0.0,
    optimizer_bytes=0.0,
    jitter=0.0,
)
"""Half of the peak, links at their rate, nothing else costs: what is left can be worked out on paper."""


def machine(**changes: Any) -> Machine:
    """Two devices a node of 1 TFLOP/s; 10 GB/s within a node, 2 GB/s out of it."""
    values = {
        "name": "small",
        "devices_per_node": 2,
        "device": {"name": "d", "peak_flops": {"bf16": 1e12}, "memory_bytes": 80 * GB, "memory_bytes_per_s": 1e12},
        "intra_node": {"bytes_per_s": 10 * GB},
        "inter_node": {"bytes_per_s": 2 * GB, "oversubscription": 1},
    }
    return machines.parse(values | changes, "here")


def model(**changes: Any) -> Model:
    """4 layers of 128, 4 heads, 64 tokens; no biases, norms small, no vocabulary to pad."""
    values = {"name": "m", "kind": "decoder", "source": "", "layers": 4, "hidden": 128, "heads": 4, "seq_len": 64}
    return models.parse(values | {"bias": False, "rms_norm": True} | changes, "here")


def job(devices: int = 1, batch: int = 8, **changes: Any) -> Job:
    given = {"model": model(), "machine": machine()} | changes
    return Job(devices=devices, batch=batch, **given)


def layout(**numbers: int) -> Layouts:
    names = [each.name for each in fields(Layouts)]
    ones = {"zero": 0, "recompute": 0, "ends_count": 0}
    return Layouts(**{name: np.array([numbers.get(name, ones.get(name, 1))]) for name in names})


LAYER_FLOPS = 2 * 64 * 12 * 128**2 + 4 * 64**2 * 128
"""Of one sample in one layer, forward."""
SAMPLE_S = LAYER_FLOPS / 0.5e12
LAYER_PARAMS = 12 * 128**2 + 2 * 128
