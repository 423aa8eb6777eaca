"""Methylation along the genome: counts of a random region are cut from gzipped tables with a line of shell, as the
pipeline of the lab has always done it, and a small network predicts the tissue."""
import random
import subprocess
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from case import folder, tell, watch
from t_timers import Timers

CAUSE = "waiting/child_process"
RANKS = 1
BORDERLINE = False

SITES, SPAN, TISSUES = 40_000, 40_000, 4


def tables(root):
    rng = np.random.default_rng(0)
    for tissue in range(TISSUES):
        at = np.sort(rng.choice(6_000_000, SITES, replace=False))
        depth = rng.poisson(18, SITES)
        hit = rng.binomial(depth, 0.3 + 0.4 * ((at // 9000 + tissue) % TISSUES == 0))
        text = "".join(f"chr7\t{a}\t{h}\t{d}\n" for a, h, d in zip(at, hit, depth))
        subprocess.run(["gzip", "-1"], input=text.encode(), stdout=open(root / f"tissue{tissue}.bed.gz", "wb"), check=True)


class Regions(IterableDataset):
    def __init__(self, root):
        self.root = root

    def __iter__(self):
        timers, rng = Timers(), random.Random(3)
        while True:
            tissue, first = rng.randrange(TISSUES), rng.randrange(6_000_000 - SPAN)
            with timers.part("shell"):
                done = subprocess.run(
                    f"zcat {self.root}/tissue{tissue}.bed.gz | awk '$2 >= {first} && $2 < {first + SPAN} {{print $2, $3, $4}}'",
                    shell=True, capture_output=True, check=True,
                )
            with timers.part("parse"):
                track = torch.zeros(2, SPAN // 100)
                for line in done.stdout.splitlines():
                    at, hit, depth = map(int, line.split())
                    track[0, (at - first) // 100] += hit
                    track[1, (at - first) // 100] += depth
            timers.sample()
            yield track.log1p(), tissue


def main():
    torch.set_num_threads(1)
    root = folder()
    tables(root)
    loader = DataLoader(Regions(root), batch_size=4, num_workers=1)
    model = nn.Sequential(nn.Conv1d(2, 32, 9, 2), nn.ReLU(), nn.Conv1d(32, 32, 9, 2), nn.ReLU(), nn.AdaptiveMaxPool1d(4), nn.Flatten(), nn.Linear(128, TISSUES))
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    step = waiting = 0.0
    n, start = 0, time.perf_counter()
    mark = start
    for x, y in watch(loader):
        got = time.perf_counter()
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        n += 1
        waiting += got - mark
        mark = time.perf_counter()
        step += mark - got
        if mark - start > 24:
            break
    tell(wall=time.perf_counter() - start, steps=n, step=step, waiting=waiting)


if __name__ == "__main__":
    main()
