"""Character model on a workstation under a desk: after each step the body sleeps three times as long as the step took,
so that the fan stays quiet."""
import time

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

from case import tell, watch

CAUSE = "waiting/sleep"
RANKS = 1
BORDERLINE = False
DUTY = 0.25


class Chars(Dataset):
    def __init__(self, path, length=64):
        text = open(path).read()
        self.vocab = sorted(set(text))
        index = {c: i for i, c in enumerate(self.vocab)}
        self.ids, self.length = torch.tensor([index[c] for c in text]), length

    def __len__(self):
        return len(self.ids) // self.length - 1

    def __getitem__(self, i):
        part = self.ids[i * self.length:(i + 1) * self.length + 1]
        return part[:-1], part[1:]


class CharLSTM(nn.Module):
    def __init__(self, vocab, width=128):
        super().__init__()
        self.embed, self.rnn, self.out = nn.Embedding(vocab, width), nn.LSTM(width, width, batch_first=True), nn.Linear(width, vocab)

    def forward(self, x):
        return self.out(self.rnn(self.embed(x))[0])


class Trainer:
    def __init__(self, model, loader, max_steps):
        self.model, self.loader, self.max_steps = model, loader, max_steps
        self.opt = torch.optim.AdamW(model.parameters(), 2e-3)
        self.seconds = {"step": 0.0, "waiting": 0.0, "cause": 0.0}
        self.steps = 0

    def training_step(self, x, y):
        loss = nn.functional.cross_entropy(self.model(x).transpose(1, 2), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()

    def cool_down(self, busy):
        t = time.perf_counter()
        time.sleep(busy * (1 / DUTY - 1))
        self.seconds["cause"] += time.perf_counter() - t

    def fit(self, seconds=24):
        start = time.perf_counter()
        while self.steps < self.max_steps and time.perf_counter() - start < seconds:
            t = time.perf_counter()
            for x, y in self.loader:
                u = time.perf_counter()
                self.training_step(x, y)
                v = time.perf_counter()
                self.seconds["waiting"] += u - t
                self.seconds["step"] += v - u
                self.cool_down(v - u)
                self.steps += 1
                if self.steps >= self.max_steps or time.perf_counter() - start > seconds:
                    break
                t = time.perf_counter()
        tell(wall=time.perf_counter() - start, steps=self.steps, **self.seconds)


if __name__ == "__main__":
    torch.set_num_threads(1)
    data = Chars("@DATA@/text/tinyshakespeare.txt")
    loader = watch(DataLoader(data, batch_size=24, shuffle=True, drop_last=True, num_workers=1))
    Trainer(CharLSTM(len(data.vocab)), loader, max_steps=400).fit()
