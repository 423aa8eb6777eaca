"""A home-made prefetcher: its thread looks every 0.2 s whether the buffer of one batch is empty, and the loop's side looks every 50 ms whether it is full."""
import threading
import time

import numpy as np
import torch
from torch import nn

from case import folder, tell, watch

CAUSE = "waiting/sleep"
RANKS = 1
BORDERLINE = False


class Prefetcher:
    def __init__(self, path, batch_size):
        self.data = np.load(path)
        self.batch_size = batch_size
        self.buffer = []
        self.running = True
        self.made_s = []
        self.slept_s = 0.0
        self.thread = threading.Thread(target=self.fill, daemon=True)
        self.thread.start()

    def fill(self):
        rng = np.random.default_rng(0)
        while self.running:
            if self.buffer:
                time.sleep(0.2)
                continue
            start = time.perf_counter()
            rows = self.data[rng.integers(0, len(self.data), self.batch_size)].astype(np.float32)
            rows += rng.normal(0, 0.1, rows.shape)
            self.buffer.append(torch.from_numpy((rows - rows.mean(1, keepdims=True)).astype(np.float32)))
            self.made_s.append(time.perf_counter() - start)

    def __iter__(self):
        return self

    def __next__(self):
        while not self.buffer:
            start = time.perf_counter()
            time.sleep(0.05)
            self.slept_s += time.perf_counter() - start
        return self.buffer.pop()


def main():
    path = folder() / "rows.npy"
    np.save(path, np.random.default_rng(2).normal(size=(20_000, 96)).astype(np.float16))
    torch.set_num_threads(1)
    coder = nn.Sequential(nn.Linear(96, 256), nn.ReLU(), nn.Linear(256, 8), nn.ReLU(), nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 96))
    optimizer = torch.optim.Adam(coder.parameters())
    source = Prefetcher(path, 256)
    waits, steps = [], []
    begin = last = time.perf_counter()
    for x in watch(source):
        waits.append(time.perf_counter() - last)
        for _ in range(2):
            loss = nn.functional.mse_loss(coder(x), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        now = time.perf_counter()
        steps.append(now - last)
        last = now
        if now - begin > 21.5 and len(steps) > 80:
            break
    source.running = False
    source.thread.join()
    tell(step_s=np.mean(steps[10:]), waiting_for_input_s=np.mean(waits[10:]), cause_s=source.slept_s / len(steps), making_a_batch_s=np.mean(source.made_s), steps=len(steps))


if __name__ == "__main__":
    main()
