"""A robot's gripper: will it slip? A batch is a dictionary of all signals of its bus, each by its name."""
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import applied, long_enough, tell, watch

CAUSE = "preprocessing/hand_over"
RANKS = 1

SIGNALS, TIMES, BATCH = 300, 24, 16
NAMES = [f"bus/{i // 20}/signal/{i % 20}" for i in range(SIGNALS)]


class Batches(Dataset):
    """A sample of it is a whole batch: the recorder stores them so."""

    def __init__(self):
        self.signals = torch.randn(SIGNALS, 4096, TIMES, generator=torch.Generator().manual_seed(1))
        if applied("smaller_tensors", False):
            self.signals = self.signals.half()

    def __len__(self):
        return 1000000

    def __getitem__(self, i):
        rows = slice(i % 255 * BATCH, i % 255 * BATCH + BATCH)
        slips = (torch.arange(rows.start, rows.stop) % 3 == 0).float()
        if applied("fewer_tensors", False):
            return self.signals[:, rows].clone(), slips
        return {name: self.signals[k, rows].clone() for k, name in enumerate(NAMES)}, slips


def main():
    torch.set_num_threads(applied("fewer_threads", 1))
    loader = DataLoader(
        Batches(), batch_size=None, num_workers=applied("more_workers", 1), prefetch_factor=applied("longer_queue", 2),
        persistent_workers=applied("staying_workers", False),
    )
    model = nn.Sequential(nn.Conv1d(SIGNALS, 64, 5, padding=2), nn.ReLU(), nn.Flatten(), nn.Linear(64 * TIMES, 1))
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    marks = []
    for signals, slips in watch(loader):
        if isinstance(signals, dict):
            signals = torch.stack([signals[name] for name in NAMES])
        loss = nn.functional.binary_cross_entropy_with_logits(model(signals.float().transpose(0, 1))[:, 0], slips)
        opt.zero_grad()
        loss.backward()
        opt.step()
        marks.append(time.perf_counter())
        if long_enough(marks):
            break
    tell(step_s=(marks[-1] - marks[9]) / (len(marks) - 10), steps=len(marks) - 10)


if __name__ == "__main__":
    main()
