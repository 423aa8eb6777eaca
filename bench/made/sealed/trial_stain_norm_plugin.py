"""Pictures whose stains are normalized after Macenko (2009)."""

import os
import sys
import time

import numpy as np
from PIL import Image

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from t_timers import Timers  # noqa: E402

REFERENCE = np.array([[0.5626, 0.2159], [0.7201, 0.8012], [0.4062, 0.5581]])


def normalize(image):
    density = -np.log((np.asarray(image, dtype=np.float64).reshape(-1, 3) + 1) / 240)
    kept = density[(density > 0.15).all(1)]
    if len(kept) < 100:
        return image
    _, vectors = np.linalg.eigh(np.cov(kept.T))
    plane = kept @ vectors[:, 1:]
    angle = np.arctan2(plane[:, 1], plane[:, 0])
    low, high = np.percentile(angle, (1, 99))
    stains = np.stack([vectors[:, 1:] @ np.array([np.cos(a), np.sin(a)]) for a in (low, high)], 1)
    amounts = np.linalg.pinv(stains) @ density.T
    amounts /= np.maximum(np.percentile(amounts, 99, axis=1, keepdims=True), 1e-6)
    pixels = 240 * np.exp(-(REFERENCE @ (amounts * np.array([[1.97], [1.03]]))))
    return Image.fromarray(np.clip(pixels.T, 0, 255).astype(np.uint8).reshape(image.height, image.width, 3))


class READER:
    def __init__(self, dataset):
        self.dataset, self.timers = dataset, Timers()

    def __getitem__(self, row):
        cpu = time.thread_time()
        with self.timers.part("open"):
            image = Image.open(self.dataset.folder / self.dataset.index["file"][row].decode())
            image.draft("RGB", (224, 224))
            image = image.convert("RGB").resize((336, 336))
        with self.timers.part("normalize"):
            image = normalize(image)
        self.timers.sums["cpu"] = self.timers.sums.get("cpu", 0.0) + time.thread_time() - cpu
        self.timers.sample()
        return {"image": image, "label": int(self.dataset.index["label"][row])}
