"""JPEGs are decoded at full size and augmented by a long chain of numpy operations in two spawned workers."""

import pathlib
import shutil
import time

import numpy as np
import torch
from PIL import Image
from torch import nn

from case import folder, tell, watch

CAUSE = "preprocessing/decode"
RANKS = 1
BORDERLINE = False


class Compose:
    def __init__(self, *parts) -> None:
        self.parts = parts

    def __call__(self, x, rng):
        for part in self.parts:
            x = part(x, rng)
        return x


def random_crop(x, rng):
    h, w = x.shape[:2]
    side = int(min(h, w) * rng.uniform(0.6, 1.0))
    top, left = rng.integers(0, h - side + 1), rng.integers(0, w - side + 1)
    part = Image.fromarray(x[top : top + side, left : left + side])
    return np.asarray(part.resize((192, 192), Image.BICUBIC))


def jitter(x, rng):
    x = x.astype(np.float32) * rng.uniform(0.7, 1.3, 3).astype(np.float32)
    grey = x.mean(axis=2, keepdims=True)
    return np.clip(grey + (x - grey) * rng.uniform(0.5, 1.5), 0, 255)


def blur(x, rng):
    kernel = np.exp(-np.linspace(-2, 2, 7) ** 2 / rng.uniform(0.5, 2.0)).astype(np.float32)
    kernel /= kernel.sum()
    for axis in (0, 1):
        x = sum(k * np.roll(x, i - 3, axis) for i, k in enumerate(kernel))
    return x


def noise(x, rng):
    return x + rng.normal(0, 4, x.shape).astype(np.float32)


class Photos(torch.utils.data.Dataset):
    def __init__(self, root) -> None:
        self.files = sorted(pathlib.Path(root).glob("*.JPEG"))
        self.augment = Compose(random_crop, jitter, blur, noise)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i):
        raw = self.files[i].read_bytes()
        start = time.perf_counter()
        import io

        pixels = np.asarray(Image.open(io.BytesIO(raw)).convert("RGB"))
        pixels = self.augment(pixels, np.random.default_rng(i))
        image = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1), dtype=np.float32)) / 255
        return image, i % 100, time.perf_counter() - start


def main() -> None:
    torch.set_num_threads(1)
    root = folder()
    for path in pathlib.Path("@DATA@/imagenet-sample").glob("*.JPEG"):
        shutil.copy(path, root)
    loader = torch.utils.data.DataLoader(
        Photos(root),
        batch_size=14,
        shuffle=True,
        drop_last=True,
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context="spawn",
    )
    net = nn.Sequential(nn.Conv2d(3, 12, 7, stride=4), nn.ReLU(), nn.AdaptiveMaxPool2d(5), nn.Flatten(), nn.Linear(300, 100))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    watched = watch(loader)
    rows = []
    for _ in range(21):
        begin = time.perf_counter()
        for images, labels, spent in watched:
            got = time.perf_counter()
            loss = nn.functional.cross_entropy(net(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            end = time.perf_counter()
            rows.append((end - begin, got - begin, float(spent.sum()) / 2))
            begin = end
    step_s, wait_s, cause_s = np.mean(rows[10:], axis=0)
    tell(step_s=step_s, waiting_for_input_s=wait_s, cause_s=cause_s, steps=len(rows) - 10)


if __name__ == "__main__":
    main()
