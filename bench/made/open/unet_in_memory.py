"""A small U-Net on images that lie in memory: the loop computes nearly all the time, on both cores."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from case import folder, tell, watch

CAUSE = "compute/compute"
RANKS = 1
BORDERLINE = False


def block(inside: int, outside: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(inplace=True))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = block(1, 16), block(16, 32), block(32, 64)
        self.down = nn.MaxPool2d(2)
        self.up = nn.Upsample(scale_factor=2)
        self.d, self.e, self.out = block(96, 32), block(48, 16), nn.Conv2d(16, 1, 1)

    def forward(self, x):
        a = self.a(x)
        b = self.b(self.down(a))
        c = self.c(self.down(b))
        d = self.d(torch.cat([self.up(c), b], 1))
        return self.out(self.e(torch.cat([self.up(d), a], 1)))


def main() -> None:
    torch.set_num_threads(2)
    folder()
    images = torch.randn(400, 1, 128, 128)
    data = TensorDataset(images, (images.roll(3, 2) > 0.5).float())
    model = UNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = watch(DataLoader(data, batch_size=8, shuffle=True))
    rows = []
    begun = time.perf_counter()
    while len(rows) < 80 or time.perf_counter() - begun < 22:
        last = time.perf_counter()
        for x, y in loader:
            got = time.perf_counter()
            loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            now = time.perf_counter()
            rows.append((now - last, got - last, now - got))
            last = now
    rows = torch.tensor(rows[10:], dtype=torch.float64)
    step_s, wait_s, compute_s = rows.mean(0).tolist()
    tell(step_s=step_s, waiting_for_input_s=wait_s, cause_s=compute_s, steps=len(rows))


if __name__ == "__main__":
    main()
