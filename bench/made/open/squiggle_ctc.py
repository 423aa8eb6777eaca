"""Nanopore signals to bases: a small bidirectional LSTM with CTC, gradients of two batches accumulated, the squiggles
simulated by two DataLoader workers well ahead of the training."""
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from case import tell, watch

CAUSE = "compute/compute"
RANKS = 1
BORDERLINE = False


class Squiggles(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        g = torch.Generator().manual_seed(100 + (info.id if info else 0))
        level = torch.randn(4, 4, 4, generator=torch.Generator().manual_seed(0))
        while True:
            bases = torch.randint(0, 4, (62,), generator=g)
            current = level[bases[:-2], bases[1:-1], bases[2:]].repeat_interleave(5)
            yield current + 0.1 * torch.randn(len(current), generator=g), bases[1:-1] + 1


class Caller(nn.Module):
    def __init__(self, width=112):
        super().__init__()
        self.conv = nn.Conv1d(1, width, 5, stride=2, padding=2)
        self.rnn = nn.LSTM(width, width, 2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * width, 5)

    def forward(self, x):
        x = torch.nn.functional.silu(self.conv(x[:, None])).transpose(1, 2)
        return self.out(self.rnn(x)[0]).log_softmax(-1)


def main():
    torch.set_num_threads(1)
    loader = DataLoader(Squiggles(), batch_size=16, num_workers=2, prefetch_factor=3)
    model = Caller()
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    step = waiting = 0.0
    n, start = 0, time.perf_counter()
    mark = start
    for signal, bases in watch(loader):
        got = time.perf_counter()
        out = model(signal)
        lengths = torch.full((len(out),), out.shape[1])
        loss = nn.functional.ctc_loss(out.transpose(0, 1), bases, lengths, torch.full((len(out),), bases.shape[1]))
        (loss / 2).backward()
        if n % 2:
            nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            opt.step()
            opt.zero_grad()
        n += 1
        waiting += got - mark
        mark = time.perf_counter()
        step += mark - got
        if mark - start > 24:
            break
    tell(wall=time.perf_counter() - start, steps=n, step=step, waiting=waiting, cause=step)


if __name__ == "__main__":
    main()
