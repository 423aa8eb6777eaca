"""Meta-learned regression; a thread validates the newest weights while training goes on, and guards them by a lock."""
import threading
import time

import torch
from torch import nn

from case import folder, tell, watch

CAUSE = "waiting/lock"
RANKS = 1
BORDERLINE = False


class Validator(threading.Thread):
    """Validates whenever the trainer asks for it; the weights must not change under it."""

    def __init__(self, model, weights):
        super().__init__(daemon=True)
        self.model, self.weights = model, weights
        self.due, self.curve, self.holding = threading.Event(), [], 0.0
        g = torch.Generator().manual_seed(9)
        self.x = torch.rand(48, 4096, 2, generator=g) * 6 - 3
        self.y = torch.sin(self.x[..., :1]) * torch.cos(self.x[..., 1:])

    def run(self):
        while True:
            self.due.wait()
            self.due.clear()
            with self.weights:
                began = time.perf_counter()
                with torch.no_grad():
                    losses = [nn.functional.mse_loss(self.model(x), y).item() for x, y in zip(self.x, self.y, strict=True)]
                self.holding += time.perf_counter() - began
            self.curve.append(sum(losses) / len(losses))


def tasks(batch=512):
    g = torch.Generator().manual_seed(1)
    while True:
        x = torch.rand(batch, 2, generator=g) * 6 - 3
        yield x, torch.sin(x[:, :1]) * torch.cos(x[:, 1:])


def main():
    torch.set_num_threads(1)
    root = folder()
    model = nn.Sequential(nn.Linear(2, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 1))
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    weights = threading.Lock()
    validator = Validator(model, weights)
    validator.start()
    step = waiting = blocked = 0.0
    n, start = 0, time.perf_counter()
    mark = start
    for x, y in watch(tasks()):
        got = time.perf_counter()
        nn.functional.mse_loss(model(x), y).backward()
        asked = time.perf_counter()
        with weights:
            blocked += time.perf_counter() - asked
            opt.step()
            opt.zero_grad()
        n += 1
        if n % 8 == 0:
            validator.due.set()
        waiting += got - mark
        mark = time.perf_counter()
        step += mark - got
        if mark - start > 24:
            break
    wall = time.perf_counter() - start
    torch.save(model.state_dict(), root / "last.pt")
    tell(wall=wall, steps=n, step=step - blocked, waiting=waiting, cause=blocked, validating=validator.holding, validations=len(validator.curve))


if __name__ == "__main__":
    main()
