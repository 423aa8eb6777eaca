"""JPEG files on a middling disk, one DataLoader worker: three fifths of its time are decoding and cropping, the rest are reads.
The disk's rate is set from the decoding time that the case measures at first."""
CAUSE = "preprocessing/decode"
RANKS = 1
BORDERLINE = True

import io
import os
import time
from pathlib import Path

import torch
from case import evict, folder, slow_disk, tell, watch
from PIL import Image, ImageEnhance
from torch import nn
from torch.utils.data import DataLoader, Dataset
import numpy as np

ORIGINALS = sorted(Path("@DATA@/imagenet-sample").glob("*.JPEG"))


def decode(blob):
    image = Image.open(io.BytesIO(blob)).convert("RGB")
    image = image.rotate(np.random.uniform(-9, 9), Image.BICUBIC)
    image = ImageEnhance.Color(image).enhance(np.random.uniform(0.6, 1.4))
    image = image.resize((144, 144), Image.BILINEAR).crop((8, 8, 136, 136))
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div_(255)


class Pictures(Dataset):
    def __init__(self, files):
        self.files = files

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        a = time.perf_counter()
        blob = self.files[i].read_bytes()
        b = time.perf_counter()
        x = decode(blob)
        return x, i % 100, b - a, time.perf_counter() - b


def copies(root, count):
    blobs = [f.read_bytes() for f in ORIGINALS]
    files = []
    for i in range(count):
        files.append(root / f"{i:05d}.jpg")
        files[-1].write_bytes(blobs[i % len(blobs)])
    os.sync()
    evict(*files)
    decode(blobs[0])
    t = time.perf_counter()
    for blob in blobs:
        decode(blob)
    seconds = time.perf_counter() - t
    return files, int(0.62 * sum(map(len, blobs)) / seconds)


if __name__ == "__main__":
    torch.set_num_threads(1)
    files, rate = copies(folder(), 2400)
    cnn = nn.Sequential(nn.Conv2d(3, 16, 7, 4), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 100))
    opt = torch.optim.SGD(cnn.parameters(), 0.05)
    wait = step = reads = decodes = 0.0
    n = 0
    with slow_disk(folder(), rate):
        start = t0 = time.perf_counter()
        for x, y, r, d in watch(DataLoader(Pictures(files), 12, shuffle=True, num_workers=1)):
            t1 = time.perf_counter()
            loss = nn.functional.cross_entropy(cnn(x), y)
            loss.backward()
            opt.step()
            opt.zero_grad()
            reads, decodes, n = reads + float(r.sum()), decodes + float(d.sum()), n + 1
            t2 = time.perf_counter()
            wait, step, t0 = wait + t1 - t0, step + t2 - t1, t2
            if t2 - start > 27:
                break
        wall = time.perf_counter() - start
    tell(steps=n, wall=wall, step=step, waiting=wait, cause=wait * decodes / (decodes + reads), second=wait * reads / (decodes + reads), disk_rate=rate)
