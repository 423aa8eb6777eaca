"""A recogniser whose loss is a forward algorithm written as a loop over frames, with thousands of little tensor operations a step; its two workers have time."""
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch

CAUSE = "compute/compute"
RANKS = 1
BORDERLINE = False


class Utterances(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(i)
        return torch.randn(180, 24, generator=generator), torch.randint(1, 30, (14,), generator=generator)


def forward_score(log_probs, labels):
    """-log P(labels), as CTC has it: blanks between the labels."""
    batch, frames, _ = log_probs.shape
    states = torch.zeros(batch, 2 * labels.shape[1] + 1, dtype=torch.long)
    states[:, 1::2] = labels
    skip = torch.zeros_like(states, dtype=torch.bool)
    skip[:, 3::2] = labels[:, 1:] != labels[:, :-1]
    low = torch.full((batch, 1), -1e9)
    emitted = log_probs.gather(2, states[:, None].expand(-1, frames, -1))
    alpha = torch.cat([emitted[:, 0, :2], low.expand(-1, states.shape[1] - 2)], 1)
    for frame in range(1, frames):
        one = torch.cat([low, alpha[:, :-1]], 1)
        two = torch.where(skip, torch.cat([low, low, alpha[:, :-2]], 1), low)
        alpha = torch.logsumexp(torch.stack([alpha, one, two]), 0) + emitted[:, frame]
    return -torch.logsumexp(alpha[:, -2:], 1).mean()


def main():
    folder()
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 30), nn.LogSoftmax(-1))
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    loader = DataLoader(Utterances(), batch_size=16, shuffle=True, num_workers=2, persistent_workers=True)
    n, wait, step, body = 0, 0.0, 0.0, 0.0
    watched = watch(loader)
    begin = time.perf_counter()
    while time.perf_counter() - begin < 21.5:
        last = time.perf_counter()
        for x, y in watched:
            got = time.perf_counter()
            loss = forward_score(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            now = time.perf_counter()
            n, wait, step, body = n + 1, wait + got - last, step + now - last, body + now - got
            last = now
            if now - begin > 21.5:
                break
    tell(step_s=step / n, waiting_for_input_s=wait / n, cause_s=body / n, steps=n)


if __name__ == "__main__":
    main()
