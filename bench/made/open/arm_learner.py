"""Off-policy learner for a robot arm: the controller process shares the weights and holds their lock during each
control period; optimizer.step() in the loop's body waits for it."""
import multiprocessing as mp
import time
from collections import deque

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, IterableDataset

from case import tell, watch

CAUSE = "waiting/lock"
RANKS = 1
BORDERLINE = False


class Replay(IterableDataset):
    def __init__(self, size=20000, batch=256, batches=420):
        g = torch.Generator().manual_seed(3)
        self.obs, self.act = torch.randn(size, 48, generator=g), torch.rand(size, 7, generator=g)
        self.ret = self.obs[:, :7].sum(1, keepdim=True) * 0.1 + self.act.sum(1, keepdim=True)
        self.batch, self.batches = batch, batches

    def __iter__(self):
        for _ in range(self.batches):
            pick = torch.randint(len(self.obs), (self.batch,))
            yield self.obs[pick], self.act[pick], self.ret[pick]


def controller(weights, lock, stop):
    """Runs on the arm's side: nobody may change the weights within one control period."""
    rng = np.random.default_rng(0)
    while not stop.is_set():
        lock.acquire()
        for _ in range(10):  # ten ticks of the servo bus, 9 ms each
            obs = rng.standard_normal(55).astype(np.float32)
            np.tanh(weights.numpy()[:, :55] @ obs)
            time.sleep(0.009)
        lock.release()
        time.sleep(0.006)


if __name__ == "__main__":
    torch.set_num_threads(1)
    critic = nn.Sequential(nn.Linear(55, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 1))
    critic.share_memory()
    guard, stop = mp.Lock(), mp.Event()
    arm = mp.Process(target=controller, args=(critic[0].weight.detach(), guard, stop), daemon=True)
    arm.start()
    optimizer = torch.optim.Adam(critic.parameters(), lr=3e-4)
    batches = watch(DataLoader(Replay(), batch_size=None))
    waits, computes, locks, losses = [], [], [], deque(maxlen=20)
    start = last = time.perf_counter()
    for obs, act, ret in batches:
        got = time.perf_counter()
        loss = nn.functional.smooth_l1_loss(critic(torch.cat([obs, act], 1)), ret)
        optimizer.zero_grad()
        loss.backward()
        before = time.perf_counter()
        with guard:
            held = time.perf_counter()
            optimizer.step()
        losses.append(loss.item())
        now = time.perf_counter()
        waits.append(got - last), locks.append(held - before), computes.append(now - got - (held - before))
        last = now
    wall = time.perf_counter() - start
    stop.set()
    arm.join()
    tell(wall=wall, steps=len(locks), step=sum(computes), waiting=sum(waits), cause=sum(locks))
