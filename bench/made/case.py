"""What a case needs: `watch(loader)`, what its own timers say, and a slow disk."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


SECONDS = float(os.environ.get("CASE_S", 12))
"""How long a case whose remedies are measured trains."""


def long_enough(ended: Sequence[float]) -> bool:
    """Whether a loop whose steps ended at these moments has trained for long enough, after 10 that do not count."""
    return len(ended) > min(70, 10 + 5 * SECONDS) and ended[-1] - ended[9] > SECONDS


def watch(loader: Any, **options: Any) -> Any:
    """The loader as it is; with CAUSE_STORE set it is watched, and the record goes there."""
    store = os.environ.get("CAUSE_STORE")
    if store is None:
        return loader
    import benchsuite

    return benchsuite.watch(loader, store=store, **options)


def tell(**measured: Any) -> None:
    """Print what the case's own timers say, as one line of JSON."""
    print(json.dumps(measured), flush=True)


def folder() -> Path:
    """A folder on a disk, for what the case reads and writes: the script's argument."""
    found = Path(sys.argv[1])
    found.mkdir(parents=True, exist_ok=True)
    return found


def evict(*paths: Path) -> None:
    """Let files leave the page cache, so that the next reads come from the disk."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


@contextmanager
def slow_disk(path: Path, bytes_per_s: int) -> Iterator[None]:
    """Limit what this process and those that it starts from now on read from the disk under `path`.

    By the kernel's control groups: it needs root. Writes are not limited.
    """
    sys.path.insert(0, os.environ["CAUSE_SUITE"])
    from bench.throttle import throttled

    with throttled(path, bytes_per_s):
        yield


def applied(name: str, default: Any) -> Any:
    """The value of a remedy that the bench applies to this run; `default` where it does not."""
    return json.loads(os.environ.get("APPLY", "{}")).get(name, default)
