"""The parameters of an LLM, from its model built on torch's meta device, which holds no values."""

import torch

from benchsuite import workloads
from benchsuite.probe.llm.files import Shapes, chosen
from benchsuite.workloads.facts import GPT_NEOX
from benchsuite.workloads.workload import Workload


def shapes_of(model: str) -> Shapes:
    """Names and shapes of a model's parameters, in its order.

    Raises:
        UserError: there is no such model.
    """
    workload: Workload = workloads.load(workloads.WORKLOADS, GPT_NEOX.name, "benchsuite.workloads")
    with torch.device("meta"):
        built = workload.build(chosen(model))
    return {name: tuple(parameter.shape) for name, parameter in built.named_parameters()}
