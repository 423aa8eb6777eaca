"""Variants: the reads over a site, each with its bases, their quality and its strand, stacked to a pileup as an image; which genotype is it."""
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import applied, long_enough, tell, watch

CAUSE = "preprocessing/collate"
RANKS = 1

SITES, DEPTH, WIDTH, BATCH = 600, 48, 121, 16
STACKED = applied("cheaper_data", False)
SMALL = applied("smaller_tensors", False)


def pileup(reads):
    """One site, by numpy."""
    out = np.zeros((6, DEPTH, WIDTH), np.uint8)
    starts, lengths = np.array([r[0] for r in reads]), np.array([len(r[1]) for r in reads])
    row = np.repeat(np.arange(len(reads)), lengths)
    column = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths - starts, lengths)
    out[np.concatenate([r[1] for r in reads]), row, column] = 60
    out[4, row, column] = np.concatenate([r[2] for r in reads])
    out[5, row, column] = np.repeat([60 * r[3] for r in reads], lengths)
    return torch.from_numpy(out)


class Sites(Dataset):
    def __init__(self):
        rng = np.random.default_rng(0)
        self.sites = []
        for _ in range(SITES):
            reads = []
            for _ in range(rng.integers(30, DEPTH + 1)):
                first, last = sorted(rng.choice(WIDTH, 2, replace=False))
                size = int(last - first) + 1
                reads.append((int(first), rng.integers(0, 4, size, dtype=np.uint8), rng.integers(5, 60, size, dtype=np.uint8), int(rng.integers(2))))
            self.sites.append(pileup(reads) if STACKED else reads)

    def __len__(self):
        return 1000000

    def __getitem__(self, i):
        return self.sites[i * 71 % SITES], i % 3


def stack(samples):
    pileups = torch.zeros(len(samples), 6, DEPTH, WIDTH)
    for site, (reads, _) in zip(pileups, samples):
        for row, (first, bases, quality, strand) in enumerate(reads):
            bases, quality = torch.as_tensor(bases), torch.as_tensor(quality)
            here = slice(first, first + len(bases))
            site[:4, row, here] = nn.functional.one_hot(bases.long(), 4).T
            site[4, row, here] = quality / 60
            site[5, row, here] = strand
    genotypes = torch.tensor([genotype for _, genotype in samples])
    return ((60 * pileups).byte() if SMALL else pileups), genotypes


def stack_at_once(samples):
    pileups = torch.stack([reads if STACKED else pileup(reads) for reads, _ in samples])
    return pileups if SMALL else pileups.float() / 60, torch.tensor([genotype for _, genotype in samples])


def main():
    torch.set_num_threads(applied("fewer_threads", 1))
    torch.manual_seed(0)
    workers = applied("more_workers", 1)
    loader = DataLoader(
        Sites(), batch_size=BATCH, num_workers=workers, prefetch_factor=applied("longer_queue", 2) if workers else None,
        persistent_workers=applied("staying_workers", False) and workers > 0,
        collate_fn=stack_at_once if STACKED or applied("cheaper_collate", False) else stack,
    )
    model = nn.Sequential(
        nn.Conv2d(6, 12, 3, 2, 1), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.BatchNorm2d(24), nn.ReLU(),
        nn.Conv2d(24, 32, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d((1, 4)), nn.Flatten(), nn.Linear(128, 3),
    )
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    marks = []
    for pileups, genotype in watch(loader):
        loss = nn.functional.cross_entropy(model(pileups.float() / 60 if SMALL else pileups), genotype)
        opt.zero_grad()
        loss.backward()
        opt.step()
        marks.append(time.perf_counter())
        if long_enough(marks):
            break
    tell(step_s=(marks[-1] - marks[9]) / (len(marks) - 10), steps=len(marks) - 10)


if __name__ == "__main__":
    main()
