"""Photographs on a NAS behind a slow line: reads of whole files, with the disk limited as long as this process lives."""

import io
import os
import threading
from multiprocessing.util import Finalize
from pathlib import Path

import benchsuite
import torch
from benchsuite.workloads.spec import Variant
from benchsuite.workloads.workload import Workload
from PIL import Image
from torch import nn
from torch.nn.functional import cross_entropy

from t_timers import Timers

os.environ.setdefault("CAUSE_SUITE", str(Path(benchsuite.__file__).parents[1]))
from case import slow_disk

limited, guard = {}, threading.Lock()


def limit(folder):
    """Once in each process that reads."""
    with guard:
        if os.getpid() not in limited:
            limited[os.getpid()] = disk = slow_disk(Path(folder), 2_200_000)
            disk.__enter__()
            Finalize(None, disk.__exit__, args=(None, None, None), exitpriority=10)


class READER:
    def __init__(self, dataset):
        self.dataset, self.timers = dataset, Timers()

    def __getitem__(self, row):
        limit(self.dataset.folder)
        with self.timers.part("read"):
            with open(self.dataset.folder / self.dataset.index["file"][row].decode(), "rb") as file:
                raw = file.read()
        with self.timers.part("decode"):
            image = Image.open(io.BytesIO(raw))
            image.draft("RGB", (128, 128))
            image = image.convert("RGB")
        self.timers.sample()
        return {"image": image, "label": int(self.dataset.index["label"][row])}


def build(variant):
    width = variant.model["width"]
    body = [nn.Conv2d(3, width, 7, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(width, variant.num_classes))


def loss(model, batch):
    return cross_entropy(model(batch["image"]), batch["label"])


def synthetic(variant, batch_size, device):
    size = variant.sample["image_size"]
    labels = torch.randint(variant.num_classes, (batch_size,), device=device)
    return {"image": torch.randn(batch_size, 3, size, size, device=device), "label": labels}


WORKLOAD = Workload(
    name="nas_scans",
    kind="image",
    variants={"tiny": Variant({"width": 32}, {"image_size": 64}, num_classes=1000)},
    build=build,
    loss=loss,
    synthetic=synthetic,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
)
