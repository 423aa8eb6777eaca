"""Each pass streams a tar through a reservoir that must be full of decoded samples before it gives the first one."""
import io
import random
import tarfile
import time

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from case import folder, tell, watch

CAUSE = "preprocessing/shuffle_buffer"
RANKS = 1
BORDERLINE = False


def members(path):
    with tarfile.open(path, "r|") as tar:
        for member in tar:
            image = Image.open(io.BytesIO(tar.extractfile(member).read()))
            yield np.array(image.convert("L").resize((48, 48)), np.uint8), int(member.name.split("_")[0])


class Reservoir(IterableDataset):
    def __init__(self, path, size):
        self.path, self.size = path, size

    def __iter__(self):
        held = []
        began = time.perf_counter()
        filling = None
        for sample in members(self.path):
            if len(held) < self.size:
                held.append(sample)
                continue
            filling = filling if filling is not None else time.perf_counter() - began
            place = random.randrange(self.size)
            out, held[place] = held[place], sample
            yield *out, filling
        random.shuffle(held)
        for out in held:
            yield *out, filling


def main():
    path = folder() / "stream.tar"
    with tarfile.open(path, "w") as tar:
        for number in range(1280):
            pixels = np.random.default_rng(number).integers(0, 255, (24, 24, 3), np.uint8)
            out = io.BytesIO()
            Image.fromarray(pixels).resize((192, 192), Image.BICUBIC).save(out, "PNG", compress_level=1)
            entry = tarfile.TarInfo(f"{number % 7}_{number:05d}.png")
            entry.size = len(out.getvalue())
            out.seek(0)
            tar.addfile(entry, out)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Conv2d(1, 24, 5, 2), nn.ReLU(), nn.Conv2d(24, 32, 3, 2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(7))
    model(torch.zeros(1, 1, 48, 48))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader = DataLoader(Reservoir(path, 1200), batch_size=64, num_workers=1)
    watched = watch(loader)
    count = passes = 0
    step = wait = first = filled = 0.0
    begin = time.perf_counter()
    while time.perf_counter() - begin < 21.5 or count < 75:
        last = time.perf_counter()
        opening = True
        for images, labels, filling in watched:
            got = time.perf_counter()
            for _ in range(2):
                loss = nn.functional.cross_entropy(model(images[:, None].float() / 255), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            now = time.perf_counter()
            count += 1
            step, wait = step + now - last, wait + got - last
            if opening:
                first, filled, opening = first + got - last, filled + filling[0].item(), False
            last = now
        passes += 1
    tell(step_s=step / count, waiting_for_input_s=wait / count, cause_s=filled / count, first_batches_s=first / count, steps=count, passes=passes)


if __name__ == "__main__":
    main()
