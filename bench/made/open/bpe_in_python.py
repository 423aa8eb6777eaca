"""A byte-pair tokenizer with dropout, in pure Python, runs in the loop itself (no workers) before each step of a CBOW model."""

import pathlib
import random
import time
import unicodedata
from collections import Counter

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from case import folder, tell, watch

CAUSE = "preprocessing/decode"
RANKS = 1
BORDERLINE = True  # the step itself takes 40 %

SPENT = [0.0]


def learn(text: str, merges: int) -> dict:
    """The ranks of the commonest pairs, learnt the plain way on a piece of text."""
    words = Counter(text.split())
    split = {word: list(word) for word in words}
    ranks = {}
    for rank in range(merges):
        pairs = Counter()
        for word, count in words.items():
            for pair in zip(split[word], split[word][1:]):
                pairs[pair] += count
        if not pairs:
            break
        best = max(pairs, key=pairs.get)
        ranks[best] = rank
        for word in words:
            split[word] = merge(split[word], best)
    return ranks


def merge(parts: list, pair: tuple) -> list:
    out, i = [], 0
    while i < len(parts):
        if i + 1 < len(parts) and (parts[i], parts[i + 1]) == pair:
            out.append(parts[i] + parts[i + 1])
            i += 2
        else:
            out.append(parts[i])
            i += 1
    return out


class Lines(IterableDataset):
    def __init__(self, path, ranks, context: int) -> None:
        self.path, self.ranks, self.context = path, ranks, context
        self.ids = {}

    def encode(self, line: str) -> list:
        ids = []
        line = "".join(c for c in unicodedata.normalize("NFKD", line) if not unicodedata.combining(c))
        for word in line.split():
            parts = list(word + "_")
            while len(parts) > 1:
                ranked = [
                    (1 << 30 if random.random() < 0.05 else self.ranks.get(pair, 1 << 30), pair) for pair in zip(parts, parts[1:])
                ]
                rank, pair = min(ranked)
                if rank == 1 << 30:
                    break
                parts = merge(parts, pair)
            ids += [self.ids.setdefault(part, len(self.ids)) % 4096 for part in parts]
        return ids

    def __iter__(self):
        held = []
        while True:
            with open(self.path, encoding="utf-8") as lines:
                for line in lines:
                    begin = time.perf_counter()
                    held += self.encode(line)
                    SPENT[0] += time.perf_counter() - begin
                    while len(held) > self.context:
                        yield torch.tensor(held[: self.context + 1])
                        held = held[self.context :]


def main() -> None:
    torch.set_num_threads(2)
    path = folder() / "corpus.txt"
    text = pathlib.Path("@DATA@/text/tinyshakespeare.txt").read_text()
    path.write_text(text)
    ranks = learn(text[:20_000], 400)
    embed, mix, head = nn.Embedding(4096, 64), nn.Linear(64, 64), nn.Linear(64, 4096)
    parameters = [*embed.parameters(), *mix.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=3e-4)
    loader = DataLoader(Lines(path, ranks, 48), batch_size=640)
    started = time.perf_counter()
    marks = []
    previous, spent_before = time.perf_counter(), SPENT[0]
    for tokens in watch(loader):
        got = time.perf_counter()
        context = embed(torch.cat([tokens[:, :24], tokens[:, 25:]], 1)).mean(1)
        loss = nn.functional.cross_entropy(head(torch.tanh(mix(context))), tokens[:, 24])
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        now = time.perf_counter()
        marks.append((now - previous, got - previous, SPENT[0] - spent_before))
        previous, spent_before = now, SPENT[0]
        if len(marks) >= 75 and now - started > 22:
            break
    kept = marks[10:]
    means = [sum(row[k] for row in kept) / len(kept) for k in range(3)]
    tell(step_s=means[0], waiting_for_input_s=means[1], cause_s=means[2], steps=len(kept))


if __name__ == "__main__":
    main()
