"""Graphormer on molecules: the distances of all pairs of atoms, and the bonds on the paths between them, are found by
networkx as each molecule is taken."""
import json
import os
import pickle
import time

import networkx as nx
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch

CAUSE = "preprocessing/decode"
RANKS = 1
BORDERLINE = False
ATOMS = 36


def synthesize(path, count=1500):
    rng = np.random.default_rng(3)
    molecules = []
    for _ in range(count):
        bonds = [(int(rng.integers(max(0, i - 4), i)), i, int(rng.integers(1, 4))) for i in range(1, ATOMS)]
        bonds += [(int(a), int(a) + 5, 1) for a in rng.integers(0, ATOMS - 5, 4)]
        molecules.append((rng.integers(1, 20, ATOMS), bonds, float(len({b[2] for b in bonds}) + rng.normal())))
    path.write_bytes(pickle.dumps(molecules))


class Molecules(Dataset):
    def __init__(self, path):
        self.molecules, self.busy, self.cpu, self.seen = pickle.loads(path.read_bytes()), 0.0, 0.0, 0
        self.began = None

    def __len__(self):
        return len(self.molecules)

    def __getitem__(self, i):
        t, c = time.perf_counter(), time.thread_time()
        self.began = self.began or t
        atoms, bonds, target = self.molecules[i]
        graph = nx.Graph()
        graph.add_weighted_edges_from(bonds)
        far = np.full((ATOMS, ATOMS), 15)
        via = np.zeros((ATOMS, ATOMS), dtype=np.float32)
        for a, paths in nx.all_pairs_shortest_path(graph):
            for b, path in paths.items():
                far[a, b] = min(len(path) - 1, 15)
                if len(path) > 1:
                    via[a, b] = sum(graph[u][v]["weight"] for u, v in zip(path, path[1:])) / (len(path) - 1)
        row = torch.from_numpy(atoms), torch.from_numpy(far), torch.from_numpy(via), torch.tensor(target)
        self.busy += time.perf_counter() - t
        self.cpu += time.thread_time() - c
        self.seen += 1
        if self.seen % 100 == 0 and os.environ.get("CASE_LOG"):
            with open(os.environ["CASE_LOG"], "a") as log:
                log.write(json.dumps({"n": self.seen, "wall": time.perf_counter() - self.began, "busy": self.busy, "cpu": self.cpu}) + "\n")
        return row


class Graphormer(nn.Module):
    def __init__(self, width=48, heads=4, depth=2):
        super().__init__()
        self.atom, self.far, self.heads = nn.Embedding(20, width), nn.Embedding(16, heads), heads
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(depth))
        self.out = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(depth))
        self.head = nn.Linear(width, 1)

    def forward(self, atoms, far, via):
        x = self.atom(atoms)
        bias = self.far(far).permute(0, 3, 1, 2) + via.unsqueeze(1)
        for qkv, out in zip(self.qkv, self.out):
            q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in qkv(x).chunk(3, -1))
            mixed = ((q @ k.transpose(2, 3)) / q.shape[-1] ** 0.5 + bias).softmax(-1) @ v
            x = x + out(mixed.transpose(1, 2).flatten(2))
        return self.head(x.mean(1)).squeeze(1)


def main():
    torch.set_num_threads(1)
    path = folder() / "molecules.pkl"
    synthesize(path)
    loader = watch(DataLoader(Molecules(path), batch_size=24, shuffle=True, num_workers=1, persistent_workers=True, drop_last=True))
    model = Graphormer()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    step = waiting = 0.0
    n, start = 0, time.perf_counter()
    mark = start
    while mark - start < 25:
        for atoms, far, via, target in loader:
            got = time.perf_counter()
            loss = nn.functional.mse_loss(model(atoms, far, via), target.float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            n += 1
            now = time.perf_counter()
            waiting, step, mark = waiting + got - mark, step + now - got, now
            if now - start > 25:
                break
    tell(wall=time.perf_counter() - start, steps=n, step=step, waiting=waiting)


if __name__ == "__main__":
    main()
