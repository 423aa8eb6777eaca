"""Headers of tar files that other tools write, or that somebody crafted."""

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from benchsuite.storage.dataset.manifest import Dataset, ReaderShare
from benchsuite.storage.dataset.opened import LocalFile
from benchsuite.storage.dataset.sample import Recycled, fresh
from benchsuite.storage.formats.tar import contents, read
from tests.storage.conftest import Made
from tests.storage.formats.test_tar import agree, members, read_error, tars
from tests.storage.samples import facts, some_samples


@pytest.fixture
def shard(mine: Made) -> tuple[Dataset, Path]:
    """A dataset of six images and its second shard."""
    dataset = mine("webdataset", "image")
    return dataset, tars(dataset)[1]


class TestHeadersOfOtherTools:
    """Headers of the usual form are read by format `webdataset` itself, others by tarfile: one shard may hold both."""

    def same(self, dataset: Dataset, path: Path) -> None:
        """The dataset reads as before, in new memory and in memory that is used again."""
        agree(dataset, path)
        for allocate in (fresh, Recycled()):
            found = {sample.key: facts(sample) for sample in read(dataset, ReaderShare(0, 1, 0, 0, True, 2, allocate))}
            assert found == {sample.key: facts(sample) for sample in some_samples(6)}

    def unpack(self, path: Path, folder: Path) -> list[str]:
        """The members of a shard as files in a new folder: their names."""
        for name, content in members(path):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        return [name for name, _ in members(path)]

    @pytest.mark.parametrize("form", ["gnu", "oldgnu", "pax", "posix", "ustar", "v7"])
    def test_gnu_tar(self, mine: Made, tmp_path: Path, form: str) -> None:
        dataset = mine("webdataset", "image")
        path = tars(dataset)[1]
        names = self.unpack(path, tmp_path / "files")
        call_tar(f"--format={form}", "--create", "--file", str(path), "--directory", str(tmp_path / "files"), *names)
        self.same(dataset, path)

    @pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    @pytest.mark.parametrize("folder", ["", "l" * 90 + "/", "日本.v1/", "a/" * 60])
    def test_members_with_long_and_foreign_names_between_others(self, tmp_path: Path, form: int, folder: str) -> None:
        sizes = [0, 1, 511, 512, 513, 5000]
        made = [(f"{folder if size % 2 else ''}{size}.npy", bytes([size % 251]) * size) for size in sizes]
        with tarfile.open(tmp_path / "t.tar", "w", format=form) as tar:
            for name, content in made:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        assert raw_members(tmp_path / "t.tar") == made

    def test_sizes_that_octal_digits_cannot_say(self, tmp_path: Path) -> None:
        header = tarfile.TarInfo("b.npy").tobuf(tarfile.GNU_FORMAT)
        large = with_size(header, b"\x80" + bytes(9) + b"\3")
        large = with_size(large[:135] + b"\xe8" + large[136:], large[124:135])
        first = tarfile.TarInfo("a.npy").tobuf(tarfile.GNU_FORMAT)
        (tmp_path / "t.tar").write_bytes(first + large + bytes(1024) + bytes(1024))
        assert raw_members(tmp_path / "t.tar") == [("a.npy", b""), ("b.npy", bytes(1000))]

    def test_a_global_header_speaks_of_all_members_after_it(self, tmp_path: Path) -> None:
        common = tarfile.TarInfo.create_pax_global_header({"path": "renamed.npy"})
        plain = [tarfile.TarInfo(name).tobuf(tarfile.USTAR_FORMAT) for name in ("a.npy", "b.npy", "c.npy")]
        (tmp_path / "t.tar").write_bytes(plain[0] + common + plain[1] + plain[2] + bytes(1024))
        with tarfile.open(tmp_path / "t.tar") as tar:
            assert tar.getnames() == ["a.npy", "renamed.npy", "renamed.npy"]
        assert [name for name, _ in raw_members(tmp_path / "t.tar")] == ["a.npy", "renamed.npy", "renamed.npy"]

    def test_a_folder_is_no_sample(self, shard: tuple[Dataset, Path]) -> None:
        dataset, path = shard
        (path.parent / "sub").mkdir()
        call_tar("--append", "--format=v7", "--file", str(path), "--directory", str(path.parent), "sub")
        agree(dataset, path)
        assert read_error(dataset) == f"{path}: member 'sub' is no regular file"


def raw_members(path: Path) -> list[tuple[str, bytes]]:
    """The members of any tar file, by the reader of `webdataset`."""
    return [(raw["fname"], bytes(raw["data"])) for raw in contents(LocalFile(path), fresh)]


def call_tar(*arguments: str) -> None:
    """GNU tar, where there is one."""
    if not shutil.which("tar") or b"GNU tar" not in subprocess.run(["tar", "--version"], capture_output=True).stdout:
        pytest.skip("no GNU tar here")
    subprocess.run(["tar", *arguments], check=True, capture_output=True)


def test_a_sparse_file_is_refused(shard: tuple[Dataset, Path], tmp_path: Path) -> None:
    """What is stored of it are its pieces, not its content."""
    dataset, path = shard
    with (tmp_path / "hole.jpg").open("wb") as file:
        file.truncate(1 << 20)
    call_tar("--sparse", "--create", "--file", str(path), "--directory", str(tmp_path), "hole.jpg")
    agree(dataset, path)
    assert read_error(dataset) == f"{path}: member 'hole.jpg' is no regular file"


@pytest.mark.parametrize("place", [0, 1])
def test_a_size_below_zero_does_not_lead_back(shard: tuple[Dataset, Path], place: int) -> None:
    """A member without a suffix belongs to no sample, so nobody would notice that it comes again and again."""
    dataset, path = shard
    headers = [tarfile.TarInfo(name).tobuf(tarfile.USTAR_FORMAT) for name in ("first", "second")]
    headers[place] = with_size(headers[place], b"-0000002000")
    path.write_bytes(b"".join(headers) + bytes(1024))
    agree(dataset, path)
    assert str(path) in read_error(dataset)


def with_size(header: bytes, size: bytes) -> bytes:
    """A header that says this size, its checksum right."""
    blank = header[:124] + size + header[135:148] + b" " * 8 + header[156:]
    return blank[:148] + b"%06o\0 " % sum(blank) + blank[156:]
