"""A graph data set whose samples lie ready in memory; the collate function pads and converts them by loops in Python."""

import random
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch

CAUSE = "preprocessing/collate"
RANKS = 1
BORDERLINE = False

FEATURES = 6


class Graphs(Dataset):
    """Nodes and edges as plain lists, as they came from JSON."""

    def __init__(self, count: int) -> None:
        rng = random.Random(7)
        self.graphs = []
        for _ in range(count):
            n = rng.randint(40, 160)
            nodes = [[rng.random() for _ in range(FEATURES)] for _ in range(n)]
            edges = [(rng.randrange(n), rng.randrange(n)) for _ in range(3 * n)]
            self.graphs.append((nodes, edges, rng.randrange(2)))

    def __len__(self) -> int:
        return 64 * 90

    def __getitem__(self, i):
        return self.graphs[i % len(self.graphs)]


def pad(batch):
    began = time.perf_counter()
    largest = max(len(nodes) for nodes, _, _ in batch)
    x, adjacency, mask = [], [], []
    for nodes, edges, _ in batch:
        rows = [list(node) for node in nodes]
        rows += [[0.0] * FEATURES for _ in range(largest - len(nodes))]
        x.append(rows)
        matrix = [[0.0] * largest for _ in range(largest)]
        for a, b in edges:
            matrix[a][b] = matrix[b][a] = 1.0
        for i in range(len(nodes)):
            degree = sum(matrix[i]) or 1.0
            matrix[i] = [value / degree for value in matrix[i]]
        adjacency.append(matrix)
        mask.append([1.0] * len(nodes) + [0.0] * (largest - len(nodes)))
    out = {
        "x": torch.tensor(x),
        "adjacency": torch.tensor(adjacency),
        "mask": torch.tensor(mask),
        "y": torch.tensor([label for _, _, label in batch]),
    }
    out["collate_s"] = time.perf_counter() - began
    return out


class Gcn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(FEATURES, 16), nn.Linear(16, 16), nn.Linear(16, 2)

    def forward(self, x, adjacency, mask):
        x = torch.relu(self.first(adjacency @ x))
        x = torch.relu(self.second(adjacency @ x))
        return self.out((x * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True))


def main() -> None:
    torch.set_num_threads(1)
    folder()
    loader = DataLoader(Graphs(400), batch_size=24, shuffle=True, num_workers=1, collate_fn=pad)
    model = Gcn()
    optimizer = torch.optim.Adam(model.parameters())
    start = mark = time.perf_counter()
    total = {"step": 0.0, "wait": 0.0, "collate": 0.0}
    steps = 0
    for batch in watch(loader, batch_size=24):
        ready = time.perf_counter()
        loss = nn.functional.cross_entropy(model(batch["x"], batch["adjacency"], batch["mask"]), batch["y"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        end = time.perf_counter()
        steps += 1
        if steps > 10:
            total["step"] += end - mark
            total["wait"] += ready - mark
            total["collate"] += batch["collate_s"]
        mark = end
        if steps >= 75 and end - start > 22:
            break
    n = steps - 10
    tell(step_s=total["step"] / n, waiting_for_input_s=total["wait"] / n, cause_s=total["collate"] / n, steps=n)


if __name__ == "__main__":
    main()
