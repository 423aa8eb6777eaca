"""Instance masks are drawn from polygons by numpy, point in polygon for each pixel, in a ProcessPoolExecutor that keeps eight samples ahead."""
import json
import math
import multiprocessing
import random
import time
from collections import deque
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import torch
from torch import nn

from case import folder, tell, watch

CAUSE = "preprocessing/decode"
RANKS = 1
BORDERLINE = False
SIDE = 112


def rasterise(line):
    start = time.perf_counter()
    annotation = json.loads(line)
    ys, xs = np.mgrid[0:SIDE, 0:SIDE] + 0.5
    masks = np.zeros((len(annotation["objects"]), SIDE, SIDE), np.float32)
    for mask, points in zip(masks, annotation["objects"]):
        inside = np.zeros((SIDE, SIDE), bool)
        for (x0, y0), (x1, y1) in zip(points, points[1:] + points[:1]):
            crosses = (ys < y0) != (ys < y1)
            with np.errstate(divide="ignore", invalid="ignore"):
                inside ^= crosses & (xs < x0 + (ys - y0) / (y1 - y0 + 1e-9) * (x1 - x0))
        mask[:] = inside
    return masks.sum(0).clip(0, 1), time.perf_counter() - start


def star(points):
    cx, cy, radius = random.uniform(20, 90), random.uniform(20, 90), random.uniform(8, 30)
    return [[cx + radius * random.uniform(0.6, 1) * math.cos(2 * math.pi * i / points), cy + radius * random.uniform(0.6, 1) * math.sin(2 * math.pi * i / points)] for i in range(points)]


def batches(executor, lines, size, steps):
    waiting = deque()
    for step in range(steps):
        while len(waiting) < size + 8:
            waiting.append(executor.submit(rasterise, random.choice(lines)))
        done = [waiting.popleft().result() for _ in range(size)]
        yield torch.from_numpy(np.stack([mask for mask, _ in done])[:, None]), sum(took for _, took in done)


def main():
    path = folder() / "annotations.jsonl"
    with path.open("w") as out:
        for number in range(300):
            out.write(json.dumps({"id": number, "objects": [star(random.randrange(12, 30)) for _ in range(9)]}) + "\n")
    lines = path.read_text().splitlines()
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Conv2d(1, 4, 5, 4, 2), nn.ReLU(), nn.Upsample(scale_factor=4), nn.Conv2d(4, 1, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    n = 0
    wait = step = cause = 0.0
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("forkserver")) as executor:
        begin = last = time.perf_counter()
        for masks, took in watch(batches(executor, lines, 16, 100_000)):
            got = time.perf_counter()
            masks = masks[..., ::4, ::4]
            loss = nn.functional.binary_cross_entropy_with_logits(model(masks + torch.randn_like(masks) * 0.3), masks)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            n += 1
            now = time.perf_counter()
            if n > 10:
                wait, step, cause = wait + got - last, step + now - last, cause + took / 2
            last = now
            if now - begin > 21.5 and n > 75:
                break
        executor.shutdown(cancel_futures=True)
    tell(step_s=step / (n - 10), waiting_for_input_s=wait / (n - 10), cause_s=cause / (n - 10), steps=n)


if __name__ == "__main__":
    main()
