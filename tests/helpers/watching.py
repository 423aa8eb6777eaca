"""Loaders and clocks to watch."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

import benchsuite


class Clock:
    """A time of its own, that passes only when told."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def passes(self, seconds: float) -> None:
        self.now_s += seconds


class Slow:
    """A loader of `number` batches that each take `load_s`, and the end of a pass `end_s`."""

    def __init__(self, clock: Clock, number: int, load_s: float, end_s: float = 0.0) -> None:
        self.clock, self.number, self.load_s, self.end_s = clock, number, load_s, end_s

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(self.number):
            self.clock.passes(self.load_s)
            yield torch.zeros(4, 2)
        self.clock.passes(self.end_s)


class Files(Dataset[torch.Tensor]):
    """Reads a file of 100 kB a sample."""

    def __init__(self, folder: Path, number: int) -> None:
        self.paths = [folder / str(row) for row in range(number)]
        for path in self.paths:
            path.write_bytes(os.urandom(100_000))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> torch.Tensor:
        return torch.frombuffer(bytearray(self.paths[row].read_bytes()), dtype=torch.uint8)


def watched(loader: Any, **options: Any) -> benchsuite.watch:  # type: ignore[valid-type]
    return benchsuite.watch(loader, **{"warmup_steps": 0, "quiet": True, **options})
