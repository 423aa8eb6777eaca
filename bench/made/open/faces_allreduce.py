"""Faces of 30,000 people with a sampled head under DDP on two ranks; DDP's own exchange is off (no_sync), and the dense
gradients of 63 MB are averaged by an all_reduce by hand, which takes most of the step."""
CAUSE = "communication/communication"
RANKS = 2
BORDERLINE = False

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from case import tell, watch

PEOPLE, WIDTH = 30_000, 512


class SampledFaces(nn.Module):
    """The loss over the people of the batch and 256 others, not over all."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 49, WIDTH))
        self.people = nn.Parameter(torch.randn(PEOPLE, WIDTH) * 0.02)

    def forward(self, faces, who):
        rows = torch.cat([who, torch.randint(PEOPLE, (256,))])
        logits = nn.functional.normalize(self.trunk(faces)) @ self.people[rows].T
        return nn.functional.cross_entropy(logits * 16, torch.arange(len(who)))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(4800, 3, 32, 32), torch.randint(PEOPLE, (4800,)))
    model = DistributedDataParallel(SampledFaces())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = watch(DataLoader(data, batch_size=16, sampler=DistributedSampler(data), drop_last=True))
    mark = getattr(loader, "mark", lambda part: None)
    spent = dict.fromkeys(("wait_s", "forward_s", "backward_s", "communication_s", "optimizer_s"), 0.0)
    steps, start = 0, time.perf_counter()
    clock = start

    def lap(part):
        nonlocal clock
        now = time.perf_counter()
        spent[part] += now - clock
        clock = now

    for faces, who in loader:
        lap("wait_s")
        with model.no_sync():
            loss = model(faces, who)
            mark("forward")
            lap("forward_s")
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            mark("backward")
            lap("backward_s")
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        mark("communication")
        lap("communication_s")
        optimizer.step()
        mark("optimizer")
        lap("optimizer_s")
        steps += 1
    wall = time.perf_counter() - start
    tell(rank=rank, steps=steps, wall_s=wall, step_s=wall - spent["wait_s"], **spent)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
