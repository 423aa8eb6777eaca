"""DDP text classifier on two ranks. The lines were sorted by length and cut in halves, so that rank 1 has only long ones:
its steps take longer, and rank 0 waits for it in the gradients' all-reduce."""
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from case import tell, watch

CAUSE = "imbalance/slow_rank"
RANKS = 2
BORDERLINE = False


def lines(rank, world):
    raw = open("@DATA@/text/tinyshakespeare.txt", "rb").read()
    texts = [raw[i:i + 24 + (i * 31) % 300] for i in range(0, 600_000, 200)]
    texts.sort(key=len)
    part = len(texts) // world
    return [(torch.tensor(list(t)), t.count(b"the") % 4) for t in texts[rank * part:(rank + 1) * part]]


def collate(samples):
    texts, labels = zip(*samples)
    return pad_sequence(texts, batch_first=True), torch.tensor(labels)


class Classifier(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.embed = nn.Embedding(256, width)
        layer = nn.TransformerEncoderLayer(width, 4, 192, dropout=0.0, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(width, 4)

    def forward(self, x):
        return self.head(self.encoder(self.embed(x)).mean(1))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(Classifier())
    reduced = []

    def timed(state, bucket):
        reduced.append(time.perf_counter())
        return allreduce_hook(state, bucket)

    model.register_comm_hook(None, timed)
    opt = torch.optim.AdamW(model.parameters(), 5e-4)
    loader = watch(DataLoader(lines(rank, dist.get_world_size()), batch_size=16, shuffle=True, drop_last=True, collate_fn=collate))
    own = loading = blocked = 0.0
    steps, start = 0, time.perf_counter()
    for epoch in range(3):
        t = time.perf_counter()
        for x, y in loader:
            got = time.perf_counter()
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            reduced.clear()
            loss.backward()
            back = time.perf_counter()
            opt.step()
            steps += 1
            blocked += back - reduced[-1]  # from the last bucket on, there is only the all-reduce
            loading += got - t
            t = time.perf_counter()
            own += t - got - (back - reduced[-1])
    wall = time.perf_counter() - start
    tell(rank=rank, wall=wall, steps=steps, step=own, waiting=loading, cause=blocked, cause_is="waits in the all-reduce; on rank 1 its bare cost")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
