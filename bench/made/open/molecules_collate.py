"""Small molecules kept as Python lists in memory; the collate function pads them to dense adjacency matrices entry by entry.
One worker spends its time there."""
CAUSE = "preprocessing/collate"
RANKS = 1
BORDERLINE = False

import random
import time

import torch
from case import tell, watch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Molecules(Dataset):
    def __init__(self, count=1500):
        rnd = random.Random(4)
        self.items = []
        for _ in range(count):
            n = rnd.randint(30, 60)
            atoms = [[rnd.random() for _ in range(16)] for _ in range(n)]
            bonds = [(i, rnd.randrange(i), rnd.choice((1.0, 1.5, 2.0))) for i in range(1, n)]
            bonds += [(rnd.randrange(n), rnd.randrange(n), 1.0) for _ in range(n // 2)]
            self.items.append((atoms, bonds, rnd.gauss(0, 1)))

    def __len__(self):
        return 50000

    def __getitem__(self, i):
        return self.items[i % len(self.items)]


def pad_molecules(samples):
    t0 = time.perf_counter()
    size = max(len(atoms) for atoms, _, _ in samples)
    adj = torch.zeros(len(samples), size, size)
    x = torch.zeros(len(samples), size, 16)
    mask = torch.zeros(len(samples), size)
    for b, (atoms, bonds, _) in enumerate(samples):
        x[b, :len(atoms)] = torch.tensor(atoms)
        mask[b, :len(atoms)] = 1
        for i, j, order in bonds:
            adj[b, i, j] = order
            adj[b, j, i] = order
        for i in range(len(atoms)):
            adj[b, i, i] = 1.0
    y = torch.tensor([s[2] for s in samples])
    return adj, x, mask, y, time.perf_counter() - t0


class GCN(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(16, width), nn.Linear(width, width), nn.Linear(width, 1)

    def forward(self, adj, x, mask):
        adj = adj / adj.sum(-1, keepdim=True).clamp(min=1)
        h = torch.relu(self.a(adj @ x))
        h = torch.relu(self.b(adj @ h))
        return self.out((h * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)).squeeze(1)


def main():
    torch.set_num_threads(1)
    loader = watch(DataLoader(Molecules(), 60, shuffle=True, num_workers=1, collate_fn=pad_molecules))
    net = GCN()
    opt = torch.optim.Adam(net.parameters())
    wait = step = collate = 0.0
    start = t0 = time.perf_counter()
    for n, (adj, x, mask, y, spent) in enumerate(loader, 1):
        t1 = time.perf_counter()
        loss = (net(adj, x, mask) - y).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        collate += spent
        t2 = time.perf_counter()
        wait, step, t0 = wait + t1 - t0, step + t2 - t1, t2
        if n == 600 or t2 - start > 26:
            break
    wall = time.perf_counter() - start
    tell(steps=n, wall=wall, step=step, waiting=wait, cause=min(wait, collate), collate_in_worker=collate)


if __name__ == "__main__":
    main()
