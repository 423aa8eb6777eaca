"""Outages of power grids: the worker computes centralities of each graph with networkx in __getitem__, pure Python,
for a tiny graph network."""
CAUSE = "preprocessing/decode"
RANKS = 1
BORDERLINE = False

from time import perf_counter

import networkx as nx
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import tell, watch

NODES = 48


class Grids(Dataset):
    def __init__(self, count):
        rng = np.random.default_rng(5)
        self.edges = []
        for _ in range(count):
            ring = [(n, (n + 1) % NODES) for n in range(NODES)]
            self.edges.append(ring + rng.integers(0, NODES, (60, 2)).tolist())

    def __len__(self):
        return len(self.edges)

    def __getitem__(self, index):
        t0 = perf_counter()
        graph = nx.Graph()
        graph.add_nodes_from(range(NODES))
        graph.add_edges_from((a, b) for a, b in self.edges[index] if a != b)
        between = nx.betweenness_centrality(graph)
        close = nx.closeness_centrality(graph)
        cluster = nx.clustering(graph)
        feats = torch.tensor([[between[n], close[n], cluster[n], graph.degree[n] / 10] for n in range(NODES)])
        adjacency = torch.from_numpy(nx.to_numpy_array(graph, dtype=np.float32)) + torch.eye(NODES)
        fragile = float(max(between.values()) > 0.2)
        return feats, adjacency / adjacency.sum(1, keepdim=True), fragile, perf_counter() - t0


class GCN(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, width), nn.Linear(width, width), nn.Linear(width, width)])
        self.out = nn.Linear(width, 1)

    def forward(self, x, adjacency):
        for layer in self.layers:
            x = torch.relu(layer(adjacency @ x))
        return self.out(x.mean(1)).squeeze(-1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    loader = watch(DataLoader(Grids(900 * 8), batch_size=8, shuffle=True, num_workers=1))
    model = GCN()
    optim = torch.optim.Adam(model.parameters(), lr=2e-3)
    wait = step = features = 0.0
    n = 0
    begin = tick = perf_counter()
    for feats, adjacency, fragile, seconds in loader:
        tock = perf_counter()
        wait += tock - tick
        loss = nn.functional.binary_cross_entropy_with_logits(model(feats, adjacency), fragile.float())
        optim.zero_grad()
        loss.backward()
        optim.step()
        features += seconds.sum().item()
        n += 1
        tick = perf_counter()
        step += tick - tock
        if n >= 60 and tick - begin > 26:
            break
    tell(steps=n, wall_s=perf_counter() - begin, step_s=step, wait_s=wait, networkx_s=features)
