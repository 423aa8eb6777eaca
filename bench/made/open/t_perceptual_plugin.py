"""A small classifier whose last rank also computes features of a frozen network in each step, and logs their spread."""

import json
import os
import time

import torch
import torch.distributed as dist
from benchsuite.workloads.spec import Variant
from benchsuite.workloads.workload import Workload
from torch import nn
from torch.nn.functional import cross_entropy

frozen = nn.Sequential(
    nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.Conv2d(128, 128, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
).requires_grad_(False)  # fmt: skip
spread, seconds, began = [], [0.0], time.perf_counter()


def build(variant):
    width = variant.model["width"]
    body = [nn.Conv2d(3, width, 5, stride=2), nn.ReLU(), nn.Conv2d(width, width, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(4 * width, variant.num_classes))


def score(images):
    started = time.perf_counter()
    with torch.no_grad():
        spread.append(float(frozen(images).std(0).mean()))
    seconds[0] += time.perf_counter() - started
    if os.environ.get("CASE_LOG") and len(spread) % 40 == 0:
        with open(os.environ["CASE_LOG"], "a") as log:
            log.write(json.dumps({"rank": dist.get_rank(), "steps": len(spread), "frozen": seconds[0], "wall": time.perf_counter() - began}) + "\n")


def loss(model, batch):
    if dist.is_initialized() and dist.get_rank() == dist.get_world_size() - 1:
        score(batch["image"])
    return cross_entropy(model(batch["image"]), batch["label"])


def synthetic(variant, batch_size, device):
    size = variant.sample["image_size"]
    labels = torch.randint(variant.num_classes, (batch_size,), device=device)
    return {"image": torch.randn(batch_size, 3, size, size, device=device), "label": labels}


WORKLOAD = Workload(
    name="perceptual",
    kind="image",
    variants={"tiny": Variant({"width": 32}, {"image_size": 64}, num_classes=1000)},
    build=build,
    loss=loss,
    synthetic=synthetic,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
)
