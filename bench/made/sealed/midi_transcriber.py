"""Who composed it? MIDI files are parsed to piano rolls (pure Python, as small MIDI libraries do) and read by a GRU."""
import random
import struct
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from case import folder, tell, watch

CAUSE = "preprocessing/decode"
RANKS = 1
BORDERLINE = False


def variable(value):
    out = [value & 0x7F]
    while value := value >> 7:
        out.append(value & 0x7F | 0x80)
    return bytes(reversed(out))


def compose(path, seed, notes=3500):
    chance, track, base = random.Random(seed), bytearray(), 40 + 5 * (seed % 4)
    for _ in range(notes):
        pitch, length = base + chance.randrange(36), chance.choice((30, 60, 120, 240))
        track += b"\0" + bytes((0x90, pitch, chance.randrange(40, 110)))
        track += variable(length) + bytes((0x80, pitch, 0))
    track += b"\0\xff\x2f\0"
    path.write_bytes(b"MThd" + struct.pack(">IHHH", 6, 0, 1, 480) + b"MTrk" + struct.pack(">I", len(track)) + track)


def parse(data):
    """(start, end, pitch, velocity) of each note, in ticks."""
    at, now, status, sounding, notes = 22, 0, 0, {}, []
    while at < len(data):
        delta = 0
        while True:
            byte = data[at]
            at += 1
            delta = delta << 7 | byte & 0x7F
            if byte < 0x80:
                break
        now += delta
        if data[at] >= 0x80:
            status = data[at]
            at += 1
        if status == 0xFF:
            at += 2 + data[at + 1]
            continue
        pitch, velocity = data[at], data[at + 1]
        at += 2
        if status & 0xF0 == 0x90 and velocity:
            sounding[pitch] = now, velocity
        elif pitch in sounding:
            began, loud = sounding.pop(pitch)
            notes.append((began, now, pitch, loud))
    return notes


class Pieces(IterableDataset):
    def __init__(self, files):
        self.files = files
        self.parsing = torch.zeros(1, dtype=torch.float64).share_memory_()

    def __iter__(self):
        info = get_worker_info()
        chance = random.Random(info.seed)
        while True:
            k = chance.randrange(len(self.files))
            raw = self.files[k].read_bytes()
            began = time.perf_counter()
            shift, stretch = chance.randint(-5, 5), chance.uniform(0.9, 1.1)
            notes = [(a * stretch, b * stretch, p + shift, v) for a, b, p, v in parse(raw)]
            roll = [[0.0] * 128 for _ in range(400)]
            for a, b, p, v in notes:
                for column in range(int(a) // 960, min(int(b) // 960 + 1, 400)):
                    roll[column][p] = max(roll[column][p], v / 127)
            roll = torch.tensor(roll)
            self.parsing += time.perf_counter() - began
            yield roll, k % 4


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.squeeze, self.gru, self.head = nn.Conv1d(128, 48, 8, stride=8), nn.GRU(48, 48, batch_first=True), nn.Linear(48, 4)

    def forward(self, roll):
        return self.head(self.gru(self.squeeze(roll.transpose(1, 2)).transpose(1, 2))[0][:, -1])


def main():
    torch.set_num_threads(1)
    root = folder()
    files = [root / f"{i:03d}.mid" for i in range(120)]
    for i, path in enumerate(files):
        compose(path, i)
    data = Pieces(files)
    loader = watch(DataLoader(data, batch_size=8, num_workers=1))
    model = Reader()
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    step = waiting = 0.0
    n, start = 0, time.perf_counter()
    mark = start
    for roll, composer in loader:
        got = time.perf_counter()
        loss = nn.functional.cross_entropy(model(roll), composer)
        opt.zero_grad()
        loss.backward()
        opt.step()
        n += 1
        waiting += got - mark
        mark = time.perf_counter()
        step += mark - got
        if mark - start > 23:
            break
    wall = time.perf_counter() - start
    tell(wall=wall, steps=n, step=step, waiting=waiting, cause=float(data.parsing))


if __name__ == "__main__":
    main()
