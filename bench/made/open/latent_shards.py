"""Cached VAE latents in .pt shards, opened with torch.load(mmap=True) by the loop itself (no workers).
The loop stands still in page faults whenever it copies latents out of a mapped shard."""
CAUSE = "storage/mapped_pages"
RANKS = 1
BORDERLINE = False

import random
import time

import torch
from case import evict, folder, slow_disk, tell, watch
from torch import nn

SHARDS, PER_SHARD, BATCH = 30, 32, 8
faulted = 0.0


def encode_everything(root):
    gen = torch.Generator().manual_seed(0)
    files = []
    for s in range(SHARDS):
        file = root / f"latents-{s:03d}.pt"
        torch.save({"latents": torch.randn(PER_SHARD, 4, 128, 128, generator=gen), "cls": torch.randint(0, 10, (PER_SHARD,), generator=gen)}, file)
        files.append(file)
    evict(*files)
    return files


class Latents:
    """Shuffles shards, then samples within a shard."""

    def __init__(self, files):
        self.files = list(files)

    def __len__(self):
        return SHARDS * PER_SHARD // BATCH

    def __iter__(self):
        global faulted
        random.shuffle(self.files)
        for file in self.files:
            shard = torch.load(file, mmap=True, weights_only=True)
            order = torch.randperm(PER_SHARD).split(BATCH)
            for rows in order:
                t = time.perf_counter()
                z = torch.stack([shard["latents"][r] for r in rows.tolist()])
                c = shard["cls"][rows]
                faulted += time.perf_counter() - t
                yield z, c


class Denoiser(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.down = nn.Conv2d(4, width, 8, 8)
        self.cls = nn.Embedding(10, width)
        self.mid = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1))
        self.up = nn.ConvTranspose2d(width, 4, 8, 8)

    def forward(self, z, c):
        h = self.down(z) + self.cls(c)[:, :, None, None]
        return self.up(h + self.mid(h))


def main():
    torch.set_num_threads(1)
    files = encode_everything(folder())
    net = Denoiser()
    opt = torch.optim.AdamW(net.parameters(), 2e-4)
    waited = stepped = 0.0
    n = 0
    with slow_disk(folder(), 10_500_000):
        it = iter(watch(Latents(files)))
        begin = time.perf_counter()
        while True:
            a = time.perf_counter()
            try:
                z, c = next(it)
            except StopIteration:
                waited += time.perf_counter() - a
                break
            b = time.perf_counter()
            noise = torch.randn_like(z)
            loss = (net(z + noise, c) - noise).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            waited, stepped, n = waited + b - a, stepped + time.perf_counter() - b, n + 1
        wall = time.perf_counter() - begin
    tell(steps=n, wall=wall, step=stepped, waiting=waited, cause=faulted)


if __name__ == "__main__":
    main()
