"""Bearing-fault net on vibration windows. A historian job keeps the store locked (flock) while it appends, and the
DataLoader's workers, who take the lock shared for every window, stand still meanwhile."""
import fcntl
import multiprocessing as mp
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch

CAUSE = "waiting/lock"
RANKS = 1
BORDERLINE = False
WINDOW, ROWS = 2048, 6000


def historian(store):
    """Another department's job: appends and verifies under the exclusive lock (its plant link is slow)."""
    rng = np.random.default_rng(1)
    while True:
        with open(store / "store.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with open(store / "tail.f32", "ab") as tail:
                tail.write(rng.standard_normal(4096, dtype=np.float32).tobytes())
            time.sleep(0.28)  # the plant's controller acknowledges
            fcntl.flock(lock, fcntl.LOCK_UN)
        time.sleep(0.012)


class Windows(Dataset):
    def __init__(self, store):
        self.store, self.labels = store, np.load(store / "labels.npy")

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        began = time.perf_counter()
        with open(self.store / "store.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            waited = time.perf_counter() - began
            with open(self.store / "windows.f32", "rb", buffering=0) as data:
                data.seek(index * WINDOW * 4)
                raw = data.read(WINDOW * 4)
        signal = torch.frombuffer(bytearray(raw), dtype=torch.float32).view(1, WINDOW)
        return signal, int(self.labels[index]), waited


def main():
    torch.set_num_threads(1)
    store = folder()
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, ROWS)
    with open(store / "windows.f32", "wb") as data:
        for label in labels:
            wave = np.sin(np.arange(WINDOW) * 0.02 * (1 + label)) + rng.standard_normal(WINDOW)
            data.write(wave.astype(np.float32).tobytes())
    np.save(store / "labels.npy", labels)
    (store / "store.lock").touch()
    job = mp.Process(target=historian, args=(store,), daemon=True)
    job.start()

    net = nn.Sequential(nn.Conv1d(1, 16, 31, 4), nn.ReLU(), nn.Conv1d(16, 32, 9, 4), nn.ReLU(),
                        nn.AdaptiveAvgPool1d(8), nn.Flatten(), nn.Linear(256, 4))
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    loader = watch(DataLoader(Windows(store), batch_size=32, shuffle=True, num_workers=2))
    step = wait = locked = 0.0
    n, began = 0, time.perf_counter()
    while time.perf_counter() - began < 20:
        t = time.perf_counter()
        for x, y, waited in loader:
            wait += time.perf_counter() - t
            s = time.perf_counter()
            opt.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            opt.step()
            locked += waited.sum().item()
            n += 1
            t = time.perf_counter()
            step += t - s
    wall = time.perf_counter() - began
    job.kill()
    job.join()
    tell(wall=wall, steps=n, step=step, waiting=wait, cause=locked / 2, cause_is="flock, mean of the two workers")


if __name__ == "__main__":
    main()
