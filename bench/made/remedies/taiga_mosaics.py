"""Taiga: scenes of six bands, deflated with a predictor as in a GeoTIFF, are brought to the grid of the map; a network tells burnt forest."""
import atexit
import shutil
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np
import torch
from scipy.ndimage import affine_transform
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import applied, folder, long_enough, tell, watch

CAUSE = "preprocessing/decode"
RANKS = 1

SCENES, BANDS, SIDE, CUT, BATCH = 120, 6, 160, 128, 6
ARRAYS = applied("cheaper_data", False)
SHARDS = applied("shards", False)
SMALL = applied("smaller_tensors", False)


def on_the_grid(raw, k):
    rows = np.frombuffer(zlib.decompress(raw), np.uint16).reshape(BANDS, SIDE, SIDE)
    scene = np.cumsum(rows, axis=2, dtype=np.uint16)
    angle = 0.02 * (k % 11 - 5)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    shift = SIDE / 2 - turn @ np.array([CUT / 2, CUT / 2])
    return np.stack([affine_transform(band.astype(np.float32), turn, shift, (CUT, CUT), order=2) for band in scene]).astype(np.int16)


class Scenes(Dataset):
    def __init__(self, root):
        self.root = root

    def __len__(self):
        return 1000000

    def __getitem__(self, i):
        k, turns = i * 43 % SCENES, i * 7 % 4
        if ARRAYS:
            scene = np.load(self.root / f"scene_{k:03d}.npy")
        elif SHARDS:
            start, size = np.load(self.root / "index.npy")[k]
            with open(self.root / "scenes.bin", "rb") as file:
                file.seek(start)
                scene = on_the_grid(file.read(size), k)
        else:
            scene = on_the_grid((self.root / f"scene_{k:03d}.z").read_bytes(), k)
        scene = torch.from_numpy(np.rot90(scene, turns, (1, 2)).copy())
        return scene if SMALL else scene.float() / 4000, (scene[4] > scene[2] + 900).long()


def prepare(root):
    rng = np.random.default_rng(0)
    pool = []
    for _ in range(8):
        low = rng.normal(2000, 600, (BANDS, 20, 20)).repeat(8, 1).repeat(8, 2)
        scene = np.clip(low + rng.normal(0, 60, (BANDS, SIDE, SIDE)), 0, 9000).astype(np.uint16)
        pool.append(zlib.compress(np.diff(scene, axis=2, prepend=np.uint16(0)).tobytes(), 6))
    at, index = 0, []
    with open(root / "scenes.bin", "wb") as shard:
        for k in range(SCENES):
            raw = pool[k % 8]
            (root / f"scene_{k:03d}.z").write_bytes(raw)
            shard.write(raw)
            index.append((at, len(raw)))
            at += len(raw)
            if ARRAYS:
                np.save(root / f"scene_{k:03d}.npy", on_the_grid(raw, k))
    np.save(root / "index.npy", np.array(index))


def main():
    torch.set_num_threads(applied("fewer_threads", 1))
    torch.manual_seed(0)
    root = folder()
    prepare(root)
    if applied("staging", False):
        fast = Path(tempfile.mkdtemp(dir="/dev/shm"))
        atexit.register(shutil.rmtree, fast, True)
        root = Path(shutil.copytree(root, fast, dirs_exist_ok=True))
    workers = applied("more_workers", 2)
    loader = DataLoader(
        Scenes(root), batch_size=BATCH, num_workers=workers, prefetch_factor=applied("longer_queue", 2) if workers else None,
        persistent_workers=applied("staying_workers", False) and workers > 0,
    )
    model = nn.Sequential(
        nn.Conv2d(BANDS, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 24, 3, 2, 1), nn.BatchNorm2d(24), nn.ReLU(),
        nn.Conv2d(24, 32, 3, 1, 1), nn.ReLU(), nn.Conv2d(32, 2 * 16, 1), nn.PixelShuffle(4),
    )
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    marks = []
    for scene, burnt in watch(loader):
        loss = nn.functional.cross_entropy(model(scene.float() / 4000 if SMALL else scene), burnt)
        opt.zero_grad()
        loss.backward()
        opt.step()
        marks.append(time.perf_counter())
        if long_enough(marks):
            break
    tell(step_s=(marks[-1] - marks[9]) / (len(marks) - 10), steps=len(marks) - 10)


if __name__ == "__main__":
    main()
