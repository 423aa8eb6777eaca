"""Minerals in hyperspectral cubes. The data set gives whole cubes (they are in memory); the loop cuts its patches."""
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch

CAUSE = "preprocessing/hand_over"
RANKS = 1
BORDERLINE = False

BANDS, SIZE, PATCH = 180, 128, 24


class Cubes(Dataset):
    def __init__(self, root, count=10):
        rng = np.random.default_rng(11)
        self.cubes, self.maps = [], []
        for i in range(count):
            cube = rng.random((BANDS, SIZE, SIZE))
            mineral = rng.integers(0, 6, (SIZE // 16, SIZE // 16)).repeat(16, 0).repeat(16, 1)
            cube[:6] += np.arange(6)[:, None, None] == mineral
            self.cubes.append(cube)
            self.maps.append(mineral)

    def __len__(self):
        return 4000

    def __getitem__(self, i):
        k = i % len(self.cubes)
        return {"cube": self.cubes[k], "map": self.maps[k], "scene": f"scene-{k:02d}"}


def scenes(rows):
    """Cubes of different flights differ in size: they stay a list."""
    return {"scenes": rows, "ready": time.perf_counter()}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.bands, self.near = nn.Conv2d(BANDS, 24, 1), nn.Conv2d(24, 24, 3, padding=1)
        self.head = nn.Conv2d(24, 6, 1)

    def forward(self, x):
        return self.head(torch.relu(self.near(torch.relu(self.bands(x)))))


def main():
    torch.set_num_threads(1)
    data = Cubes(folder())
    loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=2, collate_fn=scenes, prefetch_factor=2)
    model = Net()
    opt = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
    rng = np.random.default_rng(0)
    step = waiting = passing = 0.0
    n, start = 0, time.perf_counter()
    mark = start
    for batch in watch(loader):
        got = time.perf_counter()
        passing += got - max(mark, batch["ready"])  # the loop waits for a batch that is ready already
        patches, target = [], []
        for scene in batch["scenes"]:
            y, x = rng.integers(0, SIZE - PATCH, 2)
            patches.append(torch.from_numpy(scene["cube"][:, y : y + PATCH, x : x + PATCH].astype(np.float32)))
            target.append(torch.from_numpy(scene["map"][y : y + PATCH, x : x + PATCH].copy()))
        loss = nn.functional.cross_entropy(model(torch.stack(patches)), torch.stack(target))
        opt.zero_grad()
        loss.backward()
        opt.step()
        n += 1
        waiting += got - mark
        mark = time.perf_counter()
        step += mark - got
        if mark - start > 23:
            break
    tell(wall=time.perf_counter() - start, steps=n, step=step, waiting=waiting, cause=passing)


if __name__ == "__main__":
    main()
