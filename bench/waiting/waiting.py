"""GPT-NeoX whose layers take a known time: real tensors, gradients and exchange, emulated computation.

A layer takes FORWARD_S and BACKWARD_S a sample, less what its own small products took of a core or waited for one, as
an accelerator is fed ahead of its work. So eight ranks share two cores, and a step is as long as that of a larger
model; what is exchanged is exchanged. Layers are long enough for that: eight ranks' products take half of two cores.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchsuite.trial.clock import run_queue_s
from benchsuite.workloads.facts import DecoderShape
from benchsuite.workloads.gpt_neox import WORKLOAD as NEOX
from benchsuite.workloads.spec import Variant

FORWARD_S, BACKWARD_S = 0.016, 0.032
"""Seconds of one layer and sample."""
TENSOR_TIMES = 2.0
"""Times as long where ranks share each layer: an eighth of it must outlast what issuing it takes of a core."""
LAYERS, HIDDEN, HEADS = 8, 128, 8
SAMPLE = {"seq_len": 64, "vocab_size": 256}
VARIANTS: Mapping[str, Variant] = {"links": DecoderShape(HIDDEN, LAYERS, HEADS, **SAMPLE).variant}


class Pace:
    """Sleeps what is left of a layer's time; what a layer is late the next makes up, up to its own time."""

    def __init__(self, share: Callable[[], int], times: float = 1.0) -> None:
        self._share, self._times = share, times
        self._began_s = self._late_s = 0.0

    def begin(self, *_: Any) -> None:
        """Computing begins."""
        self._began_s = busy_s()

    def sleep(self, seconds: float, samples: int) -> None:
        """To the end of a layer's time for so many samples, split over the ranks that share the layer."""
        used_s = busy_s() - self._began_s
        whole_s = seconds * self._times * samples / self._share()
        left_s = whole_s - used_s - self._late_s
        before_s = time.perf_counter()
        time.sleep(max(0.0, left_s))
        self._late_s = min(time.perf_counter() - before_s - left_s, whole_s)
        self.begin()

    def end_forward(self, _module: nn.Module, _inputs: Any, output: Tensor) -> None:
        """After a layer; its backward pass is waited for when its output's gradient is there."""
        samples = len(output)
        self.sleep(FORWARD_S, samples)
        if output.requires_grad:
            output.register_hook(lambda _: self.sleep(BACKWARD_S, samples))  # type: ignore[no-untyped-call]


def busy_s() -> float:
    """Seconds that this thread has run or waited for a core."""
    return time.thread_time() + (run_queue_s() or 0.0)


def build(variant: Variant, share: Callable[[], int], times: float = 1.0) -> nn.Module:
    """The model, with layers that wait."""
    model, pace = NEOX.build(variant), Pace(share, times)
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
TENSOR_PARALLEL = replace(WORKLOAD, name="waiting_tp", build=lambda variant: build(variant, _ranks, times=TENSOR_TIMES))
"""All ranks share each layer."""
