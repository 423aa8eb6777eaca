"""Numeric precision of the forward and backward computation."""

from contextlib import AbstractContextManager, nullcontext

import torch

from workloads.spec import Precision


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """The context a forward pass runs in: bf16 is autocast over float32 weights; fp32 is full float32."""
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()


def use_full_float32() -> None:
    """Turn TF32 off, which cuDNN's convolutions use by default: fp32 means fp32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
