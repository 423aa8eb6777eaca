"""A language model of characters on a machine that people use at the same time: the training takes only its share of
the time, as volunteer computing does (`--use-at-most`)."""
import time

import numpy as np
import torch
from torch import nn

from case import folder, tell, watch

CAUSE = "waiting/sleep"
RANKS = 1
BORDERLINE = False


class Share:
    """After so much work, rests for so long that work is `share` of the whole."""

    def __init__(self, share):
        self.factor, self.rested = 1 / share - 1, 0.0

    def rest(self, worked):
        t = time.perf_counter()
        time.sleep(min(worked * self.factor, 1.0))
        self.rested += time.perf_counter() - t


class CharLM(nn.Module):
    def __init__(self, width=160):
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(128, 48), nn.GRU(48, width, batch_first=True), nn.Linear(width, 128)

    def forward(self, x):
        return self.head(self.rnn(self.embed(x))[0])


def windows(path, batch=16, length=64):
    text = np.fromfile(path, dtype=np.uint8)
    rng = np.random.default_rng(0)
    while True:
        at = rng.integers(0, len(text) - length - 1, batch)
        yield torch.from_numpy(np.stack([text[i : i + length + 1] for i in at]).astype(np.int64))


def write(path):
    rng = np.random.default_rng(1)
    words = ["".join(rng.choice(list("etaoinshrdlu"), rng.integers(2, 9))) for _ in range(400)]
    path.write_text(" ".join(words[min(int(i), 399)] for i in rng.zipf(1.3, 300_000) % 400))


def main():
    torch.set_num_threads(1)
    path = folder() / "corpus.txt"
    write(path)
    model = CharLM()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    share = Share(0.25)
    step = waiting = 0.0
    n, start = 0, time.perf_counter()
    mark = start
    for text in watch(windows(path)):
        got = time.perf_counter()
        loss = nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        worked = time.perf_counter()
        share.rest(worked - mark)
        n += 1
        waiting, step = waiting + got - mark, step + worked - got
        mark = time.perf_counter()
        if mark - start > 25:
            break
    tell(wall=time.perf_counter() - start, steps=n, step=step, waiting=waiting, cause=share.rested)


if __name__ == "__main__":
    main()
