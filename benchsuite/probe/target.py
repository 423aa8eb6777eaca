"""Where a probe's checkpoints lie: files of a folder, or objects below a prefix of a bucket.

A file is durable when it and its folder are flushed, an object when its upload is complete.
"""

import io
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter

from benchsuite.storage.dataset.manifest import fsync_path
from benchsuite.storage.objects.client import bucket_of
from benchsuite.storage.objects.file import ObjectFile
from benchsuite.storage.objects.path import ObjectPath
from benchsuite.storage.objects.writer import ObjectWriter
from benchsuite.storage.observe import page_cache
from benchsuite.storage.observe.requests import Counted, Requests, counted
from benchsuite.storage.rawspeed.probe import temporary_below

CLIENT_THREADS = 64
"""Threads of one rank that may ask a store at the same time."""


class ObjectFiles(FileSystem):
    """Objects, as torch.distributed.checkpoint asks for files."""

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        if "w" in mode:
            with ObjectWriter(_object(path)) as out:
                yield out
        else:
            with ObjectFile(_object(path)) as file:
                yield file.stream()

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> ObjectPath:
        return _object(path) / suffix

    def init_path(self, path: str | os.PathLike[str]) -> ObjectPath:
        return _object(path)

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """Write it again under its new name: stores rename nothing."""
        old, new = _object(path), _object(new_path)
        bucket_of(new).put(new.key, bytes(bucket_of(old).get(old.key).data))
        self.rm_file(old)

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """Nothing: a prefix is there with its first object."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return isinstance(checkpoint_id, ObjectPath)

    def exists(self, path: str | os.PathLike[str]) -> bool:
        """Nothing is: each checkpoint has a prefix of its own, and asking would count as a request that failed."""
        return False

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        bucket_of(_object(path)).delete([_object(path).key])


def _object(path: str | os.PathLike[str]) -> ObjectPath:
    assert isinstance(path, ObjectPath)
    return path


def writer_to(folder: Path, threads: int = 1) -> FileSystemWriter:
    """torch's writer of sharded checkpoints, which makes each file durable."""
    writer = FileSystemWriter(folder, thread_count=threads)
    if isinstance(folder, ObjectPath):
        writer.fs, writer.sync_files = ObjectFiles(), False
    return writer


def reader_of(folder: Path) -> FileSystemReader:
    """torch's reader of them."""
    reader = FileSystemReader(folder)
    if isinstance(folder, ObjectPath):
        reader.fs = ObjectFiles()
    return reader


def save_file(state: Any, path: Path) -> None:
    """Write a file by torch.save and make it durable."""
    if isinstance(path, ObjectPath):
        with ObjectWriter(path) as out:
            torch.save(state, cast(Any, out))
    else:
        torch.save(state, path)
        fsync_path(path)


def load_file(path: Path) -> Any:
    """Read what `save_file` wrote."""
    if isinstance(path, ObjectPath):
        with ObjectFile(path) as file:
            return torch.load(cast(Any, file.stream()), map_location="cpu", weights_only=True)
    return torch.load(path, map_location="cpu", weights_only=True)


def make_folder(folder: Path) -> None:
    """Make a folder; a prefix needs none."""
    if not isinstance(folder, ObjectPath):
        folder.mkdir(parents=True)


def flush_names(folder: Path) -> None:
    """Make the names in a folder durable; those of objects are."""
    if not isinstance(folder, ObjectPath):
        fsync_path(folder)


def sizes_below(folder: Path) -> dict[Path, int]:
    """Bytes of each file below a folder, or of each object below a prefix."""
    if isinstance(folder, ObjectPath):
        found = bucket_of(folder).listing(folder.key)
        return {folder / info.key[len(folder.key) + 1 :]: info.num_bytes for info in found}
    return {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}


def evict(paths: Sequence[Path]) -> float | None:
    """Evict files from the page cache; the share of them that stays. None of objects: a server's cache is not seen."""
    if any(isinstance(path, ObjectPath) for path in paths):
        return None
    page_cache.evict(paths)
    return page_cache.residency(paths).fraction


def remove(paths: Sequence[Path]) -> None:
    """Remove files or objects."""
    keys = [path.key for path in paths if isinstance(path, ObjectPath)]
    if keys:
        bucket_of(cast(ObjectPath, paths[0])).delete(keys)
    else:
        for path in paths:
            path.unlink()


def remove_folder(folder: Path) -> None:
    """Remove a folder, or what lies below a prefix."""
    if isinstance(folder, ObjectPath):
        remove([*sizes_below(folder)])
    else:
        shutil.rmtree(folder)


def own_below(path: Path, name: str, needed_bytes: int) -> AbstractContextManager[Path]:
    """A folder or prefix of one's own below a path, removed at the end with all that it holds."""
    return _own_prefix(path, name) if isinstance(path, ObjectPath) else temporary_below(path, name, needed_bytes)


@contextmanager
def _own_prefix(path: ObjectPath, name: str) -> Iterator[ObjectPath]:
    prefix = path / f"{name}-{secrets.token_hex(6)}"
    try:
        yield prefix
    finally:
        remove_folder(prefix)


def asking(path: Path) -> Callable[[], Counted | None]:
    """Count requests from now on; what is returned gives those since it was called last. None where no bucket is."""
    if not isinstance(path, ObjectPath):
        return lambda: None
    requests = Requests(CLIENT_THREADS).start()
    seen = [requests.now()]

    def since() -> Counted:
        seen.append(requests.now())
        return counted(*seen[-2:])

    return since
