"""Numeric precision of weights, forward and backward computation."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

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
    """TF32 only where it is asked for: cuDNN's convolutions use it by default, and fp32 means fp32.

    Set by the older names, which set the newer `fp32_precision` too; not the other way round.
    """
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


@contextmanager
def float32_kept() -> Iterator[None]:
    """Give the caller's choices back, whichever names they were made by."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    newer = [part for part in (matmul, getattr(cudnn, "conv", None), getattr(cudnn, "rnn", None)) if part is not None]
    chosen = [(part, part.fp32_precision) for part in newer if hasattr(part, "fp32_precision")]
    try:
        older = matmul.allow_tf32, cudnn.allow_tf32
    except RuntimeError:  # torch refuses to say, where the caller has chosen by the newer names
        older = None
    try:
        yield
    finally:
        if older is not None:
            matmul.allow_tf32, cudnn.allow_tf32 = older
        for part, precision in chosen:
            part.fp32_precision = precision


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
    """Gradient scaling of fp16, and how many steps it skipped; for other precisions it does nothing.

    Skipped steps are counted on the device: asking it for the scale would make the host wait for it, twice a step. What
    remains is torch's own look at whether a gradient is finite, which a fused optimizer does without.
    """

    def __init__(self, precision: Precision, device: torch.device) -> None:
        self._scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
        self._skipped = torch.zeros((), dtype=torch.int64, device=device)

    @property
    def skipped_steps(self) -> int:
        """Steps that were skipped so far; waits for the device."""
        return int(self._skipped)

    def scale(self, loss: Tensor) -> Tensor:
        """The loss to go backward from."""
        scaled: Tensor = self._scaler.scale(loss)
        return scaled

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Update, unless a gradient is not finite."""
        scale = self._scaler._scale if self._scaler.is_enabled() else None
        before = None if scale is None else scale.clone()
        self._scaler.step(optimizer)
        self._scaler.update()
        if before is not None and self._scaler._scale is not None:
            self._skipped += before > self._scaler._scale
