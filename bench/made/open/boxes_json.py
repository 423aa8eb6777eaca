"""Sizes of objects from boxes of a COCO-like annotation file. Its index is opened by each worker for itself (made
before the fork it would be copied page by page), and passes are short: the small set of a class is gone in a second."""
import json
import time
from collections import defaultdict

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

from bclock import Clock
from case import folder, tell, watch

CAUSE = "waiting/worker_start"
RANKS = 1
BORDERLINE = False


def prepare(path):
    rng = np.random.default_rng(0)
    boxes = rng.integers(1, 500, (300_000, 4)).tolist()
    images = rng.integers(0, 40_000, 300_000).tolist()
    entry = '{"id": %d, "image_id": %d, "category_id": %d, "bbox": [%d.25, %d.5, %d.25, %d.75], "iscrowd": 0}'
    text = ",\n".join(entry % (i, image, i % 80, *box) for i, (image, box) in enumerate(zip(images, boxes)))
    path.write_text('{"annotations": [' + text + "]}")


class Boxes(Dataset):
    def __init__(self, path, count):
        self.path, self.count = path, count

    def open(self):
        self.by_image = defaultdict(list)
        for entry in json.loads(self.path.read_text())["annotations"]:
            self.by_image[entry["image_id"]].append(entry)
        self.keys = sorted(self.by_image)

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        table = np.zeros((12, 5), "f4")
        for k, entry in enumerate(self.by_image[self.keys[i]][:12]):
            table[k] = *entry["bbox"], entry["category_id"]
        return torch.from_numpy(table / 500), torch.tensor(float(np.log1p(table[:, 2] * table[:, 3]).mean()))


def main():
    torch.set_num_threads(1)
    path = folder() / "instances.json"
    prepare(path)
    clock = Clock(path.parent / "open")

    def init(worker):
        with clock.part():
            get_worker_info().dataset.open()

    loader = DataLoader(Boxes(path, 960), batch_size=64, shuffle=True, num_workers=2, worker_init_fn=init)
    model = nn.Sequential(nn.Linear(5, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Flatten(), nn.Linear(12 * 128, 1))
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    step = waiting = first = 0.0
    n, start = 0, time.perf_counter()
    passes = watch(loader)
    while time.perf_counter() - start < 23:
        mark = time.perf_counter()
        for k, (x, y) in enumerate(passes):
            got = time.perf_counter()
            if k == 0:
                first += got - mark
            loss = nn.functional.mse_loss(model(x)[:, 0], y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            n += 1
            done = time.perf_counter()
            waiting, step, mark = waiting + got - mark, step + done - got, done
    wall = time.perf_counter() - start
    tell(wall=wall, steps=n, step=step, waiting=waiting, cause=first, opened=sum(clock.seconds()) / 2)


if __name__ == "__main__":
    main()
