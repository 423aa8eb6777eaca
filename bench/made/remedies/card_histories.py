"""Fraud: histories of card payments of different lengths, five figures a payment, padded to the longest of the batch."""
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import applied, long_enough, tell, watch

CAUSE = "preprocessing/collate"
RANKS = 1

CARDS, FIGURES, BATCH = 1500, 5, 24
ARRAYS = applied("cheaper_data", False)


class Histories(Dataset):
    def __init__(self):
        rng = np.random.default_rng(2)
        self.cards = [rng.normal(size=(int(n), FIGURES)).astype(np.float32) for n in rng.integers(80, 420, CARDS)]
        if not ARRAYS:
            self.cards = [[tuple(payment) for payment in card.tolist()] for card in self.cards]

    def __len__(self):
        return 1000000

    def __getitem__(self, i):
        i = i * 7919 % CARDS
        return self.cards[i], float(i % 9 == 0)


def pad(samples):
    longest = max(len(card) for card, _ in samples)
    padded = torch.zeros(len(samples), longest, FIGURES)
    mask = torch.zeros(len(samples), longest, dtype=torch.bool)
    for i, (card, _) in enumerate(samples):
        for j, payment in enumerate(card):
            padded[i, j] = torch.as_tensor(payment)
            mask[i, j] = True
    return padded, mask, torch.tensor([fraud for _, fraud in samples])


def pad_at_once(samples):
    longest = max(len(card) for card, _ in samples)
    padded = np.zeros((len(samples), longest, FIGURES), np.float32)
    mask = np.zeros((len(samples), longest), bool)
    for i, (card, _) in enumerate(samples):
        padded[i, : len(card)] = card
        mask[i, : len(card)] = True
    return torch.from_numpy(padded), torch.from_numpy(mask), torch.tensor([fraud for _, fraud in samples])


class Judge(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.inp = nn.Conv1d(FIGURES, width, 5, padding=2)
        self.mid = nn.Conv1d(width, width, 5, padding=2)
        self.out = nn.Linear(width, 1)

    def forward(self, x, mask):
        x = torch.relu(self.mid(torch.relu(self.inp(x.transpose(1, 2)))))
        return self.out(x.masked_fill(~mask[:, None], -1e4).amax(2))[:, 0]


def main():
    torch.set_num_threads(applied("fewer_threads", 1))
    loader = DataLoader(
        Histories(), batch_size=BATCH, num_workers=applied("more_workers", 1), prefetch_factor=applied("longer_queue", 2),
        persistent_workers=applied("staying_workers", False), collate_fn=pad_at_once if applied("cheaper_collate", False) else pad,
    )
    model = Judge()
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    marks = []
    for padded, mask, fraud in watch(loader):
        loss = nn.functional.binary_cross_entropy_with_logits(model(padded, mask), fraud)
        opt.zero_grad()
        loss.backward()
        opt.step()
        marks.append(time.perf_counter())
        if long_enough(marks):
            break
    tell(step_s=(marks[-1] - marks[9]) / (len(marks) - 10), steps=len(marks) - 10)


if __name__ == "__main__":
    main()
