"""One linear layer over all pixels: 12 million weights, hardly any arithmetic."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchsuite.workloads.spec import Variant
from benchsuite.workloads.workload import Workload


def build(variant):
    size = variant.sample["image_size"]
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * size * size, variant.model["width"]))


def loss(model, batch):
    return cross_entropy(model(batch["image"]), batch["label"])


def synthetic(variant, batch_size, device):
    size = variant.sample["image_size"]
    labels = torch.randint(variant.num_classes, (batch_size,), device=device)
    return {"image": torch.randn(batch_size, 3, size, size, device=device), "label": labels}


WORKLOAD = Workload(
    name="wide_head",
    kind="image",
    variants={"tiny": Variant({"width": 1000}, {"image_size": 64}, num_classes=1000)},
    build=build,
    loss=loss,
    synthetic=synthetic,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
)
