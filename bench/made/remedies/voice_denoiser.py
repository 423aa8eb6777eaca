"""A denoiser of voices: two readers mix voices with noise and turn them to spectra; a GRU learns the mask."""
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import applied, long_enough, tell, watch

CAUSE = "client_cpu/cores"
RANKS = 1

RATE, FFT, HOP, BATCH = 16000, 256, 128, 8
MIXED = applied("cheaper_data", False)
WINDOW = np.hanning(FFT).astype(np.float32)


def spectrum(sound):
    return np.abs(np.fft.rfft(np.lib.stride_tricks.sliding_window_view(sound, FFT)[::HOP] * WINDOW)).astype(np.float32)


class Mixes(Dataset):
    def __init__(self):
        rng = np.random.default_rng(0)
        t = np.arange(RATE, dtype=np.float32) / RATE
        self.voices = [sum(np.sin(2 * np.pi * (90 + 10 * v) * h * t) / h for h in range(1, 9)).astype(np.float32) for v in range(24)]
        self.noises = rng.normal(size=(24, RATE)).astype(np.float32)
        self.mixed = [self.mix(i) for i in range(96)] if MIXED else None

    def __len__(self):
        return 1000000

    def mix(self, i):
        rng = np.random.default_rng(i)
        voice, noise = self.voices[rng.integers(24)], np.roll(self.noises[rng.integers(24)], rng.integers(RATE))
        heard = spectrum(voice + rng.uniform(0.1, 0.6) * noise)
        clean = spectrum(voice)
        return torch.from_numpy(np.log1p(heard)), torch.from_numpy((clean / (heard + 1e-3)).clip(0, 1))

    def __getitem__(self, i):
        return self.mixed[i % 96] if MIXED else self.mix(i)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.rnn, self.out = nn.Linear(FFT // 2 + 1, 96), nn.GRU(96, 128, batch_first=True), nn.Linear(128, FFT // 2 + 1)

    def forward(self, x):
        return torch.sigmoid(self.out(self.rnn(torch.relu(self.inp(x)))[0]))


def main():
    torch.set_num_threads(applied("fewer_threads", 4))
    torch.manual_seed(0)
    workers = applied("more_workers", 2)
    loader = DataLoader(
        Mixes(), batch_size=BATCH, num_workers=workers, prefetch_factor=applied("longer_queue", 2) if workers else None,
        persistent_workers=applied("staying_workers", False) and workers > 0,
    )
    model = Denoiser()
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    marks = []
    for heard, mask in watch(loader):
        loss = nn.functional.mse_loss(model(heard), mask)
        opt.zero_grad()
        loss.backward()
        opt.step()
        marks.append(time.perf_counter())
        if long_enough(marks):
            break
    tell(step_s=(marks[-1] - marks[9]) / (len(marks) - 10), steps=len(marks) - 10)


if __name__ == "__main__":
    main()
