"""Segmentation over two hospitals, a rank for each: the second one has a quarter as many slices. DDP's Join lets it
sit out the rest of each pass."""
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

from case import folder, tell, watch

CAUSE = "imbalance/fewer_batches"
RANKS = 2
BORDERLINE = False
PASSES = 6


class Slices(IterableDataset):
    def __init__(self, files):
        self.files = files

    def __iter__(self):
        for file in self.files:
            for image in np.load(file):
                image = torch.from_numpy(image)
                yield image[None], (image > 0.8).long()


def prepare(root, rank):
    rng = np.random.default_rng(rank)
    files = []
    for i in range((24, 6)[rank]):
        file = root / f"hospital{rank}_patient{i:03d}.npy"
        np.save(file, rng.standard_normal((16, 96, 96), dtype=np.float32))
        files.append(file)
    return files


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    files = prepare(folder(), rank)
    loader = watch(DataLoader(Slices(files), batch_size=8))
    model = DistributedDataParallel(
        nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 2, 1))
    )
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    step = waiting = joined = 0.0
    dist.barrier()
    n, start = 0, time.perf_counter()
    for _ in range(PASSES):
        mark = time.perf_counter()
        with Join([model]):
            for x, y in loader:
                got = time.perf_counter()
                loss = nn.functional.cross_entropy(model(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                n += 1
                done = time.perf_counter()
                waiting, step, mark = waiting + got - mark, step + done - got, done
            ended = time.perf_counter()
        joined += time.perf_counter() - ended
    tell(rank=rank, wall=time.perf_counter() - start, steps=n, step=step, waiting=waiting, cause=joined)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
