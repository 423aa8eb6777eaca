"""Click logs (gzipped JSON lines) through a shuffle buffer as large as the file, in one persistent worker, six passes.
Each pass begins with seconds in which the buffer fills; then batches come faster than they are trained on."""
CAUSE = "preprocessing/shuffle_buffer"
RANKS = 1
BORDERLINE = False

import gzip
import hashlib
import json
import random
import time

import numpy as np
import torch
from case import folder, tell, watch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

ROWS, BATCH, PASSES, SLOTS = 32000, 256, 6, 20000


def log(path):
    rnd = random.Random(9)
    with gzip.open(path, "wt", compresslevel=1) as out:
        for i in range(ROWS):
            row = {"user": f"u{rnd.randrange(9000)}", "ts": 1.7e9 + i, "clicked": rnd.random() < 0.2}
            row["seen"] = [f"item/{rnd.randrange(50000)}" for _ in range(24)]
            row["ctx"] = {f"f{k}": round(rnd.random(), 4) for k in range(12)}
            out.write(json.dumps(row) + "\n")


class Clicks(IterableDataset):
    def __init__(self, path, buffer):
        self.path, self.buffer = path, buffer

    def rows(self):
        with gzip.open(self.path, "rt") as lines:
            for line in lines:
                row = json.loads(line)
                user, seen = row["user"], row["seen"]
                crosses = [f"{user}*{s}" for s in seen] + [f"{a}>{b}" for a, b in zip(seen, seen[1:])]
                ids = [int(hashlib.md5(s.encode()).hexdigest(), 16) % SLOTS for s in (user, *seen, *crosses)]
                yield np.array(ids), np.array(list(row["ctx"].values()), np.float32), float(row["clicked"])

    def __iter__(self):
        held = []
        for row in self.rows():
            if len(held) < self.buffer:
                held.append(row)
                continue
            k = random.randrange(len(held))
            out, held[k] = held[k], row
            yield out
        random.shuffle(held)
        yield from held


class Ranker(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.bag = nn.EmbeddingBag(SLOTS, dim, mode="mean")
        self.mlp = nn.Sequential(nn.Linear(dim + 12, 680), nn.ReLU(), nn.Linear(680, 680), nn.ReLU(), nn.Linear(680, 1))

    def forward(self, ids, ctx):
        return self.mlp(torch.cat([self.bag(ids), ctx], 1)).squeeze(1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    path = folder() / "clicks.jsonl.gz"
    log(path)
    net = Ranker()
    opt = torch.optim.Adam(net.parameters())
    loader = watch(DataLoader(Clicks(path, 40000), BATCH, num_workers=1, persistent_workers=True, drop_last=True))
    first = later = step = 0.0
    n = 0
    start = time.perf_counter()
    for epoch in range(PASSES):
        t0, fresh = time.perf_counter(), True
        for ids, ctx, y in loader:
            t1 = time.perf_counter()
            if fresh:
                first += t1 - t0
            else:
                later += t1 - t0
            loss = nn.functional.binary_cross_entropy_with_logits(net(ids, ctx), y.float())
            opt.zero_grad()
            loss.backward()
            opt.step()
            t0, fresh, n = time.perf_counter(), False, n + 1
            step += t0 - t1
    wall = time.perf_counter() - start
    tell(steps=n, wall=wall, step=step, waiting=first + later, cause=first, later_waiting=later)
