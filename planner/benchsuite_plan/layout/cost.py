"""What layouts of a job cost: the one step of `step.step` with constants that are assumed of the machine, and input."""

from dataclasses import fields, replace
from typing import Any

import numpy as np

from benchsuite.contract.errors import UserError
from benchsuite_plan.layout.assumptions import Assumptions
from benchsuite_plan.layout.candidates import Job, Layouts
from benchsuite_plan.layout.models import sample_bytes, shape_of
from benchsuite_plan.layout.step import Constants, Cost, step
from benchsuite_plan.layout.work import counted


def cost(job: Job, layouts: Layouts, given: Assumptions) -> Cost:
    """The parts of a step for every layout, with waiting for input where the storage is slower than all that."""
    found = step(counted(job, layouts), constants_of(job, given))
    found = Cost(**{each.name: getattr(found, each.name) * given.unexplained for each in fields(Cost)})
    return replace(found, input_s=np.maximum(0.0, input_s(job, given) - found.step_s))


def constants_of(job: Job, given: Assumptions) -> Constants:
    """The constants of a job's machine: figures of data sheets times efficiencies.

    Of a network that is no stack of layers a third of its measured or convolutional time counts as its forward pass.
    """
    machine, device = job.machine, job.machine.device
    memory = device.memory_bytes_per_s * given.memory_efficiency
    rate, narrow = _products(job, given)
    intra, inter = machine.intra_node, machine.inter_node
    return Constants(
        flops_per_s=rate,
        half_area=given.half_area,
        memory_bytes_per_s=memory / given.memory_passes,
        launch_s=given.layer_launch_s if job.model.shaped else 0.0,
        attention_weight=1 / given.attention_efficiency,
        head_weight=given.head_weight,
        link_bytes_per_s=intra.bytes_per_s * given.link_efficiency,
        link_growth=given.link_growth,
        node_bytes_per_s=machine.node_bytes_per_s * given.network_efficiency,
        link_latency_s=_known(job, given, "link_latency_s", intra.latency_s),
        network_latency_s=_known(job, given, "network_latency_s", inter.latency_s),
        data_overlap=given.data_overlap,
        exposed_sends=1 - given.pipeline_overlap,
        update_s_per_param=given.optimizer_bytes / memory,
        jitter=given.jitter,
        narrow=narrow,
        unaligned_weight=1 / given.unaligned_efficiency,
        dispatch_weight=given.dispatch_weight,
    )


def _known(job: Job, given: Assumptions, name: str, stated: float | None) -> Any:
    """What was measured, else what the machine's file states, else what is assumed."""
    return getattr(given, name) if stated is None or name in job.measured else stated


def _products(job: Job, given: Assumptions) -> tuple[Any, Any]:
    """FLOP/s of large products in 16 bits, and how much faster layers' products are where they are narrower."""
    device = job.machine.device
    if not job.model.shaped:
        return _unshaped(job, given), 1.0
    wide = device.peak_flops.get("bf16", job.peak_flops) if job.precision == "fp8" else job.peak_flops
    narrow = job.peak_flops * given.fp8_efficiency / wide if job.precision == "fp8" else 1.0
    return wide * given.matrix_efficiency * (device.matrix_efficiency_factor or 1.0), narrow


def _unshaped(job: Job, given: Assumptions) -> Any:
    """The cost of a network that is no stack of transformer layers."""
    model, flops = job.model, shape_of(job.model).matrix_flops
    if model.device_sample_s is not None:
        return 3 * (flops or 1.0) / model.device_sample_s
    if flops is None:
        raise UserError(
            f"model {model.name}: neither its FLOPs nor its time on a device are known; measure one sample on one "
            "device and give device_sample_s in a YAML file of your own"
        )
    return job.peak_flops * given.conv_efficiency


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
