"""Sample kinds: how an encoded sample becomes tensors. Randomness is a function of seed, epoch and sample key.

A sample is decoded straight into its row of a batch, memory that loaders use again and again.
"""

import io
import math
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import simplejpeg
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from benchsuite.storage.dataset.fields import MLM_SHAPES, array, encoded, image_extension, outside
from benchsuite.storage.dataset.sample import Allocate, Recycled, Sample, fresh
from benchsuite.storage.dataset.spec import ImageDtype
from benchsuite.storage.errors import DatasetError

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
FOREGROUND_SHARE = 0.4
"""Share of a volume's patches that hold foreground (MLPerf Training's UNet3D, `oversampling`)."""
MAX_FOREGROUND_TRIES = 1000
Params = Mapping[str, int]
Row = Mapping[str, Tensor]


@dataclass(frozen=True)
class Kind:
    """A kind of sample.

    `tensors(params)` says what one decoded sample consists of: dtype and shape by name.
    `decode(sample, params, rng, row)` fills such tensors with a sample that is ready for the model.
    """

    name: str
    tensors: Callable[[Params], dict[str, tuple[torch.dtype, tuple[int, ...]]]]
    decode: Callable[[Sample, Params, random.Random, Row], None]


def empty_batch(kind: Kind, params: Params, batch_size: int, pin_memory: bool = False) -> dict[str, Tensor]:
    """Tensors for `batch_size` decoded samples, not yet filled."""
    return {
        name: torch.empty(batch_size, *shape, dtype=dtype, pin_memory=pin_memory)
        for name, (dtype, shape) in kind.tensors(params).items()
    }


def decode_one(kind: Kind, sample: Sample, params: Params, rng: random.Random) -> dict[str, Tensor]:
    """A decoded sample in tensors of its own."""
    row = {name: tensor[0] for name, tensor in empty_batch(kind, params, 1).items()}
    kind.decode(sample, params, rng, row)
    return row


def travelling(kind: Kind, image_dtype: ImageDtype) -> Kind:
    """The kind as it travels to the device: images as they are asked for, all others as they are."""
    return IMAGE_UINT8 if kind.name == "image" and image_dtype == "uint8" else kind


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


def decode_pixels(sample: Sample, allocate: Allocate = fresh) -> Tensor:
    """The pixels of a sample's JPEG or PNG: uint8, (height, width, 3); grey and CMYK ones become RGB.

    A JPEG's lie in memory from `allocate`.

    Raises:
        DatasetError: the bytes are not a whole image.
    """
    image = encoded(sample, "image")
    if image_extension(image) == "png":
        return _decode_png(sample, image)
    try:
        height, width, space, _ = simplejpeg.decode_jpeg_header(image)
        if space in ("CMYK", "YCCK"):
            inverted = torch.from_numpy(simplejpeg.decode_jpeg(image, "CMYK")).int()
            return (inverted[..., :3] * inverted[..., 3:] // 255).to(torch.uint8)
        memory = allocate("pixels", height * width * 3)[: height * width * 3]
        return torch.from_numpy(simplejpeg.decode_jpeg(image, "RGB", buffer=memory))
    except ValueError as error:
        raise DatasetError(f"{sample.source}: sample {sample.key!r}: not a whole JPEG: {error}") from error


def _decode_png(sample: Sample, image: bytes | memoryview) -> Tensor:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(image)) as opened:
            return torch.from_numpy(np.array(opened.convert("RGB")))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DatasetError(f"{sample.source}: sample {sample.key!r}: not a whole PNG: {error}") from error


_MEAN = torch.tensor(IMAGENET_MEAN).mul(255).view(3, 1, 1)
_INVERSE_STD = torch.tensor(IMAGENET_STD).mul(255).reciprocal().view(3, 1, 1)


def image_tensors(params: Params) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """image: float32 (3, image_size, image_size), normalised; label: int64 scalar."""
    size = params["image_size"]
    return {"image": (torch.float32, (3, size, size)), "label": (torch.int64, ())}


def uint8_image_tensors(params: Params) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """image: uint8 (3, image_size, image_size), to be normalised on the device; label: int64 scalar."""
    return image_tensors(params) | {"image": (torch.uint8, (3, params["image_size"], params["image_size"]))}


class _PixelMemory(threading.local):
    """Memory for one image per thread; decoding each into new memory costs a tenth of it in page faults."""

    def __init__(self) -> None:
        self.allocate = Recycled()


_pixel_memory = _PixelMemory()


def decode_image(sample: Sample, params: Params, rng: random.Random, row: Row) -> None:
    """Decode, random resized crop, flip and normalise as ImageNet training does."""
    augment_image(decode_pixels(sample, _pixel_memory.allocate), params, rng, row)
    row["label"].fill_(image_label(sample))


def augment_image(pixels: Tensor, params: Params, rng: random.Random, row: Row) -> None:
    """Random resized crop and flip pixels (height, width, 3) into the row's image; normalised where it is no uint8."""
    left, top, width, height = random_crop(pixels.shape[1], pixels.shape[0], rng)
    crop = pixels[top : top + height, left : left + width].permute(2, 0, 1)[None]
    size = params["image_size"]
    image = interpolate(crop, size=(size, size), mode="bilinear", antialias=True, align_corners=False)[0]
    if rng.random() < 0.5:
        image = image.flip(-1)
    if row["image"].dtype == torch.uint8:
        row["image"].copy_(image)
    else:
        torch.sub(image, _MEAN, out=row["image"]).mul_(_INVERSE_STD)


def normalised_images(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A batch with its images, uint8 (N, 3, H, W), as float32 of ImageNet's mean 0 and deviation 1, on their device."""
    image = batch["image"]
    if image.dtype != torch.uint8:
        return dict(batch)
    mean, inverse_std = (_on(image.device, number) for number in range(2))
    return {**batch, "image": image.to(torch.float32).sub_(mean).mul_(inverse_std)}


@cache
def _on(device: torch.device, number: int) -> Tensor:
    """Mean or inverse deviation on a device: copied there anew, each step would wait for it."""
    return (_MEAN, _INVERSE_STD)[number].to(device)


def image_label(sample: Sample) -> int:
    """The class of an image.

    Raises:
        DatasetError: it is no number.
    """
    try:
        return int(bytes(encoded(sample, "label")))
    except ValueError as error:
        raise DatasetError(f"{sample.source}: sample {sample.key!r}: label is no number: {error}") from error


def volume_tensors(params: Params) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """image: float32 (1, patch_size, patch_size, patch_size); label: uint8 of the same shape."""
    shape = (1,) + (params["patch_size"],) * 3
    return {"image": (torch.float32, shape), "label": (torch.uint8, shape)}


@dataclass(frozen=True)
class Patch:
    """Where a volume is cut, along which axes it is flipped, and how it is disturbed."""

    corner: tuple[int, int, int]
    flips: tuple[bool, bool, bool]
    brightness: float
    noise_seed: int | None


def draw_patch(sample: Sample, size: int, rng: random.Random) -> Patch:
    """A patch as MLPerf Training's UNet3D draws it.

    In 40 % of cases it is centred on a foreground voxel, as far as the border allows. Each axis is flipped with
    probability 1/3; brightness changes by up to 30 % and noise of standard deviation up to 0.1 is added, each with
    probability 0.1.

    Raises:
        DatasetError: the volume is smaller than the patch, or image and label differ in shape.
    """
    image, label = array(sample, "image"), array(sample, "label")
    if image.shape != label.shape or image.ndim != 4 or min(image.shape[1:]) < size:
        raise DatasetError(
            f"{sample.source}: sample {sample.key!r}: image {image.shape} and label {label.shape}; needed: the same "
            f"(1, D, H, W), each at least the patch size {size}"
        )
    limits = [extent - size for extent in image.shape[1:]]
    corner = tuple(rng.randint(0, limit) for limit in limits)
    if rng.random() < FOREGROUND_SHARE:
        for _ in range(MAX_FOREGROUND_TRIES):
            voxel = [rng.randrange(extent) for extent in label.shape[1:]]
            if label[0, voxel[0], voxel[1], voxel[2]]:
                corner = tuple(min(max(at - size // 2, 0), limit) for at, limit in zip(voxel, limits, strict=True))
                break
    flips = tuple(rng.random() < 1 / 3 for _ in range(3))
    brightness = 1 + (rng.uniform(-0.3, 0.3) if rng.random() < 0.1 else 0)
    noise_seed = rng.getrandbits(63) if rng.random() < 0.1 else None
    return Patch((corner[0], corner[1], corner[2]), (flips[0], flips[1], flips[2]), brightness, noise_seed)


def decode_volume(sample: Sample, params: Params, rng: random.Random, row: Row) -> None:
    """Cut a patch and augment it."""
    patch = draw_patch(sample, params["patch_size"], rng)
    size = row["image"].shape[-1]
    window = (slice(None), *(slice(start, start + size) for start in patch.corner))
    flip = (slice(None), *(slice(None, None, -1 if flipped else 1) for flipped in patch.flips[:2]))
    for name, tensor in row.items():
        tensor.numpy()[...] = array(sample, name)[window][flip]
        if patch.flips[2]:
            tensor.copy_(tensor.flip(-1))
    if patch.brightness != 1:
        row["image"].mul_(patch.brightness)
    if patch.noise_seed is not None:
        generator = torch.Generator().manual_seed(patch.noise_seed)
        deviation = 0.1 * float(torch.rand((), generator=generator))
        row["image"].add_(torch.randn(row["image"].shape, generator=generator), alpha=deviation)


def mlm_tensors(params: Params) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """All int64: input_ids and segment_ids (seq_len,); masked_lm_positions and masked_lm_ids (max_predictions,);
    next_sentence_label ()."""
    return {name: (torch.int64, (params[length],) if length else ()) for name, length in MLM_SHAPES.items()}


def token_tensors(params: Params) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """tokens: int64 (seq_len + 1,), inputs and shifted targets in one."""
    return {"tokens": (torch.int64, (params["seq_len"] + 1,))}


def decode_integers(sample: Sample, params: Params, rng: random.Random, row: Row) -> None:
    """Widen a sequence's fields to int64; nothing is random.

    Raises:
        DatasetError: a field has another shape than the batch, or holds integers outside its `LIMITS`.
    """
    for name, tensor in row.items():
        values: Any = array(sample, name)
        if values.shape != tuple(tensor.shape):
            raise DatasetError(
                f"{sample.source}: sample {sample.key!r}: {name} has shape {values.shape}, needed: "
                f"{tuple(tensor.shape)}"
            )
        if (trouble := outside(name, values, params)) is not None:
            raise DatasetError(f"{sample.source}: sample {sample.key!r}: {trouble}")
        tensor.numpy()[...] = values


IMAGE = Kind("image", image_tensors, decode_image)
IMAGE_UINT8 = replace(IMAGE, tensors=uint8_image_tensors)
VOLUME = Kind("volume", volume_tensors, decode_volume)
MLM = Kind("mlm", mlm_tensors, decode_integers)
TOKENS = Kind("tokens", token_tensors, decode_integers)
