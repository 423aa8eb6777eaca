"""Somebody else's six processes fill both cores, and the loop and its worker get what is left."""
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from case import folder, tell, watch

CAUSE = "cannot_tell/none"
RANKS = 1
BORDERLINE = False


def neighbour(seconds):
    """A hash of a hash of a hash."""
    import hashlib

    end, value = time.monotonic() + seconds, b"0"
    while time.monotonic() < end:
        for _ in range(1000):
            value = hashlib.sha256(value).digest()


def delay():
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


class Tones(Dataset):
    def __len__(self):
        return 8000

    def __getitem__(self, i):
        before = delay()
        t = np.arange(4000) / 4000
        tone = sum(np.sin(2 * np.pi * (i % 50 + 20) * k * t) / k for k in range(1, 12))
        spectrum = np.abs(np.fft.rfft(tone.reshape(20, 200) * np.hamming(200), axis=1))
        return torch.from_numpy(np.log1p(spectrum).astype(np.float32)), i % 50, delay() - before


def main():
    pids = []
    rows = []
    try:
        for number in range(6):
            pid_file = folder() / f"neighbour{number}.pid"
            pid_file.unlink(missing_ok=True)
            subprocess.run(["setsid", "-f", "sh", "-c", 'echo $$ > "$0"; exec "$1" "$2" --neighbour', str(pid_file), sys.executable, __file__], check=True, stdout=subprocess.DEVNULL)
            while not pid_file.exists() or not pid_file.read_text().strip():
                time.sleep(0.02)
            pids.append(int(pid_file.read_text()))
        torch.set_num_threads(1)
        model = nn.Sequential(nn.Flatten(), nn.Linear(20 * 101, 512), nn.ReLU(), nn.Linear(512, 50))
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        loader = DataLoader(Tones(), batch_size=32, shuffle=True, num_workers=1)
        begin = last = time.perf_counter()
        own = delay()
        for x, y, waited in watch(loader):
            got = time.perf_counter()
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            now, queue = time.perf_counter(), delay()
            rows.append((now - last, got - last, waited.sum().item(), queue - own))
            last, own = now, queue
            if now - begin > 21 and len(rows) > 75 or now - begin > 30:
                break
    finally:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
    step, wait, waited, own = np.mean(rows[10:], axis=0)
    tell(step_s=step, waiting_for_input_s=wait, cause_s=waited + own, worker_waits_for_a_core_s=waited, loop_waits_for_a_core_s=own, steps=len(rows))


if __name__ == "__main__":
    neighbour(60) if sys.argv[1] == "--neighbour" else main()
