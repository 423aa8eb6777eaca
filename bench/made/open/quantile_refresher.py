"""Ad clicks with a feature table in shared memory: a process beside works out quantiles of it again and again and holds
the table's lock meanwhile, and both loader workers wait for that lock."""
CAUSE = "waiting/lock"
RANKS = 1
BORDERLINE = False

import multiprocessing
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

from case import tell, watch

ADS, FEATURES = 20_000, 20


def view(raw):
    return np.frombuffer(raw, np.float32).reshape(ADS, FEATURES)


def refresh(raw, lock, stop):
    """Keeps quantiles of each feature up to date, of a state of the table that does not change meanwhile."""
    table, deciles = view(raw), {}
    while not stop.is_set():
        with lock:
            for feature in range(FEATURES):
                ordered = sorted(table[:, feature].tolist())
                deciles[feature] = ordered[:: ADS // 10]
        spread = sorted(value for values in deciles.values() for value in values for _ in range(50))
        del spread


class Clicks(Dataset):
    def __init__(self, raw, lock):
        self.raw, self.lock = raw, lock

    def __len__(self):
        return ADS * 16

    def __getitem__(self, rows):
        rows = np.asarray(rows) % ADS
        asked = time.perf_counter()
        with self.lock:
            held = time.perf_counter()
            features = view(self.raw)[rows]
        return torch.from_numpy(features), torch.from_numpy(rows % 2).float(), held - asked


def main():
    torch.set_num_threads(1)
    raw = multiprocessing.RawArray("f", ADS * FEATURES)
    view(raw)[:] = np.random.default_rng(0).normal(size=(ADS, FEATURES))
    lock, stop = multiprocessing.Lock(), multiprocessing.Event()
    beside = multiprocessing.Process(target=refresh, args=(raw, lock, stop), daemon=True)
    beside.start()
    clicks = Clicks(raw, lock)
    batches = BatchSampler(RandomSampler(clicks), 256, drop_last=True)
    loader = watch(DataLoader(clicks, sampler=batches, batch_size=None, num_workers=2, prefetch_factor=1))
    net = nn.Sequential(nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
    opt = torch.optim.Adagrad(net.parameters(), 0.01)
    times = {"step_s": 0.0, "wait_s": 0.0, "lock_s_per_worker": 0.0}
    steps, start = 0, time.perf_counter()
    last = start
    for features, clicked, waited in loader:
        got = time.perf_counter()
        times["wait_s"] += got - last
        opt.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(net(features)[:, 0], clicked).backward()
        opt.step()
        steps += 1
        times["lock_s_per_worker"] += waited / 2
        last = time.perf_counter()
        times["step_s"] += last - got
        if steps >= 100 and last - start > 24:
            break
    tell(steps=steps, wall_s=time.perf_counter() - start, **times)
    stop.set()
    beside.join()


if __name__ == "__main__":
    main()
