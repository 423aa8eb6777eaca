"""The crawler's client keeps to 26 documents a second by a token bucket, whose waits are sleeps in the worker."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from case import folder, tell, watch

CAUSE = "waiting/sleep"
RANKS = 1
BORDERLINE = False


class TokenBucket:
    def __init__(self, per_second: float, burst: int) -> None:
        self.per_second, self.burst = per_second, burst
        self.tokens, self.at = float(burst), time.monotonic()

    def take(self) -> float:
        slept = 0.0
        while True:
            now = time.monotonic()
            self.tokens = min(self.burst, self.tokens + (now - self.at) * self.per_second)
            self.at = now
            if self.tokens >= 1:
                self.tokens -= 1
                return slept
            begin = time.perf_counter()
            time.sleep((1 - self.tokens) / self.per_second)
            slept += time.perf_counter() - begin


class Crawl(IterableDataset):
    def __init__(self, path) -> None:
        self.path = path

    def __iter__(self):
        bucket = TokenBucket(26, burst=4)
        text = self.path.read_text()
        position = 0
        while True:
            slept = bucket.take()
            document = text[position : position + 4000]
            position = (position + 4000) % (len(text) - 4000)
            letters = torch.frombuffer(bytearray(document.encode()), dtype=torch.uint8)
            counts = torch.bincount(letters.long() % 128, minlength=128).float()
            yield counts / len(document), slept


def main() -> None:
    torch.set_num_threads(1)
    path = folder() / "crawl.txt"
    with open("@DATA@/text/tinyshakespeare.txt") as source:
        path.write_text(source.read())
    model = nn.Sequential(nn.Linear(128, 16), nn.ReLU(), nn.Linear(16, 128))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    rows = []
    begun = last = time.perf_counter()
    for counts, slept in watch(DataLoader(Crawl(path), batch_size=8, num_workers=1)):
        got = time.perf_counter()
        loss = nn.functional.mse_loss(model(counts), counts)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        now = time.perf_counter()
        rows.append((now - last, got - last, float(slept.sum())))
        last = now
        if len(rows) >= 75 and now - begun > 22:
            break
    rows = torch.tensor(rows[10:], dtype=torch.float64)
    step_s, wait_s, slept_s = rows.mean(0).tolist()
    tell(step_s=step_s, waiting_for_input_s=wait_s, cause_s=slept_s, steps=len(rows))


if __name__ == "__main__":
    main()
