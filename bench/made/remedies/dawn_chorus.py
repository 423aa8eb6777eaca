"""Birds at dawn: a thread of the reader cuts songs from recordings and makes mel spectrograms of them; the reader looks now and then whether the next one is there."""
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import applied, long_enough, tell, watch

CAUSE = "waiting/sleep"
RANKS = 1

RATE, SECONDS, FFT, HOP, MELS, BATCH = 22050, 2, 512, 256, 48, 4
READY = applied("cheaper_data", False)
WINDOW = np.hanning(FFT).astype(np.float32)
BANK = np.maximum(0, 1 - np.abs(np.arange(FFT // 2 + 1)[:, None] - np.geomspace(4, 250, MELS)[None]) / np.geomspace(2, 20, MELS)).astype(np.float32)


def mel(song):
    frames = np.lib.stride_tricks.sliding_window_view(song, FFT)[::HOP]
    return np.log(np.abs(np.fft.rfft(frames * WINDOW)).astype(np.float32) ** 2 @ BANK + 1e-4)


class Songs(Dataset):
    def __init__(self):
        rng = np.random.default_rng(0)
        t = np.arange(30 * RATE, dtype=np.float32) / RATE
        self.recordings = [
            (np.sin(2 * np.pi * (2500 + 300 * k) * t + 40 * np.sin(2 * np.pi * (3 + k) * t)) + rng.normal(0, 0.2, len(t))).astype(np.float32) for k in range(6)
        ]
        self.cut = None
        self.ready = [self.song(i) for i in range(300)] if READY else None

    def __len__(self):
        return 1000000

    def song(self, i):
        first = i * 7907 % (28 * RATE)
        return mel(self.recordings[i % 6][first : first + SECONDS * RATE])

    def __getitem__(self, i):
        if READY:
            return torch.from_numpy(self.ready[i // 6 % 50 * 6 + i % 6]), i % 6
        if self.cut is None:
            self.cut = ThreadPoolExecutor(1)
        song = self.cut.submit(self.song, i)
        if not applied("no_sleep", False):
            while not song.done():
                time.sleep(0.03)
        return torch.from_numpy(song.result()), i % 6


def main():
    torch.set_num_threads(applied("fewer_threads", 1))
    torch.manual_seed(0)
    workers = applied("more_workers", 1)
    loader = DataLoader(
        Songs(), batch_size=BATCH, num_workers=workers, prefetch_factor=applied("longer_queue", 2) if workers else None,
        persistent_workers=applied("staying_workers", False) and workers > 0,
    )
    model = nn.Sequential(
        nn.Unflatten(1, (1, -1)), nn.Conv2d(1, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 6),
    )
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    marks = []
    for song, bird in watch(loader):
        loss = nn.functional.cross_entropy(model(song), bird)
        opt.zero_grad()
        loss.backward()
        opt.step()
        marks.append(time.perf_counter())
        if long_enough(marks):
            break
    tell(step_s=(marks[-1] - marks[9]) / (len(marks) - 10), steps=len(marks) - 10)


if __name__ == "__main__":
    main()
