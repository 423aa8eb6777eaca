"""On-line training on an EEG headset that sends packets of eight channels over a serial line, 250 in a second."""
import os
import select
import subprocess
import sys
import time
import tty

import numpy as np
import torch
from torch import nn

from case import tell, watch

CAUSE = "waiting/none"
RANKS = 1
BORDERLINE = False

HEADSET = """
import os, sys, time, tty
import numpy as np
master, slave = os.openpty()
tty.setraw(slave)
print(os.ttyname(slave), flush=True)
rng, n, began = np.random.default_rng(0), 0, time.monotonic()
while True:
    value = 4000 * np.sin(n / (20 + 10 * (n // 1000 % 3)) + np.arange(8)) + rng.normal(0, 500, 8)
    os.write(master, bytes([0xA0, n % 256]) + value.astype(">i4").tobytes()[:30] + bytes([0xC0]))
    n += 1
    time.sleep(max(0.0, began + n / 250 - time.monotonic()))
"""


class SerialPort:
    """What pyserial does for a POSIX port: select, then read."""

    def __init__(self, name):
        self.fd = os.open(name, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        tty.setraw(self.fd)
        self.seconds = 0.0

    def read(self, size):
        data = b""
        while len(data) < size:
            t = time.perf_counter()
            select.select([self.fd], [], [], None)
            self.seconds += time.perf_counter() - t
            data += os.read(self.fd, size - len(data))
        return data


def windows(port, new=30, length=120):
    """The newest windows of 120 packets, eight times with noise; the target is the next packets' mean."""
    kept = np.zeros((length, 7), "f4")
    while True:
        rows = []
        while len(rows) < new:
            while port.read(1) != b"\xa0":
                pass
            packet = port.read(32)
            if packet[-1] == 0xC0:
                rows.append(np.frombuffer(packet[1:29], ">i4").astype("f4") / 4000)
        rows = np.stack(rows)
        noise = 0.05 * np.random.standard_normal((8, *kept.shape)).astype("f4")
        yield torch.from_numpy(kept.T + noise.transpose(0, 2, 1)), torch.from_numpy(rows.mean(0)).expand(8, -1)
        kept = np.concatenate([kept[new:], rows])


def main():
    torch.set_num_threads(1)
    headset = subprocess.Popen([sys.executable, "-c", HEADSET], stdout=subprocess.PIPE, text=True)
    port = SerialPort(headset.stdout.readline().strip())
    model = nn.Sequential(nn.Conv1d(7, 48, 9), nn.ELU(), nn.Conv1d(48, 48, 9), nn.ELU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(48, 7))
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    step = waiting = 0.0
    n, start = 0, time.perf_counter()
    mark = start
    for x, y in watch(windows(port)):
        got = time.perf_counter()
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        n += 1
        done = time.perf_counter()
        waiting, step, mark = waiting + got - mark, step + done - got, done
        if mark - start > 24:
            break
    tell(wall=time.perf_counter() - start, steps=n, step=step, waiting=waiting, cause=port.seconds)
    headset.kill()


if __name__ == "__main__":
    main()
