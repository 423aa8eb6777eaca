"""Frames are taken at random from an HDF5 file whose chunks hold 60 frames each: 60 times as much is read as used."""

import time

import h5py
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

from case import evict, folder, slow_disk, tell, watch

CAUSE = "storage/amplification"
RANKS = 1
BORDERLINE = False

FRAMES = 36_000
SHAPE = (56, 64, 3)  # 10.7 KB a frame, 645 KB a chunk: h5py's cache of a chunk holds one


class Frames(Dataset):
    def __init__(self, path) -> None:
        self.path = path
        self.file = None

    def __len__(self) -> int:
        return FRAMES

    def __getitem__(self, i):
        if self.file is None:
            self.file = h5py.File(self.path, "r")
        with open("/proc/self/io") as io:
            before = int(io.read().split("read_bytes: ")[1].split()[0])
        start = time.perf_counter()
        frame = self.file["frames"][i]
        took = time.perf_counter() - start
        with open("/proc/self/io") as io:
            fetched = int(io.read().split("read_bytes: ")[1].split()[0]) - before
        image = torch.from_numpy(frame).permute(2, 0, 1).float().div_(255)
        return {"image": image, "target": i % 7, "took": took, "fetched": fetched}


def main() -> None:
    torch.set_num_threads(1)
    root = folder()
    path = root / "videos.h5"
    with h5py.File(path, "w") as file:
        frames = file.create_dataset("frames", (FRAMES, *SHAPE), dtype="u1", chunks=(60, *SHAPE))
        block = np.random.default_rng(1).integers(0, 255, (600, *SHAPE), dtype=np.uint8)
        for i in range(0, FRAMES, 600):
            frames[i : i + 600] = block
    evict(path)
    policy = nn.Sequential(nn.Conv2d(3, 16, 8, stride=4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(7))
    policy(torch.zeros(1, 3, 56, 64))
    optimizer = torch.optim.RMSprop(policy.parameters(), lr=1e-4)
    data = Frames(path)
    with slow_disk(root, 10_000_000):
        order = RandomSampler(data, num_samples=90 * 5, generator=torch.Generator().manual_seed(5))
        loader = watch(DataLoader(data, batch_size=5, sampler=order, num_workers=2), data=root)
        step_s = wait_s = took_s = 0.0
        fetched = 0
        n = 0
        last = time.perf_counter()
        for k, batch in enumerate(loader):
            now = time.perf_counter()
            loss = nn.functional.cross_entropy(policy(batch["image"]), batch["target"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done = time.perf_counter()
            if k >= 10:
                n += 1
                step_s += done - last
                wait_s += now - last
                took_s += batch["took"].sum().item() / 2
                fetched += batch["fetched"].sum().item()
            last = done
    tell(
        step_s=step_s / n,
        waiting_for_input_s=wait_s / n,
        cause_s=took_s / n,
        steps=n,
        fetched_over_held=fetched / (n * 5 * np.prod(SHAPE)),
    )


if __name__ == "__main__":
    main()
