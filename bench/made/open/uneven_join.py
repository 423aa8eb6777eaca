"""Two hospitals with unequal data train together under DDP's Join: rank 1 has 30 % of rank 0's batches and then only follows."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch

CAUSE = "imbalance/fewer_batches"
RANKS = 2
BORDERLINE = False

SITES = {0: 60, 1: 18}  # batches of a pass
PASSES = 11


class Scans(Dataset):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(i)
        return torch.rand(1, 64, 64, generator=generator), i % 2


def main() -> None:
    torch.set_num_threads(1)
    folder()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(),
                        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 2))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watched = watch(DataLoader(Scans(16 * SITES[rank]), batch_size=16, shuffle=True, num_workers=0))
    idle = training = waited = 0.0
    steps = 0
    for _ in range(PASSES):
        last = time.perf_counter()
        with Join([model]):
            for images, labels in watched:
                got = time.perf_counter()
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                now = time.perf_counter()
                steps += 1
                training += now - last
                waited += got - last
                last = now
        idle += time.perf_counter() - last
    mine = torch.tensor([training, idle, steps], dtype=torch.float64)
    every = [torch.zeros_like(mine) for _ in range(2)]
    dist.all_gather(every, mine)
    if rank == 0:
        tell(
            step_s=training / steps,
            waiting_for_input_s=waited / steps,
            cause_s=float(every[1][1]) / steps,
            steps=steps - 10,
            rank_1_follows_s=float(every[1][1]),
            rank_1_trains_s=float(every[1][0]),
            batches=[int(row[2]) for row in every],
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
