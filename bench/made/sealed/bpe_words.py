"""A worker tokenizes windows of text by byte pair merges in plain Python, without a cache, for a bigram model."""
import collections
import shutil
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch

CAUSE = "preprocessing/decode"
RANKS = 1
BORDERLINE = False


def learn(text, merges):
    words = collections.Counter(text.split())
    pieces = {word: tuple(word) for word in words}
    ranks = {}
    for rank in range(merges):
        pairs = collections.Counter()
        for word, count in words.items():
            for pair in zip(pieces[word], pieces[word][1:]):
                pairs[pair] += count
        if not pairs:
            break
        best = max(pairs, key=pairs.get)
        ranks[best] = rank
        for word in words:
            pieces[word] = merge(pieces[word], best)
    return ranks


def merge(symbols, pair):
    out, i = [], 0
    while i < len(symbols):
        if i + 1 < len(symbols) and (symbols[i], symbols[i + 1]) == pair:
            out.append(symbols[i] + symbols[i + 1])
            i += 2
        else:
            out.append(symbols[i])
            i += 1
    return tuple(out)


class Windows(Dataset):
    def __init__(self, path, ranks, chars=900, length=160):
        self.text, self.ranks, self.chars, self.length = path.read_text(), ranks, chars, length
        self.ids = collections.defaultdict(lambda: 0, {a + b: 1 + rank for (a, b), rank in ranks.items()})
        for number, letter in enumerate(sorted(set(self.text))):
            self.ids[letter] = 1 + len(ranks) + number
        self.size = 2 + len(ranks) + len(set(self.text))

    def __len__(self):
        return len(self.text) // self.chars

    def __getitem__(self, i):
        start = time.perf_counter()
        ids = []
        for word in self.text[i * self.chars : (i + 1) * self.chars].split():
            symbols = tuple(word)
            while len(symbols) > 1:
                pair = min(zip(symbols, symbols[1:]), key=lambda p: self.ranks.get(p, 1 << 30))
                if pair not in self.ranks:
                    break
                symbols = merge(symbols, pair)
            ids.extend(self.ids[s] for s in symbols)
        ids = (ids + [0] * self.length)[: self.length]
        return torch.tensor(ids), time.perf_counter() - start

    def __getstate__(self):
        return self.__dict__


class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.embed, self.head = nn.Embedding(size, 24), nn.Linear(24, size)

    def forward(self, x):
        return self.head(self.embed(x))


def main():
    path = folder() / "corpus.txt"
    shutil.copy("@DATA@/text/tinyshakespeare.txt", path)
    data = Windows(path, learn(path.read_text()[:40_000], 250))
    torch.set_num_threads(1)
    model = Model(data.size)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    loader = DataLoader(data, batch_size=24, shuffle=True, num_workers=1, persistent_workers=True)
    rows = []
    watched = watch(loader)
    begin = time.perf_counter()
    while time.perf_counter() - begin < 21.5 or len(rows) < 75:
        last = time.perf_counter()
        for tokens, took in watched:
            got = time.perf_counter()
            logits = model(tokens[:, :24])
            loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:24].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            now = time.perf_counter()
            rows.append((now - last, got - last, took.sum().item()))
            last = now
            if now - begin > 35:
                break
    step, wait, cause = torch.tensor(rows[10:]).mean(0).tolist()
    tell(step_s=step, waiting_for_input_s=wait, cause_s=cause, steps=len(rows))


if __name__ == "__main__":
    main()
