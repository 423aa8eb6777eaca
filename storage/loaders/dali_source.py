"""The encoded images that DALI decodes, in an order known to us: read by DALI's own readers where it has one.

DALI's readers of shards take a fixed list of them. So the endless stream of a rank's shards, epoch after epoch, is cut
into lists, and each list gets a reader of its own; what a reader delivers beyond its list is dropped. They mix nothing:
samples of a shard come as they are stored. Files are read, not mapped: one that is cut short meanwhile would kill the
process, and page faults would be counted as decoding.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from storage.examples import IMAGE, LABEL
from storage.fields import encoded
from storage.format import Dataset, Lane, data_file, dealt, inside, text
from storage.kinds import image_label
from storage.loaders.reader import Reading
from storage.sample import Allocate, DatasetError, Sample, content_digest, fresh
from storage.shards import first_rows, shards

LIST_SAMPLES = 2048
LIST_SHARDS = 64
"""A list of shards ends with the one that reaches either."""
Bytes = npt.NDArray[np.uint8]
Place = tuple[int, int]
"""Row of the index and epoch of a sample."""


def dali(module: str) -> Any:
    """A module of DALI's, imported when a loader is built: half a second, and not installed everywhere."""
    return import_module(f"nvidia.dali.{module}")


class Encoded(NamedTuple):
    """An image as it is stored, and where it belongs."""

    content: Bytes
    label: int
    row: int
    epoch: int


def encoded_images(reading: Reading, threads: int) -> Iterator[Encoded]:
    """The rank's images, epoch after epoch.

    Raises:
        DatasetError: they cannot be read, or are not those that the index names.
    """
    if reading.format.name == "files":
        return _from_files(reading, threads)
    if reading.format.name in READERS:
        return _from_shards(reading, READERS[reading.format.name])
    return _by_format(reading)


def samples(reading: Reading, allocate: Allocate = fresh) -> Iterator[tuple[Sample, int]]:
    """The rank's samples as the format itself reads them, and their epochs."""
    for epoch in count():
        for sample in reading.format.read(reading.dataset, lane(reading, epoch, allocate)):
            yield sample, epoch


def lane(reading: Reading, epoch: int, allocate: Allocate = fresh) -> Lane:
    """A rank is one reader."""
    spec = reading.spec
    return Lane(reading.rank, reading.world_size, epoch, reading.seed, spec.shuffle, spec.shuffle_buffer, allocate)


def source_of(reading: Reading, row: int) -> str:
    """The file that holds a sample."""
    return str(inside(reading.dataset.folder, text(reading.dataset.index["file"][row])))


def reason(error: BaseException) -> str:
    """What DALI's message says went wrong, in one line without the places in its source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "encountered:" in lines[:-1]:
        lines = lines[lines.index("encountered:") + 1 :]
    ends = [number for number, line in enumerate(lines) if line.startswith(("C++ context", "Current pipeline"))]
    return " ".join(lines[: ends[0] if ends else 1]) or type(error).__name__


def _by_format(reading: Reading) -> Iterator[Encoded]:
    for sample, epoch in samples(reading):
        content = np.frombuffer(encoded(sample, "image"), np.uint8)
        yield Encoded(content, image_label(sample), sample.index, epoch)


def _runs(pipe: Any, number: int | None = None) -> Iterator[Any]:
    """Outputs of so many runs of a pipeline, or of endless ones; the next run is under way meanwhile."""
    pipe.schedule_run()
    for run in count(1):
        outputs = pipe.outputs()
        if run == number:
            yield outputs
            return
        pipe.schedule_run()
        yield outputs


def _from_files(reading: Reading, threads: int) -> Iterator[Encoded]:
    """Files that DALI's threads read side by side; a label stands in the index."""
    dataset, index = reading.dataset, reading.dataset.index
    places = ((int(row), epoch) for epoch in count() for row in dealt(len(index), lane(reading, epoch)))
    asked: deque[list[Place]] = deque()

    def paths() -> list[Bytes]:
        asked.append(list(islice(places, reading.batch_size)))
        names = [text(name) for name in index["file"][[row for row, _ in asked[-1]]]]
        return [np.frombuffer(os.fsencode(_path(dataset, name)), np.uint8) for name in names]

    try:
        for outputs in _runs(_files_pipeline(paths, reading.batch_size, threads)):
            for (row, epoch), content in zip(asked.popleft(), outputs[0], strict=True):
                label = int(index["label"][row])
                yield _sized(reading, Encoded(np.asarray(content), label, row, epoch), len(str(label)))
    except RuntimeError as error:
        _try_to_open(reading, [row for batch in asked for row, _ in batch])
        raise DatasetError(f"{dataset.folder}: DALI: {reason(error)}") from error


def _path(dataset: Dataset, name: str) -> str:
    """`inside` of the dataset's folder, faster for most names."""
    suspicious = name.startswith("/") or ".." in name or "\0" in name
    return str(inside(dataset.folder, name)) if suspicious else f"{dataset.folder}/{name}"


def _files_pipeline(paths: Callable[[], list[Bytes]], batch_size: int, threads: int) -> Any:
    fn, types = dali("fn"), dali("types")
    pipe = dali("pipeline").Pipeline(batch_size, threads, None, prefetch_queue_depth=1)
    with pipe:
        names = fn.external_source(source=paths, dtype=types.UINT8, ndim=1)
        pipe.set_outputs(fn.io.file.read(names, dont_use_mmap=True))
    return pipe


def _try_to_open(reading: Reading, rows: list[int]) -> None:
    """Raise the reason why one of these files cannot be read, if there is one."""
    for row in rows:
        path = source_of(reading, row)
        try:
            Path(path).open("rb").close()
        except OSError as error:
            raise DatasetError(f"{path}: {error.strerror}") from error


@dataclass(frozen=True)
class ShardReader:
    """One of DALI's readers of shards.

    `outputs(paths)` is its part of a graph: the image first, then what `sample` needs.
    `sample(reading, place, values)` is a sample from one value of each output.
    """

    outputs: Callable[[list[str]], Sequence[Any]]
    sample: Callable[[Reading, Place, list[Bytes]], Encoded]


def _tar_outputs(paths: list[str]) -> Sequence[Any]:
    indices = [f"{path}.idx" for path in paths]
    known = {"index_paths": indices} if all(map(os.path.exists, indices)) else {}
    found: Sequence[Any] = dali("fn").readers.webdataset(
        paths=paths, ext=["jpg;jpeg;png", "cls"], missing_component_behavior="error", dont_use_mmap=True, **known
    )
    return found


def _tar_sample(reading: Reading, place: Place, values: list[Bytes]) -> Encoded:
    label = bytes(values[1])
    image = Encoded(values[0], int(label) if label.strip().isdigit() else -1, *place)
    return _sized(reading, image, len(label))


def _record_outputs(paths: list[str]) -> Sequence[Any]:
    tfrecord = dali("tfrecord")
    features = {
        IMAGE: tfrecord.FixedLenFeature([], tfrecord.string, ""),
        LABEL: tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
        "key": tfrecord.FixedLenFeature([], tfrecord.string, ""),
    }
    indices = [f"{path}.idx" for path in paths]
    found = dali("fn").readers.tfrecord(path=paths, index_path=indices, features=features, dont_use_mmap=True)
    return [found[name] for name in features]


def _record_sample(reading: Reading, place: Place, values: list[Bytes]) -> Encoded:
    image, label, key = values
    found, said = bytes(key).decode(errors="replace"), reading.dataset.key(place[0])
    if found != said:
        raise DatasetError(
            f"{source_of(reading, place[0])}: sample {found!r} stands where the index has {said!r} (row {place[0]})"
        )
    number = int(label[0]) if len(label) else -1
    fields = {"image": image.tobytes(), "label": str(number).encode()}
    if content_digest(Sample(found, fields)) != text(reading.dataset.index["digest"][place[0]]):
        raise DatasetError(
            f"{source_of(reading, place[0])}: sample {found!r}: its checksum is not the index's: damaged"
        )
    return Encoded(image, number, *place)


READERS = {
    "webdataset": ShardReader(_tar_outputs, _tar_sample),
    "tfrecord": ShardReader(_record_outputs, _record_sample),
}


def _from_shards(reading: Reading, reader: ShardReader) -> Iterator[Encoded]:
    size, rows = reading.batch_size, first_rows(reading.dataset)
    for listed in _lists(reading):
        places = [(row, epoch) for shard, epoch in listed for row in range(rows[shard], rows[shard + 1])]
        paths = _paths(reading, [shard for shard, _ in listed])
        try:
            pipe = _shards_pipeline(reader, paths, size, len(places))
            for number, outputs in enumerate(_runs(pipe, -(-len(places) // size))):
                for place, *values in zip(places[number * size : (number + 1) * size], *outputs, strict=False):
                    yield reader.sample(reading, place, [np.asarray(value) for value in values])
        except RuntimeError as error:
            raise DatasetError(f"{_named(paths, str(error))}: DALI: {reason(error)}") from error


def _named(paths: list[str], message: str) -> str:
    """Which of these shards a message is about."""
    different = sorted(set(paths))
    named = [path for path in different if path in message] or different
    return named[0] if len(named) == 1 else f"one of {', '.join(named)}"


def _lists(reading: Reading) -> Iterator[list[tuple[int, int]]]:
    """The rank's shards and their epochs, cut into lists."""
    sizes = [info.num_samples or 0 for info in shards(reading.dataset.manifest)]
    listed: list[tuple[int, int]] = []
    for epoch in count():
        for shard in dealt(len(sizes), lane(reading, epoch)):
            listed.append((int(shard), epoch))
            if len(listed) >= LIST_SHARDS or sum(sizes[number] for number, _ in listed) >= LIST_SAMPLES:
                yield listed
                listed = []


def _paths(reading: Reading, numbers: list[int]) -> list[str]:
    """Shards, refused where they or the index beside them are missing or cut short."""
    names = [info.path for info in shards(reading.dataset.manifest)]
    listed = {info.path for info in reading.dataset.manifest.files}
    found = []
    for name in (names[number] for number in numbers):
        found.append(str(data_file(reading.dataset, name)))
        if f"{name}.idx" in listed:
            data_file(reading.dataset, f"{name}.idx")
    return found


def _shards_pipeline(reader: ShardReader, paths: list[str], batch_size: int, num_samples: int) -> Any:
    """A reader of these shards, refused where it finds another number of samples in them."""
    pipe = dali("pipeline").Pipeline(batch_size, 1, None, prefetch_queue_depth=1)
    with pipe:
        pipe.set_outputs(*reader.outputs(paths))
    (meta,) = pipe.reader_meta().values()
    if meta["epoch_size"] != num_samples:
        raise DatasetError(f"{_named(paths, '')}: {meta['epoch_size']} samples in them, the index says {num_samples}")
    return pipe


def _sized(reading: Reading, image: Encoded, label_bytes: int) -> Encoded:
    """The image, refused where it has not the number of bytes that the index says."""
    found, said = len(image.content) + label_bytes, int(reading.dataset.index["bytes"][image.row])
    if found != said:
        raise DatasetError(
            f"{source_of(reading, image.row)}: sample {reading.dataset.key(image.row)!r} (row {image.row}): "
            f"{found} bytes, the index says {said}: truncated or changed"
        )
    return image
