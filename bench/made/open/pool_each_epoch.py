"""Sorting of support tickets: each epoch opens a ProcessPoolExecutor with the spawn method ("fork and torch hang
together") and maps the batches over it; its initializer builds the table of n-grams."""
import multiprocessing as mp
import random
import time
from concurrent.futures import ProcessPoolExecutor

import torch
from torch import nn

from case import tell, watch

CAUSE = "waiting/worker_start"
RANKS = 1
BORDERLINE = False

TOPICS, LENGTH, BATCH = 6, 40, 32
WORDS = [a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in "lmnrst"]
table = {}


def prepare():
    """In each worker: the ids of the word pairs."""
    for i, a in enumerate(WORDS):
        for j, b in enumerate(WORDS):
            table[a, b] = (i * 31 + j * 17) % 8192


def encode(seed):
    rng = random.Random(seed)
    rows, topics = [], []
    for _ in range(BATCH):
        topic = rng.randrange(TOPICS)
        words = [WORDS[(rng.randrange(60) + 60 * topic) % len(WORDS)] for _ in range(LENGTH + 1)]
        rows.append([table[pair] for pair in zip(words, words[1:])])
        topics.append(topic)
    return rows, topics


def epoch(number, steps=20):
    with ProcessPoolExecutor(2, mp_context=mp.get_context("spawn"), initializer=prepare) as pool:
        for rows, topics in pool.map(encode, range(number * steps, (number + 1) * steps)):
            yield torch.tensor(rows), torch.tensor(topics)


class Tickets(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(8192, 64)
        self.conv = nn.Conv1d(64, 96, 5)
        self.out = nn.Linear(96, TOPICS)

    def forward(self, x):
        return self.out(torch.relu(self.conv(self.embed(x).transpose(1, 2))).amax(2))


def main():
    torch.set_num_threads(1)
    model = Tickets()
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    step = waiting = first = 0.0
    n, passes, start = 0, 0, time.perf_counter()
    while time.perf_counter() - start < 22:
        mark, fresh = time.perf_counter(), True
        for x, y in watch(epoch(passes)):
            got = time.perf_counter()
            if fresh:
                first, fresh = first + got - mark, False
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            n += 1
            waiting += got - mark
            mark = time.perf_counter()
            step += mark - got
        passes += 1
    tell(wall=time.perf_counter() - start, steps=n, passes=passes, step=step, waiting=waiting, cause=first)


if __name__ == "__main__":
    main()
