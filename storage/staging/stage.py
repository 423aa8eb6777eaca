"""Staging: a dataset's copy on a node-local disk, whole and checked before it passes for one.

A copy is made in a folder of its writer's own beside its target and renamed when all of it is there, the manifest last.
What an interrupted copy has finished is checked again and kept by the next one. One process of a node copies; others
wait for it, and go on in its place should it die. Nodes that do not see each other's locks, as on some network file
systems, copy each on their own, and the first copy stays. The source's pages leave the page cache where they were not
in it before; the copy's stay in it, written to the disk, so that they can be evicted.
"""

import errno
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchsuite.inside.files import own_folder, own_folders, refuse_foreign
from benchsuite.storage import format_of
from benchsuite.storage.dataset.bucket import local_file
from benchsuite.storage.dataset.bucket import node_local_folder as node_local_folder
from benchsuite.storage.dataset.manifest import (
    INDEX,
    MANIFEST,
    Dataset,
    Format,
    Manifest,
    ReaderShare,
    file_digest,
    flush_file_system,
    fsync_path,
    inside,
    manifest_bytes,
    open_dataset,
    read_manifest,
    text,
)
from benchsuite.storage.dataset.partial import adopted_folder, partial_folder, partial_folders
from benchsuite.storage.dataset.sample import Recycled, content_digest
from benchsuite.storage.dataset.sizes import in_units
from benchsuite.storage.errors import DatasetError, told_by_file
from benchsuite.storage.objects.path import ObjectPath
from benchsuite.storage.observe import page_cache
from benchsuite.storage.staging.copy import SUFFIX, Copied, FileCopy, copy_files
from benchsuite.storage.staging.lazy import Check, Fetch
from benchsuite.storage.staging.lock import locked, sign

MARK = "staged.json"
"""The file in a staged copy that says where it came from. Only what has one is ever removed."""
THREADS = 8
LANE_BYTES = 64 << 20
"""Where each sample is a file, a thread takes samples of about so many bytes at a time."""
BLOCK_BYTES = 4096
"""What a file occupies beyond its content, at most, on common file systems."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Staged:
    """A whole copy of a dataset, and what making it took."""

    folder: Path
    num_files: int
    num_bytes: int
    """Bytes of all its data files."""
    copied_bytes: int
    """Bytes that were copied now; the rest was there, and was checked."""
    seconds: float | None
    """None where a whole copy was there already."""
    source_left_as_found: bool
    """False where the kernel hides from this user what of it was in the page cache: what was read is left there."""
    resident_fraction: float | None
    """Share of the copy in the page cache, clean; None where the kernel does not tell."""


def copy_name(manifest: Manifest) -> str:
    """What a dataset's copy is called among those of others."""
    return f"{manifest.workload}-{manifest.format}-{manifest.dataset_id[:12]}"


def stage(
    source: Path,
    target: Path,
    threads: int = THREADS,
    progress: Progress = lambda done, total: None,
    on_wait: Callable[[str], None] = lambda holder: None,
) -> Staged:
    """Copy the dataset in `source` to `target`, or find it there, whole.

    Raises:
        DatasetError: the disk is too small (said before the first byte), something else lies at the target, what was
            copied is not what manifest and index say. What was finished stays for the next attempt, or `unstage`.
    """
    dataset, target = open_dataset(source), Path(os.path.abspath(target))
    if not isinstance(source, ObjectPath) and os.path.realpath(source) == os.path.realpath(target):
        raise DatasetError(f"{target}: source and target are the same")
    with told_by_file(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    found = _whole(dataset, target)
    if found is not None:
        return found
    lock = _lock(target)
    with locked(lock, on_wait) as descriptor:
        sign(descriptor)
        try:
            return _whole(dataset, target) or _stage(dataset, target, threads, progress)
        finally:
            lock.unlink(missing_ok=True)


def unstage(target: Path) -> bool:
    """Remove a staged copy and what interrupted ones have left; whether there was any.

    Raises:
        DatasetError: what lies there is no staged copy.
    """
    target = Path(os.path.abspath(target))
    there = [*([target] if target.exists() else []), *partial_folders(target)]
    if target.exists() and not (target / MARK).is_file():
        raise DatasetError(f"{target}: no copy that was staged: no {MARK} in it; nothing was removed")
    if not target.parent.is_dir():
        return False
    lock = _lock(target)
    with told_by_file(target), locked(lock, lambda holder: None):  # whoever makes the copy finishes first
        try:
            if target.exists():  # under another name, so that half of it never passes for whole
                target.rename(partial_folder(target))
            for left in partial_folders(target):
                shutil.rmtree(left, ignore_errors=True)
        finally:
            lock.unlink(missing_ok=True)
    return bool(there)


def refuse_small_disk(dataset: Dataset, folder: Path, there_bytes: int = 0) -> None:
    """Refuse a disk that cannot hold the dataset, of which so much is there.

    Raises:
        DatasetError: with both figures.
    """
    created, files, unlisted = dataset.manifest.created, dataset.manifest.files, _by_sample(dataset)
    listed_bytes = sum(info.bytes for info in files)
    num_bytes = int(created.get("num_bytes") or listed_bytes + unlisted * int(dataset.index["bytes"].sum()))
    count = int(created.get("num_files") or len(files) + unlisted * len(dataset.index))
    needed = num_bytes + count * BLOCK_BYTES + dataset.index.nbytes - there_bytes
    with told_by_file(folder):
        free = shutil.disk_usage(folder).free
    if needed > free:
        raise DatasetError(f"{folder}: staging needs {in_units(needed)}, its disk has {in_units(free)} free")


def _lock(target: Path) -> Path:
    return target.with_name(f".{target.name}.lock")


def _by_sample(dataset: Dataset) -> bool:
    """Whether the index lists the files, beside the manifest."""
    return all(info.num_samples is None for info in dataset.manifest.files)


def _whole(dataset: Dataset, target: Path) -> Staged | None:
    """The copy that is at the target already; None where nothing is.

    Raises:
        DatasetError: something else is, or another user's, or files are missing.
    """
    if not target.exists():
        return None
    with told_by_file(target):
        refuse_foreign(target)
    there = open_dataset(target)
    if _identity(there.manifest) != _identity(dataset.manifest):
        raise DatasetError(
            f"{target}: holds another dataset (id {there.manifest.dataset_id}, {there.manifest.format}), not "
            f"{dataset.folder}'s (id {dataset.manifest.dataset_id}, {dataset.manifest.format}); remove it first"
        )
    files = there.data_files()
    found, said = {}, {inside(target, info.path): info.bytes for info in there.manifest.files}
    for path in files:
        with told_by_file(path):
            found[path] = size = path.stat().st_size
        if size != said.get(path, size):
            raise DatasetError(f"{path}: {size} bytes, the manifest says {said[path]}; remove the copy, stage it anew")
    _check_samples(there, found)
    return _staged(there, files, 0, None, True)


def _check_samples(dataset: Dataset, sizes: Mapping[Path, int]) -> None:
    """Compare the sizes of files of samples, which the manifest does not list, with the index.

    A JPEG is as long as the index says, less its class, which stands in the index alone; arrays have headers beside
    what the index counts.

    Raises:
        DatasetError: a file is too short, or a JPEG not as long.
    """
    form = format_of(dataset.manifest.format)
    if form.files_of is None or form.layout != "files":
        return
    rows = np.arange(len(dataset.index))
    files, image = form.files_of(dataset, rows), dataset.manifest.kind == "image"
    each = len(files) // len(rows)  # volumes may be pairs of files
    lengths = np.array([sizes[path] for path in files]).reshape(len(rows), each).sum(axis=1)
    labels = np.char.str_len(dataset.index["label"].astype(str)) if image else 0
    wanted = dataset.index["bytes"].astype(np.int64) - labels
    for row in np.flatnonzero(lengths != wanted if image else lengths < wanted)[:1]:
        least = "" if image else "at least "
        raise DatasetError(
            f"{files[row * each]}: {lengths[row]} bytes, the index says {least}{wanted[row]}; remove the copy, stage "
            "it anew"
        )


def _identity(manifest: Manifest) -> object:
    files = [(info.path, info.bytes, info.digest) for info in manifest.files]
    return manifest.dataset_id, manifest.format, manifest.num_samples, files


def _staged(dataset: Dataset, files: list[Path], copied: int, seconds: float | None, as_found: bool) -> Staged:
    sizes = sum(path.stat().st_size for path in files)
    resident = page_cache.residency(files).fraction
    return Staged(dataset.folder, len(files), sizes, copied, seconds, as_found, resident)


class _Told:
    """Bytes copied so far, counted over threads."""

    def __init__(self, total: int, progress: Progress) -> None:
        self.num_bytes, self._total, self._progress, self._lock = 0, total, progress, threading.Lock()

    def __call__(self, num_bytes: int) -> None:
        with self._lock:
            self.num_bytes += num_bytes
            self._progress(min(self.num_bytes, self._total), self._total)


def _stage(dataset: Dataset, target: Path, threads: int, progress: Progress) -> Staged:
    """Copy under the lock."""
    started = time.perf_counter()
    making = adopted_folder(target)
    with told_by_file(making):
        resumed = _tidy(making)
        there = sum(path.stat().st_size for path in resumed)
        refuse_small_disk(dataset, making.parent, there)
        own_folder(making)
        told = _Told(int(dataset.manifest.created.get("num_bytes") or dataset.manifest.stored_bytes), progress)
        hidden = _by_sample(dataset) and _copy_samples(dataset, making, threads, told)
        hidden |= _copy_listed(dataset, making, threads, told)
        _copy_index(dataset, making)
        mark = {"source": str(dataset.folder.absolute()), "dataset_id": dataset.manifest.dataset_id}
        (making / MARK).write_text(json.dumps(mark) + "\n")
        flush_file_system(making)
        (making / MANIFEST).write_bytes(manifest_bytes(dataset.folder))
        fsync_path(making / MANIFEST)
        if _identity(read_manifest(making)) != _identity(dataset.manifest):
            raise DatasetError(f"{dataset.folder}: its manifest was changed meanwhile")
        if not _named(making, target):
            found = _whole(dataset, target)
            if found is None:
                raise DatasetError(f"{target}: another node has just made it; run the same again to check it")
            return found
        seconds = time.perf_counter() - started
        whole = open_dataset(target)
        return _staged(whole, whole.data_files(), told.num_bytes, seconds, not hidden)


def _named(making: Path, target: Path) -> bool:
    """Give a whole copy its name; False where a node whose lock is not seen here was first."""
    try:
        making.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        shutil.rmtree(making, ignore_errors=True)
        return False
    fsync_path(target.parent)
    return True


def _tidy(making: Path) -> list[Path]:
    """The finished files that an interrupted copy has left; its unfinished ones are removed."""
    (making / MANIFEST).unlink(missing_ok=True)
    found = [path for path in making.rglob("*") if path.is_file()]
    for path in found:
        if path.name.startswith(".") and path.name.endswith(SUFFIX):
            path.unlink()
    return [path for path in found if path.exists()]


def _copy_listed(dataset: Dataset, making: Path, threads: int, told: Copied) -> bool:
    """Copy the files that the manifest lists, but for those that are there and are what it says."""
    copies = []
    for info in dataset.manifest.files:
        target = inside(making, info.path)
        if target.exists():
            if target.stat().st_size == info.bytes and file_digest(target, info.digest) == info.digest:
                continue
            target.unlink()
        own_folders(target.parent)
        copies.append(FileCopy(inside(dataset.folder, info.path), target, info.bytes, info.digest))
    return copy_files(copies, threads, told)


def _copy_samples(dataset: Dataset, making: Path, threads: int, told: Copied) -> bool:
    """Have the format read every sample from a copy that is filled as it is read, and compare it with the index."""
    form = format_of(dataset.manifest.format)
    lanes = min(len(dataset.index), max(dataset.manifest.stored_bytes // LANE_BYTES, 4 * threads))
    fetch = Fetch(dataset, making, told)
    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(_copy_lane, dataset, making, form, (n, lanes), fetch.noting()) for n in range(lanes)]
        try:
            return True in [future.result() for future in futures]
        finally:
            pool.shutdown(cancel_futures=True)


def _copy_lane(dataset: Dataset, making: Path, form: Format, lane: tuple[int, int], fetch: Fetch) -> bool:
    """Copy and check some samples; once more where files that were there are not what they should be."""
    try:
        _check_lane(dataset, making, form, lane, fetch)
    except DatasetError:
        if not fetch.found:
            raise
        for path in fetch.found:
            path.unlink(missing_ok=True)
        _check_lane(dataset, making, form, lane, fetch)
    return fetch.hidden


def _check_lane(dataset: Dataset, making: Path, form: Format, lane: tuple[int, int], fetch: Fetch) -> None:
    def silently(*names: str, check: Check | None) -> bool:
        return fetch(*names, check=lambda paths: None)  # what is new is compared here, so the format need not

    local = replace(dataset, folder=making, fetch=silently)
    share = ReaderShare(*lane, 0, 0, False, 1, Recycled(int(dataset.index["bytes"].max())))
    for sample in form.read(local, share):
        if content_digest(sample) != text(dataset.index["digest"][sample.index]):
            Path(sample.source).unlink(missing_ok=True)
            raise DatasetError(
                f"{sample.source}: sample {sample.key!r}: the checksum of its copy is not the index's: damaged in "
                f"{dataset.folder}, or on the way"
            )


def _copy_index(dataset: Dataset, making: Path) -> None:
    """The index has no digest in the manifest: its copy is compared with it."""
    source = local_file(dataset.folder / INDEX)
    copy = FileCopy(source, making / INDEX, digest=file_digest(source))
    copy_files([copy], 1)
