"""Someone else's workload: one linear layer over the pixels of an image."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchsuite.workloads.spec import Variant
from benchsuite.workloads.workload import Batch, Workload


def build(variant: Variant) -> nn.Module:
    size = int(variant.sample["image_size"])
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * size * size, variant.num_classes or 10))


def loss(model: nn.Module, batch: Batch) -> Tensor:
    return functional.cross_entropy(model(batch["image"]), batch["label"])


def synthetic(variant: Variant, batch_size: int, device: torch.device) -> Batch:
    size = int(variant.sample["image_size"])
    return {
        "image": torch.randn(batch_size, 3, size, size, device=device),
        "label": torch.randint(0, variant.num_classes or 10, (batch_size,), device=device),
    }


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01)


WORKLOAD = Workload(
    name="linear",
    kind="image",
    variants={"tiny": Variant({}, {"image_size": 32}, 1000)},
    build=build,
    loss=loss,
    synthetic=synthetic,
    optimizer=optimizer,
)
