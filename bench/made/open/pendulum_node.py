"""A neural ODE, integrated by 40 Runge-Kutta steps and differentiated through them; trajectories come from a thread
with a queue, always in time."""
CAUSE = "compute/compute"
RANKS = 1
BORDERLINE = False

import queue
import threading
import time

import numpy as np
import torch
from torch import nn

from case import tell, watch

T, DT, BATCH, STEPS = 40, 0.05, 256, 420


def simulate(count):
    rng = np.random.default_rng(6)
    state = rng.uniform(-2, 2, (count, 2))
    path = [state]
    for _ in range(T):
        for _ in range(10):
            state = state + DT / 10 * np.stack([state[:, 1], -np.sin(state[:, 0]) - 0.1 * state[:, 1]], 1)
        path.append(state)
    return np.stack(path, 1).astype(np.float32)


class Prefetched:
    def __init__(self, paths):
        self.paths = paths

    def fill(self, ready):
        rng = np.random.default_rng(0)
        for _ in range(STEPS):
            ready.put(torch.from_numpy(self.paths[rng.integers(0, len(self.paths), BATCH)]))
        ready.put(None)

    def __iter__(self):
        ready = queue.Queue(4)
        thread = threading.Thread(target=self.fill, args=(ready,), daemon=True)
        thread.start()
        while (batch := ready.get()) is not None:
            yield batch
        thread.join()


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))

    def rk4(self, x):
        a = self.net(x)
        b = self.net(x + DT / 2 * a)
        c = self.net(x + DT / 2 * b)
        d = self.net(x + DT * c)
        return x + DT / 6 * (a + 2 * b + 2 * c + d)

    def forward(self, x):
        path = [x]
        for _ in range(T):
            path.append(self.rk4(path[-1]))
        return torch.stack(path, 1)


def main():
    torch.set_num_threads(1)
    loader = watch(Prefetched(simulate(8000)))
    field = Field()
    adam = torch.optim.Adam(field.parameters(), 1e-3)
    forward_s = backward_s = update_s = wait_s = 0.0
    start = t0 = time.perf_counter()
    for truth in loader:
        t1 = time.perf_counter()
        loss = (field(truth[:, 0]) - truth).abs().mean()
        t2 = time.perf_counter()
        adam.zero_grad()
        loss.backward()
        t3 = time.perf_counter()
        nn.utils.clip_grad_norm_(field.parameters(), 1.0)
        adam.step()
        t4 = time.perf_counter()
        wait_s, forward_s, backward_s, update_s = wait_s + t1 - t0, forward_s + t2 - t1, backward_s + t3 - t2, update_s + t4 - t3
        t0 = t4
    wall = time.perf_counter() - start
    tell(steps=STEPS, wall_s=wall, step_s=forward_s + backward_s + update_s, wait_s=wait_s, forward_s=forward_s, backward_s=backward_s)


if __name__ == "__main__":
    main()
