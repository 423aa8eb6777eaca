"""Images: decoding and augmentation; pixels against independent computations, and what chance may do."""

import io
import random

import numpy as np
import numpy.typing as npt
import pytest
import simplejpeg
import torch
from PIL import Image

from benchsuite.storage.create.photos import image_sample
from benchsuite.storage.dataset.kinds import IMAGE, decode_one, decode_pixels, random_crop, sample_rng
from benchsuite.storage.dataset.manifest import DatasetError, Sample
from tests.storage.samples import jpeg

Pixels = npt.NDArray[np.float64]
IMAGENET = [(0.485, 0.229), (0.456, 0.224), (0.406, 0.225)]
"""Mean and standard deviation of red, green and blue in ImageNet, as every published recipe has them."""
MEAN, STD = np.array(IMAGENET).T[:, :, None, None]


def image(content: bytes, label: bytes = b"3") -> Sample:
    return Sample("the/key", {"image": content, "label": label}, source="/the/file.jpg")


def encoded(pixels: npt.NDArray[np.uint8], colorspace: str, subsampling: str = "444") -> bytes:
    return bytes(simplejpeg.encode_jpeg(pixels, quality=100, colorspace=colorspace, colorsubsampling=subsampling))


def patches(channels: int) -> npt.NDArray[np.uint8]:
    """Sixteen patches of one colour each, which a JPEG keeps nearly as they are."""
    colours = np.random.default_rng(1).integers(0, 256, (4, 4, channels), dtype=np.uint8)
    return np.kron(colours, np.ones((16, 16, 1), dtype=np.uint8))


def png(pixels: npt.NDArray[np.uint8], mode: str = "RGB") -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(stream, "PNG")
    return stream.getvalue()


def decode_image(sample: Sample, size: int, rng: random.Random) -> dict[str, torch.Tensor]:
    return decode_one(IMAGE, sample, {"image_size": size}, rng)


class TestPng:
    def test_pixels_come_back_exactly(self) -> None:
        pixels = np.random.default_rng(3).integers(0, 256, (33, 47, 3), dtype=np.uint8)
        assert np.array_equal(decode_pixels(image(png(pixels))).numpy(), pixels)

    @pytest.mark.parametrize("mode", ["L", "P", "RGBA", "1"])
    def test_other_modes_become_rgb(self, mode: str) -> None:
        content = png(patches(3), mode)
        expected = np.array(Image.open(io.BytesIO(content)).convert("RGB"))
        decoded = decode_pixels(image(content))
        assert decoded.shape == (64, 64, 3) and decoded.dtype == torch.uint8
        assert np.array_equal(decoded.numpy(), expected)

    @pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
    def test_one_that_is_cut_off_is_named(self, share: float) -> None:
        content = png(np.random.default_rng(3).integers(0, 256, (33, 47, 3), dtype=np.uint8))
        cut = content[: 8 + int(share * (len(content) - 8))]
        with pytest.raises(DatasetError, match=r"^/the/file.jpg: sample 'the/key': not a whole PNG: "):
            decode_pixels(image(cut))

    def test_is_cropped_and_normalised_as_a_jpeg_of_the_same_pixels_is(self) -> None:
        content = jpeg(3, 64, 80)
        same = png(simplejpeg.decode_jpeg(content, "RGB"))
        first, second = (decode_image(image(raw), 24, random.Random(5))["image"] for raw in (content, same))
        assert torch.equal(first, second)


class TestDecodeJpeg:
    def test_colours(self) -> None:
        decoded = decode_pixels(image(encoded(patches(3), "RGB")))
        assert decoded.dtype == torch.uint8
        assert np.abs(decoded.numpy().astype(int) - patches(3)).max() <= 3

    def test_grey_becomes_three_equal_channels(self) -> None:
        decoded = decode_pixels(image(encoded(patches(1), "GRAY", "Gray"))).numpy().astype(int)
        assert np.abs(decoded - np.repeat(patches(1), 3, axis=2)).max() <= 3

    def test_cmyk_is_the_inverted_one_of_adobe(self) -> None:
        source = patches(4).astype(int)
        content = encoded(patches(4), "CMYK")
        assert simplejpeg.decode_jpeg_header(content)[2] in ("CMYK", "YCCK")
        expected = source[..., :3] * source[..., 3:] / 255
        decoded = decode_pixels(image(content))
        assert decoded.shape == (64, 64, 3) and decoded.dtype == torch.uint8
        assert np.abs(decoded.numpy() - expected).max() <= 5

    @pytest.mark.parametrize("colorspace", ["RGB", "CMYK"])
    def test_one_that_is_cut_off_is_named(self, colorspace: str) -> None:
        content = encoded(patches(4 if colorspace == "CMYK" else 3), colorspace)
        for length in (0, 20, len(content) // 2, len(content) - 2):
            with pytest.raises(DatasetError) as raised:
                decode_pixels(image(content[:length]))
            assert str(raised.value).startswith("/the/file.jpg: sample 'the/key': not a whole JPEG: ")
            assert "\n" not in str(raised.value)

    def test_a_damaged_one_is_named_or_decoded_but_never_ends_in_a_traceback(self) -> None:
        whole = jpeg(3)
        named = 0
        for offset in range(0, len(whole), 3):
            damaged = bytearray(whole)
            damaged[offset] ^= 0xFF
            try:
                decode_pixels(image(bytes(damaged)))
            except DatasetError as error:
                named += 1
                assert "/the/file.jpg" in str(error)
        assert named > 50


class TestRandomCrop:
    @pytest.mark.parametrize(
        ("width", "height"), [(500, 375), (375, 500), (64, 64), (1, 1), (2, 1), (1, 1000), (1000, 1), (3000, 20)]
    )
    def test_stays_inside(self, width: int, height: int) -> None:
        rng = random.Random(0)
        for _ in range(500):
            left, top, w, h = random_crop(width, height, rng)
            assert w >= 1 and h >= 1
            assert left >= 0 and top >= 0
            assert left + w <= width and top + h <= height

    def test_covers_the_ranges_of_area_and_shape(self) -> None:
        rng = random.Random(1)
        crops = [random_crop(800, 800, rng) for _ in range(4000)]
        areas = [w * h / 640_000 for *_, w, h in crops]
        shapes = [w / h for *_, w, h in crops]
        assert 0.079 < min(areas) < 0.09 and 0.97 < max(areas) <= 1
        assert 0.745 < min(shapes) < 0.77 and 1.30 < max(shapes) < 1.345
        assert np.mean(np.log(shapes)) == pytest.approx(0, abs=0.02)

    def test_reaches_every_edge(self) -> None:
        rng = random.Random(2)
        crops = [random_crop(40, 30, rng) for _ in range(2000)]
        assert min(left for left, *_ in crops) == 0 == min(top for _, top, *_ in crops)
        assert max(left + w for left, _, w, _ in crops) == 40
        assert max(top + h for _, top, _, h in crops) == 30
        assert len({left for left, *_ in crops}) > 20

    def test_area_is_drawn_evenly(self) -> None:
        """Where every draw fits, a quarter of the crops falls into each quarter of the range of areas."""
        rng = random.Random(3)
        areas = [w * h / 1e6 for *_, w, h in (random_crop(1000, 1000, rng, (0.1, 0.5)) for _ in range(4000))]
        counts, _ = np.histogram(areas, bins=4, range=(0.1, 0.5))
        assert np.abs(counts / 4000 - 0.25).max() < 0.03

    @pytest.mark.parametrize(
        ("width", "height", "expected"),
        [(1000, 30, (480, 0, 40, 30)), (30, 1000, (0, 480, 30, 40)), (110, 100, (0, 0, 110, 100))],
    )
    def test_takes_the_centre_when_nothing_fits(
        self, width: int, height: int, expected: tuple[int, int, int, int]
    ) -> None:
        assert random_crop(width, height, random.Random(0), scale=(4, 5)) == expected


def resized(pixels: Pixels, size: int) -> Pixels:
    """Bilinear with antialiasing, computed anew: a triangle as wide as the reduction, one axis after the other."""
    for axis in (0, 1):
        length = pixels.shape[axis]
        scale = length / size
        centre = (np.arange(size) + 0.5) * scale - 0.5
        weights = np.maximum(0, 1 - np.abs(np.arange(length) - centre[:, None]) / max(scale, 1))
        weights /= weights.sum(axis=1, keepdims=True)
        pixels = np.moveaxis(np.tensordot(weights, pixels, axes=(1, axis)), 0, axis)
    return pixels


class TestDecodeImage:
    @pytest.mark.parametrize("size", [64, 224, 600])
    def test_is_crop_resize_flip_normalise(self, size: int) -> None:
        for index in range(4):
            sample = image_sample(0, index, 10)
            produced = decode_image(sample, size, sample_rng(1, 2, sample.key))
            rng = sample_rng(1, 2, sample.key)
            pixels = simplejpeg.decode_jpeg(sample.fields["image"], "RGB").astype(np.float64)
            left, top, width, height = random_crop(pixels.shape[1], pixels.shape[0], rng)
            expected = resized(pixels[top : top + height, left : left + width], size)
            if rng.random() < 0.5:
                expected = expected[:, ::-1]
            expected = (expected.transpose(2, 0, 1) / 255 - MEAN) / STD
            assert produced["image"].shape == (3, size, size) and produced["image"].dtype == torch.float32
            assert np.abs(produced["image"].numpy() - expected).max() < 1.1 / 255 / 0.224
            assert np.abs(produced["image"].numpy() - expected).mean() < 0.6 / 255 / 0.224

    @pytest.mark.parametrize("colour", [(0, 0, 0), (255, 255, 255), (124, 116, 104)])
    def test_normalises_each_channel_by_its_own_statistics(self, colour: tuple[int, int, int]) -> None:
        content = encoded(np.full((40, 40, 3), colour, dtype=np.uint8), "RGB")
        stored = simplejpeg.decode_jpeg(content, "RGB")[0, 0]
        produced = decode_image(image(content), 8, random.Random(0))["image"].numpy()
        for channel, (mean, std) in enumerate(IMAGENET):
            assert np.allclose(produced[channel], (stored[channel] / 255 - mean) / std, atol=1e-5)

    def test_mirrors_half_of_them(self) -> None:
        ramp = np.tile(np.linspace(0, 255, 64).astype(np.uint8)[None, :, None], (64, 1, 3))
        content = encoded(ramp, "RGB")
        mirrored = 0
        for number in range(400):
            produced = decode_image(image(content), 8, random.Random(number))["image"]
            mirrored += bool(produced[0, 0, 0] > produced[0, 0, -1])
        assert mirrored / 400 == pytest.approx(0.5, abs=0.1)

    @pytest.mark.parametrize(
        "content", [encoded(patches(1), "GRAY", "Gray"), encoded(patches(4), "CMYK"), jpeg(1, 8, 8)]
    )
    def test_takes_whatever_imagenet_holds(self, content: bytes) -> None:
        produced = decode_image(image(content), 32, random.Random(0))["image"]
        assert produced.shape == (3, 32, 32)
        assert torch.isfinite(produced).all()

    def test_label(self) -> None:
        label = decode_image(image(jpeg(0), b"17"), 8, random.Random(0))["label"]
        assert label.item() == 17 and label.dtype == torch.int64

    def test_a_label_that_is_no_number_is_named(self) -> None:
        with pytest.raises(DatasetError, match=r"/the/file.jpg: sample 'the/key'"):
            decode_image(image(jpeg(0), b"seventeen"), 8, random.Random(0))


def by_the_book(sample: Sample, size: int, rng: random.Random) -> torch.Tensor:
    """The recipe in single steps on tensors of their own: decode, crop, resize, flip, float, normalise."""
    pixels = torch.from_numpy(simplejpeg.decode_jpeg(bytes(sample.fields["image"]), "RGB"))
    left, top, width, height = random_crop(pixels.shape[1], pixels.shape[0], rng)
    crop = pixels[top : top + height, left : left + width].permute(2, 0, 1)[None]
    resize = torch.nn.functional.interpolate
    resized = resize(crop, size=(size, size), mode="bilinear", antialias=True, align_corners=False)[0]
    if rng.random() < 0.5:
        resized = resized.flip(-1)
    mean = torch.tensor([0.485, 0.456, 0.406]).mul(255).view(3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225]).mul(255).view(3, 1, 1)
    return resized.float().sub(mean).mul(1 / std)


@pytest.mark.parametrize("size", [32, 64, 224, 257])
def test_an_image_equals_the_recipe_bit_for_bit(size: int) -> None:
    for index in range(6):
        sample = image_sample(3, index, 10)
        produced = decode_image(sample, size, sample_rng(0, index, sample.key))["image"]
        assert torch.equal(produced, by_the_book(sample, size, sample_rng(0, index, sample.key)))


def test_a_view_of_a_readers_memory_decodes_as_bytes_do() -> None:
    content = jpeg(2)
    memory = np.frombuffer(content, np.uint8)
    lying = Sample("k", {"image": memory.data, "label": b"3"})
    first, second = (decode_image(sample, 16, random.Random(1)) for sample in (image(content), lying))
    assert torch.equal(first["image"], second["image"]) and torch.equal(first["label"], second["label"])
