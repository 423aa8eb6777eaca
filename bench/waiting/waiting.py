"""GPT-NeoX whose layers take a known time: real tensors, gradients and exchange, emulated computation.

A layer takes FORWARD_S and BACKWARD_S a sample, less what its own small products took of a core. So eight ranks share
two cores, and a step is as long as that of a larger model; what is exchanged is exchanged.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from workloads.gpt_neox import WORKLOAD as NEOX
from workloads.spec import Variant

FORWARD_S, BACKWARD_S = 0.004, 0.008
"""Of one layer and sample."""
LAYERS, HIDDEN, HEADS = 8, 128, 8
SAMPLE = {"seq_len": 64, "vocab_size": 256}
VARIANTS: Mapping[str, Variant] = {
    "links": Variant({"layers": LAYERS, "hidden": HIDDEN, "heads": HEADS, "num_experts": 0, "top_k": 0}, SAMPLE)
}


class Pace:
    """Sleeps what is left of a layer's time."""

    def __init__(self, share: Callable[[], int]) -> None:
        self._share, self._computed_s = share, 0.0

    def begin(self, *_: Any) -> None:
        """Computing begins."""
        self._computed_s = time.thread_time()

    def sleep(self, seconds: float, samples: int) -> None:
        """To the end of a layer's time for so many samples, split over the ranks that share the layer."""
        used_s = time.thread_time() - self._computed_s
        time.sleep(max(0.0, seconds * samples / self._share() - used_s))
        self.begin()

    def end_forward(self, _module: nn.Module, _inputs: Any, output: Tensor) -> None:
        """After a layer; its backward pass is waited for when its output's gradient is there."""
        samples = len(output)
        self.sleep(FORWARD_S, samples)
        if output.requires_grad:
            output.register_hook(lambda _: self.sleep(BACKWARD_S, samples))  # type: ignore[no-untyped-call]


def build(variant: Variant, share: Callable[[], int]) -> nn.Module:
    """The model, with layers that wait."""
    model, pace = NEOX.build(variant), Pace(share)
    assert NEOX.blocks is not None
    for layer in NEOX.blocks(model):
        layer.register_forward_pre_hook(pace.begin)
        layer.register_forward_hook(pace.end_forward)
    return model


def _ranks() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """An update that takes next to nothing."""
    return torch.optim.SGD(parameters, lr=1e-4)


WORKLOAD = replace(
    NEOX,
    name="waiting",
    variants=VARIANTS,
    build=lambda variant: build(variant, lambda: 1),
    optimizer=sgd,
    experts=None,
)
TENSOR_PARALLEL = replace(WORKLOAD, name="waiting_tp", build=lambda variant: build(variant, _ranks))
"""All ranks share each layer."""
