"""Recordings lie compressed; the worker starts `xz -dc FILE | tail` for each sample and waits for their output."""

import os
import subprocess
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from case import folder, tell, watch

CAUSE = "waiting/child_process"
RANKS = 1
BORDERLINE = False


class Recordings(IterableDataset):
    def __init__(self, root, names) -> None:
        self.root, self.names = root, names

    def __iter__(self):
        k = 0
        while True:
            path = os.path.join(self.root, self.names[k % len(self.names)])
            k += 1
            start = time.perf_counter()
            done = subprocess.run(f"xz -dc {path} | tail -c 640000", shell=True, stdout=subprocess.PIPE, check=True)
            waited = time.perf_counter() - start
            wave = np.frombuffer(done.stdout, dtype=np.int16)[: 16000 * 4]
            yield torch.from_numpy(wave.astype(np.float32) / 32768), k % 4, waited


def main() -> None:
    torch.set_num_threads(1)
    root = folder()
    rng = np.random.default_rng(9)
    names = []
    for i in range(6):
        wave = (np.cumsum(rng.normal(0, 40, 600_000)) % 4000).astype(np.int16)
        (root / f"{i}.pcm").write_bytes(wave.tobytes())
        subprocess.run(["xz", "-1", str(root / f"{i}.pcm")], check=True)
        names.append(f"{i}.pcm.xz")
    net = nn.Sequential(nn.Conv1d(1, 16, 400, stride=160), nn.ReLU(), nn.AdaptiveAvgPool1d(8), nn.Flatten(), nn.Linear(128, 4))
    optimizer = torch.optim.AdamW(net.parameters())
    rows = []
    begun = last = time.perf_counter()
    loader = DataLoader(Recordings(root, names), batch_size=4, num_workers=1)
    for waves, labels, waited in watch(loader):
        got = time.perf_counter()
        loss = nn.functional.cross_entropy(net(waves[:, None]), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        now = time.perf_counter()
        rows.append((now - last, got - last, float(waited.sum())))
        last = now
        if len(rows) >= 75 and now - begun > 22:
            break
    step_s, wait_s, cause_s = np.mean(rows[10:], axis=0)
    tell(step_s=step_s, waiting_for_input_s=wait_s, cause_s=cause_s, steps=len(rows) - 10)


if __name__ == "__main__":
    main()
