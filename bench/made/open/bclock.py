"""Seconds of a part of a program, kept per process in small files, for the parent to add up."""
import os
import time
from contextlib import contextmanager
from pathlib import Path


class Clock:
    def __init__(self, path):
        self.path, self.pid = str(path), None

    def add(self, seconds):
        if self.pid != os.getpid():
            self.pid, self.sum, self.written = os.getpid(), 0.0, 0.0
        self.sum += seconds
        if time.monotonic() - self.written > 0.5:
            self.written = time.monotonic()
            Path(f"{self.path}.{self.pid}").write_text(str(self.sum))

    @contextmanager
    def part(self):
        began = time.perf_counter()
        yield
        self.add(time.perf_counter() - began)

    def seconds(self):
        """Of all processes, one number each."""
        path = Path(self.path)
        return [round(float(p.read_text()), 2) for p in sorted(path.parent.glob(path.name + ".*"))]
