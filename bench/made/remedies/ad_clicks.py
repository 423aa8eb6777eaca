"""Advertising: will an ad be clicked. The log has four hundred columns, and a batch is a dict with a tensor for each of them."""
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from case import applied, long_enough, tell, watch

CAUSE = "preprocessing/hand_over"
RANKS = 1

ROWS, COLUMNS, WORDS, BATCH = 20_000, 400, 500, 96
ONE = applied("fewer_tensors", False)
SMALL = applied("smaller_tensors", False)


class Log(IterableDataset):
    """Ready batches: the rows lie in memory, column by column."""

    def __init__(self):
        rng = np.random.default_rng(0)
        kind = np.int16 if SMALL else np.int64
        self.columns = rng.integers(0, WORDS, (COLUMNS, ROWS)).astype(kind)
        self.rows = np.ascontiguousarray(self.columns.T)
        self.clicked = (rng.random(ROWS) < 0.2).astype(np.float32)

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        rng = np.random.default_rng(info.id if info else 0)
        while True:
            first = int(rng.integers(0, ROWS - BATCH))
            rows = slice(first, first + BATCH)
            if ONE:
                yield {"columns": self.rows[rows], "clicked": self.clicked[rows]}
            else:
                yield {f"c{k:03d}": column[rows] for k, column in enumerate(self.columns)} | {"clicked": self.clicked[rows]}


class Click(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(COLUMNS * WORDS, 16, mode="sum")
        self.register_buffer("first", torch.arange(COLUMNS) * WORDS)
        self.out = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, columns):
        return self.out(self.words(columns.long() + self.first))[:, 0]


def main():
    torch.set_num_threads(applied("fewer_threads", 1))
    torch.manual_seed(0)
    torch.multiprocessing.set_sharing_strategy("file_system")  # "Too many open files", else
    workers = applied("more_workers", 1)
    loader = DataLoader(
        Log(), batch_size=None, num_workers=workers, prefetch_factor=applied("longer_queue", 2) if workers else None,
        persistent_workers=applied("staying_workers", False) and workers > 0,
    )
    model = Click()
    opt = torch.optim.SGD(model.parameters(), 0.05)
    marks = []
    for batch in watch(loader):
        clicked = batch.pop("clicked")
        columns = batch["columns"] if ONE else torch.stack([batch[f"c{k:03d}"] for k in range(COLUMNS)], 1)
        loss = nn.functional.binary_cross_entropy_with_logits(model(columns), clicked)
        opt.zero_grad()
        loss.backward()
        opt.step()
        marks.append(time.perf_counter())
        if long_enough(marks):
            break
    tell(step_s=(marks[-1] - marks[9]) / (len(marks) - 10), steps=len(marks) - 10)


if __name__ == "__main__":
    main()
