"""Nowcasting of rain: an hour of radar pictures gives the next one. All pictures are in memory; the batches are arrays, as
the evaluation in numpy wants them too."""
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import applied, long_enough, tell, watch

CAUSE = "preprocessing/hand_over"
RANKS = 1

PICTURES, SIDE, HOUR, BATCH = 160, 320, 12, 6
KIND = np.uint8 if applied("smaller_tensors", False) else np.float32


class Hours(Dataset):
    def __init__(self):
        rng = np.random.default_rng(12)
        rain = rng.gamma(0.3, 20, (PICTURES // 4, SIDE, SIDE)).clip(0, 255).repeat(4, 0)
        self.pictures = rain.astype(KIND)

    def __len__(self):
        return 1000000

    def __getitem__(self, i):
        start = i * 37 % (PICTURES - HOUR - 1)
        return self.pictures[start : start + HOUR + 1]


def arrays(hours):
    return np.stack(hours)


def tensors(hours):
    return torch.utils.data.default_collate([torch.from_numpy(hour) for hour in hours])


def main():
    torch.set_num_threads(applied("fewer_threads", 1))
    loader = DataLoader(
        Hours(), batch_size=BATCH, num_workers=applied("more_workers", 1), prefetch_factor=applied("longer_queue", 2),
        persistent_workers=applied("staying_workers", False), collate_fn=tensors if applied("cheaper_collate", False) else arrays,
    )
    model = nn.Sequential(nn.Conv2d(HOUR, 24, 8, 8), nn.ReLU(), nn.Conv2d(24, 64, 3, 1, 1), nn.PixelShuffle(8))
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    marks = []
    for hours in watch(loader):
        hours = torch.as_tensor(hours)
        past, future = hours[:, :HOUR].float() / 255, hours[:, HOUR:].float() / 255
        loss = nn.functional.mse_loss(model(past), future)
        opt.zero_grad()
        loss.backward()
        opt.step()
        marks.append(time.perf_counter())
        if long_enough(marks):
            break
    tell(step_s=(marks[-1] - marks[9]) / (len(marks) - 10), steps=len(marks) - 10)


if __name__ == "__main__":
    main()
