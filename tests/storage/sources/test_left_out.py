"""Images are all read or refused: none is left out for its sort, and none counted as whole that does not decode."""

import io
import zlib
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from storage.problems import Damage
from storage.sources import open_source
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
        source = written(tmp_path / "in", "cat/a.jpg", "notes.txt", "cat/list.csv", "cat/.b.webp", ".b.bmp")
        assert images(source) == {"cat/a": (jpeg(0), 0)}

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


def png_cut_inside(size: int = 32) -> bytes:
    """A PNG that has all chunks with right checksums, and half of its compressed pixels."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return len(content).to_bytes(4, "big") + name + content + zlib.crc32(name + content).to_bytes(4, "big")

    head = size.to_bytes(4, "big") * 2 + bytes([8, 0, 0, 0, 0])
    noise = np.random.default_rng(0).bytes(size)
    rows = zlib.compress(b"".join(b"\0" + noise[row:] + noise[:row] for row in range(size)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows[: len(rows) // 2]) + chunk(b"IEND", b"")


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

    def test_whole_ones_pass(self, tmp_path: Path) -> None:
        contents = {"base": noise_jpeg(), "progressive": noise_jpeg(True), "tiny": jpeg(0, 8, 8)}
        (tmp_path / "in").mkdir()
        for name, content in contents.items():
            (tmp_path / "in" / f"{name}.jpg").write_bytes(content)
        assert images(tmp_path / "in") == {name: (content, 0) for name, content in contents.items()}
