"""Diffusion on latents that a VAE has written beforehand: one .pt file, opened with torch.load(mmap=True)."""
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

from case import evict, folder, slow_disk, tell, watch

CAUSE = "storage/mapped_pages"
RANKS = 1
BORDERLINE = False


class Latents(Dataset):
    def __init__(self, path):
        kept = torch.load(path, mmap=True)
        self.latents, self.classes = kept["latents"], kept["classes"].clone()
        self.copying = torch.zeros(2, dtype=torch.float64).share_memory_()

    def __len__(self):
        return len(self.latents)

    def __getitem__(self, i):
        t = time.perf_counter()
        latent = self.latents[i].clone()
        self.copying[get_worker_info().id] += time.perf_counter() - t
        return latent.mul_(0.18215), self.classes[i]


class Denoiser(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.classes = nn.Embedding(10, width)
        self.inp, self.mid, self.out = nn.Conv2d(16, width, 3, 2, 1), nn.Conv2d(width, width, 3, 1, 1), nn.ConvTranspose2d(width, 16, 4, 2, 1)

    def forward(self, x, label, noise_level):
        h = torch.nn.functional.silu(self.inp(x) + self.classes(label)[:, :, None, None] * noise_level)
        return self.out(torch.nn.functional.silu(self.mid(h)) + h)


def main():
    torch.set_num_threads(1)
    path = folder() / "latents.pt"
    torch.manual_seed(0)
    torch.save({"latents": torch.randn(860, 16, 64, 64), "classes": torch.randint(10, (860,))}, path)
    evict(path)
    model = Denoiser()
    opt = torch.optim.AdamW(model.parameters(), 2e-4)
    with slow_disk(path.parent, 11_000_000):
        data = Latents(path)
        loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=2, prefetch_factor=4, drop_last=True)
        step = waiting = 0.0
        n, start = 0, time.perf_counter()
        mark = start
        for latent, label in watch(loader):
            got = time.perf_counter()
            level = torch.rand(len(latent), 1, 1, 1)
            noise = torch.randn_like(latent)
            loss = nn.functional.mse_loss(model((1 - level) * latent + level * noise, label, level), noise)
            loss.backward()
            opt.step()
            opt.zero_grad(set_to_none=True)
            n += 1
            waiting += got - mark
            mark = time.perf_counter()
            step += mark - got
        wall = time.perf_counter() - start
    tell(wall=wall, steps=n, step=step, waiting=waiting, cause=float(data.copying.sum()) / 2, copying=data.copying.tolist())


if __name__ == "__main__":
    main()
