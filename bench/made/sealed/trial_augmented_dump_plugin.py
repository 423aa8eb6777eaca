"""A small network whose augmented images are kept in files, for a student that is to be trained on them later."""

import atexit
import itertools
import os
import shutil
import sys
import tempfile
import time

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchsuite.workloads.spec import Variant
from benchsuite.workloads.workload import Workload

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import t_steps  # noqa: E402


class Images:
    def __init__(self, keep=16):
        self.where, self.numbers, self.keep = None, itertools.count(), keep

    def put(self, *tensors):
        t = time.perf_counter()
        if self.where is None:
            self.where = tempfile.mkdtemp(prefix="images-", dir=os.path.dirname(os.path.abspath(__file__)))
            atexit.register(shutil.rmtree, self.where, ignore_errors=True)
        name = f"{self.where}/{next(self.numbers) % self.keep:04d}.bin"
        with open(name, "wb") as file:
            for tensor in tensors:
                file.write(tensor.contiguous().numpy().data)
            file.flush()
            os.fsync(file.fileno())
        t_steps._sums["dump"] = t_steps._sums.get("dump", 0.0) + time.perf_counter() - t


IMAGES = Images()


class Net(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.body = nn.Sequential(nn.AvgPool2d(4), nn.Conv2d(3, width, 5, stride=4), nn.ReLU(), nn.Conv2d(width, 32, 3, stride=2), nn.ReLU())
        self.head = nn.Linear(32, classes)

    def forward(self, x):
        IMAGES.put(x)
        return self.head(self.body(x).mean((2, 3)))


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
    name="augmented_dump",
    kind="image",
    variants={"tiny": Variant({"width": 32}, {"image_size": 256}, num_classes=100)},
    build=lambda variant: Net(variant.model["width"], variant.num_classes),
    loss=loss,
    synthetic=synthetic,
    optimizer=lambda parameters: t_steps.TimedSGD(parameters, lr=0.01),
)
