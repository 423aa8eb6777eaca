"""Make datasets: generated, or converted from a folder of JPEGs or from another dataset."""

import ctypes
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import simplejpeg

from storage import FORMATS, generate, load
from storage.format import (
    IMAGE_FIELDS,
    Dataset,
    DatasetError,
    FileInfo,
    Format,
    IndexRow,
    Lane,
    Manifest,
    Sample,
    dataset_id,
    file_digest,
    is_dataset,
    new_dataset,
    open_dataset,
    write_manifest,
)

JPEG_SUFFIXES = {".jpg", ".jpeg"}
JPEG_END = b"\xff\xd9"
_PR_SET_PDEATHSIG = 1
Progress = Callable[[int, int], None]
"""Called with samples done and samples in all."""


def in_order(dataset: Dataset) -> Iterator[Sample]:
    """Every sample of a dataset once, in the order of its index."""
    form: Format = load(FORMATS, dataset.manifest.format, "benchsuite.formats")
    return form.read(dataset, Lane(0, 1, 0, 0, False, 1))


def sample_key(relative: Path) -> str:
    """A sample's key from its file's path: without suffix, and with nothing that tar readers see a meaning in.

    They take a dot for the start of a suffix, and skip what lies in a folder named `__so__`.
    """
    return re.sub(r"^__([^/]*)__/", r"_\1_/", re.sub(r"[.\s]", "_", str(relative.with_suffix(""))))


def _jpeg_paths(source: Path) -> list[Path]:
    """JPEG files of a folder, flat or one folder per class, in sorted order."""
    try:
        inner = sorted(entry for entry in source.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise DatasetError(f"{source}: {error.strerror}") from error
    flat = [path for path in inner if path.suffix.lower() in JPEG_SUFFIXES]
    nested = [
        path
        for folder in inner
        if folder.is_dir()
        for path in sorted(folder.rglob("*"))
        if path.suffix.lower() in JPEG_SUFFIXES
    ]
    if flat and nested:
        raise DatasetError(f"{source}: JPEGs both flat ({flat[0].name}) and in folders ({nested[0].parent.name}/)")
    paths = flat or nested
    if not paths:
        raise DatasetError(f"{source}: no .jpg or .jpeg files, neither flat nor in one folder per class")
    return paths


def _folder_samples(source: Path, paths: list[Path]) -> Iterator[Sample]:
    """Samples of a folder of JPEGs as they came; a class per top folder, class 0 where it is flat."""
    parts = [path.relative_to(source).parts for path in paths]
    classes = {name: number for number, name in enumerate(sorted({part[0] for part in parts if len(part) > 1}))}
    seen: set[str] = set()
    for path, part in zip(paths, parts, strict=True):
        key = sample_key(path.relative_to(source))
        if not key.isascii() and key != key.encode(errors="replace").decode():
            raise DatasetError(f"{os.fsencode(path)!r}: the file's name is not UTF-8; rename it")
        if key in seen:
            raise DatasetError(f"{path}: another file has the same key {key!r}; rename one of them")
        seen.add(key)
        try:
            image = path.read_bytes()
        except OSError as error:
            raise DatasetError(f"{path}: {error.strerror}") from error
        _check_jpeg(image, path)
        label = classes[part[0]] if len(part) > 1 else 0
        yield Sample(key, {"image": image, "label": str(label).encode()}, source=str(path))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror}") from error


def _check_jpeg(image: bytes, path: Path) -> None:
    try:
        simplejpeg.decode_jpeg_header(image)
        if not image.rstrip(b"\0").endswith(JPEG_END):
            simplejpeg.decode_jpeg(image, "RGB")
    except ValueError as error:
        raise DatasetError(f"{path}: not a whole JPEG: {error}") from error


def _store(
    samples: Iterable[Sample],
    count: int,
    needed_bytes: int,
    folder: Path,
    format_name: str,
    workload: str,
    variant: str,
    created: dict[str, str | int | float | None],
    options: dict[str, int],
    progress: Progress,
) -> Manifest:
    """Write samples into a new dataset and return its manifest."""
    form: Format = load(FORMATS, format_name, "benchsuite.formats")
    started = time.perf_counter()
    rows: list[IndexRow] = []
    with new_dataset(folder, needed_bytes) as partial_folder:
        for row in form.write(partial_folder, samples, **options):
            rows.append(row)
            progress(len(rows), count)
        if not rows:
            raise DatasetError(f"{folder}: no samples to store")
        stored = {row.file: 0 for row in rows}
        for row in rows:
            stored[row.file] += 1
        result = Manifest(
            workload=workload,
            variant=variant,
            kind="image",
            format=format_name,
            num_samples=len(rows),
            num_classes=max(row.label for row in rows) + 1,
            stored_bytes=sum(row.bytes for row in rows),
            fields=list(IMAGE_FIELDS),
            files=_files(partial_folder, {} if form.file_per_sample else stored, {*stored}),
            dataset_id=dataset_id((row.key, row.digest) for row in rows),
            created={**created, "conversion_s": round(time.perf_counter() - started, 3), "num_files": len(stored)},
        )
        write_manifest(partial_folder, rows, result)
    return result


def _files(folder: Path, listed: dict[str, int], sampled: set[str]) -> list[FileInfo]:
    """What the manifest lists: files of samples that the index does not stand for, and whatever lies beside them."""
    beside = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return [
        *(_file_info(folder, name, count) for name, count in listed.items()),
        *(_file_info(folder, name, None) for name in beside if name not in sampled),
    ]


def _file_info(folder: Path, name: str, num_samples: int | None) -> FileInfo:
    path = folder / name
    return FileInfo(path=name, bytes=path.stat().st_size, digest=file_digest(path), num_samples=num_samples)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def convert_dataset(
    source: Path,
    target: Path,
    workload: str,
    variant: str,
    format_name: str,
    options: dict[str, int] | None = None,
    progress: Progress = lambda done, total: None,
) -> Manifest:
    """Convert a dataset, or a folder of JPEGs (flat, or one folder per class), into `format_name`.

    Sample bytes are stored as they came.

    Raises:
        DatasetError: unreadable source, existing target, disk too small, a file that is not a JPEG.
    """
    if is_dataset(source):
        dataset = open_dataset(source)
        count, size, samples = dataset.manifest.num_samples, dataset.manifest.stored_bytes, in_order(dataset)
    else:
        paths = _jpeg_paths(source)
        count, size, samples = len(paths), sum(map(_size, paths)), _folder_samples(source, paths)
    created: dict[str, str | int | float | None] = {"how": "convert", "when": _now(), "source": str(source.absolute())}
    return _store(samples, count, size, target, format_name, workload, variant, created, options or {}, progress)


def generate_dataset(
    target: Path,
    workload: str,
    variant: str,
    format_name: str,
    num_samples: int,
    seed: int = 0,
    options: dict[str, int] | None = None,
    progress: Progress = lambda done, total: None,
    num_processes: int | None = None,
) -> Manifest:
    """Make a dataset of photographs, in parallel over processes; the same samples for the same seed.

    Raises:
        DatasetError: existing target, or disk too small.
    """
    num_classes = max(2, min(generate.NUM_CLASSES, num_samples // 32))
    make = partial(generate.image_sample, seed, num_classes=num_classes)
    created: dict[str, str | int | float | None] = {"how": "generate", "when": _now(), "seed": seed}
    size = num_samples * generate.MEAN_BYTES
    processes = num_processes or len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_end_with_parent) as pool:
        samples = pool.map(make, range(num_samples), chunksize=4)
        try:
            return _store(
                samples, num_samples, size, target, format_name, workload, variant, created, options or {}, progress
            )
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _end_with_parent() -> None:
    """Have the kernel end this worker when its parent is killed, which the pool would not notice."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
