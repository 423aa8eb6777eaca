"""LiDAR sweeps in one pack file with an index, read by three prefetching threads with pread.
Nearly all time is the threads' waiting for those reads."""
CAUSE = "storage/reads"
RANKS = 1
BORDERLINE = False

import os
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from case import evict, folder, slow_disk, tell, watch
from torch import nn

N = 840


def pack(path):
    rng = np.random.default_rng(0)
    index, at = [], 0
    with open(path, "wb") as f:
        for _ in range(N):
            pts = rng.standard_normal((int(rng.integers(14000, 24000)), 4), dtype=np.float32)
            f.write(pts.tobytes())
            index.append((at, pts.nbytes))
            at += pts.nbytes
    evict(path)
    return index


class SweepLoader:
    def __init__(self, path, index, batch, threads=3):
        self.fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_RANDOM)
        self.index, self.batch = index, batch
        self.pool = ThreadPoolExecutor(threads)

    def one(self, i):
        t0 = time.perf_counter()
        at, size = self.index[i]
        raw = os.pread(self.fd, size, at)
        t1 = time.perf_counter()
        pts = np.frombuffer(raw, np.float32).reshape(-1, 4)
        pts = pts[np.random.randint(0, len(pts), 1024)]
        return torch.from_numpy(pts), t1 - t0, time.perf_counter() - t0

    def __len__(self):
        return len(self.index) // self.batch

    def __iter__(self):
        order = deque(np.random.permutation(len(self.index)).tolist())
        pending = deque()
        while True:
            while order and len(pending) < 3 * self.batch:
                pending.append(self.pool.submit(self.one, order.popleft()))
            if len(pending) < self.batch:
                return
            got = [pending.popleft().result() for _ in range(self.batch)]
            yield torch.stack([g[0] for g in got]), sum(g[1] for g in got), sum(g[2] for g in got)


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.local = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 128), nn.ReLU())
        self.head = nn.Linear(128, 1)

    def forward(self, p):
        return self.head(self.local(p).amax(1)).squeeze(1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    path = folder() / "sweeps.pack"
    index = pack(path)
    net = PointNet()
    opt = torch.optim.AdamW(net.parameters())
    with slow_disk(folder(), 10_500_000):
        sweeps = SweepLoader(path, index, 8)
        wait = step = pread = busy = 0.0
        n, last = 0, time.perf_counter()
        begin = last
        for points, r, b in watch(sweeps):
            t = time.perf_counter()
            wait += t - last
            target = points[..., :3].norm(dim=-1).amax(1)
            loss = nn.functional.smooth_l1_loss(net(points), target)
            opt.zero_grad()
            loss.backward()
            opt.step()
            pread, busy, n = pread + r, busy + b, n + 1
            last = time.perf_counter()
            step += last - t
        wall = time.perf_counter() - begin
        sweeps.pool.shutdown()
    tell(steps=n, wall=wall, step=step, waiting=wait, cause=wait * pread / busy, pread_in_threads=pread, threads_busy=busy)
