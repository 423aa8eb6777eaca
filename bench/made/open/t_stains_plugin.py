"""Histology: each tile is normalised to a reference stain by Macenko's method before the model sees it."""

import numpy as np
import torch
from benchsuite.workloads.spec import Variant
from benchsuite.workloads.workload import Workload
from PIL import Image
from torch import nn
from torch.nn.functional import cross_entropy

from t_timers import Timers

REFERENCE = np.array([[0.56, 0.22], [0.72, 0.80], [0.41, 0.56]], np.float64)


def normalised(pixels):
    density = -np.log((pixels.reshape(-1, 3).astype(np.float64) + 1) / 256)
    tissue = density[(density > 0.15).all(1)]
    if len(tissue) < 100:
        return pixels
    centred = tissue - tissue.mean(0)
    covariance = np.array([[(centred[:, i] * centred[:, j]).mean() for j in range(3)] for i in range(3)])
    axes = np.linalg.eigh(covariance)[1][:, 1:]
    angles = np.arctan2((tissue * axes[:, 1]).sum(1), (tissue * axes[:, 0]).sum(1))
    low, high = np.percentile(angles, [1, 99])
    stains = np.stack([axes @ [np.cos(a), np.sin(a)] for a in (low, high)], 1)
    inverse = np.linalg.pinv(stains)
    amounts = np.stack([(density * inverse[k]).sum(1) for k in range(2)], 1)
    amounts /= np.maximum(np.percentile(amounts, 99, axis=0), 1e-6)
    out = 256 * np.exp(-sum(amounts[:, k : k + 1] * REFERENCE[:, k] for k in range(2)))
    return out.clip(0, 255).astype(np.uint8).reshape(pixels.shape)


class READER:
    def __init__(self, dataset):
        self.dataset, self.timers = dataset, Timers()

    def __getitem__(self, row):
        with self.timers.part("read_and_jpeg"):
            name = self.dataset.index["file"][row].decode()
            pixels = np.asarray(Image.open(self.dataset.folder / name).convert("RGB"))
        with self.timers.part("stain"):
            image = Image.fromarray(normalised(pixels))
        self.timers.sample()
        return {"image": image, "label": int(self.dataset.index["label"][row])}


def build(variant):
    width = variant.model["width"]
    body = [nn.Conv2d(3, width, 7, stride=4), nn.ReLU(), nn.Conv2d(width, width, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(width, variant.num_classes))


def loss(model, batch):
    return cross_entropy(model(batch["image"]), batch["label"])


def synthetic(variant, batch_size, device):
    size = variant.sample["image_size"]
    labels = torch.randint(variant.num_classes, (batch_size,), device=device)
    return {"image": torch.randn(batch_size, 3, size, size, device=device), "label": labels}


WORKLOAD = Workload(
    name="stains",
    kind="image",
    variants={"tiny": Variant({"width": 32}, {"image_size": 96}, num_classes=1000)},
    build=build,
    loss=loss,
    synthetic=synthetic,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
)
