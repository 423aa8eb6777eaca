"""A dataset in a bucket: its manifest and index brought to this node, and a new one's files sent.

What is brought is asked for once per node, as long as the objects are the same, by a process of its own, so that the
one that opens a dataset may fork readers. A new dataset is written to a node-local folder, then object by object, the
manifest last: an interrupted writing leaves no manifest, so nothing that passes for a dataset, and the next one of the
same dataset sends what is missing. Each object carries the digest of its content, by which it is known again.
"""

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

from blake3 import blake3

from benchsuite.inside.files import open_plain, own_folder, own_folders
from benchsuite.storage.dataset.partial import partial_folder, remove_abandoned
from benchsuite.storage.dataset.sizes import in_units
from benchsuite.storage.errors import DatasetError, told
from benchsuite.storage.objects.apart import apart
from benchsuite.storage.objects.client import Bucket, ObjectInfo, ObjectMissing, bucket_of
from benchsuite.storage.objects.path import ObjectPath

FOLDER = "benchsuite-objects"
"""The folder's name in the node-local folder, before this user's number."""
PIECE_BYTES = 16 << 20
UPLOADS = "benchsuite-upload"
"""Where new datasets are made."""
THREADS = 8


def node_local_folder(given: str | None = None, environment: Mapping[str, str] = os.environ) -> Path:
    """Where copies go: what is given, else the first of SLURM_TMPDIR, TMPDIR and /tmp."""
    return Path(given or environment.get("SLURM_TMPDIR") or environment.get("TMPDIR") or "/tmp").absolute()


def content_of(path: ObjectPath) -> bytes:
    """A small object's content.

    Raises:
        ObjectMissing: there is none.
        DatasetError: the store does not give it.
    """
    return apart(lambda: bytes(bucket_of(path).get(path.key).data))


def is_object(path: ObjectPath) -> bool:
    """Whether there is such an object."""

    def ask() -> bool:
        try:
            bucket_of(path).head(path.key)
        except ObjectMissing:
            return False
        return True

    return apart(ask)


def local_file(path: Path) -> Path:
    """A file of this machine itself; of an object a copy on this node, made where there is none of it as it is now.

    Raises:
        DatasetError: as `content_of`, or the node-local folder cannot be written.
    """
    return apart(lambda: _brought(path)) if isinstance(path, ObjectPath) else path


def _brought(path: ObjectPath) -> Path:
    bucket, scratch = bucket_of(path), node_local_folder() / f"{FOLDER}-{os.geteuid()}"
    info = bucket.head(path.key)
    name = blake2b(f"{os.environ.get('AWS_ENDPOINT_URL', '')} {path}".encode(), digest_size=12).hexdigest()
    version = blake2b(f"{info.etag or secrets.token_hex()} {info.num_bytes}".encode(), digest_size=12).hexdigest()
    target = scratch / f"{name}-{version}-{path.name}"
    with told(scratch):
        own_folder(scratch)  # nobody else may put anything there
        # Ranks of a node wait for one of them. A lock's file stays: one that is removed may be held twice.
        lock = open_plain(scratch / f".{name}.lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                for old in scratch.glob(f"{name}-*"):
                    old.unlink(missing_ok=True)
                _copy(bucket, info, target)
        finally:
            os.close(lock)
    return target


def _copy(bucket: Bucket, info: ObjectInfo, target: Path) -> None:
    partial = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        for start in range(0, info.num_bytes, PIECE_BYTES):
            end = min(start + PIECE_BYTES, info.num_bytes)
            file.write(bucket.get_range(info.key, start, end, info.etag).data)
    partial.rename(target)


@contextmanager
def new_objects(target: ObjectPath, needed_bytes: int, last: str) -> Iterator[Path]:
    """A temporary folder whose files become objects below `target` when the block ends well, that named `last` at last.

    Raises:
        DatasetError: a dataset or other objects lie there, the node-local folder is too small, or the store refuses.
    """
    if is_object(target / last):
        raise DatasetError(f"{target}: exists already; give a new prefix or remove it first")
    scratch = node_local_folder()
    with told(scratch):
        own_folders(scratch)
        remove_abandoned(scratch / UPLOADS)
        if needed_bytes > (free := shutil.disk_usage(scratch).free):
            what = f"needs {in_units(needed_bytes)} of {scratch} to be made in, its disk has {in_units(free)} free"
            raise DatasetError(f"{target}: {what}; set TMPDIR")
        making = partial_folder(scratch / UPLOADS)
        making.mkdir(0o700)
    try:
        yield making
        _send_all(making, target, last)
    except OSError as error:
        raise DatasetError(f"{target}: {error.strerror or error}; what was written is no dataset yet") from error
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _send_all(folder: Path, target: ObjectPath, last: str) -> None:
    bucket = bucket_of(target)
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    there = {info.key.removeprefix(f"{target.key}/"): info for info in bucket.listing(target.key)}
    if foreign := sorted(there.keys() - files.keys()):
        raise DatasetError(f"{target / foreign[0]}: is no part of this dataset; give a new prefix or remove it first")
    final = files.pop(last)
    with ThreadPoolExecutor(THREADS) as pool:
        sending = [pool.submit(_send, bucket, files[name], target / name, there.get(name)) for name in sorted(files)]
        try:
            for future in sending:
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)
    found = {info.key.removeprefix(f"{target.key}/"): info.num_bytes for info in bucket.listing(target.key)}
    for name, path in files.items():
        if found.get(name) != path.stat().st_size:
            raise DatasetError(f"{target / name}: {found.get(name)} bytes there, {path.stat().st_size} were sent")
    bucket.put((target / last).key, final, _digest(final))


def _send(bucket: Bucket, path: Path, target: ObjectPath, there: ObjectInfo | None) -> None:
    """Send a file, unless its content is there."""
    digest = _digest(path)
    if there is not None and there.num_bytes == path.stat().st_size and bucket.head(target.key).digest == digest:
        return
    bucket.put(target.key, path, digest)


def _digest(path: Path) -> str:
    return f"blake3:{blake3().update_mmap(path).hexdigest(16)}"
