"""Spectra from an instrument on a serial line: the loop's own generator triggers a scan and waits in read() on the terminal device,
which is neither a file nor a socket, nor a process that the loop has started."""

import os
import subprocess
import sys
import time
import tty

import numpy as np
import torch
from torch import nn

from case import folder, tell, watch

CAUSE = "waiting/none"
RANKS = 1
BORDERLINE = False
SPECTRA, CHANNELS = 12, 160
INSTRUMENT = """
import os, pty, signal, sys, time, tty
import random
if os.fork():
    os._exit(0)
os.setsid()
signal.alarm(150)
master, slave = pty.openpty()
tty.setraw(slave)
with open(sys.argv[1] + ".new", "w") as name:
    name.write(os.ttyname(slave))
os.rename(sys.argv[1] + ".new", sys.argv[1])
scans = [random.randbytes(int(sys.argv[2])) for _ in range(16)]
count = 0
while os.read(master, 1) == b"S":
    time.sleep(0.14)
    left = scans[count % 16]
    while left:
        left = left[os.write(master, left[:1024]):]
    count += 1
"""


class Spectrometer:
    """RS-232 behind a USB adapter: `S` starts a scan, which comes back as 16-bit counts."""

    def __init__(self, device, scans):
        self.line, self.scans, self.reading = os.open(device, os.O_RDWR | os.O_NOCTTY), scans, 0.0
        tty.setraw(self.line)

    def scan(self):
        os.write(self.line, b"S")
        raw, wanted = bytearray(), 2 * SPECTRA * CHANNELS
        while len(raw) < wanted:
            raw += os.read(self.line, wanted - len(raw))
        return np.frombuffer(bytes(raw), np.uint16).reshape(SPECTRA, CHANNELS)

    def __iter__(self):
        for number in range(self.scans):
            began = time.perf_counter()
            counts = self.scan()
            self.reading += time.perf_counter() - began
            target = (np.arange(SPECTRA) + number) % 3
            spectra = np.log1p(counts.astype(np.float32))
            spectra -= spectra.mean(1, keepdims=True)
            yield torch.from_numpy(spectra), torch.from_numpy(target)

    def close(self):
        os.write(self.line, b"Q")
        os.close(self.line)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    name = folder() / "device"
    subprocess.run([sys.executable, "-c", INSTRUMENT, str(name), str(2 * SPECTRA * CHANNELS)], check=True)
    while not name.exists():
        time.sleep(0.05)
    model = nn.Sequential(
        nn.Unflatten(1, (1, CHANNELS)), nn.Conv1d(1, 48, 7, padding=3), nn.Tanh(), nn.Conv1d(48, 48, 7, padding=3), nn.Tanh(), nn.Conv1d(48, 48, 7, stride=2),
        nn.Tanh(), nn.Flatten(), nn.LazyLinear(3),
    )  # fmt: skip
    model(torch.zeros(1, CHANNELS))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    instrument = Spectrometer(name.read_text(), 160)
    steps, waited, began = 0, 0.0, time.perf_counter()
    asked = began
    try:
        for spectra, substance in watch(instrument):
            waited += time.perf_counter() - asked
            loss = nn.functional.cross_entropy(model(spectra), substance)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            asked = time.perf_counter()
        wall = time.perf_counter() - began
    finally:
        instrument.close()
    tell(steps=steps, step=wall / steps, loader=waited / steps, serial_line=instrument.reading / steps, share=instrument.reading / wall)


if __name__ == "__main__":
    main()
