"""Windows at random places of a numpy.memmap of tokens: each fault waits for pages of a slow disk."""

import mmap
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from case import evict, folder, slow_disk, tell, watch

CAUSE = "storage/mapped_pages"
RANKS = 1
BORDERLINE = False

BLOCK = 8192
TOKENS = 120_000_000


class Tokens(Dataset):
    def __init__(self, path) -> None:
        self.path = str(path)
        self.data = None

    def __len__(self) -> int:
        return 24 * 82

    def __getitem__(self, i):
        if self.data is None:
            self.data = np.memmap(self.path, dtype=np.uint16, mode="r")
            self.data._mmap.madvise(mmap.MADV_RANDOM)  # windows are anywhere: no reading ahead
        start = int(np.random.default_rng(i).integers(0, len(self.data) - BLOCK - 1))
        begin = time.perf_counter()
        window = np.array(self.data[start : start + BLOCK + 1])  # copied here: the pages are touched here
        took = time.perf_counter() - begin
        window = torch.from_numpy(window.astype(np.int64))
        return window[:-1], window[1:], took


class Bigram(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(512, 32)
        self.gru = torch.nn.Linear(32, 32)
        self.head = torch.nn.Linear(32, 512)

    def forward(self, x):
        return self.head(torch.tanh(self.gru(self.embed(x))))


def main() -> None:
    torch.set_num_threads(1)
    root = folder()
    path = root / "train.bin"
    with open(path, "wb") as out:
        rng = np.random.default_rng(0)
        for _ in range(16):
            out.write(rng.integers(0, 512, TOKENS // 16, dtype=np.uint16).tobytes())
    evict(path)
    model = Bigram()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    times = []
    with slow_disk(root, 1_700_000):
        loader = DataLoader(Tokens(path), batch_size=24, num_workers=1, prefetch_factor=4)
        t0 = time.perf_counter()
        for x, y, took in watch(loader, data=str(root)):
            t1 = time.perf_counter()
            x, y = x[:, ::32], y[:, ::32]  # a sparse context
            loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            t2 = time.perf_counter()
            times.append((t2 - t0, t1 - t0, float(took.sum())))
            t0 = t2
    times = np.array(times[10:]).mean(0)
    tell(step_s=times[0], waiting_for_input_s=times[1], cause_s=times[2], steps=len(loader) - 10)


if __name__ == "__main__":
    main()
