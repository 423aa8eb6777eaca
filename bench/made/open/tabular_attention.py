"""A transformer over the columns of a table of loans that lies in memory as tensors, by a plain DataLoader: forward and
backward take the time."""
CAUSE = "compute/compute"
RANKS = 1
BORDERLINE = False

from time import perf_counter

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from case import tell, watch

COLUMNS, WIDTH = 24, 64


class FeatureTokens(nn.Module):
    """A token for each column: its value times a learned vector, plus a bias."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(COLUMNS, WIDTH) * 0.1)
        self.shift = nn.Parameter(torch.zeros(COLUMNS, WIDTH))
        self.cls = nn.Parameter(torch.zeros(1, 1, WIDTH))

    def forward(self, x):
        tokens = x[..., None] * self.scale + self.shift
        return torch.cat([self.cls.expand(len(x), -1, -1), tokens], 1)


class TableTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = FeatureTokens()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 128, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2))

    def forward(self, x):
        return self.head(self.encoder(self.tokens(x))[:, 0])


def loans(count):
    x = torch.randn(count, COLUMNS)
    y = ((x[:, 0] * x[:, 1] + x[:, 2:5].sum(1) + torch.randn(count) * 0.3) > 0).long()
    return TensorDataset(x, y)


def main(budget_s=24.0):
    torch.set_num_threads(1)
    torch.manual_seed(42)
    train, _ = random_split(loans(60_000), [55_000, 5_000])
    loader = watch(DataLoader(train, batch_size=128, shuffle=True, drop_last=True))
    model = TableTransformer()
    optimizer = torch.optim.AdamW(model.parameters(), 5e-4, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=100)
    steps, step_s, wait_s, running = 0, 0.0, 0.0, 0.0
    start = last = perf_counter()
    done = False
    while not done:
        for x, y in loader:
            got = perf_counter()
            wait_s += got - last
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            running = 0.95 * running + 0.05 * loss.item()
            steps += 1
            last = perf_counter()
            step_s += last - got
            done = steps >= 100 and last - start > budget_s
            if done:
                break
    tell(steps=steps, wall_s=perf_counter() - start, step_s=step_s, wait_s=wait_s, loss=running)


if __name__ == "__main__":
    main()
