"""A thread exports the weights again and again under the model's lock; the training step waits for that lock."""

import bz2
import threading
import time

import torch
from torch import nn

from case import folder, tell, watch

CAUSE = "waiting/lock"
RANKS = 1
BORDERLINE = False


class Exporter(threading.Thread):
    """Keeps a compressed copy of the weights for the serving side."""

    def __init__(self, model: nn.Module, lock: threading.Lock) -> None:
        super().__init__(daemon=True)
        self.model, self.lock, self.stopped = model, lock, threading.Event()
        self.latest = b""
        self.exports = 0

    def run(self) -> None:
        while not self.stopped.is_set():
            with self.lock:
                flat = torch.cat([p.detach().flatten() for p in self.model.parameters()])
                self.latest = bz2.compress(flat[:400_000].numpy().tobytes())  # without Python's lock
                self.exports += 1
            self.stopped.wait(0.02)


def batches(count: int, size: int):
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(20_000, 128, generator=generator)
    for i in range(count):
        rows = torch.randint(0, len(table), (size,), generator=generator)
        yield table[rows], rows % 10


class Stream:
    def __init__(self, count, size) -> None:
        self.count, self.size = count, size

    def __len__(self) -> int:
        return self.count

    def __iter__(self):
        return batches(self.count, self.size)


def main() -> None:
    torch.set_num_threads(1)
    folder()
    model = nn.Sequential(nn.Linear(128, 2048), nn.ReLU(), nn.Linear(2048, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    lock = threading.Lock()
    exporter = Exporter(model, lock)
    exporter.start()
    waited = locked = whole = 0.0
    n = 0
    begun = asked = time.perf_counter()
    for step, (x, y) in enumerate(watch(Stream(4000, 256))):
        got = time.perf_counter()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        before = time.perf_counter()
        with lock:
            entered = time.perf_counter()
            optimizer.step()
            optimizer.zero_grad()
        end = time.perf_counter()
        if step >= 10:
            n += 1
            whole += end - asked
            waited += got - asked
            locked += entered - before
        asked = end
        if n >= 65 and end - begun > 24:
            break
    exporter.stopped.set()
    exporter.join()
    tell(step_s=whole / n, waiting_for_input_s=waited / n, cause_s=locked / n, steps=n, exports=exporter.exports)


if __name__ == "__main__":
    main()
