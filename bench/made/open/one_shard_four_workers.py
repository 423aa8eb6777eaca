"""A data set of a single gzip shard is dealt to four workers by shards: one of them reads, three end at once."""

import gzip
import json
import random
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from case import folder, tell, watch

CAUSE = "waiting/no_shard"
RANKS = 1
BORDERLINE = True  # the one worker that reads is busy with inflating and parsing


class Shards(IterableDataset):
    def __init__(self, paths, passes: int) -> None:
        self.paths, self.passes = paths, passes

    def __iter__(self):
        info = get_worker_info()
        mine = self.paths[info.id :: info.num_workers]
        for _ in range(self.passes):
            for path in mine:
                with gzip.open(path, "rt") as lines:
                    while True:
                        start = time.perf_counter()
                        line = next(lines, None)
                        if line is None:
                            break
                        row = json.loads(line)
                        x = torch.tensor(row["x"])
                        yield x, row["y"], info.id, time.perf_counter() - start


def main() -> None:
    torch.set_num_threads(1)
    root = folder()
    rng = random.Random(1)
    path = root / "train-00000-of-00001.jsonl.gz"
    with gzip.open(path, "wt", compresslevel=3) as out:
        for i in range(3000):
            out.write(json.dumps({"x": [rng.gauss(0, 1) for _ in range(1200)], "y": i % 10}) + "\n")
    model = nn.Sequential(nn.Linear(1200, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(Shards([path], 100), batch_size=200, num_workers=4, prefetch_factor=2)
    rows, seen = [], set()
    begun = last = time.perf_counter()
    for x, y, worker, took in watch(loader):
        got = time.perf_counter()
        seen.update(worker.tolist())
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        now = time.perf_counter()
        rows.append((now - last, got - last, float(took.sum())))
        last = now
        if len(rows) >= 75 and now - begun > 22:
            break
    rows = torch.tensor(rows[10:], dtype=torch.float64)
    step_s, wait_s, cause_s = rows.mean(0).tolist()
    tell(step_s=step_s, waiting_for_input_s=wait_s, cause_s=wait_s, steps=len(rows), workers_with_data=sorted(seen), only_worker_busy_s=cause_s)


if __name__ == "__main__":
    main()
