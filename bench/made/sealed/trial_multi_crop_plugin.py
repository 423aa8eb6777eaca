"""Multi-crop training in the manner of SwAV; the number of crops comes from each rank's own configuration."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from benchsuite.workloads.spec import Variant
from benchsuite.workloads.workload import Workload

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import t_steps  # noqa: E402

CROPS = [2, 8]


class Encoder(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, stride=4)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU()) for _ in range(3))
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean((2, 3)))


def loss(model, batch):
    t_steps.forward_begins()
    crops = CROPS[dist.get_rank() % 2 if dist.is_initialized() else 0]
    image, size = batch["image"].float(), 96
    parts = []
    for _ in range(crops):
        y, x = torch.randint(image.shape[-1] - size, (2,)).tolist()
        parts.append(image[:, :, y : y + size, x : x + size])
    out = cross_entropy(model(torch.cat(parts)), batch["label"].repeat(crops))
    t_steps.forward_ends()
    return out


def synthetic(variant, batch_size, device):
    size = variant.sample["image_size"]
    labels = torch.randint(variant.num_classes, (batch_size,), device=device)
    return {"image": torch.randn(batch_size, 3, size, size, device=device), "label": labels}


WORKLOAD = Workload(
    name="multi_crop",
    kind="image",
    variants={"tiny": Variant({"width": 32}, {"image_size": 128}, num_classes=100)},
    build=lambda variant: Encoder(variant.model["width"], variant.num_classes),
    loss=loss,
    synthetic=synthetic,
    optimizer=lambda parameters: t_steps.TimedSGD(parameters, lr=0.01),
)
