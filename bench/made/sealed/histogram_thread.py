"""A thread writes histograms of the weights, compressed by LZMA, and holds the lock of the metrics meanwhile; each step wants that lock to add its loss."""
import lzma
import threading
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from case import folder, tell, watch

CAUSE = "waiting/lock"
RANKS = 1
BORDERLINE = False


class Metrics:
    def __init__(self, path, model):
        self.path, self.model = path, model
        self.lock, self.losses, self.waited, self.stop = threading.Lock(), [], [], threading.Event()
        self.wanted = threading.Semaphore(0)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def add(self, loss):
        start = time.perf_counter()
        with self.lock:
            self.waited.append(time.perf_counter() - start)
            self.losses.append(loss)
        self.wanted.release()

    def run(self):
        while True:
            self.wanted.acquire()
            if self.stop.is_set():
                return
            with self.lock:
                weights = torch.cat([p.detach().flatten() for p in self.model.parameters()]).numpy()
                packed = lzma.compress((weights * 1000).astype(np.int16).tobytes()[:500_000], preset=1)
                self.path.write_bytes(packed)

    def close(self):
        self.stop.set()
        self.wanted.release()
        self.thread.join()


def main():
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(8000, 256), torch.randint(0, 20, (8000,)))
    model = nn.Sequential(nn.Linear(256, 700), nn.ReLU(), nn.Linear(700, 200), nn.ReLU(), nn.Linear(200, 20))
    optimizer = torch.optim.Adam(model.parameters())
    metrics = Metrics(folder() / "histograms.xz", model)
    waits, steps = [], []
    watched = watch(DataLoader(data, batch_size=128, shuffle=True))
    begin = time.perf_counter()
    while time.perf_counter() - begin < 21.5:
        last = time.perf_counter()
        for x, y in watched:
            waits.append(time.perf_counter() - last)
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            metrics.add(loss.item())
            now = time.perf_counter()
            steps.append(now - last)
            last = now
            if now - begin > 21.5:
                break
    metrics.close()
    tell(step_s=np.mean(steps[10:]), waiting_for_input_s=np.mean(waits[10:]), cause_s=np.mean(metrics.waited[10:]), steps=len(steps))


if __name__ == "__main__":
    main()
