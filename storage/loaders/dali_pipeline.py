"""DALI's pipelines: from encoded images or cut volumes to batches, with the augmentation of `storage.dataset.kinds`.

A feed draws what the pipeline needs for a batch, random numbers included; its graph is what DALI computes from that.
"""

from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from itertools import count, cycle, islice
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import simplejpeg
import torch
from crc32c import crc32c
from torch.utils.dlpack import from_dlpack

from benchsuite.storage.dataset.fields import encoded, image_extension
from benchsuite.storage.dataset.kinds import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    decode_pixels,
    draw_patch,
    empty_batch,
    fill_patch,
    image_label,
    random_crop,
    sample_rng,
)
from benchsuite.storage.dataset.manifest import text
from benchsuite.storage.dataset.sample import Recycled, Sample, content_digest
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.loaders import Delivered
from benchsuite.storage.loaders.reader import LoaderInput

ENDS = {"jpg": b"\xff\xd9", "png": b"IEND\xaeB`\x82"}
"""What a whole image ends with."""


class Encoded(NamedTuple):
    """An image as it is stored, and where it belongs."""

    sample: Sample
    content: npt.NDArray[np.uint8]
    label: int
    epoch: int


class Contents:
    """Compares images with the index.

    The first time by the digest; later by the CRC-32C, twenty times faster, of what had that digest.
    """

    def __init__(self, reading: LoaderInput) -> None:
        self._index = reading.dataset.index
        self._crcs = np.full(len(self._index), -1, np.int64)

    def check(self, sample: Sample, epoch: int) -> Encoded:
        """The sample's image.

        Raises:
            DatasetError: class, size or content are not the index's.
        """
        where, row, label = f"{sample.source}: sample {sample.key!r}", self._index[sample.index], image_label(sample)
        if label != row["label"]:
            raise DatasetError(f"{where} (row {sample.index}): class {label} stands where the index has {row['label']}")
        if sample.stored_bytes != row["bytes"]:
            found = f"{sample.stored_bytes} bytes, the index says {row['bytes']}"
            raise DatasetError(f"{where} (row {sample.index}): {found}: truncated or changed")
        content: Any = np.frombuffer(encoded(sample, "image"), np.uint8)
        crc = crc32c(content.data)
        if self._crcs[sample.index] != crc:
            if content_digest(sample) != text(row["digest"]):
                raise DatasetError(f"{where}: its checksum is not the index's: damaged")
            self._crcs[sample.index] = crc
        return Encoded(sample, content, label, epoch)


def dali(module: str) -> Any:
    """A module of DALI's, imported when a loader is built: half a second, and not installed everywhere."""
    return import_module(f"nvidia.dali.{module}".rstrip("."))


def read_ahead(reading: LoaderInput, threads: int) -> Generator[tuple[Sample, int]]:
    """The rank's samples, epoch after epoch, in the order of its one reader, and the epoch of each.

    Formats that read samples where they lie are read by all threads side by side, each a part of the reader's share;
    shards, which are mixed in one buffer, by one of them.
    """
    form, manifest, lanes = reading.format, reading.dataset.manifest, reading.world_size * reading.readers * threads
    parts = 1 if form.sequential or form.problem(manifest, lanes) else threads
    with ThreadPoolExecutor(parts) as pool:
        for epoch in count():
            share = reading.share(0, epoch)
            shares = [
                replace(share, index=share.index + part * share.count, count=parts * share.count)
                for part in range(parts)
            ]
            streams = [form.read(reading.dataset, part) for part in shares]
            pending = deque((stream, pool.submit(next, stream, None)) for stream in streams)
            while pending:
                stream, future = pending.popleft()
                if (sample := future.result()) is not None:
                    pending.append((stream, pool.submit(next, stream, None)))
                    yield sample, epoch


def reason(error: BaseException) -> str:
    """What DALI's message says went wrong, in one line without the places in its source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "encountered:" in lines[:-1]:
        lines = lines[lines.index("encountered:") + 1 :]
    ends = [number for number, line in enumerate(lines) if line.startswith(("C++ context", "Current pipeline"))]
    return " ".join(lines[: ends[0] if ends else 1]) or type(error).__name__


class Fed(NamedTuple):
    """What was fed for one batch: the input arrays, which must outlive it; rows and epochs; of images the classes."""

    inputs: Sequence[Any]
    rows: list[int]
    epochs: list[int]
    labels: Sequence[int] = ()
    images: Sequence[Sample] = ()


class ImageFeed:
    """Encoded images, the windows to cut from them and whether to flip them."""

    def __init__(self, reading: LoaderInput, threads: int) -> None:
        self._reading, self._contents = reading, Contents(reading)
        self._samples = read_ahead(reading, threads)
        self._fed: deque[Fed] = deque()

    def graph(self, gpu: bool) -> list[Any]:
        """Decode the window, resize, flip and normalise."""
        fn, types = dali("fn"), dali("types")
        size = self._reading.params["image_size"]
        content, window, flip = fn.external_source(
            source=self._draw,
            num_outputs=3,
            dtype=[types.UINT8, types.INT32, types.INT32],
            ndim=[1, 1, 0],
            no_copy=True,
        )
        pixels = fn.decoders.image_slice(
            content,
            window[0:2],
            window[2:4],
            axis_names="WH",
            output_type=types.RGB,
            adjust_orientation=False,
            device="mixed" if gpu else "cpu",
        )
        pixels = fn.resize(pixels, size=[size, size], interp_type=types.INTERP_TRIANGULAR, antialias=True)
        return [flipped(self._reading, pixels, flip)]

    def delivered(self, outputs: Sequence[Any]) -> Delivered:
        """The images, with the classes of what was fed for them."""
        image, fed = from_dlpack(outputs[0].as_tensor()), self._fed.popleft()
        label = torch.from_numpy(np.array(fed.labels, np.int64))  # copied here it would wait for the training's stream
        return Delivered({"image": image, "label": label}, fed.rows, fed.epochs)

    def explain(self) -> None:
        """Decode strictly what DALI could not decode: that says what is wrong, and with which image."""
        for sample in (image for fed in self._fed for image in fed.images):
            decode_pixels(sample)

    def _draw(self) -> Sequence[Any]:
        """The next images."""
        images = [self._contents.check(*found) for found in islice(self._samples, self._reading.batch_size)]
        windows = np.empty((len(images), 4), np.int32)
        flips = np.empty(len(images), np.int32)
        for number, image in enumerate(images):
            rng = sample_rng(self._reading.seed, image.epoch, image.sample.key)
            windows[number] = random_crop(*_size(image), rng)
            flips[number] = rng.random() < 0.5
        rows, epochs = [image.sample.index for image in images], [image.epoch for image in images]
        inputs = [image.content for image in images], windows, flips
        labels, samples = [image.label for image in images], [image.sample for image in images]
        self._fed.append(Fed(inputs, rows, epochs, labels, samples))
        return inputs

    def close(self) -> None:
        """Close the files that are open."""
        self._fed.clear()
        self._samples.close()


def _size(image: Encoded) -> tuple[int, int]:
    """Width and height, by the header. What lacks its end, which DALI tolerates, is decoded strictly first."""
    sample, extension = image.sample, image_extension(image.content)
    if bytes(image.content[-len(ENDS[extension]) :]) != ENDS[extension]:
        decode_pixels(sample)
    if extension == "png":
        width, height = np.frombuffer(image.content[16:24], ">u4")
        return int(width), int(height)
    try:
        height, width = simplejpeg.decode_jpeg_header(image.content)[:2]
    except ValueError as error:
        raise DatasetError(f"{sample.source}: sample {sample.key!r}: not a whole JPEG: {error}") from error
    return width, height


def flipped(reading: LoaderInput, pixels: Any, flip: Any) -> Any:
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


class VolumeFeed:
    """Patches of volumes, and along which axes to flip them.

    A patch is cut as soon as its volume is read: whole volumes of a few batches would fill the memory.
    """

    def __init__(self, reading: LoaderInput, num_slots: int) -> None:
        self._reading = reading
        self._samples = reading.samples(0, Recycled())
        self._slots = cycle([self._slot() for _ in range(num_slots)])
        self._fed: deque[Fed] = deque()

    def graph(self, gpu: bool) -> list[Any]:
        """Flip image and label."""
        fn, types = dali("fn"), dali("types")
        image, label, flips = fn.external_source(
            source=self._draw,
            num_outputs=3,
            dtype=[types.FLOAT, types.UINT8, types.INT32],
            ndim=[4, 4, 1],
            layout=["CDHW", "CDHW", ""],
            no_copy=True,
        )
        turned = {"depthwise": flips[0], "vertical": flips[1], "horizontal": flips[2]}
        return [fn.flip(field.gpu() if gpu else field, **turned) for field in (image, label)]

    def delivered(self, outputs: Sequence[Any]) -> Delivered:
        """The patches, with the places of what was fed for them."""
        image, label = (from_dlpack(output.as_tensor()) for output in outputs)
        fed = self._fed.popleft()
        return Delivered({"image": image, "label": label}, fed.rows, fed.epochs)

    def explain(self) -> None:
        """Nothing: patches were looked at as they were cut."""

    def _slot(self) -> tuple[dict[str, torch.Tensor], Any]:
        """Memory for a batch's tensors and flips."""
        reading = self._reading
        flips = np.empty((reading.batch_size, 3), np.int32)
        return empty_batch(reading.kind, reading.params, reading.batch_size), flips

    def _draw(self) -> Sequence[Any]:
        """The next volumes."""
        reading, (batch, flips) = self._reading, next(self._slots)
        rows, epochs = [], []
        for number, (sample, epoch) in enumerate(islice(self._samples, reading.batch_size)):
            patch = draw_patch(sample, reading.params["patch_size"], sample_rng(reading.seed, epoch, sample.key))
            fill_patch(sample, patch, (False,) * 3, {name: tensor[number] for name, tensor in batch.items()})
            flips[number] = patch.flips
            rows.append(sample.index)
            epochs.append(epoch)
        self._fed.append(Fed([batch["image"].numpy(), batch["label"].numpy(), flips], rows, epochs))
        return self._fed[-1].inputs

    def close(self) -> None:
        """Close the files that are open."""
        self._fed.clear()
        self._samples.close()


class Part(Protocol):
    """What makes samples in a pipeline."""

    def graph(self, gpu: bool) -> list[Any]:
        """What DALI computes, in the order of its outputs."""

    def delivered(self, outputs: Sequence[Any]) -> Delivered:
        """A batch of one run's outputs."""

    def explain(self) -> None:
        """Raise what is wrong with what DALI could not decode, where that is known."""

    def close(self) -> None:
        """Close what is open."""


class Pipeline:
    """A pipeline of DALI's, and how many batches are under way in it."""

    def __init__(self, reading: LoaderInput, part: Part, threads: int, depth: int) -> None:
        self._reading, self._part, self._starts = reading, part, depth
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
            self._pipe.set_outputs(*part.graph(reading.cuda_device is not None))
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
            self._part.explain()
            raise DatasetError(f"{self._reading.dataset.folder}: DALI: {reason(error)}") from error
        self.in_flight -= 1
        return self._part.delivered(outputs)

    def close(self) -> None:
        """Free the pipeline."""
        self._pipe = None
        self._part.close()
