"""Topics of short texts, DDP on two ranks: word vectors that were trained before (and stay as they are) are a buffer of
the model, a small recurrent network above them is trained."""
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from case import folder, tell, watch

CAUSE = "communication/communication"
RANKS = 2
BORDERLINE = False
WORDS, WIDTH, TOPICS = 80_000, 300, 20


class Topics(nn.Module):
    def __init__(self, vectors):
        super().__init__()
        self.register_buffer("vectors", vectors)
        self.rnn, self.head = nn.GRU(WIDTH, 48, batch_first=True), nn.Linear(48, TOPICS)
        self.seconds = 0.0

    def forward(self, tokens):
        t = time.perf_counter()
        out = self.head(self.rnn(nn.functional.embedding(tokens, self.vectors))[0].mean(1))
        self.seconds += time.perf_counter() - t
        return out


def main():
    torch.set_num_threads(1)
    folder()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    g = torch.Generator().manual_seed(0)
    vectors = torch.randn(WORDS, WIDTH, generator=g)
    data = TensorDataset(torch.randint(WORDS, (20_000, 20), generator=g), torch.randint(TOPICS, (20_000,), generator=g))
    loader = watch(DataLoader(data, batch_size=16, sampler=DistributedSampler(data), drop_last=True))
    model = DistributedDataParallel(Topics(vectors))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    step = waiting = around = 0.0
    n, stop = 0, torch.zeros(1)
    start = mark = time.perf_counter()
    for tokens, label in loader:
        got = time.perf_counter()
        out = model(tokens)
        around += time.perf_counter() - got
        loss = nn.functional.cross_entropy(out, label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        n += 1
        now = time.perf_counter()
        waiting, step, mark = waiting + got - mark, step + now - got, now
        if n % 20 == 0:
            stop.fill_(now - start > 24)
            dist.broadcast(stop, 0)
            if stop.item():
                break
    tell(rank=rank, wall=time.perf_counter() - start, steps=n, step=step, waiting=waiting, cause=around - model.module.seconds)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
