"""Molecules are put together to one block-diagonal graph by a collate function that walks over bonds in Python."""
import random
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch

CAUSE = "preprocessing/collate"
RANKS = 1
BORDERLINE = False


class Molecules(Dataset):
    def __init__(self, count=4000):
        rng = random.Random(3)
        self.graphs = []
        for _ in range(count):
            atoms = rng.randrange(12, 40)
            bonds = [(i, rng.randrange(max(0, i - 4), i)) for i in range(1, atoms)] + [(rng.randrange(atoms), rng.randrange(atoms)) for _ in range(6)]
            self.graphs.append((torch.randint(9, (atoms,), dtype=torch.uint8), bonds, rng.gauss(0, 1)))

    def __len__(self):
        return len(self.graphs)

    def __getitem__(self, i):
        return self.graphs[i]


def to_graph(samples):
    start = time.perf_counter()
    kinds, rows, columns, owner, weights, targets = [], [], [], [], [], []
    degree = {}
    offset = 0
    for number, (atoms, bonds, target) in enumerate(samples):
        for kind in atoms.tolist():
            kinds.append(kind)
            owner.append(number)
        for a, b in bonds:
            for left, right in ((a + offset, b + offset), (b + offset, a + offset)):
                rows.append(left)
                columns.append(right)
                degree[left] = degree.get(left, 0) + 1
        targets.append(target)
        offset += len(atoms)
    for left, right in zip(rows, columns):
        weights.append(1.0 / (degree[left] * degree.get(right, 1)) ** 0.5)
    batch = (torch.tensor(kinds), torch.tensor([rows, columns]), torch.tensor(weights), torch.tensor(owner), torch.tensor(targets))
    return *batch, time.perf_counter() - start


class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.embed, self.layer, self.out = nn.Embedding(9, width), nn.Linear(width, width), nn.Linear(width, 1)

    def forward(self, kinds, edges, weights, owner, count):
        x = self.embed(kinds)
        x = torch.zeros_like(x).index_add(0, edges[0], self.layer(x)[edges[1]] * weights[:, None]).relu()
        return self.out(torch.zeros(count, x.shape[1]).index_add(0, owner, x))[:, 0]


def main():
    folder()
    torch.set_num_threads(1)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(Molecules(), batch_size=400, shuffle=True, collate_fn=to_graph, num_workers=1, persistent_workers=True)
    watched = watch(loader)
    count, wait, step, cause = 0, 0.0, 0.0, 0.0
    begin = time.perf_counter()
    while time.perf_counter() - begin < 21.5:
        last = time.perf_counter()
        for kinds, edges, weights, owner, target, took in watched:
            got = time.perf_counter()
            loss = (model(kinds, edges, weights, owner, len(target)) - target).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            now = time.perf_counter()
            count += 1
            if count > 10:
                wait, step, cause = wait + got - last, step + now - last, cause + took
            last = now
    tell(step_s=step / (count - 10), waiting_for_input_s=wait / (count - 10), cause_s=cause / (count - 10), steps=count)


if __name__ == "__main__":
    main()
