"""Photographs out of one HDF5 file on a server that others use too: a token bucket keeps each reader at its share."""

import io
import os
import time

import h5py
from PIL import Image
from t_clock import Timers


class Bucket:
    def __init__(self, bytes_per_s, burst):
        self.rate, self.burst = bytes_per_s, burst
        self.tokens, self.at = burst, time.monotonic()

    def take(self, size):
        now = time.monotonic()
        self.tokens = min(self.burst, self.tokens + (now - self.at) * self.rate) - size
        self.at = now
        if self.tokens < 0:
            time.sleep(-self.tokens / self.rate)


class READER:
    def __init__(self, dataset):
        self.dataset, self.timers, self.bucket = dataset, Timers(), Bucket(2_000_000, 200_000)
        self.file = self.pid = None

    def __getitem__(self, row):
        if self.pid != os.getpid():
            self.pid, self.file = os.getpid(), h5py.File(self.dataset.folder / "samples.h5")
            self.offsets, self.labels = self.file["image_offsets"][:], self.file["label"][:]
        low, high = int(self.offsets[row]), int(self.offsets[row + 1])
        with self.timers.part("bucket"):
            self.bucket.take(high - low)
        with self.timers.part("load"):
            image = Image.open(io.BytesIO(self.file["image"][low:high].tobytes()))
            image.draft("RGB", (224, 224))
            image = image.convert("RGB")
        self.timers.sample()
        return {"image": image, "label": int(self.labels[row])}
