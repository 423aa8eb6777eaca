"""Whale calls in recordings of a hydrophone: WAV clips of four seconds, mel-like front end, small convolutional network."""
import json
import os
import time
import wave

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import evict, folder, slow_disk, tell, watch

CAUSE = "storage/reads"
RANKS = 1
BORDERLINE = False
RATE, SECONDS, CLIPS = 32000, 4, 1100


class Clips(Dataset):
    def __init__(self, files):
        self.files, self.began, self.reading, self.seen = files, None, 0.0, 0

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        self.began = self.began or time.perf_counter()
        t = time.perf_counter()
        with wave.open(str(self.files[i]), "rb") as clip:
            raw = clip.readframes(clip.getnframes())
        self.reading += time.perf_counter() - t
        self.seen += 1
        if self.seen % 40 == 0 and os.environ.get("CASE_LOG"):
            with open(os.environ["CASE_LOG"], "a") as log:
                wall = time.perf_counter() - self.began
                log.write(json.dumps({"pid": os.getpid(), "clips": self.seen, "wall": wall, "reading": self.reading}) + "\n")
        sound = torch.frombuffer(bytearray(raw), dtype=torch.int16).float() / 32768
        return sound, int(self.files[i].stem) % 4


class CallNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(512))
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 5, stride=3), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)
        )

    def forward(self, sound):
        spectrum = torch.stft(sound, 512, 512, window=self.window, return_complex=True).abs()
        return self.body(torch.log1p(spectrum).unsqueeze(1))


def record(where):
    rng = np.random.default_rng(0)
    noise = rng.integers(-3000, 3000, RATE * SECONDS * 4, dtype=np.int16)
    files = []
    for i in range(CLIPS):
        at = int(rng.integers(0, RATE * SECONDS * 3))
        files.append(where / f"{i:05d}.wav")
        with wave.open(str(files[-1]), "wb") as clip:
            clip.setnchannels(1)
            clip.setsampwidth(2)
            clip.setframerate(RATE)
            clip.writeframes(noise[at : at + RATE * SECONDS].tobytes())
    os.sync()
    evict(*files)
    return files


def main():
    torch.set_num_threads(1)
    where = folder()
    loader = DataLoader(Clips(record(where)), batch_size=8, shuffle=True, num_workers=2)
    model = CallNet()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    step = waiting = 0.0
    n = 0
    with slow_disk(where, 8_000_000):
        start = mark = time.perf_counter()
        for sound, label in watch(loader):
            got = time.perf_counter()
            loss = nn.functional.cross_entropy(model(sound), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            n += 1
            now = time.perf_counter()
            waiting, step, mark = waiting + got - mark, step + now - got, now
            if now - start > 25:
                break
        tell(wall=time.perf_counter() - start, steps=n, step=step, waiting=waiting)


if __name__ == "__main__":
    main()
