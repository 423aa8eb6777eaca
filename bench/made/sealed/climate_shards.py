"""Downscaling of climate fields: tar shards compressed with bzip2, read by webdataset through a pipe, one worker."""
import io
import json
import os
import subprocess
import tarfile
import time

import numpy as np
import torch
import webdataset as wds
from torch import nn

from case import folder, tell, watch

CAUSE = "waiting/child_process"
RANKS = 1
BORDERLINE = False


def pack(where, shards=2, samples=180):
    rng, running = np.random.default_rng(0), []
    for s in range(shards):
        name = where / f"era-{s}.tar"
        with tarfile.open(name, "w") as tar:
            for i in range(samples):
                field = rng.normal(260, 12, (2, 64, 64)).astype(np.float32)
                buffer = io.BytesIO()
                np.save(buffer, field)
                info = tarfile.TarInfo(f"{s}{i:05d}.npy")
                info.size = buffer.tell()
                buffer.seek(0)
                tar.addfile(info, buffer)
        running.append(subprocess.Popen(["bzip2", str(name)]))
    for process in running:
        assert process.wait() == 0
    return [f"pipe:bzip2 -dc {where}/era-{s}.tar.bz2" for s in range(shards)]


def timed(samples):
    """The samples as they are; what they took goes to the log."""
    wall = cpu = 0.0
    n, began = 0, time.perf_counter()
    samples = iter(samples)
    while True:
        t, c = time.perf_counter(), time.thread_time()
        sample = next(samples, None)
        wall, cpu, n = wall + time.perf_counter() - t, cpu + time.thread_time() - c, n + 1
        if n % 90 == 0 and os.environ.get("CASE_LOG"):
            with open(os.environ["CASE_LOG"], "a") as log:
                log.write(json.dumps({"n": n, "lasted": time.perf_counter() - began, "reading_the_pipe": wall, "own_cpu_of_it": cpu}) + "\n")
        if sample is None:
            return
        yield sample


class Upscale(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 24, 3, padding=1), nn.GELU(), nn.Conv2d(24, 32, 3, padding=1), nn.PixelShuffle(4))

    def forward(self, coarse):
        return self.body(coarse)


def main():
    torch.set_num_threads(1)
    urls = pack(folder())
    dataset = (
        wds.WebDataset(urls, shardshuffle=False, empty_check=False)
        .repeat()
        .compose(timed)
        .decode()
        .to_tuple("npy")
        .map_tuple(lambda field: (torch.from_numpy(field) - 260) / 12)
        .batched(8)
    )
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=1)
    model = Upscale()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    step = waiting = 0.0
    n, start = 0, time.perf_counter()
    mark = start
    for (fine,) in watch(loader):
        got = time.perf_counter()
        loss = nn.functional.l1_loss(model(nn.functional.avg_pool2d(fine, 4)), fine)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        n += 1
        now = time.perf_counter()
        waiting, step, mark = waiting + got - mark, step + now - got, now
        if now - start > 25:
            break
    tell(wall=time.perf_counter() - start, steps=n, step=step, waiting=waiting)


if __name__ == "__main__":
    main()
