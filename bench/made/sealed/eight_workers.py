"""num_workers=8 was copied from a large machine: eight workers that augment in numpy share two cores with the loop, and wait for a core most of the time."""
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch

CAUSE = "client_cpu/cores"
RANKS = 1
BORDERLINE = False


def delay():
    with open("/proc/thread-self/schedstat") as file:
        return int(file.read().split()[1]) / 1e9


class Patches(Dataset):
    def __init__(self, path):
        self.images = np.load(path)

    def __len__(self):
        return len(self.images) * 8

    def __getitem__(self, i):
        wall, queued = time.perf_counter(), delay()
        image = self.images[i % len(self.images)].astype(np.float32)
        rng = np.random.default_rng()
        angle = rng.uniform(0, 6.28)
        ys, xs = np.mgrid[-1:1:96j, -1:1:96j]
        u = ((np.cos(angle) * xs - np.sin(angle) * ys + 1) * 47.5).clip(0, 94)
        v = ((np.sin(angle) * xs + np.cos(angle) * ys + 1) * 47.5).clip(0, 94)
        u0, v0 = u.astype(int), v.astype(int)
        du, dv = (u - u0)[..., None], (v - v0)[..., None]
        out = image[v0, u0] * (1 - du) * (1 - dv) + image[v0, u0 + 1] * du * (1 - dv) + image[v0 + 1, u0] * (1 - du) * dv + image[v0 + 1, u0 + 1] * du * dv
        out = out * rng.uniform(0.8, 1.2) + rng.normal(0, 4, out.shape)
        return torch.from_numpy(out.transpose(2, 0, 1).astype(np.float32) / 255), i % 7, time.perf_counter() - wall, delay() - queued


def main():
    path = folder() / "patches.npy"
    np.save(path, np.random.default_rng(0).integers(0, 255, (600, 96, 96, 3), np.uint8))
    torch.set_num_threads(1)
    model = nn.Sequential(nn.AvgPool2d(8), nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(800, 7))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    loader = DataLoader(Patches(path), batch_size=48, shuffle=True, num_workers=8, persistent_workers=True, pin_memory=False)
    watched = watch(loader)
    rows = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < 21.5 or len(rows) < 90:
        last = time.perf_counter()
        for x, y, wall, queued in watched:
            got = time.perf_counter()
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            now = time.perf_counter()
            rows.append((now - last, got - last, queued.sum().item() / 8, wall.sum().item() / 8))
            last = now
            if now - begin > 30:
                break
    step, wait, queued, wall = np.mean(rows[20:], axis=0)
    tell(step_s=step, waiting_for_input_s=wait, cause_s=queued, workers_wall_s=wall, steps=len(rows))


if __name__ == "__main__":
    main()
