"""MLP-Mixer (Tolstikhin 2021) on photographs of 224 pixels."""

import os
import sys

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchsuite.workloads.spec import Variant
from benchsuite.workloads.workload import Workload

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import t_steps  # noqa: E402


class Block(nn.Module):
    def __init__(self, patches, width):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(patches, 2 * patches), nn.GELU(), nn.Linear(2 * patches, patches))
        self.channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.tokens(self.first(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.second(x))


class Mixer(nn.Module):
    def __init__(self, width, depth, classes):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, stride=16)
        self.blocks = nn.Sequential(*(Block(196, width) for _ in range(depth)))
        self.head = nn.Linear(width, classes)

    def forward(self, image):
        return self.head(self.blocks(self.patches(image).flatten(2).transpose(1, 2)).mean(1))


def build(variant):
    return Mixer(variant.model["width"], variant.model["depth"], variant.num_classes)


def loss(model, batch):
    t_steps.forward_begins()
    out = cross_entropy(model(batch["image"]), batch["label"])
    t_steps.forward_ends()
    return out


def synthetic(variant, batch_size, device):
    size = variant.sample["image_size"]
    labels = torch.randint(variant.num_classes, (batch_size,), device=device)
    return {"image": torch.randn(batch_size, 3, size, size, device=device), "label": labels}


WORKLOAD = Workload(
    name="mixer_photos",
    kind="image",
    variants={"small": Variant({"width": 256, "depth": 3}, {"image_size": 224}, num_classes=1000)},
    build=build,
    loss=loss,
    synthetic=synthetic,
    optimizer=lambda parameters: t_steps.TimedSGD(parameters, lr=0.01),
)
