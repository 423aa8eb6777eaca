"""Product photos (JPEG) with crops and flips, four workers placed as on the big nodes, a small ResNet-like CNN."""
import io
import os
import time

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

from case import folder, tell, watch

CAUSE = "client_cpu/affinity"
RANKS = 1
BORDERLINE = False

WORKERS = 4


def photograph(root, count=60):
    rng = np.random.default_rng(8)
    for i in range(count):
        small = Image.fromarray(rng.integers(0, 255, (24, 32, 3), dtype=np.uint8))
        photo = np.asarray(small.resize((1200, 900), Image.BICUBIC)).astype(np.int16) + rng.integers(-9, 9, (900, 1200, 1))
        Image.fromarray(photo.clip(0, 255).astype(np.uint8)).save(root / f"p{i:03d}.jpg", quality=90)
    return sorted(root.glob("*.jpg"))


class Photos(Dataset):
    def __init__(self, files):
        self.files = files
        self.used = torch.zeros(WORKERS, 2, dtype=torch.float64).share_memory_()

    def __len__(self):
        return 100_000

    def __getitem__(self, i):
        wall, cpu = time.perf_counter(), time.thread_time()
        rng = np.random.default_rng(i)
        image = Image.open(io.BytesIO(self.files[i % len(self.files)].read_bytes())).convert("RGB")
        x, y = rng.integers(0, 300, 2)
        image = image.resize((128, 128), Image.BICUBIC, box=(x, y, x + 460, y + 460))
        if rng.random() < 0.5:
            image = image.transpose(Image.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div_(255)
        self.used[get_worker_info().id] += torch.tensor([time.perf_counter() - wall, time.thread_time() - cpu])
        return pixels, i % len(self.files) % 10


def place(worker):
    """Four workers share a core: the rest of the node belongs to the other ranks."""
    os.sched_setaffinity(0, {worker // 4})


class Block(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.ReLU(), nn.Conv2d(b, b, 3, 1, 1), nn.BatchNorm2d(b))
        self.side = nn.Conv2d(a, b, 1, 2)

    def forward(self, x):
        return torch.relu(self.body(x) + self.side(x))


def main():
    torch.set_num_threads(1)
    data = Photos(photograph(folder()))
    loader = DataLoader(data, batch_size=12, shuffle=True, num_workers=WORKERS, worker_init_fn=place, persistent_workers=True)
    model = nn.Sequential(Block(3, 6), Block(6, 12), Block(12, 24), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10))
    opt = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    step = waiting = 0.0
    n, start = 0, time.perf_counter()
    mark = start
    for pixels, kind in watch(loader):
        got = time.perf_counter()
        loss = nn.functional.cross_entropy(model(pixels), kind)
        opt.zero_grad()
        loss.backward()
        opt.step()
        n += 1
        waiting += got - mark
        mark = time.perf_counter()
        step += mark - got
        if mark - start > 23:
            break
    wall = time.perf_counter() - start
    tell(
        wall=wall, steps=n, step=step, waiting=waiting,
        cause=float((data.used[:, 0] - data.used[:, 1]).mean()), worker_wall_and_cpu=data.used.tolist(),
    )


if __name__ == "__main__":
    main()
