"""Accents: two seconds of speech, resampled to 16 kHz at a speed that varies, with an echo, as log-mel spectrograms; a GRU says the accent."""
import atexit
import shutil
import tempfile
import time
import wave
from pathlib import Path

import numpy as np
import torch
from scipy.signal import fftconvolve, resample_poly
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import applied, folder, long_enough, tell, watch

CAUSE = "preprocessing/decode"
RANKS = 1

CLIPS, FROM, RATE, FFT, HOP, MELS, BATCH, FRAMES = 240, 22050, 16000, 512, 160, 64, 8, 180
ARRAYS = applied("cheaper_data", False)


def mel_bank():
    hz = 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + RATE / 2 / 700), MELS + 2) / 2595) - 1)
    bins = np.linspace(0, RATE / 2, FFT // 2 + 1)
    up = (bins - hz[:-2, None]) / (hz[1:-1] - hz[:-2])[:, None]
    down = (hz[2:, None] - bins) / (hz[2:] - hz[1:-1])[:, None]
    return np.clip(np.minimum(up, down), 0, None).T.astype(np.float32)


WINDOW, BANK = np.hanning(FFT).astype(np.float32), mel_bank()


def features(path, rng):
    with wave.open(str(path)) as file:
        sound = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768
    sound = resample_poly(sound, RATE // 50, int(FROM // 50 * rng.uniform(0.92, 1.08)))
    echo = rng.normal(size=2400).astype(np.float32) * np.exp(-np.arange(2400, dtype=np.float32) / 500)
    echo[0] = 6
    sound = fftconvolve(sound, echo)[: len(sound)]
    frames = np.lib.stride_tricks.sliding_window_view(sound, FFT)[::HOP]
    mel = np.log(np.abs(np.fft.rfft(frames * WINDOW)) ** 2 @ BANK + 1e-5).astype(np.float32)
    return np.resize(mel, (FRAMES, MELS))


class Clips(Dataset):
    def __init__(self, root):
        self.root = root

    def __len__(self):
        return 1000000

    def __getitem__(self, i):
        k, rng = i * 53 % CLIPS, np.random.default_rng(i)
        if ARRAYS:
            mel = np.load(self.root / f"clip_{k:03d}.npy")
        else:
            mel = features(self.root / f"clip_{k:03d}.wav", rng)
        first = rng.integers(0, MELS - 8)
        mel[:, first : first + 8] = 0
        return torch.from_numpy(mel), k % 5


def prepare(root):
    rng = np.random.default_rng(0)
    t = np.arange(2 * FROM) / FROM
    voices = [sum(np.sin(2 * np.pi * (110 + 25 * v) * h * t) / h for h in range(1, 7)) * np.hanning(len(t)) for v in range(20)]
    hiss = rng.normal(0, 300, len(t))
    for k in range(CLIPS):
        path = root / f"clip_{k:03d}.wav"
        with wave.open(str(path), "wb") as file:
            file.setparams((1, 2, FROM, 0, "NONE", "NONE"))
            file.writeframes((voices[k % 20] * 5000 + np.roll(hiss, 331 * k)).astype(np.int16).tobytes())
        if ARRAYS:
            np.save(path.with_suffix(".npy"), features(path, rng))


class Accent(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.rnn, self.out = nn.Conv1d(MELS, 64, 5, 3), nn.GRU(64, 64, batch_first=True), nn.Linear(64, 5)

    def forward(self, x):
        return self.out(self.rnn(torch.relu(self.conv(x.transpose(1, 2))).transpose(1, 2))[0].mean(1))


def main():
    torch.set_num_threads(applied("fewer_threads", 1))
    torch.manual_seed(0)
    root = folder()
    prepare(root)
    if applied("staging", False):
        fast = Path(tempfile.mkdtemp(dir="/dev/shm"))
        atexit.register(shutil.rmtree, fast, True)
        root = Path(shutil.copytree(root, fast, dirs_exist_ok=True))
    workers = applied("more_workers", 1)
    loader = DataLoader(
        Clips(root), batch_size=BATCH, num_workers=workers, prefetch_factor=applied("longer_queue", 2) if workers else None,
        persistent_workers=applied("staying_workers", False) and workers > 0,
    )
    model = Accent()
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    marks = []
    for mel, accent in watch(loader):
        loss = nn.functional.cross_entropy(model(mel), accent)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        marks.append(time.perf_counter())
        if long_enough(marks):
            break
    tell(step_s=(marks[-1] - marks[9]) / (len(marks) - 10), steps=len(marks) - 10)


if __name__ == "__main__":
    main()
