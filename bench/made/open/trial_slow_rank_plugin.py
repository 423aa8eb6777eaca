"""A small convolutional network; rank 1 also scores its batch by an old model in each step."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from benchsuite.workloads.spec import Variant
from benchsuite.workloads.workload import Workload


def build(variant):
    width = variant.model["width"]
    body = [nn.Conv2d(3, width, 5, stride=2), nn.ReLU(), nn.Conv2d(width, width, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(width, variant.num_classes))


OLD = nn.Sequential(nn.Conv2d(3, 48, 5, stride=2), nn.ReLU(), nn.Conv2d(48, 48, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1))


def loss(model, batch):
    if dist.is_initialized() and dist.get_rank() == 1:
        with torch.no_grad():
            for _ in range(6):
                OLD(batch["image"].float())  # scores of the old model
    return cross_entropy(model(batch["image"]), batch["label"])


def synthetic(variant, batch_size, device):
    size = variant.sample["image_size"]
    labels = torch.randint(variant.num_classes, (batch_size,), device=device)
    return {"image": torch.randn(batch_size, 3, size, size, device=device), "label": labels}


WORKLOAD = Workload(
    name="slow_rank",
    kind="image",
    variants={"tiny": Variant({"width": 48}, {"image_size": 96}, num_classes=1000)},
    build=build,
    loss=loss,
    synthetic=synthetic,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
)
