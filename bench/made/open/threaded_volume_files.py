"""A prefetcher of four own threads reads raw volumes by os.pread from a slow disk; the loop waits for those reads."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from case import evict, folder, slow_disk, tell, watch

CAUSE = "storage/reads"
RANKS = 1
BORDERLINE = False

SIDE = 48  # a volume: 48^3 int16 = 221 KB


class VolumeFeed:
    """Batches of volumes; a pool of threads is always `ahead` files ahead of the loop."""

    def __init__(self, files, batch: int, ahead: int = 12) -> None:
        self.files, self.batch, self.ahead = files, batch, ahead
        self.read_s = 0.0

    def __len__(self) -> int:
        return len(self.files) // self.batch

    def load(self, path):
        begin = time.perf_counter()
        handle = os.open(path, os.O_RDONLY)
        try:
            raw = b""
            while piece := os.pread(handle, 1 << 20, len(raw)):
                raw += piece
        finally:
            os.close(handle)
        took = time.perf_counter() - begin
        return np.frombuffer(raw, dtype=np.int16).reshape(1, SIDE, SIDE, SIDE), took

    def __iter__(self):
        with ThreadPoolExecutor(4, thread_name_prefix="volume") as pool:
            todo = iter(self.files)
            queue = [pool.submit(self.load, path) for path, _ in zip(todo, range(self.ahead))]
            while len(queue) >= self.batch:
                volumes = []
                for _ in range(self.batch):
                    volume, took = queue.pop(0).result()
                    self.read_s += took
                    volumes.append(volume.astype(np.float32))
                    following = next(todo, None)
                    if following is not None:
                        queue.append(pool.submit(self.load, following))
                yield torch.from_numpy(np.stack(volumes) / 1000.0)


def main() -> None:
    torch.set_num_threads(1)
    root = folder()
    noise = np.random.default_rng(3)
    files = []
    for i in range(340):
        path = root / f"scan_{i:03d}.raw"
        noise.integers(-1000, 1000, SIDE**3, dtype=np.int16).tofile(path)
        files.append(path)
    evict(*files)
    encoder = torch.nn.Sequential(torch.nn.Conv3d(1, 4, 3, stride=3), torch.nn.ReLU(), torch.nn.Conv3d(4, 8, 2, stride=2))
    decoder = torch.nn.Sequential(torch.nn.ConvTranspose3d(8, 4, 2, stride=2), torch.nn.ConvTranspose3d(4, 1, 3, stride=3))
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()])
    feed = VolumeFeed(files, batch=4)
    step_s, wait_s = [], []
    with slow_disk(root, 2_800_000):
        clock = time.perf_counter()
        for volumes in watch(feed):
            ready = time.perf_counter()
            loss = (decoder(encoder(volumes)) - volumes).abs().mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            step_s.append(time.perf_counter() - clock)
            wait_s.append(ready - clock)
            clock = time.perf_counter()
    n = len(step_s)
    tell(step_s=sum(step_s[10:]) / (n - 10), waiting_for_input_s=sum(wait_s[10:]) / (n - 10), cause_s=feed.read_s / n / 4, steps=n - 10)


if __name__ == "__main__":
    main()
