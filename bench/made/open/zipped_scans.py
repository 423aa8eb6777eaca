"""Shelf scans as point clouds in one stored ZIP on a slow disk, read by two workers with zipfile: the workers wait for
read() of the archive."""
CAUSE = "storage/reads"
RANKS = 1
BORDERLINE = False

import zipfile
from time import perf_counter

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import evict, folder, slow_disk, tell, watch

POINTS, CLOUDS, BATCH = 32768, 1200, 4


def pack(path):
    rng = np.random.default_rng(3)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for i in range(CLOUDS):
            cloud = rng.standard_normal((POINTS, 3), dtype=np.float32)
            cloud[:, 2] *= 0.2 + 0.1 * (i % 10)
            archive.writestr(f"scans/{i:06d}.xyz", cloud.tobytes())


class Scans(Dataset):
    def __init__(self, path):
        self.path, self.archive = path, None

    def __len__(self):
        return CLOUDS

    def __getitem__(self, i):
        if self.archive is None:  # a handle for each worker: ZipFile cannot be shared over fork
            self.archive = zipfile.ZipFile(self.path)
        began = perf_counter()
        raw = self.archive.read(f"scans/{i:06d}.xyz")
        read_s = perf_counter() - began
        cloud = np.frombuffer(raw, np.float32).reshape(-1, 3)
        return torch.from_numpy(cloud[:: POINTS // 1024].copy()), i % 10, read_s


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.each = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 128), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, points):
        return self.head(self.each(points).amax(1))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    path = folder() / "scans.zip"
    pack(path)
    evict(path)
    model = PointNet()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    step_s = wait_s = read_s = 0.0
    with slow_disk(path, 20_000_000):
        loader = watch(DataLoader(Scans(path), batch_size=BATCH, shuffle=True, num_workers=2))
        began = last = perf_counter()
        for steps, (points, label, seconds) in enumerate(loader, 1):
            got = perf_counter()
            wait_s += got - last
            loss = nn.functional.cross_entropy(model(points), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            read_s += float(seconds.sum())
            last = perf_counter()
            step_s += last - got
        wall_s = perf_counter() - began
    tell(steps=steps, wall_s=wall_s, step_s=step_s, wait_s=wait_s, read_s_per_worker=read_s / 2, loss=loss.item())


if __name__ == "__main__":
    main()
