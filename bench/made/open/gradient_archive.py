"""Attribution of a recommender: after each step the body adds the gradients of the articles it saw to a numpy.memmap of all articles, and
flushes it, so that each step waits until a thousand scattered pages are on the disk."""

import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch

CAUSE = "waiting/checkpoint"
RANKS = 1
BORDERLINE = False
ARTICLES, WIDTH = 240_000, 256


class Baskets(Dataset):
    """What was bought together: eight articles and the ninth."""

    def __init__(self, articles, count):
        random = np.random.default_rng(0)
        self.baskets = (random.integers(0, articles, (count, 1)) + 37 * random.integers(0, 4000, (count, 9))) % articles

    def __len__(self):
        return len(self.baskets)

    def __getitem__(self, row):
        return torch.from_numpy(self.baskets[row, :8]), int(self.baskets[row, 8]) % 256


class Next(nn.Module):
    def __init__(self, articles, width):
        super().__init__()
        self.embed = nn.EmbeddingBag(articles, width, mode="mean", sparse=True)
        self.out = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, 256))

    def forward(self, basket):
        return self.out(self.embed(basket))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    place = folder()
    model = Next(ARTICLES, WIDTH)
    influence = np.memmap(place / "influence.f32", np.float32, "w+", shape=(ARTICLES, WIDTH))
    influence[:] = 0
    influence.flush()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = watch(DataLoader(Baskets(ARTICLES, 100_000), batch_size=128, shuffle=True, drop_last=True))
    steps, waited, kept, flushed, began = 0, 0.0, 0.0, 0.0, time.perf_counter()
    asked = began
    for basket, bought in loader:
        waited += time.perf_counter() - asked
        loss = nn.functional.cross_entropy(model(basket), bought)
        optimizer.zero_grad()
        loss.backward()
        keeping = time.perf_counter()
        rows = model.embed.weight.grad.coalesce()
        influence[rows.indices()[0].numpy()] += rows.values().numpy()
        flushing = time.perf_counter()
        influence.flush()
        done = time.perf_counter()
        kept, flushed = kept + flushing - keeping, flushed + done - flushing
        optimizer.step()
        steps += 1
        asked = time.perf_counter()
        if asked - began > 25:
            break
    wall = time.perf_counter() - began
    tell(
        steps=steps, step=wall / steps, loader=waited / steps, add_to_map=kept / steps, flush=flushed / steps, rows=len(rows.indices()[0]),
        share=(kept + flushed) / wall,
    )  # fmt: skip


if __name__ == "__main__":
    main()
