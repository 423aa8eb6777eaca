"""Two ranks train a wide recommender with dense gradients of 60 MB; each step waits for the all-reduce over gloo."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from case import folder, tell, watch

CAUSE = "communication/communication"
RANKS = 2
BORDERLINE = True  # the dense gradients are also made, averaged and applied: nearly half of the step


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(110_000, 128)
        self.tower = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, pairs):
        return self.tower(self.items(pairs).flatten(1)).squeeze(1)


def average(model: nn.Module) -> float:
    begin = time.perf_counter()
    work = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
    for item in work:
        item.wait()
    for p in model.parameters():
        p.grad /= dist.get_world_size()
    return time.perf_counter() - begin


def main() -> None:
    torch.set_num_threads(1)
    folder()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    pairs = torch.randint(0, 110_000, (64 * 2 * 60, 2))
    data = TensorDataset(pairs, (pairs.sum(1) % 2).float())
    sampler = DistributedSampler(data)
    loader = watch(DataLoader(data, batch_size=64, sampler=sampler))
    model = Wide()
    for p in model.parameters():
        dist.broadcast(p.data, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = []
    begun = time.perf_counter()
    epoch = 0
    going = torch.ones(1)
    while going.item():
        sampler.set_epoch(epoch)
        epoch += 1
        last = time.perf_counter()
        for x, y in loader:
            got = time.perf_counter()
            loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
            loss.backward()
            exchanged = average(model)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            now = time.perf_counter()
            rows.append((now - last, got - last, exchanged))
            last = now
        going.fill_(float(time.perf_counter() - begun < 22 or len(rows) < 75))
        dist.broadcast(going, 0)
    kept = torch.tensor(rows[10:], dtype=torch.float64)
    if dist.get_rank() == 0:
        step_s, wait_s, exchange_s = kept.mean(0).tolist()
        tell(step_s=step_s, waiting_for_input_s=wait_s, cause_s=exchange_s, steps=len(kept))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
