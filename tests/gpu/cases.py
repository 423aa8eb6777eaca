"""What is compared with one process over several devices: every mode, schedule and torch's own engines, by name.

`tests/grid/test_gpu_cases.py` plans them all for devices that are told, where there are none.
"""

from collections.abc import Mapping
from typing import Any

from benchsuite.contract.trial_spec import parse_trial
from benchsuite.results.report.several_gpus import features

WORKLOAD = "gpt_neox"
PIPELINE = {"pp": 2, "microbatches": 4}
MODES: Mapping[str, tuple[int, dict[str, Any]]] = {
    "data_parallel": (2, {"parallelism": "data_parallel", "world_size": 1}),
    "ddp": (2, {"parallelism": "ddp"}),
    "zero1": (2, {"parallelism": "zero1"}),
    "zero2": (2, {"parallelism": "zero2"}),
    "fsdp": (2, {"parallelism": "fsdp"}),
    "fsdp, offloaded": (2, {"parallelism": "fsdp", "cpu_offload": True}),
    "fsdp, compiled": (2, {"parallelism": "fsdp", "compile": True}),
    "tp": (2, {"parallelism": "tp"}),
    "pp": (2, {"parallelism": "pp"}),
    "naive": (2, {"parallelism": {"pp": 2, "schedule": "naive"}}),
    "gpipe": (2, {"parallelism": {**PIPELINE, "schedule": "gpipe"}}),
    "interleaved": (2, {"parallelism": {**PIPELINE, "schedule": "interleaved"}}),
    "zero bubble": (2, {"parallelism": {**PIPELINE, "schedule": "zero_bubble"}}),
    "cp": (2, {"parallelism": "cp"}),
    "cp by heads": (2, {"parallelism": {"cp": 2, "cp_attention": "all_to_all"}}),
    "ep": (2, {"parallelism": {"dp": 2, "ep": 2}, "variant": "nano_moe"}),
    "parameter server": (2, {"parallelism": {"dp": 2, "engine": "parameter_server"}}),
    "broadcast": (2, {"parallelism": {"dp": 2, "engine": "broadcast"}}),
    "ddp of three": (3, {"parallelism": "ddp"}),
    "hsdp": (4, {"parallelism": {"dp": 4, "dp_replicate": 2, "zero": 3}}),
    "tp and pp": (4, {"parallelism": {"tp": 2, "pp": 2}}),
    "cp and fsdp": (4, {"parallelism": {"cp": 2, "dp": 2, "zero": 3}}),
    "ddp of eight": (8, {"parallelism": "ddp"}),
    "hsdp with tp": (8, {"parallelism": {"dp": 4, "dp_replicate": 2, "zero": 3, "tp": 2}}),
    "cp, interleaved": (8, {"parallelism": {**PIPELINE, "cp": 2, "dp": 2, "schedule": "interleaved"}}),
}
"""Devices of one node, and what is asked of them."""
PRECISIONS = ("fp32", "bf16")


def two_nodes(devices: int) -> dict[str, dict[str, Any]]:
    """What is asked of two nodes with so many devices each."""
    return {
        "ddp": {"parallelism": "ddp", "world_size": 2 * devices},
        "fsdp": {"parallelism": "fsdp", "world_size": 2 * devices},
        "a shard on each node": {"parallelism": {"dp": 2 * devices, "dp_replicate": 2, "zero": 3}},
        "tp within nodes": {"parallelism": {"tp": 2, "dp": devices}},
        "pp across nodes": {"parallelism": {"pp": 2, "dp": devices}},
        "cp within nodes": {"parallelism": {"cp": 2, "dp": devices}},
        "ep": {"parallelism": {"dp": 2 * devices, "ep": 2}, "variant": "nano_moe"},
    }


def spec_of(workload: str, batch_size: int = 8, **changes: Any) -> dict[str, Any]:
    """A trial on devices, of samples that are made up there."""
    return {
        "workload": workload,
        "variant": "tiny",
        "data": {"source": "synthetic"},
        "device": "cuda",
        "batch_size": batch_size,
        "measure": {"steps": 6, "warmup_steps": 2, "timeout_s": 300},
        **changes,
    }


def case_of(name: str, precision: str = "fp32") -> dict[str, Any]:
    """One of MODES as a trial."""
    devices, changes = MODES[name]
    settings = {"world_size": devices, "optimizer": "momentum", "precision": precision, **changes}
    return spec_of(WORKLOAD, **settings)


def features_of_case(spec: Mapping[str, Any], nodes: int = 1) -> list[str]:
    """What such a trial tests, by the names of `benchsuite list`."""
    parallelism = parse_trial(spec).parallelism
    return features(parallelism if isinstance(parallelism, str) else parallelism.model_dump(), nodes)
