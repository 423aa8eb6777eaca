"""Model, its moving average and the optimizer are saved each second step, each time durably: torch.save, fsync, rename."""
import copy
import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch

CAUSE = "waiting/checkpoint"
RANKS = 1
BORDERLINE = False


class Random(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, i):
        x = torch.full((64,), i % 7 / 7.0)
        return x, x.sin()


class Saver:
    def __init__(self, root, every, keep=2):
        self.root, self.every, self.keep, self.kept, self.seconds = root, every, keep, [], 0.0

    def __call__(self, step, **states):
        if step % self.every:
            return
        start = time.perf_counter()
        target = self.root / f"step{step:06d}.pt"
        part = target.with_suffix(".part")
        with part.open("wb") as file:
            torch.save({"step": step, **{name: one.state_dict() for name, one in states.items()}}, file)
            file.flush()
            os.fsync(file.fileno())
        part.rename(target)
        self.kept.append(target)
        while len(self.kept) > self.keep:
            self.kept.pop(0).unlink()
        self.seconds += time.perf_counter() - start


def main():
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 1600), nn.ReLU(), nn.Linear(1600, 1600), nn.ReLU(), nn.Linear(1600, 64))
    average = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    save = Saver(folder(), 2)
    loader = DataLoader(Random(), batch_size=16, num_workers=1)
    n, wait, step = 0, 0.0, 0.0
    begin = last = time.perf_counter()
    for x, y in watch(loader):
        got = time.perf_counter()
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        n += 1
        if n % 2 == 0:
            with torch.no_grad():
                torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.001)
        save(n, model=model, average=average, optimizer=optimizer)
        now = time.perf_counter()
        wait, step = wait + got - last, step + now - last
        last = now
        if now - begin > 21.5 and n > 80:
            break
    tell(step_s=step / n, waiting_for_input_s=wait / n, cause_s=save.seconds / n, steps=n)


if __name__ == "__main__":
    main()
