"""The codec is said not to be safe, so four workers share one multiprocessing.Lock around each decode: three of them wait for the fourth."""
import io
import multiprocessing
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch

CAUSE = "waiting/lock"
RANKS = 1
BORDERLINE = False


class Codec:
    def __init__(self):
        self.mutex = multiprocessing.Lock()

    def __call__(self, raw):
        start = time.perf_counter()
        with self.mutex:
            waited = time.perf_counter() - start
            image = Image.open(io.BytesIO(raw)).convert("RGB").resize((160, 160), Image.LANCZOS).resize((64, 64))
        return image, waited, time.perf_counter() - start - waited


class Pictures(Dataset):
    def __init__(self, root):
        self.files, self.codec = sorted(root.glob("*.JPEG")), Codec()

    def __len__(self):
        return len(self.files) * 60

    def __getitem__(self, i):
        image, waited, held = self.codec(self.files[i % len(self.files)].read_bytes())
        x = np.asarray(image, np.float32).transpose(2, 0, 1) / 255
        return torch.from_numpy(x), i % 5, waited, held


def main():
    root = folder()
    for path in Path("@DATA@/imagenet-sample").glob("*.JPEG"):
        (root / path.name).write_bytes(path.read_bytes())
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Conv2d(3, 8, 8, 8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 5))
    optimizer = torch.optim.SGD(model.parameters(), 0.02)
    loader = DataLoader(Pictures(root), batch_size=16, shuffle=True, num_workers=4)
    rows = []
    begin = last = time.perf_counter()
    for x, y, waited, held in watch(loader):
        got = time.perf_counter()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        now = time.perf_counter()
        rows.append((now - last, got - last, waited.sum().item() / 4, held.sum().item() / 4))
        last = now
        if now - begin > 21.5 and len(rows) > 75:
            break
    step, wait, waited, held = np.mean(rows[10:], axis=0)
    tell(step_s=step, waiting_for_input_s=wait, cause_s=waited, holding_s=held, steps=len(rows))


if __name__ == "__main__":
    main()
