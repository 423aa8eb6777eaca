"""Topics of papers from those that cite them. The citation table is shared: a crawler puts new citations into it while the
training reads, and neither may see the other's half of an update."""
import multiprocessing
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import applied, long_enough, tell, watch

CAUSE = "waiting/lock"
RANKS = 1

PAPERS, WORDS, DEGREE, BATCH = 20000, 64, 40, 16


def crawl(lock, citing, stop):
    """Takes what arrives from the publishers' feed, and holds the table until an update is complete."""
    rng = np.random.default_rng(9)
    table = np.frombuffer(citing, np.int32).reshape(PAPERS, DEGREE)
    while not stop.is_set():
        with lock:
            for _ in range(4):
                time.sleep(0.03)                     # the feed sends the parts of an update one by one
                table[rng.integers(PAPERS, size=20), rng.integers(DEGREE, size=20)] = rng.integers(PAPERS, size=20)
        time.sleep(0.015)


class Papers(Dataset):
    def __init__(self, lock, citing):
        self.lock, self.citing, self.own = lock, citing, None
        self.words = torch.randn(PAPERS, WORDS, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return 1000000

    def neighbours(self, table, paper):
        """Two hops, the second by at most a dozen of each."""
        near = table[paper]
        further = table[near, :12]
        found, counts = np.unique(further, return_counts=True)
        return near.copy(), found, counts

    def __getitem__(self, i):
        paper = i * 7919 % PAPERS
        table = np.frombuffer(self.citing, np.int32).reshape(PAPERS, DEGREE)
        if applied("share_less", False):
            if self.own is None:
                self.own = table.copy()
            near, found, counts = self.neighbours(self.own, paper)
        else:
            with self.lock:
                near, found, counts = self.neighbours(table, paper)
        further = (self.words[found] * torch.from_numpy(counts)[:, None]).sum(0) / counts.sum()
        return torch.stack([self.words[paper], self.words[near].mean(0), further]), paper % 10


def main():
    torch.set_num_threads(applied("fewer_threads", 1))
    rng = np.random.default_rng(1)
    citing = multiprocessing.RawArray("i", PAPERS * DEGREE)
    np.frombuffer(citing, np.int32)[:] = rng.integers(PAPERS, size=PAPERS * DEGREE)
    lock, stop = multiprocessing.Lock(), multiprocessing.Event()
    crawler = multiprocessing.Process(target=crawl, args=(lock, citing, stop), daemon=True)
    crawler.start()
    loader = DataLoader(
        Papers(lock, citing), batch_size=BATCH, num_workers=applied("more_workers", 2), prefetch_factor=applied("longer_queue", 2),
        persistent_workers=applied("staying_workers", False),
    )
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * WORDS, 1536), nn.ReLU(), nn.Linear(1536, 1024), nn.ReLU(), nn.Linear(1024, 10))
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    marks = []
    for x, topic in watch(loader):
        loss = nn.functional.cross_entropy(model(x), topic)
        opt.zero_grad()
        loss.backward()
        opt.step()
        marks.append(time.perf_counter())
        if long_enough(marks):
            break
    tell(step_s=(marks[-1] - marks[9]) / (len(marks) - 10), steps=len(marks) - 10)
    stop.set()
    crawler.join()


if __name__ == "__main__":
    main()
