"""The value of positions of five-in-a-row: records of games are read one after the other, each gives one position, and a
buffer mixes them. Each pass has the games that the newest player left."""
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from case import SECONDS, applied, folder, tell, watch

CAUSE = "preprocessing/shuffle_buffer"
RANKS = 1

GAMES, SIDE, BATCH = 640, 15, 32
BUFFER = 500 // 10 if applied("smaller_buffer", False) else 500


def prepare(path):
    rng = np.random.default_rng(8)
    with open(path, "w") as file:
        for _ in range(GAMES):
            cells = rng.permutation(SIDE * SIDE)[:120]
            moves = " ".join(f"{chr(97 + cell % SIDE)}{cell // SIDE + 1}" for cell in cells)
            file.write(f"{rng.integers(-1, 2)};{moves}\n")


def replay(line):
    """The planes of the position after the last move: stones of both, and how long the lines through each cell are."""
    result, moves = line.rstrip().split(";")
    planes = np.zeros((4, SIDE, SIDE), np.float32)
    for turn, move in enumerate(moves.split()):
        row, column = int(move[1:]) - 1, ord(move[0]) - 97
        planes[turn % 2, row, column] = 1
        longest = 1
        for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
            r, c, length = row - down, column - right, 1
            while 0 <= r < SIDE and 0 <= c < SIDE and planes[turn % 2, r, c]:
                r, c, length = r - down, c - right, length + 1
            longest = max(longest, length)
        planes[2 + turn % 2, row, column] = longest
    return planes, float(result)


class Positions(IterableDataset):
    def __init__(self, path, stored):
        self.path, self.stored, self.passes = path, stored, 0

    def games(self):
        info = get_worker_info()
        number, count = (info.id, info.num_workers) if info else (0, 1)
        if self.stored is not None:
            for planes, result in list(zip(*self.stored))[number::count]:
                yield planes.astype(np.float32), float(result)
            return
        with open(self.path) as file:
            for i, line in enumerate(file):
                if i % count == number:
                    yield replay(line)

    def __iter__(self):
        self.passes += 1
        rng = np.random.default_rng(self.passes)
        buffer = []
        for game in self.games():
            buffer.append(game)
            if len(buffer) >= BUFFER:
                yield buffer.pop(int(rng.integers(len(buffer))))
        rng.shuffle(buffer)
        yield from buffer


def main():
    torch.set_num_threads(applied("fewer_threads", 1))
    root = folder()
    prepare(root / "games.txt")
    stored = None
    if applied("cheaper_data", False):
        replayed = [replay(line) for line in open(root / "games.txt")]
        np.savez(root / "games.npz", planes=np.stack([p for p, _ in replayed]).astype(np.uint8), results=[r for _, r in replayed])
        stored = tuple(np.load(root / "games.npz")[name] for name in ("planes", "results"))
    loader = watch(DataLoader(
        Positions(root / "games.txt", stored), batch_size=BATCH, num_workers=applied("more_workers", 1),
        prefetch_factor=applied("longer_queue", 2), persistent_workers=applied("staying_workers", True),
    ))
    model = nn.Sequential(
        nn.Conv2d(4, 48, 3, padding=1), nn.ReLU(), nn.Conv2d(48, 48, 3, padding=1), nn.ReLU(), nn.Conv2d(48, 8, 1), nn.ReLU(),
        nn.Flatten(), nn.Linear(8 * SIDE * SIDE, 1), nn.Tanh(),
    )
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    steps, first = 0, None
    while first is None or time.perf_counter() - first < SECONDS or steps < 60:
        for planes, result in loader:
            loss = nn.functional.mse_loss(model(planes)[:, 0], result.float())
            opt.zero_grad()
            loss.backward()
            opt.step()
            steps += 1
        if first is None:
            steps, first = 0, time.perf_counter()
    tell(step_s=(time.perf_counter() - first) / steps, steps=steps)


if __name__ == "__main__":
    main()
