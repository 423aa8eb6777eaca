"""A denoiser is trained on latents that were written to safetensors files once; a spawned worker copies them out of the mapped files, from a disk of 12 MB/s."""
import random
import time

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from case import evict, folder, slow_disk, tell, watch

CAUSE = "storage/mapped_pages"
RANKS = 1
BORDERLINE = False


class Latents(IterableDataset):
    def __init__(self, files):
        self.files = files

    def __iter__(self):
        order = list(self.files)
        random.shuffle(order)
        for path in order:
            with safe_open(path, framework="pt") as file:
                for key in file.keys():
                    start = time.perf_counter()
                    latent = file.get_tensor(key).clone()
                    yield latent, time.perf_counter() - start


class Denoiser(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(16, width, 3, 2, 1), nn.SiLU(), nn.Conv2d(width, width, 3, 2, 1), nn.SiLU(), nn.Upsample(scale_factor=4), nn.Conv2d(width, 16, 1))

    def forward(self, x):
        return self.body(x)


def main():
    root = folder()
    files = []
    for number in range(40):
        files.append(root / f"latents_{number:03d}.safetensors")
        save_file({f"{i:04d}": torch.randint(-32768, 32767, (16, 64, 64), dtype=torch.int16).view(torch.bfloat16).nan_to_num(0, 0, 0).clamp(-3, 3) for i in range(64)}, files[-1])
    evict(*files)
    torch.set_num_threads(1)
    model = Denoiser()
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    wait = step = cause = 0.0
    n = 0
    with slow_disk(root, 12_000_000):
        loader = DataLoader(Latents(files), batch_size=12, num_workers=1, multiprocessing_context="spawn", persistent_workers=True)
        iterator = iter(watch(loader))
        start = None
        while True:
            a = time.perf_counter()
            try:
                latents, seconds = next(iterator)
            except StopIteration:
                break
            b = time.perf_counter()
            start = start or b
            clean = latents.float()
            noise = torch.randn_like(clean)
            level = torch.rand(len(clean), 1, 1, 1)
            loss = nn.functional.mse_loss(model(clean * (1 - level) + noise * level), noise)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            n += 1
            if n > 10:
                wait += b - a
                step += time.perf_counter() - a
                cause += seconds.sum().item()
            if b - start > 22 and n > 75:
                break
        del iterator, loader
    tell(step_s=step / (n - 10), waiting_for_input_s=wait / (n - 10), cause_s=cause / (n - 10), steps=n)


if __name__ == "__main__":
    main()
