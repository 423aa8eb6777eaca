"""Copies that other processes make, and what they have left so far."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

STAGE = """if True:
    import sys, time
    from pathlib import Path
    from benchsuite.storage.staging import copy as copying
    from benchsuite.storage.staging.stage import stage

    write = copying.os.pwrite
    slow_s = float(sys.argv[3])

    class Slow:
        def __getattr__(self, name):
            return getattr(real, name)

        def pwrite(self, *arguments):
            time.sleep(slow_s)
            return write(*arguments)

    real, copying.os = copying.os, Slow()
    print("go", flush=True)
    staged = stage(Path(sys.argv[1]), Path(sys.argv[2]), threads=2)
    print(staged.copied_bytes, staged.seconds, flush=True)
"""


class Process(subprocess.Popen[str]):
    """A process that stages, slowly."""

    def __init__(self, source: Path, target: Path, slow_s: float) -> None:
        command = [sys.executable, "-c", STAGE, str(source), str(target), str(slow_s)]
        super().__init__(command, stdout=subprocess.PIPE, text=True)
        assert self.stdout.readline() == "go\n"


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come"
        time.sleep(0.005)


def finished(making: Path) -> list[Path]:
    """Files of a copy in the making that have their own names."""
    with suppress(FileNotFoundError):
        return sorted(path for path in making.rglob("*") if path.is_file() and not path.name.startswith("."))
    return []


def inodes(paths: list[Path]) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in paths}


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


class Replaced:
    """The os module with some of its functions replaced."""

    def __init__(self, **functions: Any) -> None:
        self.__dict__.update(functions)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)
