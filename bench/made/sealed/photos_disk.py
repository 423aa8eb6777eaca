"""JPEGs are read from a slow disk, decoded, jittered and blurred by one worker: the work on them takes a bit more than reading them."""
import io
import random
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageFilter
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import evict, folder, slow_disk, tell, watch

CAUSE = "preprocessing/decode"
RANKS = 1
BORDERLINE = True


def augment(raw):
    image = Image.open(io.BytesIO(raw)).convert("RGB")
    w, h = image.size
    side = int(min(w, h) * random.uniform(0.6, 1))
    x, y = random.randint(0, w - side), random.randint(0, h - side)
    image = image.resize((160, 160), Image.BICUBIC, (x, y, x + side, y + side))
    image = ImageEnhance.Color(ImageEnhance.Brightness(image).enhance(random.uniform(0.7, 1.3))).enhance(random.uniform(0.7, 1.3))
    image = image.filter(ImageFilter.GaussianBlur(random.uniform(0, 2)))
    array = np.asarray(image, np.float32) / 255
    return torch.from_numpy(((array - array.mean((0, 1))) / (array.std((0, 1)) + 1e-5)).transpose(2, 0, 1))


class Photos(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        a = time.perf_counter()
        raw = self.paths[i].read_bytes()
        b = time.perf_counter()
        image = augment(raw)
        return image, hash(self.paths[i].name[:9]) % 100, b - a, time.perf_counter() - b


def main():
    root = folder()
    originals = [path.read_bytes() for path in sorted(Path("@DATA@/imagenet-sample").glob("*.JPEG"))]
    start = time.perf_counter()
    for raw in originals[:60]:
        augment(raw)
    each = (time.perf_counter() - start) / 60
    rate = int(np.mean([len(raw) for raw in originals]) / (1.65 * each))
    paths = []
    for copy in range(-(-int(26 / (1.5 * each)) // 100)):
        for number, raw in enumerate(originals):
            paths.append(root / f"{number:04d}_{copy:03d}.jpg")
            paths[-1].write_bytes(raw)
    evict(*paths)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Conv2d(3, 8, 7, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 100))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    rows = []
    with slow_disk(root, rate):
        loader = DataLoader(Photos(paths), batch_size=12, shuffle=True, num_workers=1, drop_last=True)
        begin = last = time.perf_counter()
        for images, labels, read, decode in watch(loader):
            got = time.perf_counter()
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            now = time.perf_counter()
            rows.append((now - last, got - last, decode.sum().item(), read.sum().item()))
            last = now
            if now - begin > 21.5 and len(rows) > 75:
                break
        del loader
    step, wait, decode, read = np.mean(rows[10:], axis=0)
    tell(step_s=step, waiting_for_input_s=wait, cause_s=decode, second_reads_s=read, steps=len(rows))


if __name__ == "__main__":
    main()
