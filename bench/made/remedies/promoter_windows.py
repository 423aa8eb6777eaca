"""Promoters: windows of sixteen tracks of signal along the genome lie in an LMDB; a network predicts how strongly the gene is read.
The LMDB is opened with readahead=False, as our template has it."""
import atexit
import shutil
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import lmdb
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import applied, evict, folder, slow_disk, long_enough, tell, watch

CAUSE = "storage/mapped_pages"
RANKS = 1

WINDOWS, TRACKS, LENGTH, BATCH, A_FILE = 7200, 16, 4096, 16, 600
SIZE = TRACKS * LENGTH
SHARDS = applied("shards", False)
SMALL = applied("smaller_tensors", False)


class Windows(Dataset):
    def __init__(self, root):
        self.root, self.env, self.files = root, None, {}

    def __len__(self):
        return WINDOWS

    def record(self, i):
        if SHARDS:
            file = self.files.get(i // A_FILE) or self.files.setdefault(i // A_FILE, open(self.root / f"windows_{i // A_FILE}.bin", "rb"))
            file.seek(i % A_FILE * SIZE)
            return np.frombuffer(file.read(SIZE), np.uint8)
        if self.env is None:
            self.env = lmdb.open(str(self.root), readonly=True, lock=False, readahead=False)
        with self.env.begin(buffers=True) as view:
            return np.array(np.frombuffer(view.get(b"%06d" % i), np.uint8))

    def __getitem__(self, i):
        tracks = torch.from_numpy(self.record(i).reshape(TRACKS, LENGTH).copy())
        return tracks if SMALL else tracks.float() / 64, float(i % 7) / 3 - 1


def prepare(root):
    rng = np.random.default_rng(0)
    pool = rng.integers(0, 255, 24 * SIZE, dtype=np.uint8)
    paths = []
    if SHARDS:
        for k in range(WINDOWS // A_FILE):
            paths.append(root / f"windows_{k}.bin")
            with open(paths[-1], "wb") as file:
                for i in range(k * A_FILE, (k + 1) * A_FILE):
                    file.write(pool[i * 311 % (23 * SIZE) :][:SIZE].tobytes())
    else:
        paths.append(root / "data.mdb")
        paths[0].unlink(missing_ok=True)
        env = lmdb.open(str(root), map_size=1 << 30, sync=False, writemap=False)
        for k in range(8):
            with env.begin(write=True) as txn:
                for i in range(k * WINDOWS // 8, (k + 1) * WINDOWS // 8):
                    txn.put(b"%06d" % i, pool[i * 311 % (23 * SIZE) :][:SIZE].tobytes(), append=True)
        env.close()
    evict(*paths)


def staged(root):
    fast = Path(tempfile.mkdtemp(dir="/dev/shm"))
    atexit.register(shutil.rmtree, fast, True)
    shutil.copytree(root, fast, dirs_exist_ok=True)
    return fast


class Strength(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.out = nn.Conv1d(TRACKS, 24, 11, 4), nn.Conv1d(24, 32, 7, 4), nn.Linear(32, 1)

    def forward(self, x):
        return self.out(torch.relu(self.second(torch.relu(self.first(x)))).mean(2))[:, 0]


def main():
    torch.set_num_threads(applied("fewer_threads", 1))
    torch.manual_seed(0)
    disk = folder()
    root = disk / ("bins" if SHARDS else "windows.lmdb")
    root.mkdir(exist_ok=True)
    prepare(root)
    if applied("staging", False):
        root = staged(root)
    rng = np.random.default_rng(1)
    order = [i for _ in range(8) for i in (range(WINDOWS) if SHARDS else rng.permutation(WINDOWS).tolist())]
    model = Strength()
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    workers = applied("more_workers", 1)
    marks = []
    with nullcontext() if applied("faster_storage", False) else slow_disk(disk, 160_000_000):
        if applied("read_ahead", False):
            for path in root.iterdir():
                with open(path, "rb", buffering=0) as file:
                    while file.read(1 << 20):
                        pass
        loader = DataLoader(
            Windows(root), batch_size=BATCH, sampler=order, num_workers=workers, prefetch_factor=applied("longer_queue", 2) if workers else None,
            persistent_workers=applied("staying_workers", False) and workers > 0,
        )
        for tracks, strength in watch(loader):
            loss = nn.functional.mse_loss(model(tracks.float() / 64 if SMALL else tracks), strength.float())
            opt.zero_grad()
            loss.backward()
            opt.step()
            marks.append(time.perf_counter())
            if long_enough(marks):
                break
    tell(step_s=(marks[-1] - marks[9]) / (len(marks) - 10), steps=len(marks) - 10)


if __name__ == "__main__":
    main()
