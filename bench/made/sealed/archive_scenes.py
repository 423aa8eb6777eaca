"""Clouds in scenes of a licensed archive. Its client allows 22 scenes a second to a key; four threads fetch ahead."""
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import nn

from case import folder, tell, watch

CAUSE = "waiting/sleep"
RANKS = 1
BORDERLINE = False


class Quota:
    """So many calls a second: each caller books the next free moment, and sleeps until then."""

    def __init__(self, per_s):
        self.between, self.free, self.guard, self.slept = 1 / per_s, 0.0, threading.Lock(), 0.0

    def __enter__(self):
        with self.guard:
            now = time.monotonic()
            self.free = max(self.free + self.between, now)
            pause = self.free - now
        if pause > 0:
            time.sleep(pause)
            self.slept += pause

    def __exit__(self, *_):
        pass


class Archive:
    def __init__(self, root, count=80):
        rng = np.random.default_rng(20)
        self.root, self.names, self.quota = root, [f"scene{i:03d}" for i in range(count)], Quota(22)
        for name in self.names:
            clouds = rng.random((8, 8)).repeat(16, 0).repeat(16, 1) > 0.6
            scene = rng.normal(0.3, 0.1, (3, 128, 128)) + 0.4 * clouds
            np.savez(root / f"{name}.npz", scene=scene.astype(np.float32), clouds=clouds)

    def get(self, name):
        with self.quota, np.load(self.root / f"{name}.npz") as kept:
            return kept["scene"], kept["clouds"]


def batches(archive, size=4, ahead=3):
    rng = np.random.default_rng(1)
    with ThreadPoolExecutor(4) as pool:
        queue = []
        while True:
            while len(queue) <= ahead:
                queue.append([pool.submit(archive.get, name) for name in rng.choice(archive.names, size)])
            rows = [future.result() for future in queue.pop(0)]
            yield torch.from_numpy(np.stack([scene for scene, _ in rows])), torch.from_numpy(np.stack([clouds for _, clouds in rows])).float()


def main():
    torch.set_num_threads(1)
    archive = Archive(folder())
    model = nn.Sequential(nn.Conv2d(3, 6, 5, padding=2), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 1, 1))
    opt = torch.optim.RMSprop(model.parameters(), 1e-3)
    step = waiting = 0.0
    n, start = 0, time.perf_counter()
    mark = start
    for scene, clouds in watch(batches(archive)):
        got = time.perf_counter()
        loss = nn.functional.binary_cross_entropy_with_logits(model(scene).squeeze(1), clouds)
        opt.zero_grad()
        loss.backward()
        opt.step()
        n += 1
        waiting += got - mark
        mark = time.perf_counter()
        step += mark - got
        if mark - start > 23:
            break
    tell(wall=time.perf_counter() - start, steps=n, step=step, waiting=waiting, cause=archive.quota.slept / 4)


if __name__ == "__main__":
    main()
