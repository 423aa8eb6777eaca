"""DALI's pipelines: its own readers, decoders and random numbers, as its examples for training use them.

DALI cuts the dataset into a part for each rank. A rank goes through its part, mixed in a buffer of data.shuffle_buffer
samples, then through the next rank's: so each sample comes once an epoch. Images are cut, flipped and normalised as in
the example for ResNet-50 in DALI's repository, volumes cut and flipped as in its example for UNet3D.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import count, islice, repeat
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from benchsuite.storage.dataset.kinds import FOREGROUND_SHARE, IMAGENET_MEAN, IMAGENET_STD
from benchsuite.storage.dataset.manifest import data_file, inside, text
from benchsuite.storage.dataset.sample import Sample
from benchsuite.storage.dataset.shards import buffer_samples, shards
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.formats.tf_example import IMAGE, LABEL
from benchsuite.storage.loaders import Delivered
from benchsuite.storage.loaders.reader import LoaderInput, check_class


def dali(module: str) -> Any:
    """A module of DALI's, imported when a loader is built: half a second, and not installed everywhere."""
    return import_module(f"nvidia.dali.{module}".rstrip("."))


class Read(NamedTuple):
    """What a reader adds to a graph: fields of a sample, what names it, its class where that is stored beside it."""

    fields: Sequence[Any]
    name: Any
    label: Any = None


def _files(reading: LoaderInput, options: Mapping[str, Any]) -> Read:
    """Images by `readers.file`, volumes by a `readers.numpy` a field: with equal seeds these are in step."""
    readers, folder = dali("fn").readers, str(reading.dataset.folder)
    names = [text(name) for name in reading.dataset.index["file"]]
    for name in names:
        inside(reading.dataset.folder, name)  # refuses those that lead out of the dataset
    if reading.kind.name == "image":
        content, _ = readers.file(file_root=folder, files=names, labels=[*range(len(names))], **options)
        return Read([content], _source_of(content))
    fields = [
        readers.numpy(
            file_root=folder, files=[f"{name.removesuffix('_x.npy')}_{field}.npy" for name in names], **options
        )
        for field in ("x", "y")
    ]
    return Read(fields, _source_of(fields[0]))


def _shards(reading: LoaderInput) -> tuple[list[str], list[str]]:
    """Paths of the shards, and of the indexes beside them; refused where one is missing or cut short."""
    names = [info.path for info in shards(reading.dataset.manifest)]
    shard_paths, index_paths = (
        [str(data_file(reading.dataset, f"{name}{end}")) for name in names] for end in ("", ".idx")
    )
    return shard_paths, index_paths


def _webdataset(reading: LoaderInput, options: Mapping[str, Any]) -> Read:
    paths, indexes = _shards(reading)
    found = dali("fn").readers.webdataset(
        paths=paths, index_paths=indexes, ext=["jpg;jpeg;png", "cls"], missing_component_behavior="error", **options
    )
    return Read([found[0]], _source_of(found[0]), found[1])


def _tfrecord(reading: LoaderInput, options: Mapping[str, Any]) -> Read:
    tfrecord, (paths, indexes) = dali("tfrecord"), _shards(reading)
    features = {
        IMAGE: tfrecord.FixedLenFeature([], tfrecord.string, ""),
        LABEL: tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
        "key": tfrecord.FixedLenFeature([], tfrecord.string, ""),
    }
    found = dali("fn").readers.tfrecord(path=paths, index_path=indexes, features=features, **options)
    return Read([found[IMAGE]], found["key"], found[LABEL])


def _source_of(field: Any) -> Any:
    """What DALI knows a sample by: its path in the dataset, or that of its shard and the name of the member."""
    return dali("fn").get_property(field, key="source_info")


READERS: Mapping[str, Callable[[LoaderInput, Mapping[str, Any]], Read]] = {
    "files": _files,
    "webdataset": _webdataset,
    "tfrecord": _tfrecord,
}


class Samples:
    """The samples of a rank: how DALI makes them, and which they are."""

    def __init__(self, reading: LoaderInput) -> None:
        self._reading, self._index = reading, reading.dataset.index
        self._epochs = self._epoch_of_each()
        column = "file" if reading.dataset.manifest.format == "files" else "key"
        self._rows = {text(name): row for row, name in enumerate(self._index[column])}

    def _epoch_of_each(self) -> Iterator[int]:
        """The epochs of this rank's samples, in order."""
        num_samples, ranks = len(self._index), self._reading.world_size
        for epoch in count():
            part = (self._reading.rank + epoch) % ranks
            yield from repeat(epoch, num_samples * (part + 1) // ranks - num_samples * part // ranks)

    def graph(self, gpu: bool) -> list[Any]:
        """Read, decode a random part, resize, flip and normalise; or cut and flip a volume."""
        reading = self._reading
        options = {
            "shard_id": reading.rank,
            "num_shards": reading.world_size,
            "random_shuffle": reading.spec.shuffle,
            "initial_fill": buffer_samples(reading.dataset, reading.share(0, 0)),
            "seed": reading.seed,
        }
        read = READERS[reading.dataset.manifest.format](reading, options)
        made = [_image(reading, read.fields[0], gpu)] if reading.kind.name == "image" else _volume(reading, read, gpu)
        return [*made, read.name, *([] if read.label is None else [read.label])]

    def delivered(self, outputs: Sequence[Any]) -> Delivered:
        """A batch of what the graph gave.

        Raises:
            DatasetError: a sample is not the one that the index names.
        """
        fields = ["image"] if self._reading.kind.name == "image" else ["image", "label"]
        batch = {name: from_dlpack(output.as_tensor()) for name, output in zip(fields, outputs, strict=False)}
        name, *label = outputs[len(fields) :]
        rows = [self._row(np.asarray(name.at(number)).tobytes()) for number in range(len(name))]
        if len(fields) == 1:
            if label:
                self._check(rows, [np.asarray(label[0].at(number)) for number in range(len(rows))])
            batch["label"] = torch.from_numpy(self._index["label"][rows].astype(np.int64))
        return Delivered(batch, rows, list(islice(self._epochs, len(rows))))

    def _row(self, name: bytes) -> int:
        """The row of the index with a path, a key, or the key of a shard's member."""
        found = name.decode(errors="replace")
        if self._reading.dataset.manifest.format == "webdataset":
            folder, slash, base = found.rpartition(":")[2].rpartition("/")
            found = f"{folder}{slash}{base.partition('.')[0]}"
        if found not in self._rows:
            raise DatasetError(f"{self._reading.dataset.folder}: sample {found!r} is none that the index names")
        return self._rows[found]

    def _check(self, rows: list[int], stored: list[Any]) -> None:
        """Compare classes with the index: of a TFRecord a number, of a tar its digits."""
        for row, label in zip(rows, stored, strict=True):
            digits = label.tobytes().strip()
            found = int(label[0]) if label.dtype == np.int64 else int(digits) if digits.isdigit() else -1
            sample = Sample(self._reading.dataset.key(row), {}, row, str(self._reading.dataset.folder))
            check_class(sample, found, int(self._index["label"][row]), self._reading.dataset.manifest.num_classes)


def _image(reading: LoaderInput, content: Any, gpu: bool) -> Any:
    fn, types = dali("fn"), dali("types")
    size = reading.params["image_size"]
    pixels = fn.decoders.image_random_crop(
        content,
        output_type=types.RGB,
        random_area=[0.08, 1.0],
        random_aspect_ratio=[3 / 4, 4 / 3],
        num_attempts=100,
        device="mixed" if gpu else "cpu",
    )
    pixels = fn.resize(pixels, size=[size, size], interp_type=types.INTERP_TRIANGULAR)
    return _flipped(reading, pixels, fn.random.coin_flip(probability=0.5))


def _volume(reading: LoaderInput, read: Read, gpu: bool) -> list[Any]:
    fn, size = dali("fn"), reading.params["patch_size"]
    fields = [fn.reshape(field, layout="CDHW") for field in read.fields]
    start, end = fn.segmentation.random_object_bbox(
        fields[1], format="start_end", background=0, foreground_prob=FOREGROUND_SHARE
    )
    anchor = fn.roi_random_crop(fields[1], roi_start=start, roi_end=end, crop_shape=[1, size, size, size])
    anchor = fn.cast(fn.slice(anchor, 1, 3, axes=[0]), dtype=dali("types").INT32)
    flips = {name: fn.random.coin_flip(probability=1 / 3) for name in ("depthwise", "vertical", "horizontal")}
    cut = [
        fn.slice(field, anchor, [size] * 3, axis_names="DHW", normalized_anchor=False, normalized_shape=False)
        for field in fields
    ]
    return [fn.flip(field.gpu() if gpu else field, **flips) for field in cut]


def _flipped(reading: LoaderInput, pixels: Any, flip: Any) -> Any:
    """Flip images, and normalise them by ImageNet's mean and deviation where the training step does not."""
    fn, types = dali("fn"), dali("types")
    if reading.kind.tensors(reading.params)["image"][0] == torch.uint8:
        return fn.crop_mirror_normalize(pixels, dtype=types.UINT8, output_layout="CHW", mirror=flip)
    return fn.crop_mirror_normalize(
        pixels,
        dtype=types.FLOAT,
        output_layout="CHW",
        mirror=flip,
        mean=[255 * mean for mean in IMAGENET_MEAN],
        std=[255 * deviation for deviation in IMAGENET_STD],
    )


def _reason(error: BaseException) -> str:
    """What DALI's message says went wrong, in one line without the places in its source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "encountered:" in lines[:-1]:
        lines = lines[lines.index("encountered:") + 1 :]
    ends = [number for number, line in enumerate(lines) if line.startswith(("C++ context", "Current pipeline"))]
    return " ".join(lines[: ends[0] if ends else 1]) or type(error).__name__


class Pipeline:
    """A pipeline of DALI's, and how many batches are under way in it."""

    def __init__(self, reading: LoaderInput, threads: int, depth: int) -> None:
        self._reading, self._samples, self._starts = reading, Samples(reading), depth
        self.in_flight = 0
        """Batches that were scheduled and not taken."""
        self._pipe: Any = dali("pipeline").Pipeline(
            reading.batch_size,
            threads,
            reading.cuda_device,
            seed=reading.seed + reading.rank,
            prefetch_queue_depth=depth,
        )
        with self._pipe:
            self._pipe.set_outputs(*self._samples.graph(reading.cuda_device is not None))
        self._pipe.build()

    def schedule(self) -> None:
        """Start decoding the next batch; the first time as many as the pipeline is deep."""
        self.in_flight, self._starts = self.in_flight + self._starts, 1
        self._pipe.schedule_run()

    def take(self) -> Delivered:
        """Wait for the oldest batch in flight.

        Raises:
            DatasetError: DALI cannot decode it.
        """
        try:
            outputs = self._pipe.outputs()
        except RuntimeError as error:
            raise DatasetError(f"{self._reading.dataset.folder}: DALI: {_reason(error)}") from error
        self.in_flight -= 1
        return self._samples.delivered(outputs)

    def close(self) -> None:
        """Free the pipeline."""
        self._pipe = None
