"""Drone clips: the script binds itself to the core of its local rank before its two workers start, so that all three
share core 0 and the other core idles."""
CAUSE = "client_cpu/affinity"
RANKS = 1
BORDERLINE = False

import os
import time

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import tell, watch

FRAMES, SIDE = 8, 144


def bind_to_local_rank():
    """One core for each rank, as in the guide of our cluster."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ.get("LOCAL_RANK", 0)) % len(cores)]})


class Clips(Dataset):
    def __init__(self):
        rng = np.random.default_rng(8)
        self.clips = rng.integers(0, 255, (24, FRAMES, SIDE, SIDE, 3), dtype=np.uint8)

    def __len__(self):
        return 8 * 400

    def __getitem__(self, i):
        wall, cpu = time.perf_counter(), time.thread_time()
        rng = np.random.default_rng(i)
        angle, frames = rng.uniform(-20, 20), []
        for frame in self.clips[i % len(self.clips)]:
            image = Image.fromarray(frame).rotate(angle, Image.Resampling.BICUBIC)
            image = image.resize((96, 96), Image.Resampling.LANCZOS)
            frames.append(np.asarray(image, np.float32) / 255)
        clip = torch.from_numpy(np.stack(frames)).permute(3, 0, 1, 2).contiguous()
        cpu = time.thread_time() - cpu
        return clip, i % 5, torch.tensor([time.perf_counter() - wall, cpu], dtype=torch.float64)


def network():
    return nn.Sequential(
        nn.Conv3d(3, 24, 3, stride=(1, 2, 2), padding=1), nn.ReLU(), nn.Conv3d(24, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(32, 5),
    )  # fmt: skip


def main():
    torch.set_num_threads(1)
    bind_to_local_rank()
    net = network()
    sgd = torch.optim.SGD(net.parameters(), lr=0.01)
    loader = watch(DataLoader(Clips(), batch_size=8, shuffle=True, num_workers=2))
    step_s = wait_s = 0.0
    workers = torch.zeros(2, dtype=torch.float64)
    steps, start, cpu = 0, time.perf_counter(), time.thread_time()
    last = start
    for clips, labels, times in loader:
        got = time.perf_counter()
        wait_s += got - last
        loss = nn.functional.cross_entropy(net(clips), labels)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        steps += 1
        workers += times.sum(0)
        last = time.perf_counter()
        step_s += last - got
        if steps >= 60 and last - start > 26:
            break
    wall, cpu = time.perf_counter() - start, time.thread_time() - cpu
    tell(steps=steps, wall_s=wall, step_s=step_s, wait_s=wait_s, main_cpu_s=cpu, workers_s=workers[0].item(), workers_cpu_s=workers[1].item(),
         main_without_core_s=step_s - cpu, workers_without_core_s=(workers[0] - workers[1]).item())  # fmt: skip


if __name__ == "__main__":
    main()
