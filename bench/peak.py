"""What a step really allocates on a CPU, by torch's own account, beside what the closed forms say."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchsuite.predict.theory.peak_memory import Peak, peak_of
from benchsuite.workloads import bert, gpt_neox, resnet50
from benchsuite.workloads.spec import Variant

MODULES: Mapping[str, Any] = {"gpt_neox": gpt_neox, "bert": bert, "resnet50": resnet50}
SMALL = {"hidden": 256, "layers": 6, "heads": 8}
CASES = (
    ("gpt_neox", "tiny", gpt_neox.WORKLOAD.variants["tiny"], 8),
    ("gpt_neox", "tiny", gpt_neox.WORKLOAD.variants["tiny"], 32),
    ("gpt_neox", "small", Variant(SMALL | {"num_experts": 0, "top_k": 0}, {"seq_len": 256, "vocab_size": 4096}), 4),
    ("bert", "tiny", bert.WORKLOAD.variants["tiny"], 8),
    ("bert", "tiny", bert.WORKLOAD.variants["tiny"], 32),
    (
        "bert",
        "small",
        Variant(SMALL | {"dropout": 0.1}, {"seq_len": 128, "max_predictions": 20, "vocab_size": 8192}),
        4,
    ),
    ("resnet50", "tiny", resnet50.WORKLOAD.variants["tiny"], 4),
    ("resnet50", "tiny", resnet50.WORKLOAD.variants["tiny"], 32),
    ("resnet50", "reference", resnet50.WORKLOAD.variants["reference"], 4),
)
"""Workload, name, shape, samples a step."""


@dataclass(frozen=True)
class Found:
    """Bytes of one case."""

    label: str
    states: int
    peak: int
    predicted: Peak


def measured(workload: str, variant: Variant, batch_size: int) -> tuple[int, int, int, int]:
    """Bytes of model states, peak of a step, parameters, and elements of the largest one.

    The peak: weights, moments and the batch, and the most that the profiler's running sum of allocations and frees
    reaches in the second step.
    """
    module = MODULES[workload]
    torch.manual_seed(0)
    model = module.build(variant)
    optimizer = module.WORKLOAD.optimizer(model.parameters())
    batch = module.synthetic(variant, batch_size, torch.device("cpu"))

    def step() -> None:
        module.loss(model, batch).backward()
        optimizer.step()

    step()
    optimizer.zero_grad(set_to_none=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    weights, gradients = (sum(t.nbytes for t in values) for values in zip(*_both(model), strict=True))
    states = [value for of in optimizer.state.values() for value in of.values()]
    moments = sum(value.nbytes for value in states)
    held = weights + moments + sum(value.nbytes for value in batch.values())
    sizes = [parameter.numel() for parameter in model.parameters()]
    return weights + gradients + moments, held + _most(profile), sum(sizes), max(sizes)


def _both(model: torch.nn.Module) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Parameters with their gradients."""
    for parameter in model.parameters():
        assert parameter.grad is not None
        yield parameter, parameter.grad


def _most(profile: torch.profiler.profile) -> int:
    """The highest running sum of what was allocated less what was freed."""
    with tempfile.TemporaryDirectory(prefix="benchsuite-peak-") as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = [event for event in json.loads(path.read_text())["traceEvents"] if event.get("name") == "[memory]"]
    most = running = 0
    for event in sorted(events, key=lambda event: event["ts"]):
        running += event["args"]["Bytes"]
        most = max(most, running)
    return most


def compare() -> Iterator[Found]:
    """Every case."""
    for workload, name, variant, batch_size in CASES:
        states, peak, params, largest = measured(workload, variant, batch_size)
        predicted = peak_of(workload, params, variant.model, variant.sample, batch_size, largest)  # type: ignore[arg-type]
        yield Found(f"{workload} {name}, batch {batch_size}", states, peak, predicted)
