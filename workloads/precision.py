"""Numeric precision of weights, forward and backward computation."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from benchsuite.workloads.spec import Precision

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """The context a forward pass runs in: bf16 and fp16 are autocast over float32 weights."""
    if precision in AUTOCAST:
        return torch.autocast(device.type, dtype=AUTOCAST[precision])
    return nullcontext()


def set_float32(precision: Precision) -> None:
    """TF32 only where it is asked for: cuDNN's convolutions use it by default, and fp32 means fp32."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


def convert(model: nn.Module, precision: Precision) -> nn.Module:
    """The model with weights of the precision's type: bfloat16 for pure_bf16, else as they are."""
    return model.to(torch.bfloat16) if precision == "pure_bf16" else model


def convert_batch(batch: dict[str, Tensor], precision: Precision) -> dict[str, Tensor]:
    """A batch whose floating-point values fit the weights."""
    if precision != "pure_bf16":
        return batch
    return {
        name: value.to(torch.bfloat16) if value.is_floating_point() and value.ndim else value
        for name, value in batch.items()
    }


class Scaler:
    """Gradient scaling of fp16, and how many steps it skipped; for other precisions it does nothing."""

    def __init__(self, precision: Precision, device: torch.device) -> None:
        self._scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
        self.skipped_steps = 0

    def scale(self, loss: Tensor) -> Tensor:
        """The loss to go backward from."""
        scaled: Tensor = self._scaler.scale(loss)
        return scaled

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Update, unless a gradient is not finite."""
        before = self._scaler.get_scale()
        self._scaler.step(optimizer)
        self._scaler.update()
        if self._scaler.is_enabled() and self._scaler.get_scale() < before:
            self.skipped_steps += 1
