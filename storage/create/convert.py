"""Make datasets: generated, or converted from another dataset or from what users have."""

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from benchsuite.storage import format_of
from benchsuite.storage.create import photos
from benchsuite.storage.create.parallel import Make, in_parallel
from benchsuite.storage.create.volumes import volume_bytes, volume_sample, volume_shape
from benchsuite.storage.dataset.fields import field_infos
from benchsuite.storage.dataset.manifest import (
    Dataset,
    FileInfo,
    Format,
    IndexRow,
    Manifest,
    Options,
    ReaderShare,
    dataset_id,
    file_digest,
    flush_file_system,
    is_dataset,
    new_dataset,
    open_dataset,
    write_manifest,
)
from benchsuite.storage.dataset.sample import Allocate, Sample
from benchsuite.storage.dataset.shards import default_shards
from benchsuite.storage.dataset.token_samples import kept_params, mlm_bytes, mlm_sample, token_bytes, token_sample
from benchsuite.storage.dataset.verify import verify_dataset
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.formats.tokens import documents_of
from benchsuite.storage.objects.path import ObjectPath
from benchsuite.storage.sources import AS_IT_IS, ReadOptions, Source, open_source

Progress = Callable[[int, int], None]
"""Called with samples done and samples in all; 0 where that is not known."""
MAX_COMPRESSION = 4
"""Compressed samples are taken to need at most so many times their bytes; scans compress to about a half."""
FILE_OVERHEAD_BYTES = 16_384
"""Overhead of a file of many samples: its beginning and end, its index, and what their last blocks leave empty."""
SKIPPED = "skipped.txt"
"""Beside the manifest: what could not be read and is left out, and why, a line each."""
Created = dict[str, str | int | float | None]


@dataclass(frozen=True)
class Wanted:
    """What a dataset is made for, and how its samples are stored."""

    workload: str
    variant: str
    format: str
    kind: str = "image"
    params: Mapping[str, int] = field(default_factory=dict)
    """What the samples are made for, such as seq_len."""
    options: Options = field(default_factory=dict)
    """How the format is told to store them."""


def in_order(dataset: Dataset) -> Iterator[Sample]:
    """Every sample of a dataset once, in the order of its index."""
    return format_of(dataset.manifest.format).read(dataset, ReaderShare())


def check_options(form: Format, kind: str, options: Options) -> None:
    """Refuse what a format cannot store, and options that it does not know or has for samples of other kinds.

    Raises:
        DatasetError: with what was given and what is allowed.
    """
    if kind not in form.kinds:
        raise DatasetError(f"format {form.name} stores {' and '.join(sorted(form.kinds))} samples, not {kind}")
    for name, value in options.items():
        if name not in form.options:
            known = ", ".join(form.options) or "none"
            raise DatasetError(f"format {form.name} has no option {name!r}; allowed: {known}")
        allowed = form.options[name]
        if isinstance(allowed, tuple) and value not in allowed:
            raise DatasetError(f"option {name} of format {form.name}: {value!r}; allowed: {', '.join(allowed)}")
        if allowed is int and not isinstance(value, int):
            raise DatasetError(f"option {name} of format {form.name}: {value!r} is not a whole number")
        kinds = form.option_kinds.get(name, form.kinds)
        if kind not in kinds:
            meant = " and ".join(sorted(kinds))
            raise DatasetError(f"option {name}={value} of format {form.name} is for {meant} samples, not {kind}")


def _store(source: Source, folder: Path, wanted: Wanted, created: Created, progress: Progress) -> Manifest:
    """Write samples into a new dataset and return its manifest."""
    form, kind, options = format_of(wanted.format), wanted.kind, wanted.options
    check_options(form, kind, options)
    started = time.perf_counter()
    seen = _Seen(kind, source.samples, source.count or 0)
    rows: list[IndexRow] = []
    divided = {"documents": source.documents} if form.stores_documents else {}
    digests: dict[str, str] = {}
    digested = {"digests": digests} if form.digests_files else {}
    with new_dataset(folder, needed_bytes(source, kind, form, options)) as partial_folder:
        for row in form.write(partial_folder, seen, **options, **divided, **digested):
            rows.append(row)
            progress(len(rows), source.count or 0)
        if not rows:
            raise DatasetError(f"{folder}: no samples to store")
        ((key, count),) = Counter(row.key for row in rows).most_common(1)
        if count > 1:
            raise DatasetError(f"two samples have the key {key!r}")
        found = sorted(path for path in partial_folder.rglob("*") if path.is_file())
        sizes = {str(path.relative_to(partial_folder)): path.stat().st_size for path in found}
        stored = Counter(row.file for row in rows)
        # Each shard stands where its samples do in the index, and what lies beside them follows.
        listed = [*(() if form.file_per_sample else stored), *(name for name in sizes if name not in stored)]
        files = [
            FileInfo(
                path=name,
                bytes=sizes[name],
                digest=digests.get(name) or file_digest(partial_folder / name),
                num_samples=stored.get(name),
            )
            for name in listed
        ]
        flush_file_system(partial_folder)
        result = Manifest(
            workload=wanted.workload,
            variant=wanted.variant,
            kind=kind,
            format=wanted.format,
            num_samples=len(rows),
            num_classes=max(row.label for row in rows) + 1 if kind == "image" else None,
            params={**source.params, **seen.params},
            options=dict(options),
            stored_bytes=sum(row.bytes for row in rows),
            fields=field_infos(kind, seen.first, varies=kind == "volume"),
            files=files,
            dataset_id=dataset_id((row.key, row.digest) for row in rows),
            created={
                **created,
                "when": datetime.now(UTC).isoformat(timespec="seconds"),
                **source.notes,
                **_listed_skips(partial_folder, source),
                "conversion_s": round(time.perf_counter() - started, 3),
                "num_files": len(sizes),
                "num_bytes": sum(sizes.values()),
            },
        )
        write_manifest(partial_folder, rows, result)
    return result


def _listed_skips(folder: Path, source: Source) -> dict[str, int]:
    """Write what was left out and why, where something was; the number of lines, for the manifest."""
    if source.skipped is None:
        return {}
    if source.skipped:
        lines = (reason.replace("\n", "\\n") for reason in source.skipped)
        text = "".join(f"{line}\n" for line in lines)
        (folder / SKIPPED).write_text(text, encoding="utf-8", errors="backslashreplace")
    return {"skipped_samples": len(source.skipped)}


def needed_bytes(source: Source, kind: str, form: Format, options: Options) -> int:
    """Disk space that storing these samples in a format takes while it is written: rather too much than too little."""
    factor = form.space_factor if isinstance(form.space_factor, float) else form.space_factor[kind]
    count = _num_samples(source, kind)
    shards = FILE_OVERHEAD_BYTES * _num_files(form, count, options)
    return int(source.size_bytes * factor) + count * form.sample_overhead_bytes + shards


def _num_samples(source: Source, kind: str) -> int:
    """How many samples there are; where only reading tells, windows of tokens by their bytes."""
    if source.count is not None or kind != "tokens":
        return source.count or 0
    return source.size_bytes // token_bytes(source.params)


def _num_files(form: Format, count: int, options: Options) -> int:
    """How many files of many samples a format writes."""
    samples = int(options.get("shard_samples", 0)) or int(options.get("file_samples", 0))
    if "shard_samples" in form.options and not samples:
        return default_shards(count)
    return -(-count // samples) if samples > 0 else 1


class _Seen:
    """Samples on their way into a dataset, and what the manifest has to say of them all."""

    def __init__(self, kind: str, samples: Iterable[Sample], count: int) -> None:
        self._kind, self._samples, self._count = kind, samples, count
        self.first = Sample("", {})
        self.params: dict[str, int] = {}

    def __length_hint__(self) -> int:
        """How many there are, as far as that is known: shards are balanced by it."""
        return self._count

    def __iter__(self) -> Iterator[Sample]:
        for sample in self._samples:
            self.first = self.first if self.first.key else Sample(sample.key, sample.fields)
            image = sample.fields.get("image")
            if self._kind == "volume" and isinstance(image, np.ndarray):
                self.params["min_extent"] = min(self.params.get("min_extent", 1 << 30), *image.shape[1:])
            yield sample if sample.compressed_bytes is None else replace(sample, compressed_bytes=None)


def convert_dataset(
    source: Path,
    target: Path,
    wanted: Wanted,
    progress: Progress = lambda done, total: None,
    options: ReadOptions = AS_IT_IS,
    most: int | None = None,
) -> Manifest:
    """Convert a dataset, or what `storage.sources` can read, into another format. Samples are stored as they came.

    Args:
        source: a dataset, or what a user has.
        target: the new dataset's folder.
        wanted: what it is made for.
        progress: told how far it is.
        options: what its user says of the source.
        most: only so many samples are taken, the first ones.

    Raises:
        DatasetError: unreadable source, samples of another kind, source and target inside one another, existing
            target, disk too small, damaged samples, options that are for another sort of source.
    """
    _refuse_nested(source, target)
    if is_dataset(source):
        _refuse_options(source, options)
        opened = _dataset_source(open_dataset(source), wanted.kind, wanted.params)
    elif isinstance(source, ObjectPath):
        raise DatasetError(f"{source}: no dataset; what else you have is converted from a folder: copy it to one")
    else:
        opened = open_source(source, wanted.kind, wanted.params, options)
    if most is not None and (opened.count is None or opened.count > most):
        opened = replace(opened, samples=islice(opened.samples, most), count=most, documents=None)
    given = str(source.absolute()).encode(errors="surrogateescape")
    where = given.decode(errors="backslashreplace")  # JSON holds no bytes that are not UTF-8
    created: Created = {"how": "convert", "source": where}
    return _store(opened, target, wanted, created, progress)


def _refuse_options(source: Path, options: ReadOptions) -> None:
    """Refuse options that are for what users have, not for a dataset.

    Raises:
        DatasetError: which one.
    """
    if options.tokenizer:
        raise DatasetError(f"{source}: a dataset, which holds no text that a tokenizer could take")
    if options.label_field is not None:
        raise DatasetError(f"{source}: a dataset, which has its labels; leave out --label-field {options.label_field}")
    if options.max_errors is not None:
        raise DatasetError(f"{source}: a dataset, whose samples are all or none; leave out --on-error skip")


def _refuse_nested(source: Path, target: Path) -> None:
    """Refuse a target that would be part of its source, or hold it. A .bin/.idx pair's prefix is no folder."""
    if isinstance(source, ObjectPath) or isinstance(target, ObjectPath):
        if source == target:
            raise DatasetError(f"{target}: source and target are the same; give a new prefix")
        return  # prefixes are no folders: what lies below one does not belong to it
    if not os.path.exists(source):
        return
    real_source, real_target = Path(os.path.realpath(source)), Path(os.path.realpath(target))
    if real_source == real_target:
        raise DatasetError(f"{target}: source and target are the same; give a new folder")
    if real_target.is_relative_to(real_source):
        raise DatasetError(f"{target}: lies inside the source {source}; give a folder outside it")
    if real_source.is_relative_to(real_target):
        raise DatasetError(f"{target}: holds the source {source}; give a new folder")


def _dataset_source(dataset: Dataset, kind: str, asked: Mapping[str, int]) -> Source:
    """A dataset's samples; refused where they are of another kind or length than asked for."""
    manifest = dataset.manifest
    if manifest.kind != kind:
        raise DatasetError(f"{dataset.folder}: holds {manifest.kind} samples, not {kind}")
    for name in ("seq_len", "max_predictions"):
        if name in manifest.params and manifest.params[name] != asked.get(name, manifest.params[name]):
            raise DatasetError(f"{dataset.folder}: {name} is {manifest.params[name]}, the variant's is {asked[name]}")
    if (found := manifest.params.get("vocab_size", 0)) > asked.get("vocab_size", found):
        what = f"the variant knows {asked['vocab_size']}; give the variant that it was made for"
        raise DatasetError(f"{dataset.folder}: has a vocabulary of {found}, {what}")
    samples, params = _sound(dataset), dict(manifest.params)
    size = _unpacked_bytes(manifest)
    return Source(manifest.num_samples, size, samples, params, documents=documents_of(dataset))


def _unpacked_bytes(manifest: Manifest) -> int:
    """What a dataset's samples hold: exactly where all have one shape, at most where they are compressed."""
    shapes = [info.shape for info in manifest.fields]
    if None not in shapes:
        sizes = [np.dtype(info.dtype).itemsize * math.prod(info.shape or ()) for info in manifest.fields]
        return manifest.num_samples * sum(sizes)
    compressed = manifest.options.get("compression", "none") != "none"
    return manifest.stored_bytes * (MAX_COMPRESSION if compressed else 1)


def _sound(dataset: Dataset) -> Iterator[Sample]:
    """A dataset's samples; once one cannot be read, all that is wrong with the dataset is looked for.

    Raises:
        DatasetError: what is wrong; `benchsuite.storage.dataset.problems.Damage` where that is several things.
    """
    try:
        yield from in_order(dataset)
    except (DatasetError, OSError) as error:
        verify_dataset(dataset.folder)
        if isinstance(error, DatasetError):
            raise
        raise DatasetError(f"{error.filename or dataset.folder}: {error.strerror}") from error


def generate_dataset(
    target: Path,
    wanted: Wanted,
    num_samples: int,
    seed: int = 0,
    progress: Progress = lambda done, total: None,
    num_workers: int | None = None,
    encoding: str = "jpeg",
    samples: range | None = None,
) -> Manifest:
    """Make a dataset by so many processes, or threads for volumes; the same samples for the same seed.

    `samples`: only these of all `num_samples`, of which the manifest's `created` then tells the `total`.

    Raises:
        DatasetError: existing target, or disk too small.
    """
    make, size = _recipe(wanted, num_samples, seed, encoding)
    created: Created = {"how": "generate", "seed": seed}
    count = num_samples
    if samples is not None:
        make, count, size = partial(_later, make, samples.start), len(samples), size * len(samples) // num_samples
        created["total"] = num_samples
    workers = num_workers or len(os.sched_getaffinity(0))
    made = in_parallel(make, count, workers, by_threads=wanted.kind == "volume")
    try:
        return _store(Source(count, size, made, kept_params(wanted.params)), target, wanted, created, progress)
    finally:
        made.close()


def _later(make: Make, start: int, index: int, allocate: Allocate) -> Sample:
    """The sample that stands `start` places after an index."""
    return make(start + index, allocate)


def sample_bytes(wanted: Wanted, encoding: str = "jpeg") -> float:
    """About how many bytes a generated sample has."""
    return wanted.params.get("mean_bytes") or _recipe(wanted, 1, 0, encoding)[1]


def _recipe(wanted: Wanted, count: int, seed: int, encoding: str) -> tuple[Make, int]:
    """How samples of a kind are made, and the bytes of `count` of them."""
    kind, params = wanted.kind, wanted.params
    if kind == "image":
        num_classes = max(2, min(photos.NUM_CLASSES, count // 32))
        mean_bytes = photos.MEAN_BYTES if encoding == "jpeg" else photos.MEAN_PNG_BYTES
        make = partial(photos.photograph_sample, seed=seed, num_classes=num_classes, encoding=encoding)
        return make, count * mean_bytes
    if kind == "volume":
        size = sum(volume_bytes(volume_shape(seed, index, params)) for index in range(count))
        return partial(volume_sample, seed=seed, params=dict(params)), size
    if kind == "mlm":
        return partial(mlm_sample, seed=seed, params=dict(params)), count * mlm_bytes(params)
    return partial(token_sample, seed=seed, params=dict(params)), count * token_bytes(params)
