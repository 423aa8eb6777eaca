"""Few-shot episodes: a pass has ten batches, and the two spawned workers are started anew (and import torch) for each pass."""

import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

from case import folder, tell, watch

CAUSE = "waiting/worker_start"
RANKS = 1
BORDERLINE = False

PASSES = 9


class Glyphs(Dataset):
    def __init__(self) -> None:
        self.strokes = np.random.default_rng(0).normal(size=(60, 28, 28)).astype(np.float32)

    def __len__(self) -> int:
        return 60 * 20

    def __getitem__(self, i):
        return torch.from_numpy(np.rot90(self.strokes[i // 20], i % 4).copy())[None], i // 20


class Episodes(Sampler):
    """Batches of five classes with four samples each."""

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return self.batches

    def __iter__(self):
        for _ in range(self.batches):
            classes = torch.randperm(60)[:5].tolist()
            yield [c * 20 + s for c in classes for s in torch.randperm(20)[:4].tolist()]


def main() -> None:
    torch.set_num_threads(1)
    folder()
    loader = DataLoader(Glyphs(), batch_sampler=Episodes(10), num_workers=2, multiprocessing_context="spawn")
    net = nn.Sequential(nn.Conv2d(1, 32, 3, stride=2), nn.ReLU(), nn.Conv2d(32, 32, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(60))
    net(torch.zeros(1, 1, 28, 28))
    optimizer = torch.optim.Adam(net.parameters())
    watched = watch(loader)
    step_s, wait_s, first_s = [], [], []
    for _ in range(PASSES):
        last = time.perf_counter()
        for k, (images, labels) in enumerate(watched):
            got = time.perf_counter()
            for _ in range(3):
                loss = nn.functional.cross_entropy(net(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            now = time.perf_counter()
            step_s.append(now - last)
            wait_s.append(got - last)
            if k == 0:
                first_s.append(got - last)
            last = now
    n = len(step_s) - 10
    tell(step_s=sum(step_s[10:]) / n, waiting_for_input_s=sum(wait_s[10:]) / n, cause_s=sum(first_s[1:]) / n, steps=n)


if __name__ == "__main__":
    main()
