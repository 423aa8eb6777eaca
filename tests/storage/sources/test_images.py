"""Images in folders and tars."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchsuite.storage.dataset.problems import Damage
from benchsuite.storage.sources import open_source
from tests.helpers.snapshots import compare_messages
from tests.storage.samples import jpeg
from tests.storage.sources.made import images, png, refusal, tar


def folder(path: Path, **files: bytes) -> Path:
    path.mkdir()
    for name, content in files.items():
        (path / name.replace("__", ".")).write_bytes(content)
    return path


class TestFolders:
    @pytest.mark.parametrize("form", ["files", "webdataset", "hdf5", "lmdb", "tfrecord"])
    def test_png_and_jpeg_together(self, tmp_path: Path, form: str) -> None:
        for name, content in {"cat/a.png": png(0), "cat/b.jpg": jpeg(1), "dog/a.PNG": png(2)}.items():
            path = tmp_path / "in" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        (tmp_path / "in" / "README.txt").write_text("not an image")
        expected = {"cat/a": (png(0), 0), "cat/b": (jpeg(1), 0), "dog/a": (png(2), 1)}
        assert images(tmp_path / "in", form) == expected

    @pytest.mark.parametrize(
        "content",
        [b"", b"hello", png(1)[:20], png(1)[:-12], png(1)[:-30], png(1)[:60] + b"\xff" + png(1)[61:]],
        ids=["empty", "text", "cut in the header", "no end", "cut in the image", "a byte changed"],
    )
    def test_what_is_not_a_whole_png_is_named(self, tmp_path: Path, content: bytes) -> None:
        source = folder(tmp_path / "in", a__png=png(0), b__png=content)
        assert refusal(source, "resnet50").startswith(f"{source / 'b.png'}: not a whole PNG: ")

    def test_the_content_counts_and_not_the_suffix(self, tmp_path: Path) -> None:
        """ImageNet's n02105855_2933.JPEG is a PNG."""
        source = folder(tmp_path / "in", a__JPEG=png(0), b__png=jpeg(1), c__jpg=jpeg(2))
        assert images(source) == {"a": (png(0), 0), "b": (jpeg(1), 0), "c": (jpeg(2), 0)}
        assert sorted(path.name for path in (tmp_path / "in-files-set").glob("*.*g")) == ["a.png", "b.jpg", "c.jpg"]
        (source / "a.JPEG").write_bytes(png(0)[:-30])
        (source / "b.png").write_bytes(jpeg(1)[:-30])
        with pytest.raises(Damage) as raised:
            list(open_source(source, "image", {}).samples)
        what = [line.rpartition("/")[2].split(": ")[:2] for line in raised.value.told]
        assert what == [["a.JPEG", "not a whole PNG"], ["b.png", "not a whole JPEG"]]

    def test_grey_and_palette_pngs_are_kept_as_they_are(self, tmp_path: Path) -> None:
        contents = {}
        for mode in ("L", "P", "RGBA", "I;16"):
            stream = io.BytesIO()
            Image.new(mode, (8, 8)).save(stream, "PNG")
            contents[mode.replace(";", "")] = stream.getvalue()
        source = folder(tmp_path / "in", **{f"{name}__png": content for name, content in contents.items()})
        assert images(source) == {name: (content, 0) for name, content in contents.items()}

    def test_one_key_for_png_and_jpeg_is_refused(self, tmp_path: Path) -> None:
        source = folder(tmp_path / "in", a__png=png(0), a__jpg=jpeg(0))
        assert "another file has the same key 'a'; rename one of them" in refusal(source, "resnet50")

    def test_links_to_class_folders_and_images_are_followed(self, tmp_path: Path) -> None:
        """As torchvision's ImageFolder follows them."""
        store, source = tmp_path / "store", tmp_path / "in"
        for name in ("cats/a.jpg", "deep/er/b.jpg", "single.jpg"):
            (store / name).parent.mkdir(parents=True, exist_ok=True)
            (store / name).write_bytes(jpeg(len(name)))
        (source / "cat").mkdir(parents=True)
        (source / "cat" / "0.jpg").write_bytes(jpeg(0))
        (source / "cat" / "linked.jpg").symlink_to(store / "single.jpg")
        (source / "cat" / "below").symlink_to(store / "deep")
        (source / "bird").symlink_to(store / "cats")
        expected = {
            "bird/a": (jpeg(10), 0),
            "cat/0": (jpeg(0), 1),
            "cat/below/er/b": (jpeg(13), 1),
            "cat/linked": (jpeg(10), 1),
        }
        assert images(source) == expected
        (tmp_path / "all").symlink_to(source)
        assert images(tmp_path / "all", "lmdb") == expected

    @pytest.mark.parametrize("target", ["in", "in/cat", "in/cat/deep", "."])
    def test_a_link_that_leads_back_is_refused(self, tmp_path: Path, target: str) -> None:
        deep = tmp_path / "in" / "cat" / "deep"
        deep.mkdir(parents=True)
        (deep / "0.jpg").write_bytes(jpeg(0))
        (deep / "back").symlink_to(tmp_path / target)
        message = refusal(tmp_path / "in", "resnet50")
        assert message.startswith(f"{deep / 'back'}")
        assert ": a link to /" in message and "which it lies in" in message

    def test_one_class_under_two_names_is_read_twice(self, tmp_path: Path) -> None:
        (tmp_path / "in" / "cat").mkdir(parents=True)
        (tmp_path / "in" / "cat" / "0.jpg").write_bytes(jpeg(0))
        (tmp_path / "in" / "dog").symlink_to("cat")
        assert images(tmp_path / "in") == {"cat/0": (jpeg(0), 0), "dog/0": (jpeg(0), 1)}

    def test_a_class_folder_that_is_gone_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "in" / "cat").mkdir(parents=True)
        (tmp_path / "in" / "cat" / "0.jpg").write_bytes(jpeg(0))
        (tmp_path / "in" / "dog").symlink_to(tmp_path / "nowhere")
        assert refusal(tmp_path / "in", "resnet50").startswith(f"{tmp_path / 'in' / 'dog'}: a link to nothing")

    def test_an_image_alone_is_no_folder(self, tmp_path: Path) -> None:
        source = folder(tmp_path / "in", a__jpg=jpeg(0)) / "a.jpg"
        assert refusal(source, "resnet50").startswith(f"{source}: Not a directory")


class TestNothingThere:
    def test_what_was_looked_for_and_found(self, tmp_path: Path) -> None:
        source = folder(tmp_path / "in", a__txt=b"1", b__txt=b"2", c__csv=b"3", d=b"4")
        assert refusal(source, "resnet50") == (
            f"{source}: no image data: looked for .jpg/.jpeg/.png files, .tar files, .h5/.hdf5 files, data.mdb, "
            f".tfrecord files; found .txt (2), .csv (1), no suffix (1)"
        )

    def test_an_empty_folder(self, tmp_path: Path) -> None:
        for workload, kind in {"resnet50": "image", "unet3d": "volume", "bert": "mlm", "gpt_neox": "tokens"}.items():
            (tmp_path / kind).mkdir()
            message = refusal(tmp_path / kind, workload)
            assert message.startswith(f"{tmp_path / kind}: no {kind} data: looked for ")
            assert message.endswith("; found no files")

    def test_no_such_path(self, tmp_path: Path) -> None:
        for workload in ("resnet50", "unet3d", "bert", "gpt_neox"):
            assert refusal(tmp_path / "none", workload) == f"{tmp_path / 'none'}: No such file or directory"

    def test_two_sorts_of_data_are_not_chosen_from(self, tmp_path: Path) -> None:
        source = folder(tmp_path / "in", a__jpg=jpeg(0))
        tar(source / "b.tar", [("x.jpg", jpeg(1))])
        message = refusal(source, "resnet50")
        assert "(a.jpg)" in message
        assert "(b.tar)" in message


class TestTars:
    def test_classes_by_cls(self, tmp_path: Path) -> None:
        source = tar(
            tmp_path / "a.tar",
            [
                ("0001.jpg", jpeg(1)),
                ("0001.cls", b"7"),
                ("0002.JPEG", jpeg(2)),
                ("0002.cls", b"3\n"),
                ("0002.json", b'{"label": 9}'),
                ("deep/0003.seg.png", png(9)),
                ("deep/0003.png", png(3)),
                ("deep/0003.cls", b"0"),
                ("notes.txt", b"not an image"),
            ],
        )
        assert images(source) == {"0001": (jpeg(1), 7), "0002": (jpeg(2), 3), "deep/0003": (png(3), 0)}

    def test_shards_are_read_in_order_and_classes_counted_over_all(self, tmp_path: Path) -> None:
        (tmp_path / "in").mkdir()
        tar(tmp_path / "in" / "b-1-of-2.tar", [("./dog/1.jpg", jpeg(1)), ("./emu/1.jpg", jpeg(2))])
        tar(tmp_path / "in" / "a-0-of-2.tar", [("./emu/0.jpg", jpeg(0))])
        result = images(tmp_path / "in")
        assert result == {"emu/0": (jpeg(0), 1), "dog/1": (jpeg(1), 0), "emu/1": (jpeg(2), 1)}
        assert list(result) == ["emu/0", "dog/1", "emu/1"]

    def test_classes_by_json(self, tmp_path: Path) -> None:
        members = []
        for number in range(3):
            members += [(f"x/{number}.jpg", jpeg(number)), (f"x/{number}.json", json.dumps({"label": number}).encode())]
        assert images(tar(tmp_path / "a.tar", members)) == {f"x/{n}": (jpeg(n), n) for n in range(3)}

    def test_no_classes(self, tmp_path: Path) -> None:
        source = tar(tmp_path / "a.tar", [("0.jpg", jpeg(0)), ("0.json", b"{}"), ("1.jpg", jpeg(1))])
        assert images(source) == {"0": (jpeg(0), 0), "1": (jpeg(1), 0)}

    def test_refused(self, tmp_path: Path) -> None:
        cases = {
            "a .cls of text": [("0.jpg", jpeg(0)), ("0.cls", b"cat")],
            "a negative label": [("0.jpg", jpeg(0)), ("0.cls", b"-1")],
            "a .cls beside one of two images": [("0.jpg", jpeg(0)), ("0.cls", b"1"), ("1.jpg", jpeg(1))],
            "a .cls without an image": [("0.cls", b"1"), ("1.jpg", jpeg(1))],
            "a JPEG and a PNG of one name": [("0.jpg", jpeg(0)), ("0.png", png(0))],
            "two images of one name": [("0.jpg", jpeg(0)), ("0.jpg", jpeg(0))],
            "two images of one name, apart": [("0.jpg", jpeg(0)), ("1.jpg", jpeg(1)), ("0.jpg", jpeg(0))],
            "an image that is cut off": [("0.jpg", jpeg(0)[:-9])],
            "an image that is text": [("0.jpg", b"text")],
            "a .json that is cut off": [("0.jpg", jpeg(0)), ("0.json", b"{")],
            "a .json beside one of two images": [("0.jpg", jpeg(0)), ("1.jpg", jpeg(1)), ("1.json", b'{"label": 2}')],
            "a name with two dots": [("a.b.jpg", jpeg(0))],
            "a member that leads out": [("../0.jpg", jpeg(0))],
            "a member that leads out through a folder": [("a/../../0.jpg", jpeg(0))],
            "an absolute member": [("/0.jpg", jpeg(0))],
            "a text alone": [("0.txt", b"words")],
            "nothing": [],
        }

        def message(members: list[tuple[str, bytes]]) -> str:
            source = tar(tmp_path / "a.tar", members)
            message = refusal(source, "resnet50")
            assert message.startswith(f"{source}: ")
            return message

        compare_messages("tars", cases, message, {str(tmp_path): "FOLDER"})

    @pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
    def test_links_and_devices_are_refused(self, tmp_path: Path, kind: bytes) -> None:
        source = tar(tmp_path / "a.tar", [("0.jpg", jpeg(0))])
        with tarfile.open(source, "a") as archive:
            info = tarfile.TarInfo("1.jpg")
            info.type, info.linkname = kind, "0.jpg"
            archive.addfile(info)
        assert refusal(source, "resnet50").startswith(f"{source}: member '1.jpg' is no regular file")

    def test_cut_anywhere(self, tmp_path: Path) -> None:
        content = tar(tmp_path / "whole.tar", [(f"{n}.jpg", jpeg(n)) for n in range(3)]).read_bytes()
        member = 512 + -(-len(jpeg(0)) // 512) * 512
        for size in (0, 100, 512, 600, member - 1, member, member + 100, member + 600):
            source = tmp_path / f"cut{size}.tar"
            source.write_bytes(content[:size])
            assert refusal(source, "resnet50").startswith(f"{source}: ")

    def test_a_damaged_header_is_not_taken_for_the_end(self, tmp_path: Path) -> None:
        source = tar(tmp_path / "a.tar", [(f"{n}.jpg", jpeg(n)) for n in range(3)])
        content = bytearray(source.read_bytes())
        place = content.index(b"1.jpg")
        content[place + 2] ^= 1
        source.write_bytes(content)
        expected = f"{source}: damaged header after 1 sample (at byte {place}); what followed is unknown"
        assert refusal(source, "resnet50") == expected

    @pytest.mark.parametrize("suffix", ["tar.gz", "tgz", "tar.bz2", "tar.xz", "TAR.ZST"])
    def test_a_compressed_one_is_refused_and_never_left_out(self, tmp_path: Path, suffix: str) -> None:
        (tmp_path / "in").mkdir()
        tar(tmp_path / "in" / "a.tar", [("0.jpg", jpeg(0))])
        beside = tar(tmp_path / "in" / f"b.{suffix}", [("1.jpg", jpeg(1))])
        expected = f"{beside}: compressed; unpack it first, to .tar"
        assert refusal(tmp_path / "in", "resnet50") == expected
        assert refusal(beside, "resnet50") == expected

    def test_tars_strung_together(self, tmp_path: Path) -> None:
        parts = [tar(tmp_path / f"{n}.tar", [(f"{n}.jpg", jpeg(n))]).read_bytes() for n in range(2)]
        (tmp_path / "both.tar").write_bytes(b"".join(parts))
        assert "goes on past its end mark after 1 sample (at byte 1536: tars strung together?" in refusal(
            tmp_path / "both.tar", "resnet50"
        )

    def test_many_members_do_not_pile_up(self, tmp_path: Path) -> None:
        members = [(f"{number:05d}.jpg", jpeg(number % 7)) for number in range(300)]
        result = images(tar(tmp_path / "a.tar", members), "hdf5")
        assert len(result) == 300
        assert np.all([result[name[:5]][0] == content for name, content in members])
