"""Brain scans in HDF5, chunked one whole scan a chunk (with checksums); 2D training takes one slice of each scan.
The worker gets 48 slices from the slow disk for each slice that it returns."""
CAUSE = "storage/amplification"
RANKS = 1
BORDERLINE = False

import time

import h5py
import numpy as np
import torch
from case import evict, folder, slow_disk, tell, watch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SCANS, DEPTH, SIDE = 240, 48, 128


def bytes_from_disk():
    for line in open("/proc/self/io"):
        if line.startswith("read_bytes"):
            return int(line.split()[1])


class LesionSlices(Dataset):
    def __init__(self, path, slices):
        self.path, self.slices, self.h5 = path, slices, None

    def __len__(self):
        return len(self.slices)

    def __getitem__(self, i):
        if self.h5 is None:
            self.h5 = h5py.File(self.path, "r")
        scan, z = self.slices[i]
        b0, t0 = bytes_from_disk(), time.perf_counter()
        image = self.h5["t1w"][scan, z]
        t1, b1 = time.perf_counter(), bytes_from_disk()
        x = image.astype(np.float32)
        x = (x - x.mean()) / (x.std() + 1e-6)
        mask = (x > 1).astype(np.float32)
        return x[None], mask[None], t1 - t0, time.perf_counter() - t0, b1 - b0, image.nbytes


def archive(path):
    rng = np.random.default_rng(5)
    with h5py.File(path, "w") as f:
        d = f.create_dataset("t1w", (SCANS, DEPTH, SIDE, SIDE), "i2", chunks=(1, DEPTH, SIDE, SIDE), fletcher32=True)
        for s in range(SCANS):
            d[s] = rng.integers(0, 4000, (DEPTH, SIDE, SIDE), dtype=np.int16)
    evict(path)
    return [(s, int(rng.integers(4, DEPTH - 4))) for s in range(SCANS)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    path = folder() / "cohort.h5"
    slices = archive(path)
    unet = nn.Sequential(nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 12, 3, 1, 1), nn.ReLU(), nn.ConvTranspose2d(12, 1, 2, 2))
    opt = torch.optim.Adam(unet.parameters())
    took = dict(step=0.0, waiting=0.0)
    fetched = samples = get = busy = n = 0
    with slow_disk(path.parent, 15_000_000):
        loader = watch(DataLoader(LesionSlices(path, slices), batch_size=2, shuffle=True, num_workers=1))
        begin = mark = time.perf_counter()
        for x, mask, g, b, disk, size in loader:
            now = time.perf_counter()
            took["waiting"] += now - mark
            loss = nn.functional.binary_cross_entropy_with_logits(unet(x), mask)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            fetched, samples, n = fetched + int(disk.sum()), samples + int(size.sum()), n + 1
            get, busy = get + float(g.sum()), busy + float(b.sum())
            mark = time.perf_counter()
            took["step"] += mark - now
        wall = time.perf_counter() - begin
    surplus = 1 - samples / fetched
    tell(steps=n, wall=wall, **took, cause=took["waiting"] * get / busy * surplus, times_too_many_bytes=fetched / samples, get=get, worker_busy=busy)
