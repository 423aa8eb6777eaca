"""What the machine gives: preadv of a dataset's files into recycled buffers, and decoding of bytes in memory."""

import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import torch

from benchsuite.storage.dataset.kinds import Kind, augment_image, empty_batch, sample_rng
from benchsuite.storage.dataset.manifest import Dataset
from benchsuite.storage.dataset.sample import Sample, read_at

Piece = tuple[str, int, int]
"""A file, an offset and a length."""
MIN_SECONDS = 1.0


def pieces(dataset: Dataset) -> list[Piece]:
    """The dataset's data in pieces of a sample's mean size, whole files where they are smaller."""
    size = max(dataset.manifest.stored_bytes // dataset.manifest.num_samples, 1 << 16)
    found: list[Piece] = []
    for path in dataset.data_files():
        length = path.stat().st_size
        found += [(str(path), start, min(size, length - start)) for start in range(0, length, size)]
    return found


def read_rate(dataset: Dataset, threads: int, cold: bool) -> float:
    """Bytes per second of preadv with so many threads, each into one buffer: once over cold files, or for a second."""
    todo = pieces(dataset)
    longest = max(length for _, _, length in todo)
    buffers = [np.zeros(longest, np.uint8) for _ in range(threads)]
    total = sum(length for _, _, length in todo)
    start, passes = time.perf_counter(), 0
    while not passes or (not cold and time.perf_counter() - start < MIN_SECONDS):
        readers = [
            threading.Thread(target=_read, args=(todo[number::threads], buffers[number])) for number in range(threads)
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        passes += 1
    return passes * total / (time.perf_counter() - start)


def _read(todo: list[Piece], buffer: np.ndarray) -> None:
    opened, descriptor = "", -1
    for path, offset, length in todo:
        if path != opened:
            if descriptor >= 0:
                os.close(descriptor)
            opened, descriptor = path, os.open(path, os.O_RDONLY)
        read_at(descriptor, offset, buffer[:length], path)  # type: ignore[arg-type]
    if descriptor >= 0:
        os.close(descriptor)


def decode_rate(samples: list[Sample], work: Callable[[list[Sample]], float], processes: int) -> float:
    """Bytes per second of `work` on samples in memory, in so many processes at once."""
    total = sum(sample.stored_bytes for sample in samples)
    if processes == 1:
        return total / work(samples)
    with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as pool:
        parts = [samples[number::processes] for number in range(processes)]
        list(pool.map(len, parts))
        slowest = max(pool.map(work, parts))
    return total / slowest


def decode_only(samples: list[Sample]) -> float:
    """Seconds that the JPEG library takes for them."""
    import simplejpeg

    start = time.perf_counter()
    for sample in samples:
        simplejpeg.decode_jpeg(sample.fields["image"], "RGB")
    return time.perf_counter() - start


def decode_and_augment(samples: list[Sample], kind: Kind, params: Mapping[str, int]) -> float:
    """Seconds that decoding by the JPEG library, as it is plainly used, and augmenting take.

    Images are augmented into the same memory again and again.
    """
    import simplejpeg

    torch.set_num_threads(1)
    row = {name: tensor[0] for name, tensor in empty_batch(kind, params, 1).items()}
    start = time.perf_counter()
    for sample in samples:
        pixels = torch.from_numpy(simplejpeg.decode_jpeg(sample.fields["image"], "RGB"))
        augment_image(pixels, params, sample_rng(0, 0, sample.key), row)
    return time.perf_counter() - start
