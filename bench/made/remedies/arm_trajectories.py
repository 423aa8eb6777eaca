"""Will a robot's arm hit the table? The maker's tool turns joint angles into places of the hand; it is a program of its own,
which takes a trajectory on its standard input."""
import json
import math
import subprocess
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import applied, long_enough, tell, watch

CAUSE = "waiting/child_process"
RANKS = 1

TIMES, JOINTS, BATCH = 120, 6, 4
TOOL = """
import json, math, sys
def places(trajectory):
    found = []
    for angles in trajectory:
        x = y = bend = 0.0
        z = 0.3
        for length, angle in zip((0.4, 0.35, 0.2, 0.15, 0.1, 0.05), angles):
            bend += angle
            x += length * math.cos(bend) * math.cos(angles[0])
            y += length * math.cos(bend) * math.sin(angles[0])
            z += length * math.sin(bend)
        found.append((x, y, z))
    return found
"""
exec(TOOL, inside := {})


def places(trajectory):
    if applied("in_process", False):
        return inside["places"](trajectory)
    command = [sys.executable, "-I", "-S", "-c", TOOL + "print(json.dumps(places(json.load(sys.stdin))))"]
    done = subprocess.run(command, input=json.dumps(trajectory), capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


class Trajectories(Dataset):
    def __init__(self):
        self.stored = [self.make(i) for i in range(200)] if applied("cheaper_data", False) else None

    def __len__(self):
        return 1000000

    def make(self, i):
        rng = np.random.default_rng(i % 200)
        angles = np.cumsum(rng.normal(0, 0.05, (TIMES, JOINTS)), 0)
        hand = np.array(places(angles.tolist()))
        x = np.concatenate([angles, np.diff(hand, axis=0, prepend=hand[:1])], 1).astype(np.float32)
        return torch.from_numpy(x).T.contiguous(), float(hand[:, 2].min() < math.sin(0.1))

    def __getitem__(self, i):
        return self.make(i) if self.stored is None else self.stored[i % 200]


def main():
    torch.set_num_threads(applied("fewer_threads", 1))
    loader = DataLoader(
        Trajectories(), batch_size=BATCH, num_workers=applied("more_workers", 1), prefetch_factor=applied("longer_queue", 2),
        persistent_workers=applied("staying_workers", False),
    )
    model = nn.Sequential(
        nn.Conv1d(JOINTS + 3, 64, 5, padding=2), nn.ReLU(), nn.Conv1d(64, 96, 5, padding=2), nn.ReLU(),
        nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(96, 1),
    )
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    marks = []
    for x, hits in watch(loader):
        loss = nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], hits.float())
        opt.zero_grad()
        loss.backward()
        opt.step()
        marks.append(time.perf_counter())
        if long_enough(marks):
            break
    tell(step_s=(marks[-1] - marks[9]) / (len(marks) - 10), steps=len(marks) - 10)


if __name__ == "__main__":
    main()
