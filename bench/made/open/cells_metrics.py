"""Cells in microscope pictures, two ranks that average their gradients by hand; the first one also follows how far
the boundaries of single cells are off, in each step, for the dashboard."""
import time

import h5py
import numpy as np
import torch
import torch.distributed as dist
from scipy import ndimage
from torch import nn
from torch.profiler import record_function

from case import folder, tell, watch

CAUSE = "imbalance/slow_rank"
RANKS = 2
BORDERLINE = False
STEPS = 118


def prepare(path, seed):
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:128, :128]
    with h5py.File(path, "w") as file:
        x = file.create_dataset("x", (200, 1, 128, 128), "f4")
        y = file.create_dataset("y", (200, 128, 128), "i8")
        for i in range(200):
            mask = np.zeros((128, 128), bool)
            for r, c, s in zip(*rng.uniform((0, 0, 3), (128, 128, 6), (26, 3)).T):
                mask |= (rows - r) ** 2 + (columns - c) ** 2 < s * s
            x[i, 0], y[i] = mask + rng.normal(0, 0.6, mask.shape), mask


def pictures(path, batch=6):
    rng = np.random.default_rng(0)
    with h5py.File(path) as file:
        while True:
            at = int(rng.integers(0, 200 - batch))
            yield torch.from_numpy(file["x"][at : at + batch]), torch.from_numpy(file["y"][at : at + batch])


def boundary_error(found, truth):
    """The mean distance of each true cell from the nearest pixels that were found, and of what was found from it."""
    errors = []
    for f, t in zip(found, truth):
        away = ndimage.distance_transform_edt(f == 0)
        cells, count = ndimage.label(t)
        for i in range(1, count + 1):
            cell = cells == i
            near = ndimage.distance_transform_edt(~cell)
            around = (near < 4) & (f == 1)
            errors.append(away[cell].mean() + (near[around].mean() if around.any() else 4.0))
    return float(np.mean(errors))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    path = folder() / f"cells{rank}.h5"
    prepare(path, rank)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1))
    opt = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    step = waiting = metric = exchange = error = 0.0
    dist.barrier()
    n, start = 0, time.perf_counter()
    mark = start
    for x, y in watch(pictures(path)):
        got = time.perf_counter()
        scores = model(x)
        loss = nn.functional.cross_entropy(scores, y)
        opt.zero_grad()
        loss.backward()
        if rank == 0:
            t = time.perf_counter()
            error = 0.95 * error + 0.05 * boundary_error(scores.argmax(1).numpy(), y.numpy())
            metric += time.perf_counter() - t
        t = time.perf_counter()
        with record_function("all_reduce_gradients"):
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= 2
        exchange += time.perf_counter() - t
        opt.step()
        n += 1
        done = time.perf_counter()
        waiting, step, mark = waiting + got - mark, step + done - got, done
        if n == STEPS:
            break
    wall = time.perf_counter() - start
    tell(rank=rank, wall=wall, steps=n, step=step, waiting=waiting, own=step - exchange, metric=metric, cause=exchange)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
