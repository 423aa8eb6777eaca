"""A language model over pairs of letters that were merged (BPE): the merges are learned from the most frequent words, and
each passage is divided by them when it is taken."""
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import applied, folder, long_enough, tell, watch

CAUSE = "preprocessing/decode"
RANKS = 1

LETTERS, LENGTH, MERGES, BATCH = 1100, 192, 250, 12
TEXT = Path("@DATA@/text/tinyshakespeare.txt").read_text()


def learn():
    words = {tuple(" " + word): count for word, count in Counter(TEXT.split()).most_common(1200)}
    ranks = {}
    for rank in range(MERGES):
        pairs = Counter()
        for word, count in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += count
        best = pairs.most_common(1)[0][0]
        ranks[best] = rank
        words = {tuple(merge(list(word), best)): count for word, count in words.items()}
    return ranks


def merge(pieces, pair):
    out, i = [], 0
    while i < len(pieces):
        if i + 1 < len(pieces) and (pieces[i], pieces[i + 1]) == pair:
            out.append(pieces[i] + pieces[i + 1])
            i += 2
        else:
            out.append(pieces[i])
            i += 1
    return out


class Divider:
    def __init__(self, ranks):
        self.ranks = ranks
        pieces = sorted(set(TEXT) | {" "} | {a + b for a, b in ranks})
        self.ids = {piece: i for i, piece in enumerate(pieces)}

    def word(self, word):
        pieces = list(" " + word)
        while len(pieces) > 1:
            best = min(zip(pieces, pieces[1:]), key=lambda pair: self.ranks.get(pair, MERGES))
            if best not in self.ranks:
                break
            pieces = merge(pieces, best)
        return [self.ids[piece] for piece in pieces]

    def passage(self, text):
        return [piece for word in text.split() for piece in self.word(word)]


class Passages(Dataset):
    def __init__(self, divider, stored):
        self.divider, self.stored = divider, stored

    def __len__(self):
        return 1000000

    def __getitem__(self, i):
        rng = np.random.default_rng(i)
        if self.stored is not None:
            ids = self.stored[int(rng.integers(0, len(self.stored) - LENGTH - 1)) :][: LENGTH + 1]
        else:
            place = int(rng.integers(0, len(TEXT) - LETTERS))
            ids = self.divider.passage(TEXT[place : place + LETTERS])[: LENGTH + 1]
            ids += [0] * (LENGTH + 1 - len(ids))
        return torch.tensor(ids, dtype=torch.int16 if applied("smaller_tensors", False) else torch.int64)


class Model(nn.Module):
    def __init__(self, pieces, width=96):
        super().__init__()
        self.pieces = nn.Embedding(pieces, width)
        self.recur = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, pieces)

    def forward(self, x):
        return self.out(self.recur(self.pieces(x))[0])


def main():
    torch.set_num_threads(applied("fewer_threads", 1))
    root = folder()
    divider = Divider(learn())
    stored = None
    if applied("cheaper_data", False):
        known = {word: divider.word(word) for word in set(TEXT.split())}
        np.save(root / "ids.npy", np.array([piece for word in TEXT.split() for piece in known[word]], np.int64))
        stored = np.load(root / "ids.npy", mmap_mode="r")
    workers = applied("more_workers", 1)
    loader = DataLoader(
        Passages(divider, stored), batch_size=BATCH, num_workers=workers, prefetch_factor=applied("longer_queue", 2),
        persistent_workers=applied("staying_workers", False),
    )
    model = Model(len(divider.ids))
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    marks = []
    for ids in watch(loader):
        ids = ids.long()
        loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        marks.append(time.perf_counter())
        if long_enough(marks):
            break
    tell(step_s=(marks[-1] - marks[9]) / (len(marks) - 10), steps=len(marks) - 10)


if __name__ == "__main__":
    main()
