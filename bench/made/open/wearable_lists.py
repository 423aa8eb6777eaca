"""Windows of a wearable that lie in memory as lists of rows of floats; the collate function pads the lists and calls
torch.tensor on them, which takes the worker's time."""
CAUSE = "preprocessing/collate"
RANKS = 1
BORDERLINE = False

import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from case import tell, watch

CHANNELS = 6


def recordings(count=1500):
    rng = np.random.default_rng(2)
    windows = []
    for i in range(count):
        length = int(rng.integers(250, 500))
        values = rng.normal(0, 1 + i % 4, (length, CHANNELS)).round(4)
        windows.append({"rows": values.tolist(), "activity": i % 4})
    return windows


class Endless:
    """Map-style: the sample is what lies in the list, nothing is computed on it."""

    def __init__(self, windows, length):
        self.windows, self.length = windows, length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        return self.windows[i % len(self.windows)]


def pad_rows(samples):
    began = time.perf_counter()
    longest = max(len(sample["rows"]) for sample in samples)
    padded, mask = [], []
    for sample in samples:
        missing = longest - len(sample["rows"])
        padded.append(sample["rows"] + [[0.0] * CHANNELS for _ in range(missing)])
        mask.append([1.0] * len(sample["rows"]) + [0.0] * missing)
    x = torch.tensor(padded).transpose(1, 2).contiguous()
    batch = {"x": x, "mask": torch.tensor(mask), "activity": torch.tensor([s["activity"] for s in samples])}
    return batch | {"collate_s": time.perf_counter() - began}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv1d(CHANNELS, 12, 9, stride=4, padding=4)
        self.b = nn.Linear(12, 4)

    def forward(self, x, mask):
        h = torch.relu(self.a(x))
        m = nn.functional.interpolate(mask[:, None], size=h.shape[-1])
        return self.b((h * m).sum(-1) / m.sum(-1))


def train():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = Endless(recordings(), 96 * 400)
    loader = watch(DataLoader(data, batch_size=96, shuffle=True, num_workers=1, collate_fn=pad_rows))
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    times = {"step_s": 0.0, "wait_s": 0.0, "collate_s": 0.0}
    steps = 0
    first = previous = time.perf_counter()
    for batch in loader:
        here = time.perf_counter()
        times["wait_s"] += here - previous
        loss = nn.functional.cross_entropy(net(batch["x"], batch["mask"]), batch["activity"])
        opt.zero_grad()
        loss.backward()
        opt.step()
        steps += 1
        times["collate_s"] += batch["collate_s"]
        previous = time.perf_counter()
        times["step_s"] += previous - here
        if steps > 100 and previous - first > 25:
            break
    tell(steps=steps, wall_s=time.perf_counter() - first, **times)


if __name__ == "__main__":
    train()
