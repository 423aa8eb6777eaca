"""The loop logs a line for each sample to a durable log (one fsync a line) and saves sample images as PNG files."""

import json
import os
import time

import numpy as np
import torch
from PIL import Image
from torch import nn

from case import folder, tell, watch

CAUSE = "waiting/checkpoint"
RANKS = 1
BORDERLINE = False


class DurableLog:
    def __init__(self, path) -> None:
        self.handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def add(self, **row) -> None:
        os.write(self.handle, (json.dumps(row) + "\n").encode())
        os.fsync(self.handle)

    def close(self) -> None:
        os.close(self.handle)


def noise_batches(count: int):
    generator = torch.Generator().manual_seed(3)
    for _ in range(count):
        yield torch.rand(48, 1, 32, 32, generator=generator)


class Noise:
    def __iter__(self):
        return noise_batches(5000)


def main() -> None:
    torch.set_num_threads(1)
    root = folder()
    log = DurableLog(root / "samples.jsonl")
    net = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 1, 3, padding=1))
    optimizer = torch.optim.Adam(net.parameters())
    rows = []
    begun = last = time.perf_counter()
    for step, clean in enumerate(watch(Noise())):
        got = time.perf_counter()
        noisy = clean + 0.1 * torch.randn_like(clean)
        output = net(noisy)
        losses = (output - clean).square().mean((1, 2, 3))
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
        saving = time.perf_counter()
        for k, loss in enumerate(losses.tolist()):
            log.add(step=step, sample=k, loss=loss)
        for k in range(24):
            pixels = (output[k, 0].detach().clamp(0, 1) * 255).byte().numpy()
            path = root / f"sample-{k}.png"
            with open(path, "wb") as file:
                Image.fromarray(pixels).save(file, format="PNG")
                file.flush()
                os.fsync(file.fileno())
        now = time.perf_counter()
        rows.append((now - last, got - last, now - saving))
        last = now
        if len(rows) >= 75 and now - begun > 23:
            break
    log.close()
    step_s, wait_s, save_s = np.mean(rows[10:], axis=0)
    tell(step_s=step_s, waiting_for_input_s=wait_s, cause_s=save_s, steps=len(rows) - 10)


if __name__ == "__main__":
    main()
