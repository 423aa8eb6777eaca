"""Genes by their words of nine letters: an embedding of all of them, summed over the gene. The state is kept after each tenth step, and is
on the disk before the training goes on, since our nodes are taken away without notice."""
import os
import threading
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import applied, folder, long_enough, tell, watch

CAUSE = "waiting/checkpoint"
RANKS = 1

LETTERS, LENGTH, WIDTH, BATCH = 9, 1500, 24, 32
EVERY = 20 if applied("rarer_checkpoints", False) else 10
BEHIND = applied("background_checkpoints", False)
SMALL = applied("smaller_tensors", False)


class Genes(Dataset):
    def __init__(self):
        self.genome = np.random.default_rng(0).integers(0, 4, 2_000_000)

    def __len__(self):
        return 1000000

    def __getitem__(self, i):
        first = i * 7907 % (len(self.genome) - LENGTH - LETTERS)
        letters = np.lib.stride_tricks.sliding_window_view(self.genome[first : first + LENGTH + LETTERS - 1], LETTERS)
        return torch.from_numpy((letters @ 4 ** np.arange(LETTERS)).astype(np.int32 if SMALL else np.int64)), i % 12


class Family(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(4**LETTERS, WIDTH, mode="mean")
        self.out = nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, 12))

    def forward(self, words):
        return self.out(self.words(words))


def write(state, path):
    with open(path.with_suffix(".part"), "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path.with_suffix(".part"), path)


class Keeper:
    def __init__(self, path):
        self.path, self.writer = path, None

    def keep(self, model, opt):
        if not BEHIND:
            write({"model": model.state_dict(), "opt": opt.state_dict()}, self.path)
            return
        if self.writer is not None:
            self.writer.join()
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        states = [{name: value.clone() for name, value in state.items() if torch.is_tensor(value)} for state in opt.state.values()]
        self.writer = threading.Thread(target=write, args=({"model": weights, "opt": states}, self.path))
        self.writer.start()


def main():
    torch.set_num_threads(applied("fewer_threads", 1))
    torch.manual_seed(0)
    workers = applied("more_workers", 1)
    loader = DataLoader(
        Genes(), batch_size=BATCH, num_workers=workers, prefetch_factor=applied("longer_queue", 2) if workers else None,
        persistent_workers=applied("staying_workers", False) and workers > 0,
    )
    model = Family()
    opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    keeper = Keeper(folder() / "state.pt")
    marks = []
    for words, family in watch(loader):
        loss = nn.functional.cross_entropy(model(words), family)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if len(marks) % EVERY == EVERY - 1:
            keeper.keep(model, opt)
        marks.append(time.perf_counter())
        if long_enough(marks):
            break
    tell(step_s=(marks[-1] - marks[9]) / (len(marks) - 10), steps=len(marks) - 10)
    if keeper.writer is not None:
        keeper.writer.join()


if __name__ == "__main__":
    main()
