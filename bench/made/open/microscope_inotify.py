"""Online training beside a microscope, which drops a stack of frames into a folder each 110 ms. The worker waits for the
kernel's file notification (inotify); the list has no cause for waiting for an instrument."""
import ctypes
import multiprocessing as mp
import os
import struct
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from case import folder, tell, watch

CAUSE = "waiting/none"
RANKS = 1
BORDERLINE = False
IN_MOVED_TO, FRAMES = 0x80, 210


def microscope(spool, ready):
    """The instrument: it exposes for 110 ms and hands over eight frames, whoever looks at them."""
    ready.wait()
    rng = np.random.default_rng(0)
    for n in range(FRAMES):
        time.sleep(0.11)
        np.save(spool / "incoming.npy", rng.poisson(20 + n % 5, (8, 1, 64, 64)).astype(np.float32))
        os.rename(spool / "incoming.npy", spool / f"stack-{n % 5}-{n:05d}.frm")


class Spool(IterableDataset):
    def __init__(self, spool, ready):
        self.spool, self.ready = spool, ready

    def __iter__(self):
        libc = ctypes.CDLL(None, use_errno=True)
        events = libc.inotify_init()
        if libc.inotify_add_watch(events, os.fsencode(self.spool), IN_MOVED_TO) < 0:
            raise OSError(ctypes.get_errno(), "inotify_add_watch")
        self.ready.set()
        seen = 0
        while seen < FRAMES:
            t = time.perf_counter()
            data = os.read(events, 4096)
            waited = time.perf_counter() - t
            while data:
                _, mask, _, size = struct.unpack_from("iIII", data)
                name, data = data[16:16 + size].rstrip(b"\0").decode(), data[16 + size:]
                if name.endswith(".frm"):
                    frames = np.load(self.spool / name)
                    os.unlink(self.spool / name)
                    seen += 1
                    yield torch.from_numpy(frames), int(name.split("-")[1]), waited
                    waited = 0.0
        os.close(events)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())
        self.image, self.gain = nn.Conv2d(16, 1, 1), nn.Linear(16, 1)

    def forward(self, x):
        h = self.body(x)
        return self.image(h), self.gain(h.mean((2, 3)))


if __name__ == "__main__":
    torch.set_num_threads(1)
    ready = mp.Event()
    device = mp.Process(target=microscope, args=(folder(), ready), daemon=True)
    device.start()
    loader = watch(DataLoader(Spool(folder(), ready), batch_size=None, num_workers=1))
    model = Denoiser()
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    step = waiting = notified = 0.0
    steps, start = 0, time.perf_counter()
    mark = start
    for frames, gain, waited in loader:
        got = time.perf_counter()
        clean, guess = model((frames - 20) / 5)
        loss = (clean - (frames - 20) / 5).abs().mean() + (guess - gain).pow(2).mean() * 0.01
        opt.zero_grad()
        loss.backward()
        opt.step()
        steps, notified, waiting = steps + 1, notified + waited, waiting + got - mark
        mark = time.perf_counter()
        step += mark - got
    tell(wall=time.perf_counter() - start, steps=steps, step=step, waiting=waiting, cause=notified)
    device.join()
