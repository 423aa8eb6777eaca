"""Textile defects from a line camera above a belt: the camera's process holds the lock of the shared frame buffer for each exposure,
and the loader's workers wait for that lock most of the time."""

import ctypes
import multiprocessing as mp
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch

CAUSE = "waiting/lock"
RANKS = 1
BORDERLINE = False
HEIGHT, WIDTH, PATCH = 512, 1024, 64


def camera(buffer, lock, running):
    """The device: the belt moves on, then the sensor integrates with the buffer locked."""
    frame = np.frombuffer(buffer, np.uint8).reshape(HEIGHT, WIDTH)
    random = np.random.default_rng(1)
    while running.value:
        time.sleep(0.02)
        with lock:
            time.sleep(0.17)
            frame[:] = np.roll(frame, 37, axis=1)
            y, x = random.integers(HEIGHT - 20), random.integers(WIDTH - 20)
            frame[y : y + 12, x : x + 3] = 255


class Belt(Dataset):
    """One item is a batch of patches out of the frame that lies in the buffer."""

    def __init__(self, buffer, lock, items):
        self.buffer, self.lock, self.items = buffer, lock, items

    def __len__(self):
        return self.items

    def __getitem__(self, item):
        began = time.perf_counter()
        with self.lock:
            got = time.perf_counter()
            frame = np.frombuffer(self.buffer, np.uint8).reshape(HEIGHT, WIDTH).copy()
        random = np.random.default_rng(item)
        corners = zip(random.integers(0, HEIGHT - PATCH, 24), random.integers(0, WIDTH - PATCH, 24))
        patches = np.stack([frame[y : y + PATCH, x : x + PATCH] for y, x in corners])
        if random.random() < 0.5:
            patches = patches[:, :, ::-1].copy()
        torn = (patches == 255).any((1, 2)).astype(np.int64)
        return torch.from_numpy(patches), torch.from_numpy(torn), got - began, time.perf_counter() - began


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    folder()
    buffer, lock, running = mp.RawArray(ctypes.c_uint8, HEIGHT * WIDTH), mp.Lock(), mp.Value("b", 1)
    weave = (128 + 40 * np.sin(np.arange(WIDTH) / 2.1)[None] * np.cos(np.arange(HEIGHT) / 1.7)[:, None]).astype(np.uint8)
    np.frombuffer(buffer, np.uint8)[:] = weave.ravel()
    device = mp.Process(target=camera, args=(buffer, lock, running), daemon=True)
    device.start()
    model = nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 2)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loader = watch(DataLoader(Belt(buffer, lock, 100_000), batch_size=None, num_workers=2))
    steps, waited, locked, prepared, began = 0, 0.0, 0.0, 0.0, time.perf_counter()
    asked = began
    for patches, torn, in_lock, whole in loader:
        waited += time.perf_counter() - asked
        locked, prepared = locked + in_lock, prepared + whole
        loss = nn.functional.cross_entropy(model(patches[:, None].float() / 255), torn)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
        asked = time.perf_counter()
        if asked - began > 25:
            break
    wall = time.perf_counter() - began
    tell(steps=steps, step=wall / steps, loader=waited / steps, lock_in_worker=locked / steps, worker=prepared / steps, share=waited / wall)
    running.value = 0
    device.join()


if __name__ == "__main__":
    main()
