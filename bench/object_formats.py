"""One format read from a bucket on one core, by our reader or by the plainest loop with the same client.

A program of its own (`python -m bench.object_formats` with JSON), as `bench.object_clients`. Samples are read in the
order of the index and not decoded.
"""

import io
import json
import os
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.object_clients import BUCKET, KEYS, cpu_s, obstore_client

FORMATS = ("files", "webdataset", "hdf5")
SAMPLES, SHARD_SAMPLES = 1024, 64
Counted = tuple[int, int]
"""Samples and stored bytes of them."""


def ours(name: str) -> Iterator[Counted]:
    """Samples by the tuned reader, epoch after epoch."""
    from benchsuite.storage import format_of
    from benchsuite.storage.dataset.manifest import ReaderShare, open_dataset
    from benchsuite.storage.dataset.sample import Recycled
    from benchsuite.storage.objects.path import object_path

    dataset = open_dataset(object_path(f"s3://{BUCKET}/{name}"))
    share = ReaderShare(allocate=Recycled(int(dataset.index["bytes"].max())))
    while True:
        for sample in format_of(name).read(dataset, share):
            yield 1, sample.stored_bytes


def plain(name: str, endpoint: str, folder: Path) -> Iterator[Counted]:
    """Read the samples by a loop over names that are known: whole objects by `get`, tars by `tarfile`, HDF5 by h5py."""
    import obstore

    store = obstore_client(endpoint)
    names = sorted(f"{name}/{path.relative_to(folder / name)}" for path in (folder / name).rglob("*") if path.is_file())
    keys = [key for key in names if key.endswith((".jpg", ".tar", ".h5", ".hdf5"))]
    while True:
        for key in keys:
            if name == "hdf5":
                yield from _of_hdf5(obstore.open_reader(store, key))
                continue
            content = obstore.get(store, key).bytes()
            if name == "files":
                yield 1, len(content)
                continue
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                for member in archive:
                    read = archive.extractfile(member).read()  # type: ignore[union-attr]
                    yield int(member.name.endswith(".jpg")), len(read)


class _File:
    """obstore's reader, whose answers are no bytes, as h5py takes it."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._reader.seek(offset, whence))

    def tell(self) -> int:
        return int(self._reader.tell())

    def read(self, size: int = -1) -> bytes:
        return bytes(self._reader.read(size))


def _of_hdf5(reader: Any) -> Iterator[Counted]:
    import h5py

    with h5py.File(_File(reader)) as file:
        offsets, images = file["image_offsets"][...], file["image"]
        for start, end in pairwise(offsets):
            yield 1, len(images[start:end])


def measure(samples: Iterator[Counted], seconds: float) -> Mapping[str, float]:
    """Read for a third of the time to warm up, then for all of it."""
    for share in (1 / 3, 1.0):
        number = num_bytes = 0
        began_s, before_s = time.perf_counter(), cpu_s()
        while time.perf_counter() - began_s < share * seconds:
            one, size = next(samples)
            number, num_bytes = number + one, num_bytes + size
    took_s = time.perf_counter() - began_s
    return {"samples": number, "num_bytes": num_bytes, "seconds": took_s, "cpu_s": cpu_s() - before_s}


def main() -> None:
    """Read as the JSON in the first argument asks for, on its core; what came of it goes to stdout."""
    asked = json.loads(sys.argv[1])
    os.sched_setaffinity(0, {asked["core"]})
    os.environ |= {
        "AWS_ENDPOINT_URL": asked["endpoint"],
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": KEYS["access"],
        "AWS_SECRET_ACCESS_KEY": KEYS["secret"],
    }
    name, endpoint, folder = asked["format"], asked["endpoint"], Path(asked["folder"]) / BUCKET
    samples = ours(name) if asked["by"] == "ours" else plain(name, endpoint, folder)
    print(json.dumps(measure(samples, asked["seconds"])), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
