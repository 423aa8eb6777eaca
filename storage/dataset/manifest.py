"""The protocol every format fulfils, and the manifest and index written beside every dataset.

A dataset is a folder with `manifest.json` (what it holds), `index.npy` (one row per sample: key, file, stored bytes,
content digest, label) and the data files of its format. The manifest is written last and the folder is renamed into
place, so an interrupted write leaves nothing that passes for a dataset.
"""

import ctypes
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from blake3 import blake3
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from benchsuite.storage.dataset.bucket import content_of, is_object, local_file, new_objects
from benchsuite.storage.dataset.local_path import regular
from benchsuite.storage.dataset.partial import partial_folder, remove_abandoned, show_to_others
from benchsuite.storage.dataset.sample import Allocate as Allocate
from benchsuite.storage.dataset.sample import Sample as Sample
from benchsuite.storage.dataset.sample import content_digest as content_digest
from benchsuite.storage.dataset.sample import fresh as fresh
from benchsuite.storage.dataset.sizes import in_units
from benchsuite.storage.errors import DatasetError as DatasetError
from benchsuite.storage.errors import NoDatasetError, told
from benchsuite.storage.objects.client import BucketMissing, ObjectMissing
from benchsuite.storage.objects.file import ObjectFile
from benchsuite.storage.objects.path import ObjectPath

MANIFEST = "manifest.json"
INDEX = "index.npy"
SCHEMA_VERSION = 1

Index = npt.NDArray[np.void]
COLUMNS = {"key": "S", "file": "S", "digest": "S", "bytes": "i", "label": "i"}
"""Columns of the index, and their kinds of dtype."""


class FieldInfo(BaseModel):
    """One field of a sample; shape is null where it varies."""

    model_config = ConfigDict(extra="ignore")
    name: str
    dtype: str
    shape: list[int] | None = None


class FileInfo(BaseModel):
    """One data file, its size and its digest: "blake3:" or "blake3-from-N:" and hex, or hex alone for blake2b-128."""

    model_config = ConfigDict(extra="ignore")
    path: str
    bytes: int
    digest: str
    num_samples: int | None = None


class Manifest(BaseModel):
    """What a dataset holds and how it was made. Fields are only ever added."""

    model_config = ConfigDict(extra="ignore")
    schema_version: int = SCHEMA_VERSION
    workload: str
    variant: str
    kind: str
    format: str
    num_samples: int
    num_classes: int | None = None
    params: dict[str, int] = Field({}, description="what the samples were made for, such as seq_len")
    options: dict[str, int | str] = Field({}, description="how the format was told to store them")
    stored_bytes: int
    fields: list[FieldInfo]
    files: list[FileInfo] = Field(description="data files; where each sample is a file, the index lists those")
    dataset_id: str = Field(description="digest over the sorted sample keys and content digests: equal in every format")
    created: dict[str, str | int | float | None]


@dataclass(frozen=True)
class Dataset:
    """An opened dataset: its folder, which may be an `ObjectPath`, its manifest and its index (memory-mapped)."""

    folder: Path
    manifest: Manifest
    index: Index
    fetch: Callable[..., bool] | None = None
    """`brings`, where the folder is filled as it is read. None: all files are there."""

    def brings(self, *names: str, check: Callable[[list[Path]], None] | None = None) -> bool:
        """Have data files brought before they are opened, and checked, by `storage.staging.lazy.Fetch`.

        Returns:
            Whether one was missing.
        """
        return self.fetch is not None and self.fetch(*names, check=check)

    def said_bytes(self, name: str) -> int | None:
        """A data file's size by the manifest; None of one that it does not list."""
        return next((info.bytes for info in self.manifest.files if info.path == name), None)

    def key(self, row: int) -> str:
        """The key of the sample at `row`."""
        return text(self.index["key"][row])

    def data_files(self) -> list[Path]:
        """Every file that holds samples or is needed to read them."""
        names = [info.path for info in self.manifest.files]
        if all(info.num_samples is None for info in self.manifest.files):
            names += map(text, self.index["file"])
        return [inside(self.folder, name) for name in names]


@dataclass(frozen=True)
class ReaderShare:
    """One reader's share of an epoch: reader `index` of `count`. Those of one epoch partition its samples.

    That of the only reader, who does not shuffle, is every sample once, in the order of the index.
    """

    index: int = 0
    count: int = 1
    epoch: int = 0
    seed: int = 0
    shuffle: bool = False
    shuffle_buffer: int = 1
    allocate: Allocate = fresh
    """Where a format reads to. Recycled memory makes a sample valid until the next one is drawn."""
    direct: bool = False
    """Read past the page cache; for formats that can."""
    start: int = 0
    """Samples, or shards, that are passed over."""
    unpacked: Callable[[float], None] = lambda seconds: None
    """Told the seconds that a library took to decompress and decode what was read, where a format knows them."""


def too_few(count: int, units: str, lanes: int, remedy: str) -> str:
    """Why so many samples or shards (`units`) are not enough for their readers, and what helps, at last `remedy`.

    A rank without workers, and each with the loader dali, is one reader: fewer workers help only the others.
    """
    readers = f"{lanes} readers (ranks x workers; without workers or with dali one a rank)"
    return f"{count} {units} < {readers}: fewer ranks, fewer workers where a rank has several readers, or {remedy}"


def by_sample_problem(manifest: Manifest, lanes: int) -> str | None:
    """Refuse, for formats with random access, more readers than samples."""
    return None if manifest.num_samples >= lanes else too_few(manifest.num_samples, "samples", lanes, "more samples")


def by_sample_smallest_lane(manifest: Manifest, lanes: int) -> int:
    """Return the least share of a reader in formats with random access, whose samples are dealt one by one."""
    return manifest.num_samples // lanes


Options = Mapping[str, int | str]


@dataclass(frozen=True)
class BucketClient:
    """What a library asks a bucket with."""

    name: str
    """A module; or a command, where `is_command`."""
    install: str
    """How to install it."""
    is_command: bool = False
    always_verifies: bool = False
    """It verifies a server's certificate whatever it is told."""


@dataclass(frozen=True)
class StockReader:
    """How a format is read with its own library."""

    reader: str
    """Where its `Stock` is, as `module:NAME`; imported by those who read."""
    install: str
    """How to install what it needs."""
    module: str | None = None
    """What it needs that an installation may lack: planning looks for it and does not import it."""
    bucket: BucketClient | None = None
    """None: it wants files."""


@dataclass(frozen=True)
class Format:
    """How samples are stored and read: a format is one of these.

    `write(folder, samples, **options)` stores samples below folder and yields one `IndexRow` each.
    `read(dataset, lane)` yields the samples of one lane of one epoch.
    `problem(manifest, lanes)` says why that many readers cannot share the dataset, or None.
    `smallest_lane(manifest, lanes)` is the least number of samples that one of them gets in an epoch.
    `file_per_sample`: the index lists the data files; else the manifest does.
    `sequential`: samples come in stored order and are mixed in a shuffle buffer.
    `options`: what `write` can be told: a name, and its allowed words or int.
    `option_kinds`: the sample kinds that an option is for, where it is not for all.
    `stores_documents`: `write` takes `documents` too, how a stream of tokens is divided, or None.
    `digests_files`: `write` takes `digests` too, and puts into it what `file_digest` would give, by file.
    `direct_problem(manifest)`: why it cannot be read past the page cache, or None; absent where it never can.
    `files_of(dataset, rows)`: the data files of some samples, where samples have files of their own.
    `reads`: calls where readers ask for all they deliver in read calls, mapped where they map files, unknown else.
    `layout`: files, tar or tfrecord where the data files are as other libraries know them, which may then read them.
    `from_buckets`: it opens its files by `storage.dataset.opened`, so that they may be objects of a bucket.
    `stock`: how its own library reads it, or None; `dali_kinds`: the kinds of samples that DALI has readers for.
    `advised_kinds`: the kinds of samples for which `benchsuite advise` tries it.
    `space_factor` (may be by kind), `sample_overhead_bytes`: disk space for writing: times samples' bytes; each one.
    """

    name: str
    kinds: frozenset[str]
    write: Callable[..., Iterator["IndexRow"]]
    read: Callable[[Dataset, ReaderShare], Iterator[Sample]]
    problem: Callable[[Manifest, int], str | None] = by_sample_problem
    smallest_lane: Callable[[Manifest, int], int] = by_sample_smallest_lane
    file_per_sample: bool = False
    sequential: bool = False
    options: Mapping[str, tuple[str, ...] | type[int]] = field(default_factory=dict)
    space_factor: float | Mapping[str, float] = 1.05
    sample_overhead_bytes: int = 128
    option_kinds: Mapping[str, frozenset[str]] = field(default_factory=dict)
    stores_documents: bool = False
    digests_files: bool = False
    direct_problem: Callable[[Manifest], str | None] | None = None
    files_of: Callable[[Dataset, npt.NDArray[np.int64]], list[Path]] | None = None
    reads: Literal["calls", "mapped", "unknown"] = "unknown"
    layout: Literal["files", "tar", "tfrecord", ""] = ""
    from_buckets: bool = False
    stock: StockReader | None = None
    dali_kinds: frozenset[str] = frozenset()
    advised_kinds: frozenset[str] = frozenset()


@dataclass(frozen=True)
class IndexRow:
    """Where a sample was stored and what it contained."""

    key: str
    file: str
    bytes: int
    digest: str
    label: int


def file_digest(path: Path, like: str = "blake3:", max_threads: int = blake3.AUTO) -> str:
    """Digest of a file's content, of the kind that `like` is.

    "blake3-from-8192:" and hex is BLAKE3 of the content from byte 8192 on, followed by what lies before: of a file
    whose beginning is written last.
    """
    if isinstance(path, ObjectPath):
        return _digest_of_object(path, like)
    if like.startswith("blake3:"):
        return f"blake3:{blake3(max_threads=max_threads).update_mmap(path).hexdigest(16)}"
    if found := re.match(r"blake3-from-(\d+):", like):
        content = np.memmap(path, np.uint8, "r").data if path.stat().st_size else memoryview(b"")
        digest = blake3(max_threads=max_threads).update(content[int(found[1]) :]).update(content[: int(found[1])])
        return f"{found[0]}{digest.hexdigest(16)}"
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _digest_of_object(path: ObjectPath, like: str) -> str:
    """The digest of an object, which is read once, in blocks."""
    from_place = re.match(r"blake3-from-(\d+):", like)
    first, beginning = int(from_place[1]) if from_place else 0, b""
    digest = blake3() if like.startswith("blake3") else hashlib.blake2b(digest_size=16)
    with ObjectFile(path, in_order=True) as file:
        for chunk in file.chunks():
            before = max(0, first - len(beginning))
            beginning += chunk[:before]
            digest.update(chunk[before:])
    digest.update(beginning)
    if isinstance(digest, blake3):
        return f"{from_place[0] if from_place else 'blake3:'}{digest.hexdigest(16)}"
    return digest.hexdigest()


def dataset_id(rows: Iterable[tuple[str, str]]) -> str:
    """Digest over sorted (key, content digest) pairs: the same for the same samples in every format."""
    digest = hashlib.blake2b(digest_size=16)
    for key, content in sorted(rows):
        digest.update(f"{key}\t{content}\n".encode())
    return digest.hexdigest()


def index_row(sample: Sample, file: str) -> IndexRow:
    """The index row of a sample that was stored in `file`."""
    return IndexRow(sample.key, file, sample.stored_bytes, content_digest(sample), class_label(sample))


def class_label(sample: Sample) -> int:
    """The class of a sample whose label is a number; -1 for others."""
    label = sample.fields.get("label", b"-1")
    return -1 if isinstance(label, np.ndarray) else int(bytes(label))


def flush_file_system(folder: Path) -> None:
    """Flush everything written to the file system of `folder`: one call for any number of files."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(descriptor)


def _index_array(rows: list[IndexRow]) -> Index:
    """Rows as a structured array with strings as wide as needed, so that it can be memory-mapped."""
    values = {name: [getattr(row, name) for row in rows] for name in COLUMNS}
    columns = {
        name: np.array([text.encode() for text in column]) if COLUMNS[name] == "S" else np.array(column, "<i8")
        for name, column in values.items()
    }
    index = np.empty(len(rows), [(name, column.dtype) for name, column in columns.items()])
    for name, column in columns.items():
        index[name] = column
    return index


def fsync_path(path: Path) -> None:
    """Flush a file or folder to its disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def new_dataset(folder: Path, needed_bytes: int) -> Iterator[Path]:
    """A temporary folder that becomes `folder`, or objects, when the block ends well, and vanishes when it does not.

    What a writer of the same folder left that was killed on this host is removed first.

    Raises:
        DatasetError: the target exists, or its disk has not `needed_bytes` free.
    """
    if isinstance(folder, ObjectPath):
        with new_objects(folder, needed_bytes, MANIFEST) as making:
            yield making
        return
    folder = Path(os.path.abspath(folder))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DatasetError(f"{folder}: exists already; give a new folder or remove it first")
    with told(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(folder)
        if needed_bytes > (free := shutil.disk_usage(folder.parent).free):
            raise DatasetError(f"{folder}: needs {in_units(needed_bytes)}, its disk has {in_units(free)} free")
        partial = partial_folder(folder)
        partial.mkdir(0o700)  # nobody else may put names where files are about to be made
    try:
        yield partial
        if folder.exists():
            folder.rmdir()
        show_to_others(partial).rename(folder)
        fsync_path(folder.parent)
    except OSError as error:
        raise DatasetError(f"{folder}: {error.strerror or error}; nothing was kept") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_manifest(folder: Path, rows: list[IndexRow], manifest: Manifest) -> None:
    """Write index and manifest, flushed to disk, the manifest last."""
    np.save(folder / INDEX, _index_array(rows), allow_pickle=False)
    flush_file_system(folder)
    (folder / MANIFEST).write_text(manifest.model_dump_json(indent=1) + "\n")
    fsync_path(folder / MANIFEST)


def is_dataset(folder: Path) -> bool:
    """Whether `folder` holds a finished dataset.

    Raises:
        DatasetError: this user may not look, or the file system does not answer.
    """
    path = folder / MANIFEST
    if isinstance(path, ObjectPath):
        return is_object(path)
    with told(folder):
        try:
            return stat.S_ISREG(path.stat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False


def manifest_bytes(folder: Path) -> bytes:
    """The content of a dataset's manifest.

    Raises:
        OSError: it cannot be read.
        DatasetError: the object store does not give it; `storage.objects.client.ObjectMissing` where it is not there.
    """
    path = folder / MANIFEST
    return content_of(path) if isinstance(path, ObjectPath) else regular(path).read_bytes()


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a dataset.

    Raises:
        NoDatasetError: no such folder, or no manifest in it.
        DatasetError: the manifest cannot be read.
    """
    path = folder / MANIFEST
    try:
        manifest = Manifest.model_validate_json(manifest_bytes(folder))
    except (FileNotFoundError, ObjectMissing) as error:
        if isinstance(path, ObjectPath):
            what = "no such bucket" if isinstance(error, BucketMissing) else "no manifest.json below it"
        else:
            what = "no manifest.json in it" if folder.is_dir() else "no such folder"
        raise NoDatasetError(
            f"{folder}: not a dataset: {what}; make one with: benchsuite data generate|convert"
        ) from None
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        told = [str(path), ".".join(map(str, first["loc"])), first["msg"]]
        raise DatasetError(": ".join(filter(None, told))) from error
    if manifest.schema_version > SCHEMA_VERSION:
        found = f"schema_version {manifest.schema_version}"
        raise DatasetError(f"{path}: {found}; this version reads up to {SCHEMA_VERSION}")
    return manifest


def open_dataset(folder: Path) -> Dataset:
    """Open a dataset: its manifest, and its index memory-mapped.

    Raises:
        DatasetError: not a dataset, or index and manifest disagree.
    """
    manifest, path = read_manifest(folder), folder / INDEX
    try:
        index = np.load(regular(local_file(path)), mmap_mode="r", allow_pickle=False)
    except DatasetError:
        raise
    except Exception as error:  # a damaged header makes numpy raise nearly anything, over several lines
        reason = str(error).partition("\n")[0]
        raise DatasetError(f"{folder / INDEX}: cannot be read: {reason}") from error
    if not isinstance(index, np.ndarray) or index.ndim != 1 or _columns(index) != COLUMNS:
        raise DatasetError(f"{folder / INDEX}: not an index of samples")
    if len(index) != manifest.num_samples:
        raise DatasetError(f"{folder}: the manifest says {manifest.num_samples} samples, the index {len(index)}")
    listed = [info.num_samples for info in manifest.files if info.num_samples is not None]
    if listed and (min(listed) < 0 or sum(listed) != len(index)):
        raise DatasetError(f"{folder}: the manifest's files hold {sum(listed)} samples, the index {len(index)}")
    return Dataset(folder, manifest, np.asarray(index))  # still mapped: rows of numpy's memmap take ten times as long


def _columns(index: npt.NDArray[np.void]) -> dict[str, str]:
    return {name: index.dtype[name].kind for name in index.dtype.names or ()}


def text(value: bytes) -> str:
    """A text of the index; what damage made unreadable matches no key and no file, and is reported as that."""
    return bytes(value).decode(errors="replace")


def inside(folder: Path, name: str) -> Path:
    """`folder/name`, refusing names that lead out of folder or are none."""
    return folder / checked_name(folder, name)


def checked_name(folder: Path, name: str) -> str:
    """A name in a folder that does not lead out of it.

    Raises:
        DatasetError: it does, or is none.
    """
    if name.startswith("/") or "\0" in name or (".." in name and ".." in Path(name).parts):
        raise DatasetError(f"{folder}: {name!r} leads out of the dataset")
    return name


def order(count: int, lane: ReaderShare) -> npt.NDArray[np.int64]:
    """The order of `count` items (samples or shards) in the lane's epoch: a function of seed and epoch alone."""
    if not lane.shuffle:
        return np.arange(count, dtype=np.int64)
    return np.random.Generator(np.random.Philox([lane.seed, lane.epoch])).permutation(count)


def dealt(count: int, lane: ReaderShare) -> npt.NDArray[np.int64]:
    """The items of this lane: the epoch's order dealt like cards, so lanes differ by at most one item."""
    return order(count, lane)[lane.index :: lane.count][lane.start :]


def data_file(dataset: Dataset, name: str) -> Path:
    """A data file that the manifest lists, refused where its size is not the manifest's.

    Raises:
        DatasetError: it is missing, or cut short, or it is an object, which `storage.dataset.opened.open_data` reads.
    """
    path = inside(dataset.folder, name)
    if isinstance(path, ObjectPath):
        what = f"format {dataset.manifest.format} is read from files"
        raise DatasetError(f"{path}: {what}: make a copy of the dataset by benchsuite data stage")
    dataset.brings(name)
    with told(path):
        size = regular(path).stat().st_size
    refuse_size(path, size, dataset.said_bytes(name))
    return path


def refuse_size(path: Path, size: int, said: int | None) -> None:
    """Refuse a file of another size than the manifest says, where it says one."""
    if said is not None and size != said:
        raise DatasetError(f"{path}: {size} bytes, the manifest says {said}: truncated or changed")
