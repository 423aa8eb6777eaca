"""Outlines of fields in satellite images: each image comes with its list of polygons, every polygon a tensor of its own
(they differ in length, so the collate function leaves them as they are)."""
import json
import os
import resource
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch

CAUSE = "preprocessing/hand_over"
RANKS = 1
BORDERLINE = False


class Parcels(Dataset):
    def __init__(self, path):
        data = np.load(path)
        self.images, self.points, self.ends = data["images"], data["points"], data["ends"]
        self.seconds, self.seen = 0.0, 0

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        t = time.perf_counter()
        low, high = i * 24, i * 24 + 24
        target = {
            "polygons": [torch.from_numpy(self.points[self.ends[j] : self.ends[j + 1]].copy()) for j in range(low, high)],
            "crop": torch.arange(low, high) % 7,
        }
        image = torch.from_numpy(self.images[i]).float().div_(255)
        self.seconds += time.perf_counter() - t
        self.seen += 1
        if self.seen % 40 == 0 and os.environ.get("CASE_LOG"):
            with open(os.environ["CASE_LOG"], "a") as log:
                log.write(json.dumps({"pid": os.getpid(), "n": self.seen, "making_samples": self.seconds}) + "\n")
        return image, target


def as_list(rows):
    return torch.stack([row[0] for row in rows]), [row[1] for row in rows]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(3, 16, 5, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.point = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32))
        self.head = nn.Linear(48, 7)

    def forward(self, images, targets):
        seen = self.image(images)
        points = torch.cat([p for t in targets for p in t["polygons"]])
        sizes = torch.tensor([len(p) for t in targets for p in t["polygons"]])
        owner = torch.arange(len(sizes)).repeat_interleave(sizes)
        pooled = torch.zeros(len(sizes), 32).index_add(0, owner, self.point(points)) / sizes.unsqueeze(1)
        image_of = torch.arange(len(targets)).repeat_interleave(torch.tensor([len(t["polygons"]) for t in targets]))
        return self.head(torch.cat([pooled, seen[image_of]], 1))


def main():
    torch.set_num_threads(1)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # "too many open files" otherwise
    rng = np.random.default_rng(0)
    path, images = folder() / "parcels.npz", 600
    sizes = rng.integers(6, 40, images * 24)
    ends = np.concatenate([[0], sizes.cumsum()])
    np.savez(path, images=rng.integers(0, 255, (images, 3, 96, 96), dtype=np.uint8), points=rng.random((ends[-1], 2), dtype=np.float32), ends=ends)
    loader = DataLoader(Parcels(path), batch_size=8, shuffle=True, num_workers=int(os.environ.get("WORKERS", 1)), collate_fn=as_list)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    step = waiting = 0.0
    n, start = 0, time.perf_counter()
    mark = start
    while mark - start < 25:
        for images, targets in watch(loader):
            got = time.perf_counter()
            label = torch.cat([t["crop"] for t in targets])
            loss = nn.functional.cross_entropy(model(images, targets), label)
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
