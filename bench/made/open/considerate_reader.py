"""Heart sounds from the department's file server: the reader keeps below a bandwidth agreed with the administrators,
like rsync --bwlimit, so that the clinic's own users are not disturbed."""
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch
from t_timers import Timers

CAUSE = "waiting/sleep"
RANKS = 1
BORDERLINE = False

RECORDS, LENGTH, AGREED = 90, 96_000, 6_000_000


class Considerate:
    """Reads files in pieces, and no faster on average than so many bytes in a second."""

    def __init__(self, bytes_per_s, piece=128 * 1024):
        self.bytes_per_s, self.piece, self.due, self.timers = bytes_per_s, piece, None, Timers()

    def read(self, path):
        pieces = []
        with open(path, "rb", buffering=0) as f:
            while piece := f.read(self.piece):
                pieces.append(piece)
                now = time.monotonic()
                self.due = max(now, self.due or now) + len(piece) / self.bytes_per_s
                with self.timers.part("held_back"):
                    time.sleep(self.due - now)
        self.timers.sample()
        return b"".join(pieces)


class HeartSounds(Dataset):
    def __init__(self, root):
        self.paths, self.reader = sorted(root.glob("*.f32")), Considerate(AGREED)

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        x = np.frombuffer(self.reader.read(self.paths[i]), np.float32).copy()
        return torch.from_numpy(x)[None], float(i % 2)


def main():
    torch.set_num_threads(1)
    root = folder()
    rng = np.random.default_rng(0)
    t = np.arange(LENGTH) / 4000
    for i in range(RECORDS):
        beat = np.sin(2 * np.pi * 45 * t) * (np.sin(2 * np.pi * 1.2 * t) > 0.8)
        murmur = (i % 2) * 0.3 * rng.normal(size=LENGTH) * (np.sin(2 * np.pi * 1.2 * t + 1) > 0.6)
        (root / f"pcg_{i:03d}.f32").write_bytes((beat + murmur + 0.05 * rng.normal(size=LENGTH)).astype(np.float32).tobytes())
    loader = watch(DataLoader(HeartSounds(root), batch_size=4, shuffle=True, num_workers=1, persistent_workers=True, drop_last=True))
    model = nn.Sequential(nn.Conv1d(1, 16, 32, 16), nn.ReLU(), nn.Conv1d(16, 32, 16, 8), nn.ReLU(), nn.Conv1d(32, 32, 8, 4), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 1))
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    step = waiting = 0.0
    n, start = 0, time.perf_counter()
    while time.perf_counter() - start < 24:
        mark = time.perf_counter()
        for x, y in loader:
            got = time.perf_counter()
            loss = nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y.float())
            opt.zero_grad()
            loss.backward()
            opt.step()
            n += 1
            waiting += got - mark
            mark = time.perf_counter()
            step += mark - got
            if mark - start > 24:
                break
    tell(wall=time.perf_counter() - start, steps=n, step=step, waiting=waiting)


if __name__ == "__main__":
    main()
