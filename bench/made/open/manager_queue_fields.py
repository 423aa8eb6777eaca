"""Crops of weather fields, cut in a process beside and handed to the loop through multiprocessing.Manager().Queue():
each batch of 19 MB is pickled and copied through the manager's process twice."""
CAUSE = "preprocessing/hand_over"
RANKS = 1
BORDERLINE = False

import multiprocessing as mp
import time

import numpy as np
import torch
from torch import nn

from case import tell, watch

STEPS, BATCH, SIDE = 450, 8, 192


def cut(fields, queue, spent):
    rng = np.random.default_rng(1)
    for _ in range(STEPS):
        t0 = time.perf_counter()
        rows = rng.integers(0, fields.shape[1] - SIDE, BATCH)
        columns = rng.integers(0, fields.shape[2] - SIDE, BATCH)
        crops = np.stack([fields[:, r : r + SIDE, c : c + SIDE] for r, c in zip(rows, columns)])
        t1 = time.perf_counter()
        queue.put((crops, rows / fields.shape[1]))
        spent[0] += t1 - t0
        spent[1] += time.perf_counter() - t1
    queue.put(None)


class Crops:
    def __init__(self, queue):
        self.queue = queue

    def __iter__(self):
        while (item := self.queue.get()) is not None:
            yield item


def build():
    return nn.Sequential(
        nn.AvgPool2d(4), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 1),
    )  # fmt: skip


def main():
    torch.set_num_threads(1)
    fields = np.random.default_rng(0).standard_normal((8, 721, 1440))
    fields += np.linspace(-2, 2, 721)[None, :, None]
    with mp.Manager() as manager:
        queue = manager.Queue(maxsize=4)
        spent = mp.Array("d", 2)
        producer = mp.Process(target=cut, args=(fields, queue, spent), daemon=True)
        producer.start()
        model = build()
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        step_s = get_s = 0.0
        start = t = time.perf_counter()
        for crops, latitude in watch(Crops(queue)):
            got = time.perf_counter()
            get_s += got - t
            x, y = torch.from_numpy(crops).float(), torch.from_numpy(latitude).float()
            loss = (model(x)[:, 0] - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            t = time.perf_counter()
            step_s += t - got
        wall = time.perf_counter() - start
        producer.join()
        tell(steps=STEPS, wall_s=wall, step_s=step_s, wait_s=get_s, producer_cuts_s=spent[0], producer_puts_s=spent[1])


if __name__ == "__main__":
    main()
