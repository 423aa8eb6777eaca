"""Sleep stages from EEG epochs of unequal length: the batch is padded as Python lists and made a tensor of them."""
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

from case import folder, tell, watch

CAUSE = "preprocessing/collate"
RANKS = 1
BORDERLINE = False

SPENT = torch.zeros(2, 2, dtype=torch.float64).share_memory_()


class Epochs(Dataset):
    def __init__(self, root, nights=8):
        rng = np.random.default_rng(14)
        self.nights = []
        for k in range(nights):
            np.save(root / f"night{k}.npy", rng.normal(0, 30, (4, 400_000)).astype(np.float32))
            self.nights.append(np.load(root / f"night{k}.npy", mmap_mode="r"))

    def __len__(self):
        return 50_000

    def __getitem__(self, i):
        began = time.perf_counter()
        rng = np.random.default_rng(i)
        night, length = self.nights[i % len(self.nights)], int(rng.integers(2400, 3000))
        at = int(rng.integers(0, night.shape[1] - length))
        epoch = np.array(night[:, at : at + length])
        SPENT[get_worker_info().id, 0] += time.perf_counter() - began
        return epoch / 30, i % 5


def collate(rows):
    began = time.perf_counter()
    longest = max(signal.shape[1] for signal, _ in rows)
    padded = []
    for signal, _ in rows:
        padded.append([lead + [0.0] * (longest - len(lead)) for lead in signal.tolist()])
    batch = torch.tensor(padded), torch.tensor([stage for _, stage in rows])
    SPENT[get_worker_info().id, 1] += time.perf_counter() - began
    return batch


def main():
    torch.set_num_threads(1)
    loader = DataLoader(Epochs(folder()), batch_size=48, shuffle=True, num_workers=2, collate_fn=collate)
    model = nn.Sequential(
        nn.Conv1d(4, 8, 25, 12), nn.ReLU(), nn.Conv1d(8, 16, 9, 4), nn.ReLU(), nn.AdaptiveAvgPool1d(8), nn.Flatten(), nn.Linear(128, 5)
    )
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    step = waiting = 0.0
    n, start = 0, time.perf_counter()
    mark = start
    for signal, stage in watch(loader):
        got = time.perf_counter()
        loss = nn.functional.cross_entropy(model(signal), stage)
        opt.zero_grad()
        loss.backward()
        opt.step()
        n += 1
        waiting += got - mark
        mark = time.perf_counter()
        step += mark - got
        if mark - start > 23:
            break
    wall = time.perf_counter() - start
    tell(wall=wall, steps=n, step=step, waiting=waiting, cause=float(SPENT[:, 1].sum()) / 2, samples_and_collate=SPENT.tolist())


if __name__ == "__main__":
    main()
