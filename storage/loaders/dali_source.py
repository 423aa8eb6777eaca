"""The encoded images that DALI decodes, in an order known to us: read by DALI's own readers where it has one.

DALI's readers of shards take a fixed list of them. So the endless stream of a rank's shards, epoch after epoch, is cut
into lists, and each list gets a reader of its own; what a reader delivers beyond its list is dropped. They mix nothing:
samples of a shard come as they are stored. Files are read, not mapped: one that is cut short meanwhile would kill the
process, and page faults would be counted as decoding. DALI verifies
no checksums, and its decoder passes damage within the compressed data: so whatever read an image, its class and content
are compared with the index before it is decoded.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import count, groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from benchsuite.storage.dataset.fields import encoded
from benchsuite.storage.dataset.kinds import image_label
from benchsuite.storage.dataset.manifest import data_file, dealt, inside, text
from benchsuite.storage.dataset.sample import Sample, content_digest
from benchsuite.storage.dataset.shards import first_rows, shards
from benchsuite.storage.errors import DatasetError, told
from benchsuite.storage.formats.files import bring
from benchsuite.storage.formats.tar import places, whole_tar
from benchsuite.storage.formats.tf_example import IMAGE, LABEL
from benchsuite.storage.loaders.reader import LoaderInput

Bytes = npt.NDArray[np.uint8]
LIST_SAMPLES = 2048
LIST_SHARDS = 64
"""A list of shards ends with the one that reaches either."""
Place = tuple[int, int]
"""Row of the index and epoch of a sample."""


class Encoded(NamedTuple):
    """An image as it is stored, the same as it is fed to DALI (best a tensor of its own), and where it belongs."""

    content: Bytes
    fed: Any
    label: int
    row: int
    epoch: int


def source_of(reading: LoaderInput, row: int) -> str:
    """The file that holds a sample."""
    return str(inside(reading.dataset.folder, text(reading.dataset.index["file"][row])))


class Contents:
    """Compares images with the index.

    The first time by the digest; later by the CRC-32C, twenty times faster, of what had that digest.
    """

    def __init__(self, reading: LoaderInput) -> None:
        self._reading = reading
        self._classes = reading.dataset.index["label"]
        self._crcs = np.full(len(self._classes), -1, np.int64)

    def check(self, image: Encoded, label: bytes | memoryview) -> Encoded:
        """The image, whose label is stored in these bytes.

        Raises:
            DatasetError: class or content are not the index's.
        """
        row, said = image.row, self._classes[image.row]
        if image.label != said:
            raise DatasetError(f"{self._named(row)} (row {row}): class {image.label} stands where the index has {said}")
        content: Any = image.content
        crc = crc32c(content.data)
        if self._crcs[row] != crc:
            sample = Sample(self._reading.dataset.key(row), {"image": content.data, "label": label})
            if content_digest(sample) != text(self._reading.dataset.index["digest"][row]):
                raise DatasetError(f"{self._named(row)}: its checksum is not the index's: damaged")
            self._crcs[row] = crc
        return image

    def check_sized(self, image: Encoded, label: bytes) -> Encoded:
        """As `check`, once image and label have as many bytes as the index says."""
        found, said = len(image.content) + len(label), int(self._reading.dataset.index["bytes"][image.row])
        if found != said:
            raise DatasetError(
                f"{self._named(image.row)} (row {image.row}): {found} bytes, the index says {said}: "
                "truncated or changed"
            )
        return self.check(image, label)

    def _named(self, row: int) -> str:
        return f"{source_of(self._reading, row)}: sample {self._reading.dataset.key(row)!r}"


def dali(module: str) -> Any:
    """A module of DALI's, imported when a loader is built: half a second, and not installed everywhere."""
    return import_module(f"nvidia.dali.{module}")


def encoded_images(reading: LoaderInput, threads: int) -> Iterator[Encoded]:
    """The rank's images, epoch after epoch.

    Raises:
        DatasetError: they cannot be read, or are not those that the index names.
    """
    layout = reading.format.layout
    if layout == "files":
        return _from_files(reading, threads)
    if layout in READERS:
        return _from_shards(reading, READERS[layout])
    return _by_format(reading)


def reason(error: BaseException) -> str:
    """What DALI's message says went wrong, in one line without the places in its source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "encountered:" in lines[:-1]:
        lines = lines[lines.index("encountered:") + 1 :]
    ends = [number for number, line in enumerate(lines) if line.startswith(("C++ context", "Current pipeline"))]
    return " ".join(lines[: ends[0] if ends else 1]) or type(error).__name__


def _by_format(reading: LoaderInput) -> Iterator[Encoded]:
    contents = Contents(reading)
    for sample, epoch in reading.samples(0):
        content = np.frombuffer(encoded(sample, "image"), np.uint8)
        image = Encoded(content, content, image_label(sample), sample.index, epoch)
        yield contents.check(image, encoded(sample, "label"))


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


def _from_files(reading: LoaderInput, threads: int) -> Iterator[Encoded]:
    """Files that DALI's threads read side by side; a label stands in the index."""
    dataset, index, contents = reading.dataset, reading.dataset.index, Contents(reading)
    places = ((int(row), epoch) for epoch in count() for row in dealt(len(index), reading.share(0, epoch)))
    asked: deque[list[Place]] = deque()

    def paths() -> list[Bytes]:
        asked.append(list(islice(places, reading.batch_size)))
        for row, _ in asked[-1]:
            bring(dataset, row)
        names = [text(name) for name in index["file"][[row for row, _ in asked[-1]]]]
        return [np.frombuffer(os.fsencode(inside(dataset.folder, name)), np.uint8) for name in names]

    try:
        for outputs in _runs(_files_pipeline(paths, reading.batch_size, threads)):
            for (row, epoch), fed in zip(asked.popleft(), outputs[0], strict=True):
                label = int(index["label"][row])
                yield contents.check_sized(Encoded(np.asarray(fed), fed, label, row, epoch), str(label).encode())
    except RuntimeError as error:
        _try_to_open(reading, [row for batch in asked for row, _ in batch])
        raise DatasetError(f"{dataset.folder}: DALI: {reason(error)}") from error


def _files_pipeline(paths: Callable[[], list[Bytes]], batch_size: int, threads: int) -> Any:
    fn, types = dali("fn"), dali("types")
    pipe = dali("pipeline").Pipeline(batch_size, threads, None, prefetch_queue_depth=1)
    with pipe:
        names = fn.external_source(source=paths, dtype=types.UINT8, ndim=1)
        pipe.set_outputs(fn.io.file.read(names, dont_use_mmap=True))
    return pipe


def _try_to_open(reading: LoaderInput, rows: list[int]) -> None:
    """Raise the reason why one of these files cannot be read, if there is one."""
    for row in rows:
        path = source_of(reading, row)
        with told(path):
            Path(path).open("rb").close()


ToSample = Callable[[Place, list[Any]], Encoded]


@dataclass(frozen=True)
class ShardReader:
    """One of DALI's readers of shards.

    `outputs(paths)` is its part of a graph: the image first, then what `checked` needs.
    `checked(reading)` makes samples of places, in order, and one value of each output.
    """

    outputs: Callable[[list[str]], Sequence[Any]]
    checked: Callable[[LoaderInput], ToSample]


def _tar_outputs(paths: list[str]) -> Sequence[Any]:
    indices = [f"{path}.idx" for path in paths]
    known = {"index_paths": indices} if all(map(os.path.exists, indices)) else {}
    found: Sequence[Any] = dali("fn").readers.webdataset(
        paths=paths, ext=["jpg;jpeg;png", "cls"], missing_component_behavior="error", dont_use_mmap=True, **known
    )
    return found


class _TarSamples:
    """Samples of tar shards, compared with the index, and refused where a member's header says what none may.

    DALI goes by the index beside a shard. The headers are looked at once, sample by sample: of a file that is not in
    memory, each shares a page with what DALI has just read.
    """

    def __init__(self, reading: LoaderInput) -> None:
        self._reading = reading
        self._contents = Contents(reading)
        self._rows = first_rows(reading.dataset)
        self._shards = {row: number for number, row in enumerate(self._rows[:-1])}
        self._ends = set(self._rows[1:])
        self._known: set[int] = set()
        self._keys: Iterator[str] | None = None

    def __call__(self, place: Place, values: list[Any]) -> Encoded:
        self._check_headers(place[0])
        label = np.asarray(values[1]).tobytes()
        number = int(label) if label.strip().isdigit() else -1
        return self._contents.check_sized(Encoded(np.asarray(values[0]), values[0], number, *place), label)

    def _check_headers(self, row: int) -> None:
        """Of the members of this sample; after a shard's last one, that nothing follows."""
        if row in self._shards and self._shards[row] not in self._known:
            self._known.add(self._shards[row])
            self._keys = tar_keys(source_of(self._reading, row))
        if self._keys is None:
            return
        self._expect(row, self._reading.dataset.key(row))
        if row + 1 in self._ends:
            self._expect(row, None)
            self._keys = None

    def _expect(self, row: int, said: str | None) -> None:
        assert self._keys is not None
        found = next(self._keys, None)
        if found != said:
            where = source_of(self._reading, row)
            what = "ends before" if found is None else f"member {found!r} is not"
            raise DatasetError(f"{where}: {what} the one that the index names (row {row})")


def tar_keys(path: str) -> Iterator[str]:
    """The keys of the samples in a tar file, each once the headers of its members are seen to be in order.

    Raises:
        DatasetError: it is no tar file, or a member is no regular file or leads out of its folder.
    """
    named = (name for name in _tar_names(path) if "." in name.rpartition("/")[2])
    for key, members in groupby(named, _tar_key):
        deque(members, 0)
        yield key


def _tar_key(name: str) -> str:
    folder, slash, base = name.rpartition("/")
    return f"{folder}{slash}{base.partition('.')[0]}"


def _tar_names(path: str) -> Iterator[str]:
    with whole_tar(Path(path)), open(path, "rb", buffering=0) as file:
        yield from (place.name for place in places(file.fileno(), Path(path)))


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


class _Records:
    """Samples of TFRecords, compared with the index by key too."""

    def __init__(self, reading: LoaderInput) -> None:
        self._reading = reading
        self._contents = Contents(reading)

    def __call__(self, place: Place, values: list[Any]) -> Encoded:
        content, label, key = map(np.asarray, values)
        row, found = place[0], key.tobytes().decode(errors="replace")
        if found != self._reading.dataset.key(row):
            raise DatasetError(
                f"{source_of(self._reading, row)}: sample {found!r} stands where the index has "
                f"{self._reading.dataset.key(row)!r} (row {row})"
            )
        image = Encoded(content, values[0], int(label[0]) if len(label) else -1, *place)
        return self._contents.check(image, str(image.label).encode())


READERS = {
    "tar": ShardReader(_tar_outputs, _TarSamples),
    "tfrecord": ShardReader(_record_outputs, _Records),
}


def _from_shards(reading: LoaderInput, reader: ShardReader) -> Iterator[Encoded]:
    size, rows, to_sample = reading.batch_size, first_rows(reading.dataset), reader.checked(reading)
    for listed in _lists(reading):
        places = [(row, epoch) for shard, epoch in listed for row in range(rows[shard], rows[shard + 1])]
        paths = _paths(reading, [shard for shard, _ in listed])
        try:
            pipe = _shards_pipeline(reader, paths, size, len(places))
            for number, outputs in enumerate(_runs(pipe, -(-len(places) // size))):
                for place, *values in zip(places[number * size : (number + 1) * size], *outputs, strict=False):
                    yield to_sample(place, values)
        except RuntimeError as error:
            raise DatasetError(f"{_named(paths, str(error))}: DALI: {reason(error)}") from error


def _named(paths: list[str], message: str) -> str:
    """Which of these shards a message is about."""
    different = sorted(set(paths))
    named = [path for path in different if path in message] or different
    return named[0] if len(named) == 1 else f"one of {', '.join(named)}"


def _lists(reading: LoaderInput) -> Iterator[list[tuple[int, int]]]:
    """The rank's shards and their epochs, cut into lists."""
    sizes = [info.num_samples or 0 for info in shards(reading.dataset.manifest)]
    listed: list[tuple[int, int]] = []
    for epoch in count():
        for shard in dealt(len(sizes), reading.share(0, epoch)):
            listed.append((int(shard), epoch))
            if len(listed) >= LIST_SHARDS or sum(sizes[number] for number, _ in listed) >= LIST_SAMPLES:
                yield listed
                listed = []


def _paths(reading: LoaderInput, numbers: list[int]) -> list[str]:
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
