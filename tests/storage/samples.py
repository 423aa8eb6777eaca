"""What the storage tests are made of: tiny JPEGs, and facts about the disk under a path."""

from pathlib import Path

import numpy as np
import psutil
import simplejpeg

from storage.convert import in_order
from storage.format import Dataset, Sample


def jpeg(seed: int, height: int = 24, width: int = 32) -> bytes:
    """A small JPEG whose content depends on the seed."""
    blocks = np.random.default_rng(seed).integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
    return bytes(simplejpeg.encode_jpeg(np.kron(blocks, np.ones((8, 8, 1), dtype=np.uint8)), quality=90))


def some_samples(count: int) -> list[Sample]:
    """Samples before they are stored."""
    return [
        Sample(f"class{number % 3}/{number:04d}", {"image": jpeg(number), "label": str(number % 3).encode()})
        for number in range(count)
    ]


def contents(dataset: Dataset) -> dict[str, tuple[bytes, int]]:
    """Image bytes and label of every sample, by key."""
    return {sample.key: (sample.fields["image"], int(sample.fields["label"])) for sample in in_order(dataset)}


def file_system(path: Path) -> str:
    """Type of the file system that holds a path."""
    mounts = {Path(mount.mountpoint): mount.fstype for mount in psutil.disk_partitions(all=True)}
    return next(mounts[parent] for parent in [path.resolve(), *path.resolve().parents] if parent in mounts)
