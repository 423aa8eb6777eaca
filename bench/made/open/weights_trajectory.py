"""A study of the path of the weights: after each step weights and Adam's moments go to a safetensors file, which is
synced to the disk before the next step begins."""
CAUSE = "waiting/checkpoint"
RANKS = 1
BORDERLINE = False

import os
import time

import torch
from safetensors.torch import save_file
from torch import nn

from case import folder, tell, watch

KEPT = 24  # snapshots on the disk at a time; the analysis follows behind


class Trajectory:
    def __init__(self, where):
        self.where, self.number, self.seconds = where, 0, 0.0
        where.mkdir(exist_ok=True)

    def add(self, model, optimizer):
        began = time.perf_counter()
        tensors = {}
        for name, parameter in model.named_parameters():
            tensors[name] = parameter.detach()
            tensors[f"{name}.m"] = optimizer.state[parameter]["exp_avg"]
            tensors[f"{name}.v"] = optimizer.state[parameter]["exp_avg_sq"]
        path = self.where / f"{self.number % KEPT:04d}.safetensors"
        save_file(tensors, path, metadata={"step": str(self.number)})
        for target in (path, self.where):
            descriptor = os.open(target, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        self.number += 1
        self.seconds += time.perf_counter() - began


def batches(count, size=32):
    generator = torch.Generator().manual_seed(5)
    truth = torch.randn(64, 10, generator=generator)
    for _ in range(count):
        x = torch.randn(size, 64, generator=generator)
        yield x, (x @ truth).argmax(1)


def mlp(width=1000):
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    trajectory = Trajectory(folder() / "path")
    step_s = wait_s = 0.0
    steps, start = 0, time.perf_counter()
    last = start
    for x, y in watch(batches(2000)):
        got = time.perf_counter()
        wait_s += got - last
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        trajectory.add(model, optimizer)
        steps += 1
        last = time.perf_counter()
        step_s += last - got
        if steps >= 100 and last - start > 24:
            break
    wall = time.perf_counter() - start
    tell(steps=steps, wall_s=wall, body_s=step_s, step_s=step_s - trajectory.seconds, wait_s=wait_s, write_s=trajectory.seconds)


if __name__ == "__main__":
    main()
