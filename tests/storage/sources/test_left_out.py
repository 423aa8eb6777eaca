"""Images are all read or refused: none is left out for its sort, and none counted as whole that does not decode."""

import io
import zlib
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from benchsuite.storage.dataset.problems import Damage
from benchsuite.storage.sources import open_source
from tests.storage.samples import jpeg
from tests.storage.sources.made import images, png, refusal, tar

OTHERS = ["webp", "bmp", "tiff", "tif", "gif", "ppm", "jfif"]
ALLOWED = "images of this sort are not read; allowed: .jpg, .jpeg, .png"


def written(root: Path, *names: str) -> Path:
    """A folder with a JPEG under each name, whatever its suffix says."""
    for number, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number))
    return root


class TestOtherSorts:
    @pytest.mark.parametrize("suffix", [*OTHERS, "WEBP"])
    @pytest.mark.parametrize("name", ["b", "deep/b"])
    def test_in_folders(self, tmp_path: Path, suffix: str, name: str) -> None:
        source = written(tmp_path / "in", "cat/a.jpg", f"dog/{name}.{suffix}", "dog/c.jpg")
        assert refusal(source, "resnet50") == f"{source}/dog/{name}.{suffix}: {ALLOWED}"

    @pytest.mark.parametrize("name", ["b.webp", "cat/b.webp"])
    def test_beside_flat_images(self, tmp_path: Path, name: str) -> None:
        source = written(tmp_path / "in", "a.jpg", name)
        assert refusal(source, "resnet50") == f"{source / name}: {ALLOWED}"

    def test_a_class_of_them_alone_is_told_image_by_image(self, tmp_path: Path) -> None:
        source = written(tmp_path / "in", "cat/a.jpg", "dog/a.bmp", "dog/b.tif")
        with pytest.raises(Damage) as raised:
            open_source(source, "image", {})
        assert raised.value.told == tuple(f"{source}/dog/{name}: {ALLOWED}" for name in ("a.bmp", "b.tif"))

    def test_what_is_no_image_may_lie_beside(self, tmp_path: Path) -> None:
        source = written(
            tmp_path / "in", "cat/a.jpg", "dog/a.jpg", "notes.txt", "cat/list.csv", "cat/.b.webp", ".b.bmp"
        )
        assert images(source) == {"cat/a": (jpeg(0), 0), "dog/a": (jpeg(1), 1)}

    @pytest.mark.parametrize(
        "members", [["a/1.jpg", "a/2.webp", "b/3.jpg"], ["a/1.jpg", "c/4.tif"], ["1.jpg", "1.gif"]]
    )
    def test_in_tars(self, tmp_path: Path, members: list[str]) -> None:
        source = tar(tmp_path / "a.tar", [(name, jpeg(0)) for name in members])
        (named,) = [name for name in members if not name.endswith("jpg")]
        assert refusal(source, "resnet50") == f"{source}: {named}: {ALLOWED}"

    def test_in_tars_below_another_name(self, tmp_path: Path) -> None:
        """A mask beside an image may be of any sort; alone, its name has a dot too many."""
        source = tar(tmp_path / "a.tar", [("1.jpg", jpeg(1)), ("1.seg.webp", b"mask"), ("notes.txt", b"text")])
        assert images(source) == {"1": (jpeg(1), 0)}
        alone = tar(tmp_path / "b.tar", [("1.jpg", jpeg(1)), ("2.seg.webp", b"mask")])
        assert refusal(alone, "resnet50") == f"{alone}: 2.seg.webp: {ALLOWED}"


class TestClassFolders:
    @pytest.mark.parametrize("beside", [[], ["dog/notes.txt"], ["dog/deep/notes.txt"]])
    def test_one_without_images_is_refused(self, tmp_path: Path, beside: list[str]) -> None:
        source = written(tmp_path / "in", "cat/a.jpg", "emu/a.jpg", *beside)
        (source / "dog").mkdir(exist_ok=True)
        assert refusal(source, "resnet50").startswith(f"{source / 'dog'}: a class folder without images; classes are")

    def test_all_that_is_wrong_is_told_at_once(self, tmp_path: Path) -> None:
        source = written(tmp_path / "in", "cat/a.jpg", "emu/a.webp")
        (source / "dog").mkdir()
        with pytest.raises(Damage) as raised:
            open_source(source, "image", {})
        assert [line.partition(":")[0] for line in raised.value.told] == [f"{source}/emu/a.webp", f"{source}/dog"]

    def test_a_hidden_folder_is_none(self, tmp_path: Path) -> None:
        source = written(tmp_path / "in", "cat/a.jpg", ".cache/notes.txt")
        assert images(source) == {"cat/a": (jpeg(0), 0)}

    def test_beside_flat_images_folders_are_no_classes(self, tmp_path: Path) -> None:
        source = written(tmp_path / "in", "a.jpg", "docs/notes.txt")
        assert images(source) == {"a": (jpeg(0), 0)}


def noise_jpeg(progressive: bool = False) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (96, 128, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=90, progressive=progressive)
    return stream.getvalue()


def cut(image: bytes) -> bytes:
    """A third of it, with a mark that says it ends here."""
    return image[: len(image) // 3] + b"\xff\xd9"


def marked(image: bytes) -> bytes:
    """Half of the coefficients after another mark, as where two files were mixed up on a disk."""
    return image[: len(image) // 2] + b"\xff\xd8\xff\xe0\0\x10" + image[len(image) // 2 + 6 :]


def zeroed(image: bytes) -> bytes:
    """A hole of zeros, as a file system leaves it after a crash."""
    return image[: len(image) // 2] + bytes(4096) + image[len(image) // 2 + 4096 :]


def png_of(compressed: bytes, width: int, height: int, depth: int = 8, color: int = 0, interlaced: int = 0) -> bytes:
    """A PNG with a palette that has all chunks with right checksums; its pixels in two chunks."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return len(content).to_bytes(4, "big") + name + content + zlib.crc32(name + content).to_bytes(4, "big")

    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([depth, color, 0, 0, interlaced])
    half = len(compressed) // 2
    pixels = [chunk(b"IDAT", compressed[:half]), chunk(b"IDAT", compressed[half:])]
    palette = chunk(b"PLTE", bytes(768)) if color == 3 else b""
    return b"".join([b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", head), palette, *pixels, chunk(b"IEND", b"")])


def png_cut_inside(size: int = 32) -> bytes:
    """A PNG with half of its compressed pixels."""
    noise = np.random.default_rng(0).bytes(size)
    rows = zlib.compress(b"".join(b"\0" + noise[row:] + noise[:row] for row in range(size)))
    return png_of(rows[: len(rows) // 2], size, size)


ROWS: dict[tuple[int, int, int, int, int], tuple[int, int]] = {
    (7, 5, 8, 0, 0): (5 * (1 + 7), 2 * (1 + 7)),
    (7, 5, 8, 2, 0): (5 * (1 + 21), 4 * (1 + 21)),
    (7, 5, 16, 6, 0): (5 * (1 + 56), 1 * (1 + 56)),
    (7, 5, 1, 3, 0): (5 * (1 + 1), 3 * (1 + 1)),
    (9, 5, 4, 0, 0): (5 * (1 + 5), 2 * (1 + 5)),
    (9, 5, 8, 4, 0): (5 * (1 + 18), 3 * (1 + 18)),
    (8, 8, 8, 0, 1): (1 * 2 + 1 * 2 + 1 * 3 + 2 * 3 + 2 * 5 + 4 * 5 + 4 * 9, 1 * 2 + 1 * 2 + 1 * 3),
    (3, 1, 8, 2, 1): (1 * 4 + 0 + 0 + 1 * 4 + 0 + 1 * 4 + 0, 1 * 4),
}
"""Bytes of the unpacked rows, counted by hand, and of the first of them; by width, height, bits, sort of colour and
whether interlaced."""


class TestDamage:
    @pytest.mark.parametrize("progressive", [False, True])
    @pytest.mark.parametrize("damage", [cut, marked, zeroed])
    def test_a_jpeg_that_only_ends_well_is_refused(self, tmp_path: Path, damage, progressive: bool) -> None:
        broken = damage(noise_jpeg(progressive))
        assert broken.endswith(b"\xff\xd9") and simplejpeg.decode_jpeg_header(broken)[:2] == (96, 128)
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "a.jpg").write_bytes(noise_jpeg(progressive))
        (tmp_path / "in" / "b.jpg").write_bytes(broken)
        assert refusal(tmp_path / "in", "resnet50").startswith(f"{tmp_path / 'in' / 'b.jpg'}: not a whole JPEG: ")
        source = tar(tmp_path / "a.tar", [("a.jpg", jpeg(0)), ("b.jpg", broken)])
        assert "sample 'b': not a whole JPEG: " in refusal(source, "resnet50")

    def test_a_png_without_half_of_its_pixels_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "a.png").write_bytes(png(0))
        (tmp_path / "in" / "b.png").write_bytes(png_cut_inside())
        assert refusal(tmp_path / "in", "resnet50").startswith(f"{tmp_path / 'in' / 'b.png'}: not a whole PNG: ")

    @pytest.mark.parametrize("head", ROWS)
    def test_a_png_whose_rows_end_too_early_is_refused(self, tmp_path: Path, head: tuple[int, ...]) -> None:
        """Its compressed pixels are whole: decoders leave the rest black and say nothing."""
        needed, kept = ROWS[head]
        whole = png_of(zlib.compress(bytes(needed)), *head)
        for name, content in {"whole": whole, "short": png_of(zlib.compress(bytes(kept)), *head)}.items():
            (tmp_path / name).mkdir()
            (tmp_path / name / "a.png").write_bytes(content)
        assert images(tmp_path / "whole") == {"a": (whole, 0)}
        assert refusal(tmp_path / "short", "resnet50") == (
            f"{tmp_path / 'short' / 'a.png'}: not a whole PNG: its rows have {kept} bytes, {needed} are needed: "
            "truncated"
        )

    def test_a_png_that_unpacks_to_far_more_is_not_unpacked(self, tmp_path: Path) -> None:
        """As libpng does, what lies beyond the last row is passed over."""
        (tmp_path / "in").mkdir()
        much = png_of(zlib.compress(bytes(1 << 24)), 7, 5)
        (tmp_path / "in" / "a.png").write_bytes(much)
        assert images(tmp_path / "in") == {"a": (much, 0)}

    def test_whole_ones_pass(self, tmp_path: Path) -> None:
        contents = {"base": noise_jpeg(), "progressive": noise_jpeg(True), "tiny": jpeg(0, 8, 8)}
        (tmp_path / "in").mkdir()
        for name, content in contents.items():
            (tmp_path / "in" / f"{name}.jpg").write_bytes(content)
        assert images(tmp_path / "in") == {name: (content, 0) for name, content in contents.items()}
