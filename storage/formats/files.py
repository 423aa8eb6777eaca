"""Format `files`: a file per sample; labels of images stand in the index.

Images are `<class>/<name>.jpg|png`; volumes a pair `<key>_x.npy` and `<key>_y.npy`, as MLPerf's UNet3D reads them, or
one `<key>.npz` (option `array`); sequences one `<key>.npy`, structured where a sample has several fields.
"""

import io
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchsuite.storage.dataset.fields import KIND_FIELDS, RECORD_KINDS, array, encoded, image_extension, record, unpack
from benchsuite.storage.dataset.manifest import (
    BucketClient,
    Dataset,
    Format,
    IndexRow,
    Manifest,
    ReaderShare,
    StockReader,
    checked_name,
    dealt,
    index_row,
    inside,
    text,
)
from benchsuite.storage.dataset.sample import (
    Allocate,
    Array,
    Sample,
    Value,
    content_digest,
    copied,
    fresh,
    num_bytes,
    read_whole,
)
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.formats import npy
from benchsuite.storage.formats.write_behind import WriteBehind
from benchsuite.storage.objects.client import Content, bucket_of
from benchsuite.storage.objects.file import Placed, contents
from benchsuite.storage.objects.path import ObjectPath
from benchsuite.storage.rawspeed.direct import read_whole_direct

VOLUME_SUFFIXES: Mapping[str, str] = {"image": "x", "label": "y"}
"""How the arrays of a volume are named in files."""
_LOCAL_HEADER_BYTES = 30
Whole = Callable[[Any, str, Allocate], npt.NDArray[np.uint8]]
"""How a file is read: into which memory, under which name."""


def write(folder: Path, samples: Iterable[Sample], array: str = "npy") -> Iterator[IndexRow]:
    """Write each sample as a file of its own, or as a pair of .npy files."""
    with WriteBehind() as behind:
        for sample in samples:
            first = ""
            for name, parts in _contents(sample, array):
                _write_file(inside(folder, name), parts, behind)
                first = first or name
            yield index_row(sample, first)


def _write_file(path: Path, parts: list[bytes | memoryview], behind: WriteBehind) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        behind.written(file.fileno(), 0, sum(map(num_bytes, parts)))


def _contents(sample: Sample, container: str) -> Iterator[tuple[str, list[bytes | memoryview]]]:
    """The files of a sample: name, and the parts of its content."""
    if "image" in sample.fields and not isinstance(sample.fields["image"], np.ndarray):
        image = encoded(sample, "image")
        yield f"{sample.key}.{image_extension(image)}", [image]
    elif "image" not in sample.fields:
        yield f"{sample.key}.npy", [*npy.parts(record(sample))]
    elif container == "npz":
        yield f"{sample.key}.npz", [_npz(sample)]
    else:
        for field, suffix in VOLUME_SUFFIXES.items():
            yield f"{sample.key}_{suffix}.npy", [*npy.parts(array(sample, field))]


def _npz(sample: Sample) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, x=array(sample, "image"), y=array(sample, "label"))
    return stream.getvalue()


def read(dataset: Dataset, lane: ReaderShare) -> Iterator[Sample]:
    """The lane's samples, each file read whole with one open and one read; objects are asked for ahead."""
    rows = map(int, dealt(len(dataset.index), lane))
    if isinstance(dataset.folder, ObjectPath):
        yield from _read_objects(dataset, rows, dataset.folder, lane.allocate)
        return
    for row in rows:
        bring(dataset, row, lane.allocate)
        paths = _paths(dataset, dataset.index["file"][row])
        yield _sample(dataset, row, paths, lane.allocate, read_whole_direct if lane.direct else read_whole)


def _read_objects(dataset: Dataset, rows: Iterable[int], folder: ObjectPath, allocate: Allocate) -> Iterator[Sample]:
    """The samples of a bucket. A path for each would take as long as a tenth of a small object's request."""
    begun: deque[tuple[int, list[str]]] = deque()
    first: list[Content] = []
    is_image = dataset.manifest.kind == "image"
    place, prefix = str(folder), f"{folder.key}/" if folder.key else ""

    def keys() -> Iterator[str]:
        for row in rows:
            names = _names(dataset, dataset.index["file"][row])
            begun.append((row, [f"{place}/{name}" for name in names]))
            yield from (f"{prefix}{name}" for name in names)

    def whole(_path: Path | str, name: str, allocate: Allocate) -> npt.NDArray[np.uint8]:
        content = (first.pop() if first else next(coming)).data
        return np.frombuffer(content, np.uint8) if is_image else copied(content, name, allocate)  # arrays are writable

    coming = contents(bucket_of(folder), keys(), float(dataset.index["bytes"].mean()) if len(dataset.index) else 0.0)
    for content in coming:
        first.append(content)
        row, names = begun.popleft()
        yield _sample(dataset, row, names, allocate, whole)


def bring(dataset: Dataset, row: int, allocate: Allocate = fresh) -> None:
    """Have the files of a sample brought; they get their names once they hold what the index says.

    Raises:
        DatasetError: they do not.
    """
    if dataset.fetch is None:
        return

    def check(paths: list[Path]) -> None:
        sample = _sample(dataset, row, paths, allocate, read_whole)
        if content_digest(sample) != text(dataset.index["digest"][row]):
            raise DatasetError(f"{paths[0]}: sample {sample.key!r}: the checksum of its copy is not the index's")

    paths = _paths(dataset, dataset.index["file"][row])
    dataset.brings(*(str(path.relative_to(dataset.folder)) for path in paths), check=check)


def _sample(dataset: Dataset, row: int, paths: Sequence[Path | str], allocate: Allocate, whole: Whole) -> Sample:
    entry, path = dataset.index[row], paths[0]
    fields = _read_fields(dataset.manifest.kind, paths, allocate, whole)
    if dataset.manifest.kind == "image":
        fields["label"] = str(entry["label"]).encode()
    sample = Sample(text(entry["key"]), fields, row, str(path))
    if (stored := sample.stored_bytes) != entry["bytes"]:
        beside = num_bytes(fields["label"]) if dataset.manifest.kind == "image" else 0
        found, said = stored - beside, entry["bytes"] - beside
        what = f"{found} bytes, the index says {said}: truncated or changed"
        raise DatasetError(f"{path}: sample {sample.key!r}: {what}")
    return sample


def _read_fields(kind: str, paths: Sequence[Path | str], allocate: Allocate, whole: Whole) -> dict[str, Value]:
    path = paths[0]
    if kind == "image":
        return {"image": whole(path, "image", allocate).data}
    if kind in RECORD_KINDS:
        packed = npy.view(whole(path, "record", allocate), str(path))
        try:
            return dict(unpack(packed, KIND_FIELDS[kind]))
        except ValueError as error:
            raise DatasetError(f"{path}: {error}") from error
    if len(paths) == 1:
        return dict(read_npz(path, allocate, whole=whole))
    pairs = zip(VOLUME_SUFFIXES, paths, strict=True)
    return {field: npy.view(whole(path, field, allocate), str(path)) for field, path in pairs}


def _paths(dataset: Dataset, first: bytes) -> list[Path]:
    return [dataset.folder / name for name in _names(dataset, first)]


def _names(dataset: Dataset, first: bytes) -> list[str]:
    """The files of a sample in the dataset's folder; the index names the first."""
    name = checked_name(dataset.folder, text(first))
    if dataset.manifest.kind != "volume" or name.endswith(".npz"):
        return [name]
    key = name.removesuffix("_x.npy")
    return [f"{key}_{suffix}.npy" for suffix in VOLUME_SUFFIXES.values()]


def files_of(dataset: Dataset, rows: npt.NDArray[np.int64]) -> list[Path]:
    """The files of these samples."""
    return [path for name in dataset.index["file"][rows] for path in _paths(dataset, name)]


def direct_problem(manifest: Manifest) -> str | None:
    """.npz files are archives, whose directory the library reads."""
    return "array=npz is read through the page cache" if manifest.options.get("array") == "npz" else None


def read_npz(
    path: Path | str, allocate: Allocate, names: Mapping[str, str] = VOLUME_SUFFIXES, whole: Whole = read_whole
) -> dict[str, Array]:
    """The arrays x and y of a .npz file, or those of other `names`, by field; checksums are verified.

    Members that are not compressed are seen in the file's own memory, without a copy.

    Raises:
        DatasetError: not a .npz file, damaged, or without one of them.
    """
    content = whole(path, "npz", allocate)
    members: dict[str, Array] = {}
    try:
        with zipfile.ZipFile(
            Placed(len(content), lambda at, part: np.copyto(part, content[at : at + len(part)]))
        ) as archive:
            for field, suffix in names.items():
                info = archive.getinfo(f"{suffix}.npy")
                if info.compress_type != zipfile.ZIP_STORED:
                    members[field] = npy.view(archive.read(info), f"{path}: {suffix}.npy")
                    continue
                local = content[info.header_offset : info.header_offset + _LOCAL_HEADER_BYTES].tobytes()
                names_bytes = int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
                start = info.header_offset + _LOCAL_HEADER_BYTES + names_bytes
                member = content[start : start + info.file_size]
                if zlib.crc32(member.data) != info.CRC:
                    raise DatasetError(f"{path}: {suffix}.npy: its CRC is not the archive's")
                members[field] = npy.view(member, f"{path}: {suffix}.npy")
    except KeyError as error:
        raise DatasetError(f"{path}: {error.args[0]!s}") from error
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, IndexError) as error:
        raise DatasetError(f"{path}: not a whole .npz file: {error}") from error
    return members


FILES = Format(
    "files",
    frozenset(KIND_FIELDS),
    write,
    read,
    file_per_sample=True,
    options={"array": ("npy", "npz")},
    sample_overhead_bytes=8192,
    option_kinds={"array": frozenset({"volume"})},
    direct_problem=direct_problem,
    files_of=files_of,
    reads="calls",
    layout="files",
    from_buckets=True,
    stock=StockReader(
        "benchsuite.storage.stock.files:STOCK",
        "pip install 'benchsuite[formats]'",
        bucket=BucketClient("s3torchconnector", "pip install 'benchsuite[s3-stock]'", always_verifies=True),
    ),
    dali_kinds=frozenset({"image", "volume"}),
    advised_kinds=frozenset(KIND_FIELDS) - {"tokens"},
)
