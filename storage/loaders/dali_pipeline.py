"""DALI's pipelines: from encoded images or cut volumes to batches, with the augmentation of `storage.dataset.kinds`.

A feed draws what the pipeline needs for a batch, random numbers included; a graph is what DALI computes from it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import Any, NamedTuple

import numpy as np
import simplejpeg
import torch
from torch.utils.dlpack import from_dlpack

from benchsuite.storage.dataset.fields import image_extension
from benchsuite.storage.dataset.kinds import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    decode_pixels,
    draw_patch,
    empty_batch,
    fill_patch,
    random_crop,
    sample_rng,
)
from benchsuite.storage.dataset.manifest import text
from benchsuite.storage.dataset.sample import Recycled, Sample
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.loaders import Batch, Delivered
from benchsuite.storage.loaders.dali_source import Encoded, dali, encoded_images, reason, source_of
from benchsuite.storage.loaders.reader import LoaderInput

ENDS = {"jpg": b"\xff\xd9", "png": b"IEND\xaeB`\x82"}
"""What a whole image ends with."""


class Fed(NamedTuple):
    """What was fed for one batch: the input arrays, which must outlive it, rows, epochs and classes of images."""

    inputs: Sequence[Any]
    rows: list[int]
    epochs: list[int]
    labels: list[int]


class ImageFeed:
    """Encoded images, the windows to cut from them and whether to flip them."""

    def __init__(self, reading: LoaderInput, threads: int) -> None:
        self._reading = reading
        self._images = encoded_images(reading, threads)
        self._index = reading.dataset.index

    def draw(self) -> Fed:
        """The next images."""
        images = list(islice(self._images, self._reading.batch_size))
        rows = [image.row for image in images]
        labels = [image.label for image in images]
        windows = np.empty((len(images), 4), np.int32)
        flips = np.empty(len(images), np.int32)
        for number, (image, key) in enumerate(zip(images, self._index["key"][rows].tolist(), strict=True)):
            rng = sample_rng(self._reading.seed, image.epoch, text(key))
            windows[number] = random_crop(*self._size(image), rng)
            flips[number] = rng.random() < 0.5
        return Fed(([image.fed for image in images], windows, flips), rows, [image.epoch for image in images], labels)

    def blame(self, fed: Fed) -> None:
        """Raise what is wrong with one of these images: each is decoded, strictly."""
        for content, row in zip(fed.inputs[0], fed.rows, strict=True):
            decode_pixels(self._sample(np.asarray(content), row))

    def close(self) -> None:
        """Close the files that are open."""
        self._images.close()  # type: ignore[attr-defined]

    def _sample(self, content: Any, row: int) -> Sample:
        return Sample(self._reading.dataset.key(row), {"image": content.data}, row, source_of(self._reading, row))

    def _size(self, image: Encoded) -> tuple[int, int]:
        """Width and height, by the header. What lacks its end, which DALI tolerates, is decoded strictly first."""
        extension = image_extension(image.content)
        if bytes(image.content[-len(ENDS[extension]) :]) != ENDS[extension]:
            decode_pixels(self._sample(image.content, image.row))
        if extension == "png":
            width, height = np.frombuffer(image.content[16:24], ">u4")
            return int(width), int(height)
        try:
            height, width = simplejpeg.decode_jpeg_header(image.content)[:2]
        except ValueError as error:
            sample = self._sample(image.content, image.row)
            raise DatasetError(f"{sample.source}: sample {sample.key!r}: not a whole JPEG: {error}") from error
        return width, height


def image_graph(reading: LoaderInput, feed: Callable[[], Sequence[Any]], gpu: bool) -> list[Any]:
    """Decode the window, resize, flip and normalise."""
    fn, types = dali("fn"), dali("types")
    size = reading.params["image_size"]
    content, window, flip = fn.external_source(
        source=feed, num_outputs=3, dtype=[types.UINT8, types.INT32, types.INT32], ndim=[1, 1, 0], no_copy=True
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
    image = fn.crop_mirror_normalize(
        pixels,
        dtype=types.FLOAT,
        output_layout="CHW",
        mirror=flip,
        mean=[255 * mean for mean in IMAGENET_MEAN],
        std=[255 * deviation for deviation in IMAGENET_STD],
    )
    return [image]


class VolumeFeed:
    """Patches of volumes, and along which axes to flip them.

    A patch is cut as soon as its volume is read: whole volumes of a few batches would fill the memory.
    """

    def __init__(self, reading: LoaderInput, num_slots: int) -> None:
        self._reading = reading
        self._samples = reading.samples(0, Recycled())
        self._slots = cycle([self._slot() for _ in range(num_slots)])

    def _slot(self) -> tuple[dict[str, torch.Tensor], Any]:
        """Memory for a batch's tensors and flips."""
        reading = self._reading
        flips = np.empty((reading.batch_size, 3), np.int32)
        return empty_batch(reading.kind, reading.params, reading.batch_size), flips

    def draw(self) -> Fed:
        """The next volumes."""
        reading, (batch, flips) = self._reading, next(self._slots)
        rows, epochs = [], []
        for number, (sample, epoch) in enumerate(islice(self._samples, reading.batch_size)):
            patch = draw_patch(sample, reading.params["patch_size"], sample_rng(reading.seed, epoch, sample.key))
            fill_patch(sample, patch, (False,) * 3, {name: tensor[number] for name, tensor in batch.items()})
            flips[number] = patch.flips
            rows.append(sample.index)
            epochs.append(epoch)
        return Fed([batch["image"].numpy(), batch["label"].numpy(), flips], rows, epochs, [])

    def blame(self, fed: Fed) -> None:
        """Nothing in a patch can be wrong."""

    def close(self) -> None:
        """Close the files that are open."""
        self._samples.close()


def volume_graph(reading: LoaderInput, feed: Callable[[], Sequence[Any]], gpu: bool) -> list[Any]:
    """Flip image and label."""
    fn, types = dali("fn"), dali("types")
    image, label, flips = fn.external_source(
        source=feed,
        num_outputs=3,
        dtype=[types.FLOAT, types.UINT8, types.INT32],
        ndim=[4, 4, 1],
        layout=["CDHW", "CDHW", ""],
        no_copy=True,
    )
    turned = {"depthwise": flips[0], "vertical": flips[1], "horizontal": flips[2]}
    return [fn.flip(field.gpu() if gpu else field, **turned) for field in (image, label)]


class Pipeline:
    """A pipeline of DALI's that decodes, and what was fed to it."""

    def __init__(self, reading: LoaderInput, threads: int, depth: int) -> None:
        device = torch.cuda.current_device() if torch.cuda.is_available() else None
        images = reading.kind.name == "image"
        self._reading = reading
        self._feed = ImageFeed(reading, threads) if images else VolumeFeed(reading, depth + 1)
        self._fed: deque[Fed] = deque()
        self._pipe: Any = dali("pipeline").Pipeline(reading.batch_size, threads, device, prefetch_queue_depth=depth)
        graph = image_graph if images else volume_graph
        with self._pipe:
            self._pipe.set_outputs(*graph(reading, self._draw, device is not None))
        self._pipe.build()

    @property
    def in_flight(self) -> int:
        """Batches that were scheduled and not taken."""
        return len(self._fed)

    def schedule(self) -> None:
        """Start decoding the next batch; the first time as many as the pipeline is deep."""
        self._pipe.schedule_run()

    def take(self) -> Delivered:
        """Wait for the oldest batch in flight.

        Raises:
            DatasetError: DALI cannot decode it.
        """
        try:
            tensors = [from_dlpack(output.as_tensor()) for output in self._pipe.outputs()]
        except RuntimeError as error:
            for fed in self._fed:
                self._feed.blame(fed)
            raise DatasetError(f"{self._reading.dataset.folder}: DALI: {reason(error)}") from error
        fed = self._fed.popleft()
        batch: Batch = {"image": tensors[0]}
        label = torch.from_numpy(np.array(fed.labels, np.int64)) if fed.labels else tensors[1]
        batch["label"] = label.to(tensors[0].device)
        return Delivered(batch, fed.rows, fed.epochs)

    def close(self) -> None:
        """Free the pipeline."""
        self._pipe = None
        self._fed.clear()
        self._feed.close()

    def _draw(self) -> Sequence[Any]:
        self._fed.append(self._feed.draw())
        return self._fed[-1].inputs
