"""Speech of long recordings, listed as in Kaldi's wav.scp: an entry is a command whose output is the waveform."""
import bz2
import subprocess
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from bclock import Clock
from case import folder, tell, watch

CAUSE = "waiting/child_process"
RANKS = 1
BORDERLINE = False


def prepare(root):
    rng = np.random.default_rng(0)
    lines = []
    for i in range(12):
        t = np.arange(40 * 16000) / 16000
        wave = 3000 * np.sin(2 * np.pi * (200 + 30 * i) * t) + rng.normal(0, 150, len(t))
        (root / f"rec{i}.s16.bz2").write_bytes(bz2.compress(wave.astype("<i2").tobytes()))
        lines.append(f"rec{i} bzip2 -dc {root}/rec{i}.s16.bz2 |")
    (root / "wav.scp").write_text("\n".join(lines))


class Recordings(IterableDataset):
    def __init__(self, scp, clock):
        self.entries, self.clock = [line.split(maxsplit=1) for line in scp.read_text().splitlines()], clock

    def __iter__(self):
        rng = np.random.default_rng(0)
        while True:
            for k in rng.permutation(len(self.entries)):
                with self.clock.part():
                    pipe = subprocess.Popen(self.entries[k][1].rstrip("|"), shell=True, stdout=subprocess.PIPE)
                    raw = pipe.communicate()[0]
                wave = np.frombuffer(raw, "<i2")
                cuts = rng.integers(0, len(wave) - 8000, 8)
                yield torch.from_numpy(np.stack([wave[c : c + 8000] for c in cuts]).astype("f4") / 32768), int(k)


def main():
    torch.set_num_threads(1)
    root = folder()
    prepare(root)
    clock = Clock(root / "pipe")
    loader = DataLoader(Recordings(root / "wav.scp", clock), batch_size=None, num_workers=1)
    model = nn.Sequential(
        nn.Conv1d(1, 32, 80, 16), nn.ReLU(), nn.Conv1d(32, 32, 3), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 12)
    )
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    step = waiting = 0.0
    n, start = 0, time.perf_counter()
    mark = start
    for x, speaker in watch(loader):
        got = time.perf_counter()
        loss = nn.functional.cross_entropy(model(x[:, None]), torch.full((len(x),), speaker))
        opt.zero_grad()
        loss.backward()
        opt.step()
        n += 1
        done = time.perf_counter()
        waiting, step, mark = waiting + got - mark, step + done - got, done
        if mark - start > 24:
            break
    wall = time.perf_counter() - start
    tell(wall=wall, steps=n, step=step, waiting=waiting, cause=sum(clock.seconds()))


if __name__ == "__main__":
    main()
