"""What a stock reader is: a dataset as users of a library write it, and what makes its samples ready for a model."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from benchsuite.storage.dataset.kinds import IMAGENET_MEAN, IMAGENET_STD, Kind, Params, decode_one, random_crop
from benchsuite.storage.dataset.manifest import Dataset, ReaderShare
from benchsuite.storage.dataset.sample import Sample

Fields = Mapping[str, Any]
"""A sample as a library gives it: a PIL image and a number, or arrays."""


class ByRow(Protocol):
    """A map-style dataset of torch: item `row` is the sample at that row of the index."""

    def __getitem__(self, row: int) -> Fields: ...


@dataclass(frozen=True)
class Stock:
    """How a format is read with its own library; one of `by_row` and `stream` is given."""

    library: str
    """The distribution whose version records name."""
    by_row: Callable[[Dataset], ByRow] | None = None
    """Open a dataset whose samples are read one by one; called in the worker that reads."""
    stream: Callable[[Dataset, ReaderShare], Iterator[tuple[str, Fields]]] | None = None
    """Give key and fields of the samples of a lane's epoch, in the order in which they come."""
    of_images: str | None = None
    """The distribution that reads images, where that is another one."""
    asks_buckets: Callable[[], str] | None = None
    """Name and version of what asks a bucket, where that is another one."""

    def implementation(self, kind: str, in_bucket: bool = False) -> str:
        """Return the library that reads samples of a kind, and what asks a bucket for it, with their versions."""
        library = named((self.of_images if kind == "image" else None) or self.library)
        return f"{library}, {self.asks_buckets()}" if in_bucket and self.asks_buckets else library


def named(library: str) -> str:
    """A distribution with its version, where that is known."""
    try:
        return f"{library} {version(library)}"
    except PackageNotFoundError:
        return library


def open_image(content: bytes) -> Image.Image:
    """Decode an image as torchvision's `pil_loader` does."""
    with Image.open(BytesIO(content)) as image:
        return image.convert("RGB")


def load_array(content: bytes) -> np.ndarray[Any, Any]:
    """Load a .npy file's array from its bytes; pickled objects are refused."""
    array: np.ndarray[Any, Any] = np.load(BytesIO(content), allow_pickle=False)
    return array


_MEAN, _STD = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))


def ready(kind: Kind, key: str, fields: Fields, params: Params, rng: random.Random | None) -> dict[str, Tensor]:
    """Make a sample ready for the model, as training scripts of its kind do.

    Images: random resized crop, flip, ToTensor and Normalize as in torchvision's reference script for ImageNet;
    PILToTensor alone where the device normalises.
    Volumes: a patch as MLPerf Training's UNet3D cuts it. Sequences: int64 tensors. The random numbers are those that
    the same sample gets from our own readers.
    """
    if rng is None:
        return {name: torch.from_numpy(np.asarray(value).astype(np.int64)) for name, value in fields.items()}
    if kind.name == "volume":
        return decode_one(kind, Sample(key, fields), params, rng)
    image, size = fields["image"], params["image_size"]
    left, top, width, height = random_crop(image.width, image.height, rng)
    image = image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + width, top + height))
    if rng.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
    if kind.tensors(params)["image"][0] != torch.uint8:
        pixels = (pixels.to(torch.float32).div(255) - _MEAN).div_(_STD)  # Normalize makes a copy, too
    return {"image": pixels, "label": torch.tensor(int(fields["label"]))}
