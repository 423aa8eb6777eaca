"""Layers that keep a residual stream in the type that is computed in: what layers add up, and what modes send of it.

Under bf16, autocast leaves embeddings in float32, and norms too on CUDA devices. FSDP's weights have 16 bits, so there
what layers add up has 16 bits, and modes would be compared at unequal types.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, rms_norm

from benchsuite.workloads.precision import autocast_type


class Embedding(nn.Embedding):
    """Rows of a table, in bfloat16 under bf16; under fp16 and otherwise in the table's type."""

    def forward(self, input: Tensor) -> Tensor:
        if autocast_type(self.weight) != torch.bfloat16:
            return super().forward(input)
        if hasattr(self.weight, "placements"):  # ranks add up rows of a split table before these could be cast
            return embedding(input, self.weight.to(torch.bfloat16))
        return super().forward(input).to(torch.bfloat16)


class LayerNorm(nn.LayerNorm):
    """A norm whose output has the type of its input."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).to(input.dtype)


class RMSNorm(nn.RMSNorm):
    """A norm whose output, and whose weight as it is used, have the type of its input: torch fuses no other."""

    def forward(self, input: Tensor) -> Tensor:
        weight = self.weight.to(input.dtype)
        return rms_norm(input, self.normalized_shape, weight, self.eps).to(input.dtype)
