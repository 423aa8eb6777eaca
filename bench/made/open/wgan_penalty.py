"""A WGAN with gradient penalty on JPEG crops; one worker decodes them in much less time than the two networks take.
The loop computes."""
CAUSE = "compute/compute"
RANKS = 1
BORDERLINE = False

import time
from pathlib import Path

import numpy as np
import torch
from case import tell, watch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

FILES = sorted(Path("@DATA@/imagenet-sample").glob("*.JPEG"))


class Crops(Dataset):
    def __len__(self):
        return 60 * len(FILES)

    def __getitem__(self, i):
        t = time.perf_counter()
        image = Image.open(FILES[i % len(FILES)])
        image.draft("RGB", (96, 96))
        image = image.convert("RGB").resize((32, 32), Image.BILINEAR)
        x = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 127.5 - 1
        return x, time.perf_counter() - t


def critic(w=32):
    return nn.Sequential(nn.Conv2d(3, w, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(w, 2 * w, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(2 * w, 4 * w, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(64 * w, 1))


def generator(w=32):
    return nn.Sequential(nn.Linear(64, 64 * w), nn.Unflatten(1, (4 * w, 4, 4)), nn.ReLU(), nn.ConvTranspose2d(4 * w, 2 * w, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(2 * w, w, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(w, 3, 4, 2, 1), nn.Tanh())


def penalty(D, real, fake):
    a = torch.rand(len(real), 1, 1, 1)
    mix = (a * real + (1 - a) * fake).requires_grad_(True)
    grad, = torch.autograd.grad(D(mix).sum(), mix, create_graph=True)
    return (grad.flatten(1).norm(dim=1) - 1).square().mean()


def train(loader, D, G, steps, critics=2):
    d_opt, g_opt = (torch.optim.Adam(m.parameters(), 1e-4, (0.5, 0.9)) for m in (D, G))
    waiting = step = decoding = 0.0
    begin = t0 = time.perf_counter()
    for n, (real, spent) in enumerate(loader, 1):
        t1 = time.perf_counter()
        for _ in range(critics):
            fake = G(torch.randn(len(real), 64)).detach()
            d_loss = D(fake).mean() - D(real).mean() + 10 * penalty(D, real, fake)
            d_opt.zero_grad()
            d_loss.backward()
            d_opt.step()
        g_loss = -D(G(torch.randn(len(real), 64))).mean()
        g_opt.zero_grad()
        g_loss.backward()
        g_opt.step()
        decoding += float(spent.sum())
        t2 = time.perf_counter()
        waiting, step, t0 = waiting + t1 - t0, step + t2 - t1, t2
        if n == steps or t2 - begin > 27:
            break
    return dict(steps=n, wall=time.perf_counter() - begin, step=step, waiting=waiting, cause=step, decoding_in_worker=decoding)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = DataLoader(Crops(), batch_size=20, shuffle=True, num_workers=1)
    tell(**train(watch(data), critic(), generator(), 270))
