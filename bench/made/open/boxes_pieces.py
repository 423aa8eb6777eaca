"""Detection targets: the worker returns each batch as a list of dicts with some 700 small tensors, made before the loop.
Each of them is passed on by a file descriptor of its own; the loop waits for that."""
CAUSE = "preprocessing/hand_over"
RANKS = 1
BORDERLINE = False

import resource
import time

import torch
from case import tell, watch
from torch import nn
from torch.utils.data import DataLoader, Dataset

KEYS = ("features", "boxes", "labels", "area", "iscrowd", "image_id", "size", "scale")


class Scenes(Dataset):
    def __init__(self, count=400):
        self.rows = []
        for i in range(count):
            k = 3 + i % 9
            boxes = torch.rand(k, 4)
            self.rows.append(dict(zip(KEYS, (
                torch.randn(k, 32), boxes, torch.randint(0, 20, (k,)), boxes[:, 2] * boxes[:, 3], torch.zeros(k),
                torch.tensor([i]), torch.tensor([480, 640]), torch.ones(2)))))

    def __len__(self):
        return 100_000

    def __getitem__(self, i):
        t = time.perf_counter()
        row = {k: v.clone() for k, v in self.rows[i % len(self.rows)].items()}
        row["spent"] = time.perf_counter() - t
        return row


def as_it_is(rows):
    return rows


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 64), nn.ReLU())
        self.cls, self.box = nn.Linear(64, 20), nn.Linear(64, 4)

    def forward(self, x):
        h = self.body(x)
        return self.cls(h), self.box(h)


if __name__ == "__main__":
    torch.set_num_threads(1)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
    torch.manual_seed(0)
    head = Head()
    opt = torch.optim.Adam(head.parameters())
    loader = watch(DataLoader(Scenes(), batch_size=88, shuffle=True, num_workers=1, collate_fn=as_it_is))
    wait = step = made = 0.0
    n = 0
    start = t0 = time.perf_counter()
    for rows in loader:
        t1 = time.perf_counter()
        x = torch.cat([r["features"] for r in rows])
        cls, box = head(x)
        loss = nn.functional.cross_entropy(cls, torch.cat([r["labels"] for r in rows]))
        loss = loss + (box - torch.cat([r["boxes"] for r in rows])).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        made += sum(r["spent"] for r in rows)
        t2 = time.perf_counter()
        wait, step, n, t0 = wait + t1 - t0, step + t2 - t1, n + 1, t2
        if t2 - start > 25:
            break
    wall = time.perf_counter() - start
    tell(steps=n, wall=wall, step=step, waiting=wait, cause=wait - made, made_in_worker=made)
