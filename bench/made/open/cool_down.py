"""Which play does a speech come from: a small text model on a laptop that got hot, so that the loop sleeps 40 ms after
each step to let it cool down."""
CAUSE = "waiting/sleep"
RANKS = 1
BORDERLINE = False

import time
import zlib
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

from case import tell, watch

BUCKETS, WORDS, PAUSE_S = 5000, 48, 0.04


def speeches():
    text = Path("@DATA@/text/tinyshakespeare.txt").read_text()
    found = []
    for part in text.split("\n\n"):
        speaker, _, said = part.partition(":")
        words = [zlib.crc32(word.encode()) % BUCKETS for word in said.lower().split()]
        if len(words) >= 8:
            ids = torch.zeros(WORDS, dtype=torch.long)
            ids[: len(words[:WORDS])] = torch.tensor(words[:WORDS])
            found.append((ids, zlib.crc32(speaker.strip().encode()) % 16))
    return found


class Speaker(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(BUCKETS, 64)
        self.attend = nn.MultiheadAttention(64, 4, batch_first=True)
        self.out = nn.Linear(64, 16)

    def forward(self, ids):
        x = self.words(ids)
        x = x + self.attend(x, x, x, need_weights=False)[0]
        return self.out(x.mean(1))


class CoolDown:
    """Fans are loud above 90 degrees; a pause after each step keeps the chip below."""

    def __init__(self, seconds):
        self.seconds, self.slept = seconds, 0.0

    def __call__(self):
        began = time.perf_counter()
        time.sleep(self.seconds)
        self.slept += time.perf_counter() - began


def fit(epochs=20, limit_s=24):
    torch.set_num_threads(1)
    loader = watch(DataLoader(speeches(), batch_size=32, shuffle=True))
    model, cool_down = Speaker(), CoolDown(PAUSE_S)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    steps = 0
    body_s = wait_s = 0.0
    start = time.perf_counter()
    for _ in range(epochs):
        last = time.perf_counter()
        for ids, speaker in loader:
            got = time.perf_counter()
            wait_s += got - last
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(ids), speaker)
            loss.backward()
            optimizer.step()
            cool_down()
            steps += 1
            last = time.perf_counter()
            body_s += last - got
        if last - start > limit_s:
            break
    wall = time.perf_counter() - start
    tell(steps=steps, wall_s=wall, body_s=body_s, step_s=body_s - cool_down.slept, wait_s=wait_s, slept_s=cool_down.slept)


if __name__ == "__main__":
    fit()
