"""Photographs that cost what ImageNet's cost: same size distribution, bytes per pixel and decode time.

Pixels are Gaussian fields whose amplitude spectrum falls as 1/f^a, as that of natural images does (Field, "Relations
between the statistics of natural images and the response properties of cortical cells", 1987). The distributions of
the exponent, contrast, size and chroma subsampling were fitted to a sample of ImageNet.
"""

import io

import numpy as np
import numpy.typing as npt
import simplejpeg

from benchsuite.storage.dataset.sample import Allocate, Sample

SIZES: tuple[tuple[int, int], ...] = (
    *[(500, 375)] * 12, *[(375, 500)] * 4, *[(500, 333)] * 4, *[(333, 500)] * 3, (400, 300), (600, 450), (500, 325),
    (500, 478), (335, 500), (400, 400), (450, 300), (250, 206), (170, 170), (200, 160), (640, 480), (800, 600),
)  # fmt: skip
"""Width and height in pixels, as often as they occur; photographs of ImageNet average 0.19 megapixels."""
QUALITY = 95
MEAN_BYTES = 110_000
MEAN_PNG_BYTES = 400_000
NUM_CLASSES = 1000


def _field(rng: np.random.Generator, height: int, width: int, exponents: list[float]) -> npt.NDArray[np.float32]:
    """Random fields (num_fields, height, width) of unit variance with spectra 1/f^exponent.

    The exponential is taken in double precision: rounded in single, it differs between processors, and so would the
    photographs of a seed.
    """
    fy = np.fft.fftfreq(height)[:, None]
    fx = np.fft.rfftfreq(width)[None, :]
    log_f = 0.5 * np.log(np.maximum(fy * fy + fx * fx, (0.5 / max(height, width)) ** 2))
    shape = (len(exponents), *log_f.shape)
    noise = rng.standard_normal(shape, dtype=np.float32) + 1j * rng.standard_normal(shape, dtype=np.float32)
    spectrum = noise * np.exp(-np.asarray(exponents)[:, None, None] * log_f).astype(np.float32)
    spectrum[:, 0, 0] = 0
    pixels: npt.NDArray[np.float32] = np.fft.irfft2(spectrum, s=(height, width)).astype(np.float32)
    pixels /= pixels.std(axis=(1, 2), keepdims=True)
    return pixels


def photograph(seed: int, index: int) -> bytes:
    """A JPEG that depends on seed and index alone."""
    rng = np.random.Generator(np.random.Philox([seed, index]))
    width, height = SIZES[rng.integers(len(SIZES))]
    exponent = float(np.clip(rng.normal(1.45, 0.35), 0.7, 2.2))
    contrast = float(np.clip(rng.lognormal(np.log(50), 0.25), 20, 75))
    luma, blue, red = _field(rng, height, width, [exponent, exponent + 0.3, exponent + 0.3])
    y = rng.uniform(90, 150) + contrast * luma
    cb, cr = 0.25 * contrast * blue, 0.25 * contrast * red
    rgb = np.stack([y + 1.402 * cr, y - 0.344 * cb - 0.714 * cr, y + 1.772 * cb], axis=-1)
    image = np.ascontiguousarray(np.clip(rgb, 0, 255).astype(np.uint8))
    subsampling = "420" if rng.random() < 0.25 else "444"
    return bytes(simplejpeg.encode_jpeg(image, quality=QUALITY, colorsubsampling=subsampling))


def image_sample(seed: int, index: int, num_classes: int) -> Sample:
    """A photograph with its label; the key names class and index."""
    label = int(np.random.Generator(np.random.Philox([seed, index, 1])).integers(num_classes))
    fields = {"image": photograph(seed, index), "label": str(label).encode()}
    return Sample(f"class{label:04d}/{index:08d}", fields)


def photograph_sample(index: int, allocate: Allocate, seed: int, num_classes: int, encoding: str) -> Sample:
    """`image_sample`, as a JPEG or as a PNG of the same pixels."""
    sample = image_sample(seed, index, num_classes)
    if encoding == "jpeg":
        return sample
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(simplejpeg.decode_jpeg(sample.fields["image"])).save(stream, "PNG", compress_level=1)
    return Sample(sample.key, {**sample.fields, "image": stream.getvalue()})
