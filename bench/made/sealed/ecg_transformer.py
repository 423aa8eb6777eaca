"""Arrhythmia from ECG segments: band-pass and resampling (scipy) in one worker, a transformer over patches."""
import time

import numpy as np
import torch
from scipy.signal import butter, resample_poly, sosfiltfilt
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch

CAUSE = "compute/compute"
RANKS = 1
BORDERLINE = False


def record(root, patients=60, seconds=120):
    rng = np.random.default_rng(30)
    t = np.arange(seconds * 500) / 500
    for i in range(patients):
        rate = 1 + 0.3 * (i % 4)
        beat = np.exp(-(((t * rate) % 1 - 0.5) ** 2) * 900)
        leads = np.stack([beat * rng.uniform(0.5, 1.5) + 0.3 * np.sin(0.6 * t + k) + rng.normal(0, 0.05, t.size) for k in range(4)])
        np.save(root / f"patient{i:02d}.npy", (leads * 1000).astype(np.int16))
    return sorted(root.glob("*.npy"))


class Segments(Dataset):
    def __init__(self, files):
        self.files, self.band = files, butter(3, (0.5, 40), "bandpass", fs=500, output="sos")
        self.preparing = torch.zeros(1, dtype=torch.float64).share_memory_()

    def __len__(self):
        return 20_000

    def __getitem__(self, i):
        began = time.perf_counter()
        rng = np.random.default_rng(i)
        leads = np.load(self.files[i % len(self.files)], mmap_mode="r")
        at = rng.integers(0, leads.shape[1] - 15_000)
        clean = sosfiltfilt(self.band, leads[:, at : at + 15_000].astype(np.float64))
        slow = resample_poly(clean, 1, 4, axis=1)[:, :3744] / 1000
        self.preparing += time.perf_counter() - began
        return torch.from_numpy(slow.astype(np.float32)), i % len(self.files) % 4


class Net(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.patch = nn.Conv1d(4, width, 16, 16)
        self.place = nn.Parameter(torch.randn(1, 234, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 256, 0.1, batch_first=True, norm_first=True)
        self.body, self.head = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), nn.Linear(width, 4)

    def forward(self, x):
        return self.head(self.body(self.patch(x).transpose(1, 2) + self.place).mean(1))


def main():
    torch.set_num_threads(1)
    data = Segments(record(folder()))
    loader = DataLoader(data, batch_size=5, shuffle=True, num_workers=1, prefetch_factor=4)
    model = Net()
    opt = torch.optim.AdamW(model.parameters(), 3e-4)
    step = waiting = 0.0
    n, start = 0, time.perf_counter()
    mark = start
    for leads, kind in watch(loader):
        got = time.perf_counter()
        loss = nn.functional.cross_entropy(model(leads), kind)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        n += 1
        waiting += got - mark
        mark = time.perf_counter()
        step += mark - got
        if mark - start > 24:
            break
    wall = time.perf_counter() - start
    tell(wall=wall, steps=n, step=step, waiting=waiting, cause=step, worker_preparing=float(data.preparing))


if __name__ == "__main__":
    main()
