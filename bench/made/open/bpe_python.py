"""Shakespeare tokenised anew in each __getitem__ by a byte-pair encoder in plain Python, DataLoader(num_workers=0).
The loop itself encodes text for most of its time."""
CAUSE = "preprocessing/decode"
RANKS = 1
BORDERLINE = False

import time
from collections import Counter
from pathlib import Path

import torch
from case import tell, watch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TEXT = Path("@DATA@/text/tinyshakespeare.txt")
encoding = 0.0


def merge(ids, pair, new):
    out, i = [], 0
    while i < len(ids):
        if i + 1 < len(ids) and ids[i] == pair[0] and ids[i + 1] == pair[1]:
            out.append(new)
            i += 2
        else:
            out.append(ids[i])
            i += 1
    return out


def learn(text, count):
    ids, ranks = list(text.encode()), {}
    for k in range(count):
        pair = Counter(zip(ids, ids[1:])).most_common(1)[0][0]
        ranks[pair] = 256 + k
        ids = merge(ids, pair, 256 + k)
    return ranks


class Plays(Dataset):
    def __init__(self, text, ranks, chars=420, tokens=96):
        self.text, self.ranks, self.chars, self.tokens = text, ranks, chars, tokens

    def __len__(self):
        return 4400

    def __getitem__(self, i):
        global encoding
        t = time.perf_counter()
        at = (i * 7919) % (len(self.text) - self.chars)
        ids = list(self.text[at:at + self.chars].encode())
        while len(ids) > 1:
            pair = min(zip(ids, ids[1:]), key=lambda p: self.ranks.get(p, 1 << 30))
            if pair not in self.ranks:
                break
            ids = merge(ids, pair, self.ranks[pair])
        ids = (ids + [0] * self.tokens)[:self.tokens + 1]
        encoding += time.perf_counter() - t
        return torch.tensor(ids)


class TinyLM(nn.Module):
    def __init__(self, vocab, dim=96):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0])


if __name__ == "__main__":
    torch.set_num_threads(1)
    text = TEXT.read_text()
    ranks = learn(text[:20000], 160)
    lm = TinyLM(256 + len(ranks))
    opt = torch.optim.AdamW(lm.parameters(), 3e-4)
    loader = watch(DataLoader(Plays(text, ranks), batch_size=16, shuffle=True))
    waiting = step = 0.0
    n = 0
    start = t0 = time.perf_counter()
    for ids in loader:
        t1 = time.perf_counter()
        logits = lm(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(lm.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        t2 = time.perf_counter()
        waiting, step, n = waiting + t1 - t0, step + t2 - t1, n + 1
        t0 = t2
        if t2 - start > 26:
            break
    tell(steps=n, wall=time.perf_counter() - start, step=step, waiting=waiting, cause=encoding)
