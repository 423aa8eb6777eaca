"""What can be asked of a workload and of its spread over ranks (no torch)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Precision = Literal["fp32", "bf16"]
PRECISIONS_NOT_YET = ("tf32", "fp16", "fp8")


@dataclass(frozen=True)
class Variant:
    """One size of a workload: the model's shape and the parameters of its samples."""

    model: Mapping[str, int | float | tuple[int, ...]]
    sample: Mapping[str, int]
    num_classes: int = 0
    """Of samples with labels; 0 for others."""
