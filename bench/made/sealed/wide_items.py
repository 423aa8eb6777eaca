"""Two ranks learn a dense table of items: little is computed with it, but its whole gradient is averaged in each step, and rank 0 sends its weights, so that replicas cannot drift apart."""
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from case import folder, tell, watch

CAUSE = "communication/communication"
RANKS = 2
BORDERLINE = True
STEPS = 160


class Clicks(IterableDataset):
    def __iter__(self):
        for _ in range(STEPS * 256):
            yield torch.randint(0, 200_000, (12,)), torch.randint(0, 2, ()).float()


class Scores(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(200_000, 64)
        self.head = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, clicks):
        return self.head(self.items(clicks).mean(1))[:, 0]


def main():
    folder()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Scores()
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    torch.manual_seed(1 + dist.get_rank())
    rows = []
    last = time.perf_counter()
    for clicks, bought in watch(DataLoader(Clicks(), batch_size=256, num_workers=0)):
        got = time.perf_counter()
        loss = nn.functional.binary_cross_entropy_with_logits(model(clicks), bought)
        loss.backward()
        computed = time.perf_counter()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad.div_(2)
        exchanged = time.perf_counter()
        optimizer.step()
        optimizer.zero_grad()
        stepped = time.perf_counter()
        for parameter in model.parameters():
            dist.broadcast(parameter.data, 0)
        now = time.perf_counter()
        rows.append((now - last, got - last, exchanged - computed + now - stepped))
        last = now
    every = [None, None]
    dist.all_gather_object(every, torch.tensor(rows[10:]).mean(0).tolist())
    if dist.get_rank() == 0:
        tell(step_s=every[0][0], waiting_for_input_s=every[0][1], cause_s=min(e[2] for e in every), exchange_by_rank=[e[2] for e in every], steps=len(rows))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
