"""Numeric precision of weights, forward and backward computation."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn

from benchsuite.workloads import WorkloadError
from benchsuite.workloads.spec import Precision

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}
FLOAT8_MULTIPLE = 16
"""What both sizes of a layer must be multiples of, for products in float8."""


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """The context a forward pass runs in: bf16, fp16 and the rest of fp8 are autocast over float32 weights."""
    if precision in AUTOCAST:
        return torch.autocast(device.type, dtype=AUTOCAST[precision])
    return nullcontext()


def autocast_type(tensor: Tensor) -> torch.dtype:
    """The type that autocast computes in on a tensor's device; the tensor's own where there is no autocast."""
    device = "cpu" if tensor.is_meta else tensor.device.type  # autocast knows no meta device
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else tensor.dtype


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
    """The model with weights of the precision's type: bfloat16 for pure_bf16, else as they are.

    For fp8 linear layers are replaced, in place, by those that multiply in float8.
    """
    if precision == "fp8":
        return _with_float8_products(model)
    return model.to(torch.bfloat16) if precision == "pure_bf16" else model


def _with_float8_products(model: nn.Module) -> nn.Module:
    """Scale each tensor anew in every product (Micikevicius et al., "FP8 formats for deep learning", 2022), by torchao.

    Raises:
        WorkloadError: there is nothing in the model that float8 would make faster.
    """
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    if not any(takes_float8(module) for module in model.modules()):
        raise WorkloadError(f"precision fp8: no linear layer has sizes that are multiples of {FLOAT8_MULTIPLE}")
    config = Float8LinearConfig(pad_inner_dim=True)  # numbers of tokens need not be multiples
    converted: nn.Module = convert_to_float8_training(
        model, module_filter_fn=lambda module, _name: takes_float8(module), config=config
    )
    return converted


def takes_float8(module: nn.Module) -> bool:
    """Whether a module is a linear layer whose sizes fit float8's matrix products."""
    return isinstance(module, nn.Linear) and not (module.in_features | module.out_features) % FLOAT8_MULTIPLE


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
