"""Bird calls, one WAV file each, on a slow mount; a map-style DataLoader with two workers.
The time goes into the read calls of the workers."""
CAUSE = "storage/reads"
RANKS = 1
BORDERLINE = False

import os
import time
import wave

import numpy as np
import torch
from case import evict, folder, slow_disk, tell, watch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SECONDS, RATE, CLIPS = 10, 16000, 800


def record(root):
    rng = np.random.default_rng(3)
    paths = []
    for i in range(CLIPS):
        path = root / f"{i % 12:02d}_{i:05d}.wav"
        with wave.open(str(path), "wb") as out:
            out.setnchannels(1)
            out.setsampwidth(2)
            out.setframerate(RATE)
            out.writeframes(rng.integers(-9000, 9000, SECONDS * RATE, dtype=np.int16).tobytes())
        paths.append(path)
    os.sync()
    evict(*paths)
    return paths


class BirdCalls(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        t0 = time.perf_counter()
        with open(self.paths[i], "rb") as f, wave.open(f) as w:
            pcm = w.readframes(w.getnframes())
        t1 = time.perf_counter()
        x = torch.from_numpy(np.frombuffer(pcm, np.int16).astype(np.float32) / 32768)
        label = int(self.paths[i].name[:2])
        return x[None, :RATE * 4], label, t1 - t0, time.perf_counter() - t0


def main():
    torch.set_num_threads(1)
    paths = record(folder())
    model = nn.Sequential(nn.Conv1d(1, 16, 80, 16), nn.ReLU(), nn.Conv1d(16, 32, 9, 4), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 12))
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    with slow_disk(folder(), 10_000_000):
        loader = watch(DataLoader(BirdCalls(paths), batch_size=8, shuffle=True, num_workers=2))
        wait = step = read = worker = 0.0
        n = 0
        start = last = time.perf_counter()
        for x, y, r, w in loader:
            t = time.perf_counter()
            wait += t - last
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            read += float(r.sum())
            worker += float(w.sum())
            n += 1
            last = time.perf_counter()
            step += last - t
        wall = time.perf_counter() - start
    tell(steps=n, wall=wall, step=step, waiting=wait, cause=wait * read / worker, reads_in_workers=read, workers_busy=worker)


if __name__ == "__main__":
    main()
