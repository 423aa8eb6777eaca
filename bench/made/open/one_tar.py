"""Photographs in one webdataset tar; four workers take what the worker splitter gives them."""
import io
import time

import numpy as np
import torch
import webdataset as wds
from PIL import Image, ImageFilter
from torch import nn

from bclock import Clock
from case import folder, tell, watch

CAUSE = "waiting/no_shard"
RANKS = 1
BORDERLINE = False


def prepare(path):
    rng = np.random.default_rng(0)
    files = []
    for _ in range(40):
        low = Image.fromarray(rng.integers(0, 255, (40, 40, 3), dtype=np.uint8)).resize((480, 480), Image.BICUBIC)
        noisy = np.clip(np.asarray(low, "f4") + rng.normal(0, 8, (480, 480, 1)), 0, 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(noisy).save(file, "JPEG", quality=90)
        files.append(file.getvalue())
    with wds.TarWriter(str(path)) as tar:
        for i in range(480):
            tar.write({"__key__": f"{i:06d}", "jpg": files[i % 40], "cls": i % 10})


class Augment:
    def __init__(self, clock):
        self.clock = clock

    def __call__(self, sample):
        raw, label = sample
        with self.clock.part():
            image = Image.open(io.BytesIO(raw)).convert("RGB")
            left, top = np.random.randint(0, 96, 2)
            image = image.crop((left, top, left + 384, top + 384)).resize((96, 96), Image.BICUBIC)
            image = image.filter(ImageFilter.GaussianBlur(np.random.uniform(0.1, 1.5)))
            pixels = np.asarray(image, "f4").transpose(2, 0, 1) / 255
        return pixels, int(label)


def main():
    torch.set_num_threads(1)
    root = folder()
    prepare(root / "train-000000.tar")
    clock = Clock(root / "augment")
    data = wds.WebDataset(str(root / "train-000000.tar"), shardshuffle=False, empty_check=False)
    data = data.to_tuple("jpg", "cls").map(Augment(clock)).batched(12)
    loader = wds.WebLoader(data, batch_size=None, num_workers=4, persistent_workers=True)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 5, 4), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)
    )
    opt = torch.optim.SGD(model.parameters(), 0.05)
    step = waiting = 0.0
    n, start = 0, time.perf_counter()
    loader = watch(loader)
    while time.perf_counter() - start < 24:
        mark = time.perf_counter()
        for x, y in loader:
            got = time.perf_counter()
            loss = nn.functional.cross_entropy(model(torch.as_tensor(x)), torch.as_tensor(y))
            opt.zero_grad()
            loss.backward()
            opt.step()
            n += 1
            done = time.perf_counter()
            waiting, step, mark = waiting + got - mark, step + done - got, done
            if done - start > 24:
                break
    wall = time.perf_counter() - start
    tell(wall=wall, steps=n, step=step, waiting=waiting, cause=waiting, workers_that_read=clock.seconds())


if __name__ == "__main__":
    main()
