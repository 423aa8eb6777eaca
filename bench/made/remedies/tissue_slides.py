"""Histology: patches of slides as JPEGs, whose stain is varied before they are cut to size; a small residual network."""
import atexit
import io
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import applied, folder, long_enough, tell, watch

CAUSE = "preprocessing/decode"
RANKS = 1

PHOTOS, PATCHES, SIDE, BATCH = Path("@DATA@/imagenet-sample"), 160, 128, 6
ARRAYS = applied("cheaper_data", False)
SHARDS = applied("shards", False)
SMALL = applied("smaller_tensors", False)
HED = np.linalg.inv(np.array([[0.65, 0.70, 0.29], [0.07, 0.99, 0.11], [0.27, 0.57, 0.78]], np.float32))


def stained(pixels, rng):
    """Haematoxylin, eosin and DAB, each scaled a little."""
    density = -np.log10(np.maximum(pixels, 1).astype(np.float32) / 255) @ HED
    density = (density * rng.uniform(0.9, 1.1, 3).astype(np.float32)) @ np.linalg.inv(HED).astype(np.float32)
    return (255 * np.clip(10**-density, 0, 1)).astype(np.uint8)


class Slides(Dataset):
    def __init__(self, root):
        self.root = root

    def __len__(self):
        return 1000000

    def __getitem__(self, i):
        rng = np.random.default_rng(i)
        k = i * 37 % PATCHES
        if ARRAYS:
            pixels = np.load(self.root / f"patch_{k:03d}.npy")
            left, top = rng.integers(0, 16, 2)
            pixels = pixels[top : top + SIDE, left : left + SIDE]
        else:
            if SHARDS:
                start, size = np.load(self.root / "index.npy")[k]
                with open(self.root / "patches.bin", "rb") as file:
                    file.seek(start)
                    raw = file.read(size)
            else:
                raw = (self.root / f"patch_{k:03d}.jpg").read_bytes()
            pixels = np.asarray(Image.open(io.BytesIO(raw)).convert("RGB"))
            pixels = stained(pixels, rng)
            pixels = np.asarray(Image.fromarray(pixels).resize((SIDE + 16, SIDE + 16), Image.Resampling.LANCZOS))
            left, top = rng.integers(0, 16, 2)
            pixels = pixels[top : top + SIDE, left : left + SIDE]
        if rng.random() < 0.5:
            pixels = pixels[:, ::-1]
        pixels = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
        return pixels if SMALL else pixels.float() / 255, k % 4


def prepare(root):
    at, index = 0, []
    with open(root / "patches.bin", "wb") as shard:
        for k, path in enumerate(sorted(PHOTOS.glob("*.JPEG")) * 10):
            if k == PATCHES:
                break
            if ARRAYS:
                image = Image.open(path).convert("RGB").resize((SIDE + 16, SIDE + 16), Image.Resampling.LANCZOS)
                np.save(root / f"patch_{k:03d}.npy", stained(np.asarray(image), np.random.default_rng(k)))
            else:
                raw = path.read_bytes()
                (root / f"patch_{k:03d}.jpg").write_bytes(raw)
                shard.write(raw)
                index.append((at, len(raw)))
                at += len(raw)
    np.save(root / "index.npy", np.array(index))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width))

    def forward(self, x):
        return torch.relu(x + self.body(x))


def main():
    torch.set_num_threads(applied("fewer_threads", 1))
    torch.manual_seed(0)
    root = folder()
    prepare(root)
    if applied("staging", False):
        fast = Path(tempfile.mkdtemp(dir="/dev/shm"))
        atexit.register(shutil.rmtree, fast, True)
        root = Path(shutil.copytree(root, fast, dirs_exist_ok=True))
    workers = applied("more_workers", 0)
    loader = DataLoader(
        Slides(root), batch_size=BATCH, num_workers=workers, prefetch_factor=applied("longer_queue", 2) if workers else None,
        persistent_workers=applied("staying_workers", False) and workers > 0,
    )
    model = nn.Sequential(nn.Conv2d(3, 16, 5, 4, 2), Block(16), nn.Conv2d(16, 32, 3, 2, 1), Block(32), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4))
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    marks = []
    for pixels, kind in watch(loader):
        loss = nn.functional.cross_entropy(model(pixels.float() / 255 if SMALL else pixels), kind)
        opt.zero_grad()
        loss.backward()
        opt.step()
        marks.append(time.perf_counter())
        if long_enough(marks):
            break
    tell(step_s=(marks[-1] - marks[9]) / (len(marks) - 10), steps=len(marks) - 10)


if __name__ == "__main__":
    main()
