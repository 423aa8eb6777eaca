"""A web-style stream with a shuffle buffer almost as large as the data set: each pass first fills it, then trains briefly."""

import json
import random
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from case import folder, tell, watch

CAUSE = "preprocessing/shuffle_buffer"
RANKS = 1
BORDERLINE = False

RECORDS = 6000
BUFFER = 5600


def shuffled(source, size: int, rng: random.Random):
    held = []
    for item in source:
        if len(held) < size:
            held.append(item)
            continue
        k = rng.randrange(size)
        yield held[k]
        held[k] = item
    rng.shuffle(held)
    yield from held


class Ratings(IterableDataset):
    def __init__(self, path) -> None:
        self.path = path

    def records(self):
        with open(self.path) as lines:
            for line in lines:
                row = json.loads(line)
                yield torch.tensor(row["features"]), row["rating"]

    def __iter__(self):
        first = True
        begun = time.perf_counter()
        for features, rating in shuffled(self.records(), BUFFER, random.Random(time.time_ns())):
            yield features, rating, time.perf_counter() - begun if first else 0.0
            first = False


def main() -> None:
    torch.set_num_threads(1)
    path = folder() / "ratings.jsonl"
    rng = random.Random(0)
    with open(path, "w") as out:
        for i in range(RECORDS):
            out.write(json.dumps({"user": i, "features": [round(rng.gauss(0, 1), 6) for _ in range(700)], "rating": i % 5}) + "\n")
    model = nn.Sequential(nn.Linear(700, 256), nn.ReLU(), nn.Linear(256, 5))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    loader = watch(DataLoader(Ratings(path), batch_size=600, num_workers=1, persistent_workers=True))
    rows = []
    started = time.perf_counter()
    while len(rows) < 80 or time.perf_counter() - started < 22:
        clock = time.perf_counter()
        for features, rating, filled in loader:
            got = time.perf_counter()
            for part in range(0, 600, 100):
                chosen = slice(part, part + 100)
                loss = nn.functional.cross_entropy(model(features[chosen]), rating[chosen])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            end = time.perf_counter()
            rows.append((end - clock, got - clock, float(filled.max())))
            clock = end
    rows = torch.tensor(rows[10:], dtype=torch.float64).mean(0).tolist()
    tell(step_s=rows[0], waiting_for_input_s=rows[1], cause_s=rows[2], steps=80)


if __name__ == "__main__":
    main()
