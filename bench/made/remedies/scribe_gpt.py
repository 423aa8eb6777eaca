"""A small GPT on a file of tokens (uint16) that is mapped into memory, windows at random places, as in nanoGPT."""
import atexit
import contextlib
import mmap
import os
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from case import applied, evict, folder, slow_disk, long_enough, tell, watch

CAUSE = "storage/mapped_pages"
RANKS = 1

WINDOW, BATCH, COPIES, BLOCK = 128, 16, 60, 1 << 17
DATA = Path("@DATA@/text/tinyshakespeare.txt")


def prepare(path):
    letters = np.frombuffer(DATA.read_bytes(), np.uint8).astype(np.uint16)
    with open(path, "wb") as file:
        for copy in range(COPIES):
            np.roll(letters, copy * 977).tofile(file)


class Windows(IterableDataset):
    def __init__(self, path):
        self.path = path

    def __iter__(self):
        info = get_worker_info()
        rng = np.random.default_rng(info.id if info else 0)
        tokens = np.memmap(self.path, np.uint16, "r")
        tokens._mmap.madvise(mmap.MADV_RANDOM)          # else the kernel reads megabytes around each window
        if applied("read_ahead", False):
            places = self.places_by_block(rng, len(tokens), info)
        else:
            places = iter(lambda: int(rng.integers(0, len(tokens) - WINDOW - 1)), None)
        for place in places:
            window = torch.from_numpy(tokens[place : place + WINDOW + 1].astype(np.int32))
            yield window if applied("smaller_tensors", False) else window.long()

    def places_by_block(self, rng, count, info):
        """Blocks from first to last, each read as a whole before windows at random places of it are used."""
        block = number = 0
        with open(self.path, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            while True:
                if info is None or number % info.num_workers == info.id:
                    file.seek(block * 2)
                    file.read(BLOCK * 2)
                    stop = min(block + BLOCK, count) - WINDOW - 1
                    for place in rng.integers(block, stop, 1000):
                        yield int(place)
                block, number = (block + BLOCK if block + 2 * BLOCK < count else 0), number + 1


class Gpt(nn.Module):
    def __init__(self, width=64, layers=2):
        super().__init__()
        self.tokens, self.places = nn.Embedding(128, width), nn.Embedding(WINDOW, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, 128)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.out(self.layers(self.tokens(x) + self.places.weight, mask, is_causal=True))


def train(loader):
    model = Gpt()
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    marks = []
    for window in watch(loader):
        window = window.long()
        logits = model(window[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        marks.append(time.perf_counter())
        if long_enough(marks):
            break
    tell(step_s=(marks[-1] - marks[9]) / (len(marks) - 10), steps=len(marks) - 10)


def main():
    torch.set_num_threads(applied("fewer_threads", 1))
    root = folder()
    path = root / "scribe.bin"
    prepare(path)
    evict(path)
    source = path
    if applied("staging", False):
        local = tempfile.mkdtemp(dir="/dev/shm")
        atexit.register(shutil.rmtree, local, True)
        source = Path(shutil.copy(path, local))
    workers = applied("more_workers", 1)
    with contextlib.nullcontext() if applied("faster_storage", False) else slow_disk(root, 700_000):
        train(DataLoader(
            Windows(source), batch_size=BATCH, num_workers=workers, prefetch_factor=applied("longer_queue", 2),
            persistent_workers=applied("staying_workers", False),
        ))
    os.remove(path)


if __name__ == "__main__":
    main()
