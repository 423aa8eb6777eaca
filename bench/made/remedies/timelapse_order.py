"""Which of two pieces of a time-lapse comes first: short runs of photographs, cropped by a camera that moves slowly."""
import atexit
import io
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import applied, folder, long_enough, tell, watch

CAUSE = "preprocessing/decode"
RANKS = 1

FRAMES, SIDE, BATCH = 5, 96, 4
PHOTOS = sorted(Path("@DATA@/imagenet-sample").glob("*.JPEG"))
STORED = applied("cheaper_data", False)


def prepare(root):
    if STORED:
        small = [np.asarray(Image.open(path).convert("RGB").resize((SIDE + 24, SIDE + 24))) for path in PHOTOS]
        np.save(root / "photos.npy", np.stack(small))
    elif applied("shards", False):
        with open(root / "photos.bin", "wb") as file:
            ends = [file.write(path.read_bytes()) for path in PHOTOS]
        np.save(root / "ends.npy", np.cumsum([0, *ends]))
    else:
        for i, path in enumerate(PHOTOS):
            shutil.copyfile(path, root / f"{i:03d}.jpg")


class Runs(Dataset):
    def __init__(self, root):
        self.root = root
        self.stored = np.load(root / "photos.npy") if STORED else None
        self.ends = np.load(root / "ends.npy") if (root / "ends.npy").exists() else None

    def __len__(self):
        return 100000

    def frame(self, number, shift):
        number %= len(PHOTOS)
        if self.stored is not None:
            return self.stored[number, shift : shift + SIDE, shift : shift + SIDE]
        if self.ends is not None:
            with open(self.root / "photos.bin", "rb") as file:
                file.seek(self.ends[number])
                source = io.BytesIO(file.read(self.ends[number + 1] - self.ends[number]))
        else:
            source = self.root / f"{number:03d}.jpg"
        photo = Image.open(source).convert("RGB").resize((SIDE + 24, SIDE + 24), Image.Resampling.BICUBIC)
        return np.asarray(photo.crop((shift, shift, shift + SIDE, shift + SIDE)))

    def __getitem__(self, i):
        rng = np.random.default_rng(i)
        forward = int(rng.integers(2))
        first = int(rng.integers(len(PHOTOS)))
        shifts = range(0, 4 * FRAMES, 4) if forward else range(4 * FRAMES, 0, -4)
        frames = torch.from_numpy(np.stack([self.frame(first + k, shift) for k, shift in enumerate(shifts)]))
        frames = frames.permute(3, 0, 1, 2)
        return (frames if applied("smaller_tensors", False) else frames.float()), forward


def main():
    torch.set_num_threads(applied("fewer_threads", 1))
    root = folder() / "photos"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    prepare(root)
    if applied("staging", False):
        local = Path(tempfile.mkdtemp(dir="/dev/shm"))
        atexit.register(shutil.rmtree, local, True)
        root = shutil.copytree(root, local, dirs_exist_ok=True)
    workers = applied("more_workers", 0)
    options = {}
    if workers:
        options = {"prefetch_factor": applied("longer_queue", 2), "persistent_workers": applied("staying_workers", False)}
    loader = DataLoader(Runs(root), batch_size=BATCH, num_workers=workers, **options)
    model = nn.Sequential(
        nn.Conv3d(3, 16, (3, 5, 5), (1, 4, 4), (1, 2, 2)), nn.ReLU(), nn.Conv3d(16, 24, 3, (1, 2, 2), 1), nn.ReLU(),
        nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(24, 2),
    )
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    marks = []
    for frames, forward in watch(loader):
        loss = nn.functional.cross_entropy(model(frames.float() / 255), forward)
        opt.zero_grad()
        loss.backward()
        opt.step()
        marks.append(time.perf_counter())
        if long_enough(marks):
            break
    tell(step_s=(marks[-1] - marks[9]) / (len(marks) - 10), steps=len(marks) - 10)


if __name__ == "__main__":
    main()
