"""Keyword spotting: one-second WAVs, stretched in time by a phase vocoder, mixed with noise, and turned to log-mel
spectrograms in the dataset; the loader has no workers."""
import time
import wave

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch
from t_timers import Timers

CAUSE = "preprocessing/decode"
RANKS = 1
BORDERLINE = False

RATE, FFT, HOP, MELS = 16000, 512, 128, 40


def mel_bank():
    hz = 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + RATE / 2 / 700), MELS + 2) / 2595) - 1)
    bins = np.linspace(0, RATE / 2, FFT // 2 + 1)
    up = (bins - hz[:-2, None]) / (hz[1:-1] - hz[:-2])[:, None]
    down = (hz[2:, None] - bins) / (hz[2:] - hz[1:-1])[:, None]
    return np.clip(np.minimum(up, down), 0, None).astype(np.float32)


WINDOW, BANK = np.hanning(FFT).astype(np.float32), mel_bank()


def stft(x):
    frames = np.lib.stride_tricks.sliding_window_view(x, FFT)[::HOP]
    return np.fft.rfft(frames * WINDOW)


def istft(spec):
    frames = np.fft.irfft(spec) * WINDOW
    out = np.zeros(HOP * (len(frames) - 1) + FFT)
    for k, f in enumerate(frames):
        out[k * HOP : k * HOP + FFT] += f
    return out


def stretch(x, rate):
    spec = stft(x)
    expected = np.linspace(0, np.pi * HOP, spec.shape[1])
    phase, out = np.angle(spec[0]), []
    for t in np.arange(0, len(spec) - 1, rate):
        a, b = spec[int(t)], spec[int(t) + 1]
        part = t - int(t)
        out.append(((1 - part) * np.abs(a) + part * np.abs(b)) * np.exp(1j * phase))
        turn = np.angle(b) - np.angle(a) - expected
        phase = phase + expected + turn - 2 * np.pi * np.round(turn / (2 * np.pi))
    return istft(np.array(out))


class Keywords(Dataset):
    def __init__(self, paths):
        self.paths, self.rng, self.timers = paths, np.random.default_rng(1), Timers()

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        with self.timers.part("sample"):
            with wave.open(str(self.paths[i])) as w:
                x = np.frombuffer(w.readframes(w.getnframes()), np.int16).astype(np.float32) / 32768
            x = stretch(x, self.rng.uniform(0.85, 1.15))
            x = np.resize(x, RATE) + self.rng.normal(0, 0.01, RATE)
            mel = np.log(np.abs(stft(x.astype(np.float32))) ** 2 @ BANK.T + 1e-6)
        self.timers.sample()
        return torch.from_numpy(mel.astype(np.float32)), int(self.paths[i].name[:2])


def recordings(root, count=320):
    rng = np.random.default_rng(0)
    t = np.arange(RATE) / RATE
    for i in range(count):
        word = i % 8
        tone = sum(np.sin(2 * np.pi * (180 + 90 * word) * h * t * (1 + 0.05 * rng.normal())) / h for h in (1, 2, 3))
        sound = (tone * np.hanning(RATE) * 6000 + rng.normal(0, 200, RATE)).astype(np.int16)
        with wave.open(str(root / f"{word:02d}_{i:04d}.wav"), "wb") as w:
            w.setparams((1, 2, RATE, 0, "NONE", "NONE"))
            w.writeframes(sound.tobytes())
    return sorted(root.glob("*.wav"))


class Spotter(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(MELS, 64, batch_first=True), nn.Linear(64, 8)

    def forward(self, x):
        return self.out(self.rnn(x)[0].mean(1))


def main():
    torch.set_num_threads(1)
    keywords = Keywords(recordings(folder()))
    loader = watch(DataLoader(keywords, batch_size=10, shuffle=True))
    model = Spotter()
    opt = torch.optim.Adam(model.parameters(), 2e-3)
    step = waiting = 0.0
    n, start = 0, time.perf_counter()
    while time.perf_counter() - start < 24:
        mark = time.perf_counter()
        for x, y in loader:
            got = time.perf_counter()
            loss = nn.functional.cross_entropy(model(x), y)
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
    tell(wall=time.perf_counter() - start, steps=n, step=step, waiting=waiting, cause=keywords.timers.sums["sample"])


if __name__ == "__main__":
    main()
