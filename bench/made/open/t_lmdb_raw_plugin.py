"""Decoded pixels in an LMDB beside the dataset, read through the map from a slow disk. As a script: makes it (ROOT SAMPLES)."""

import os
import sys
from multiprocessing.util import Finalize
from pathlib import Path

import lmdb
import numpy as np

SIDE = 400


def make(root, samples):
    random = np.random.default_rng(0)
    noise = random.integers(0, 256, (SIDE + samples, SIDE, 3), dtype=np.uint8)
    with lmdb.open(f"{root}/raw.lmdb", subdir=False, map_size=1 << 30, sync=False) as pixels:
        with pixels.begin(write=True) as writing:
            for row in range(samples):
                writing.put(b"%08d" % row, noise[row : row + SIDE].tobytes())
        pixels.sync(True)


if __name__ == "__main__":
    make(sys.argv[1], int(sys.argv[2]))
    sys.exit()

import benchsuite
import torch
from benchsuite.workloads.spec import Variant
from benchsuite.workloads.workload import Workload
from PIL import Image
from torch import nn
from torch.nn.functional import cross_entropy

from t_timers import Timers

os.environ.setdefault("CAUSE_SUITE", str(Path(benchsuite.__file__).parents[1]))
from case import evict, slow_disk


class READER:
    def __init__(self, dataset):
        self.dataset, self.timers, self.reading = dataset, Timers(), None

    def opened(self):
        """In the process that reads: its disk is limited before the map is touched."""
        path = Path(self.dataset.folder).parent / "raw.lmdb"
        evict(path)
        disk = slow_disk(path.parent, 11_000_000)
        disk.__enter__()
        Finalize(None, disk.__exit__, args=(None, None, None), exitpriority=10)
        self.environment = lmdb.open(str(path), subdir=False, readonly=True, lock=False, readahead=False)
        return self.environment.begin(buffers=True)

    def __getitem__(self, row):
        self.reading = self.reading or self.opened()
        with self.timers.part("pages_in_get"):  # py-lmdb touches each page of a value in get(), without the GIL
            pixels = np.frombuffer(self.reading.get(b"%08d" % int(row)), np.uint8).reshape(SIDE, SIDE, 3)
        with self.timers.part("thin_out"):
            thumbnail = pixels.reshape(SIDE // 4, 4, SIDE // 4, 4, 3)[:, 1, :, 1].copy()
        with self.timers.part("decode"):
            image = Image.fromarray(thumbnail)
        self.timers.sample()
        return {"image": image, "label": int(self.dataset.index["label"][row])}


def build(variant):
    width = variant.model["width"]
    body = [nn.Conv2d(3, width, 5, stride=3), nn.GELU(), nn.AdaptiveMaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(4 * width, variant.num_classes))


def loss(model, batch):
    return cross_entropy(model(batch["image"]), batch["label"])


def synthetic(variant, batch_size, device):
    size = variant.sample["image_size"]
    labels = torch.randint(variant.num_classes, (batch_size,), device=device)
    return {"image": torch.randn(batch_size, 3, size, size, device=device), "label": labels}


WORKLOAD = Workload(
    name="lmdb_raw",
    kind="image",
    variants={"tiny": Variant({"width": 24}, {"image_size": 64}, num_classes=1000)},
    build=build,
    loss=loss,
    synthetic=synthetic,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
)
