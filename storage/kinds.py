"""Sample kinds: how an encoded sample becomes tensors. Randomness is a function of seed, epoch and sample key."""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import simplejpeg
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from storage.format import IMAGE_FIELDS, DatasetError, FieldInfo, Sample

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Kind:
    """A kind of sample: its fields as stored, and `decode(sample, params, rng)` to tensors ready for the model."""

    name: str
    fields: tuple[FieldInfo, ...]
    decode: Callable[[Sample, Mapping[str, int], random.Random], dict[str, Tensor]]


def sample_rng(seed: int, epoch: int, key: str) -> random.Random:
    """The random numbers that augment one sample in one epoch, whatever the format, rank or worker."""
    return random.Random(f"{seed}:{epoch}:{key}")


def random_crop(
    width: int,
    height: int,
    rng: random.Random,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> tuple[int, int, int, int]:
    """Left, top, width, height in pixels of a random resized crop.

    Area and aspect ratio are drawn as in Szegedy et al., "Going deeper with convolutions" (2015), with ten tries and
    a centre crop after them, as ImageNet training does.
    """
    for _ in range(10):
        area = width * height * rng.uniform(*scale)
        aspect = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return rng.randint(0, width - w), rng.randint(0, height - h), w, h
    w, h = min(width, round(height * ratio[1])), min(height, round(width / ratio[0]))
    return (width - w) // 2, (height - h) // 2, w, h


def decode_jpeg(sample: Sample) -> Tensor:
    """The pixels of a sample's JPEG: uint8, (height, width, 3). Grey and CMYK ones (ImageNet has both) become RGB.

    Raises:
        DatasetError: the bytes are not a whole JPEG.
    """
    image = sample.fields["image"]
    try:
        if simplejpeg.decode_jpeg_header(image)[2] in ("CMYK", "YCCK"):
            inverted = torch.from_numpy(simplejpeg.decode_jpeg(image, "CMYK")).int()
            return (inverted[..., :3] * inverted[..., 3:] // 255).to(torch.uint8)
        return torch.from_numpy(simplejpeg.decode_jpeg(image, "RGB"))
    except ValueError as error:
        raise DatasetError(f"{sample.source}: sample {sample.key!r}: not a whole JPEG: {error}") from error


_MEAN = torch.tensor(IMAGENET_MEAN).mul(255).view(3, 1, 1)
_INVERSE_STD = torch.tensor(IMAGENET_STD).mul(255).reciprocal().view(3, 1, 1)


def decode_image(sample: Sample, params: Mapping[str, int], rng: random.Random) -> dict[str, Tensor]:
    """Decode, random resized crop, flip and normalise as ImageNet training does.

    Returns:
        image: float32 (3, image_size, image_size), normalised; label: int64 scalar.
    """
    pixels = decode_jpeg(sample)
    left, top, width, height = random_crop(pixels.shape[1], pixels.shape[0], rng)
    crop = pixels[top : top + height, left : left + width].permute(2, 0, 1)[None]
    size = params["image_size"]
    image = interpolate(crop, size=(size, size), mode="bilinear", antialias=True, align_corners=False)[0]
    if rng.random() < 0.5:
        image = image.flip(-1)
    normalised = image.float().sub_(_MEAN).mul_(_INVERSE_STD)
    try:
        label = int(sample.fields["label"])
    except ValueError as error:
        raise DatasetError(f"{sample.source}: sample {sample.key!r}: label is no number: {error}") from error
    return {"image": normalised, "label": torch.tensor(label)}


IMAGE = Kind("image", IMAGE_FIELDS, decode_image)
