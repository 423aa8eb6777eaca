"""DDP on two ranks; sentences are sorted by length before they are dealt, so that rank 1 always has the long ones."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Sampler

from case import folder, tell, watch

CAUSE = "imbalance/slow_rank"
RANKS = 2
BORDERLINE = False


class Sentences(Dataset):
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.lengths = torch.randint(16, 240, (2400,), generator=generator).sort().values.tolist()

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, i):
        return torch.arange(self.lengths[i]) % 500


class HalfSampler(Sampler):
    """Each rank takes its half of the (sorted) data set."""

    def __init__(self, size: int, rank: int, ranks: int) -> None:
        self.low, self.high = size * rank // ranks, size * (rank + 1) // ranks

    def __iter__(self):
        for i in torch.randperm(self.high - self.low).tolist():
            yield self.low + i

    def __len__(self) -> int:
        return self.high - self.low


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(500, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(128, 500)

    def forward(self, x):
        return self.head(self.layers(self.embed(x)))


def main() -> None:
    torch.set_num_threads(1)
    folder()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    data = Sentences()
    loader = DataLoader(
        data,
        batch_size=8,
        sampler=HalfSampler(len(data), rank, dist.get_world_size()),
        collate_fn=lambda rows: nn.utils.rnn.pad_sequence(rows, batch_first=True),
        num_workers=0,
    )
    model = DistributedDataParallel(Encoder())
    optimizer = torch.optim.AdamW(model.parameters())
    watched = watch(loader)
    own, whole, wait, steps = [], [], [], 0
    for _ in range(2):
        last = time.perf_counter()
        for tokens in watched:
            got = time.perf_counter()
            with model.no_sync():
                loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
                loss.backward()
            mine = time.perf_counter()
            if hasattr(watched, "mark"):
                watched.mark("backward")
            flat = nn.utils.parameters_to_vector(p.grad for p in model.parameters())
            dist.all_reduce(flat)
            for parameter, part in zip(model.parameters(), flat.split([p.numel() for p in model.parameters()])):
                parameter.grad.copy_(part.view_as(parameter)).div_(2)
            if hasattr(watched, "mark"):
                watched.mark("communication")
            optimizer.step()
            optimizer.zero_grad()
            end = time.perf_counter()
            own.append(mine - last)
            whole.append(end - last)
            wait.append(got - last)
            last = end
            steps += 1
            if steps in (100, 200):
                break
    kept = slice(10, None)
    mine = torch.tensor([sum(own[kept]) / len(own[kept])], dtype=torch.float64)
    every = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    if rank == 0:
        step_s = sum(whole[kept]) / len(whole[kept])
        tell(
            step_s=step_s,
            waiting_for_input_s=sum(wait[kept]) / len(wait[kept]),
            cause_s=float(every[1] - every[0]),
            steps=len(whole) - 10,
            own_work_s=[float(part) for part in every],
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
