"""Pictures of an archive with a quota of requests, kept by a token bucket in each worker."""

import os
import sys
import time

from PIL import Image

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from t_timers import Timers  # noqa: E402


class TokenBucket:
    def __init__(self, per_second, burst):
        self.rate, self.burst, self.tokens, self.at = per_second, burst, burst, None

    def take(self):
        while True:
            now = time.monotonic()
            self.tokens = min(self.burst, self.tokens + (now - (self.at or now)) * self.rate)
            self.at = now
            if self.tokens >= 1:
                self.tokens -= 1
                return
            time.sleep((1 - self.tokens) / self.rate)


class READER:
    def __init__(self, dataset):
        self.dataset, self.timers, self.bucket = dataset, Timers(), TokenBucket(16, 2)

    def __getitem__(self, row):
        with self.timers.part("quota"):
            self.bucket.take()
        with self.timers.part("image"):
            image = Image.open(self.dataset.folder / self.dataset.index["file"][row].decode())
            image.draft("RGB", (224, 224))
            image = image.convert("RGB")
        self.timers.sample()
        return {"image": image, "label": int(self.dataset.index["label"][row])}
