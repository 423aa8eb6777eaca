"""Electricity of the next day from that of a week: the meters' readings come as lines of text, in one export of each
utility; a worker reads the exports that fall to it."""
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from case import applied, folder, long_enough, tell, watch

CAUSE = "waiting/no_shard"
RANKS = 1

HOMES, READINGS, BATCH = 300, 8 * 96, 16
WORKERS = applied("more_workers", 2)
STORED = applied("cheaper_data", False)


def prepare(root):
    """One utility has sent its export; with more shards it is divided."""
    shards = max(WORKERS, 1) if applied("more_shards", False) else 1
    rng = np.random.default_rng(6)
    day = 0.4 + 0.3 * np.sin(np.arange(READINGS) * 2 * np.pi / 96)
    paths = []
    for shard in range(shards):
        homes = [day * rng.uniform(0.5, 3) + rng.exponential(0.1, READINGS) for _ in range(HOMES // shards)]
        lines = []
        for home in homes:
            kept = np.sort(rng.choice(READINGS, READINGS - 60, replace=False))
            lines.append(";".join(f"2025-03-{1 + k // 96:02d}T{k % 96 // 4:02d}:{k % 4 * 15:02d}={home[k]:.4f}" for k in kept))
        path = root / f"utility_{shard}.{'npy' if STORED else 'txt'}"
        if STORED:
            np.save(path, np.stack([even(line) for line in lines]))
        else:
            path.write_text("\n".join(lines))
        paths.append(path)
    return paths


def even(line):
    """Readings at all quarters of an hour, with those between that are missing."""
    times, values = [], []
    for reading in line.split(";"):
        stamp, value = reading.split("=")
        day, clock = stamp.split("T")
        hour, minute = clock.split(":")
        times.append((int(day.rsplit("-", 1)[1]) - 1) * 96 + int(hour) * 4 + int(minute) // 15)
        values.append(float(value))
    return np.interp(np.arange(READINGS), times, values).astype(np.float32)


class Homes(IterableDataset):
    def __init__(self, paths):
        self.paths = paths

    def __iter__(self):
        info = get_worker_info()
        mine = self.paths[info.id :: info.num_workers] if info else self.paths
        while mine:
            for path in mine:
                for line in np.load(path) if STORED else open(path):
                    home = torch.from_numpy(line if STORED else even(line))
                    yield home[: 7 * 96], home[7 * 96 :]


class Model(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.recur = nn.LSTM(12, width, batch_first=True)
        self.out = nn.Linear(width, 96)

    def forward(self, x):
        return self.out(self.recur(x.unflatten(1, (56, 12)))[0][:, -1])


def main():
    torch.set_num_threads(applied("fewer_threads", 1))
    options = {}
    if WORKERS:
        options = {"prefetch_factor": applied("longer_queue", 2), "persistent_workers": applied("staying_workers", False)}
    loader = DataLoader(Homes(prepare(folder())), batch_size=BATCH, num_workers=WORKERS, **options)
    model = Model()
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    marks = []
    for week, day in watch(loader):
        loss = nn.functional.l1_loss(model(week), day)
        opt.zero_grad()
        loss.backward()
        opt.step()
        marks.append(time.perf_counter())
        if long_enough(marks):
            break
    tell(step_s=(marks[-1] - marks[9]) / (len(marks) - 10), steps=len(marks) - 10)


if __name__ == "__main__":
    main()
