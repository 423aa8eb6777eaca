"""Two ranks train a product classifier with a wide embedding and average all gradients by hand, a tensor at a time.
The exchange over gloo takes most of the step; both ranks have the same work."""
CAUSE = "communication/communication"
RANKS = 2
BORDERLINE = False

import time

import torch
import torch.distributed as dist
from case import tell, watch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

VOCAB, DIM, CLASSES, STEPS = 60000, 160, 4000, 380


class Catalogue(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(VOCAB, DIM)
        self.hidden = nn.Linear(DIM, DIM)
        self.out = nn.Linear(DIM, CLASSES)

    def forward(self, x):
        return self.out(torch.relu(self.hidden(self.words(x))))


def average(parameters, world):
    for p in parameters:
        dist.all_reduce(p.grad)
        p.grad.div_(world)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    rows = TensorDataset(torch.randint(0, VOCAB, (16 * STEPS, 20)), torch.randint(0, CLASSES, (16 * STEPS,)))
    torch.manual_seed(0)
    net = Catalogue()
    opt = torch.optim.SGD(net.parameters(), 0.1)
    loader = watch(DataLoader(rows, batch_size=16, shuffle=True))
    dist.barrier()
    wait = step = comm = 0.0
    n = 0
    begin = t0 = time.perf_counter()
    for x, y in loader:
        t1 = time.perf_counter()
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        t2 = time.perf_counter()
        average(net.parameters(), world)
        t3 = time.perf_counter()
        opt.step()
        t4 = time.perf_counter()
        wait, comm, step, n, t0 = wait + t1 - t0, comm + t3 - t2, step + t4 - t1, n + 1, t4
    wall = time.perf_counter() - begin
    tell(rank=rank, steps=n, wall=wall, step=step, waiting=wait, cause=comm)
    dist.destroy_process_group()
