"""A small convolutional model whose rank 1 takes longer."""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from benchsuite.workloads.spec import Variant
from benchsuite.workloads.workload import Workload


def build(variant):
    width = variant.model["width"]
    body = [nn.Conv2d(3, width, 5, 2), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(2 * width, variant.num_classes))


def loss(model, batch):
    value = cross_entropy(model(batch["image"]), batch["label"])
    if dist.is_initialized() and dist.get_rank() == 1:
        inner = getattr(model, "module", model)
        with torch.no_grad():
            for _ in range(12):
                cross_entropy(inner(batch["image"]), batch["label"])
    return value


def synthetic(variant, batch_size, device):
    size = variant.sample["image_size"]
    return {"image": torch.randn(batch_size, 3, size, size, device=device), "label": torch.randint(variant.num_classes, (batch_size,), device=device)}


WORKLOAD = Workload(
    name="later_rank",
    kind="image",
    variants={"small": Variant({"width": 24}, {"image_size": 96}, num_classes=10)},
    build=build,
    loss=loss,
    synthetic=synthetic,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
)
