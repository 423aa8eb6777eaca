"""Copies on a node-local disk: whole and checked or not there, made once per node, on where they were interrupted."""

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchsuite.storage.create.convert import in_order
from benchsuite.storage.dataset.manifest import Dataset, DatasetError, is_dataset, open_dataset
from benchsuite.storage.dataset.partial import partial_folders
from benchsuite.storage.dataset.verify import same_samples, verify_dataset
from benchsuite.storage.observe import page_cache
from benchsuite.storage.staging import copy as copying
from benchsuite.storage.staging.stage import stage, unstage
from tests.storage.conftest import Made
from tests.storage.samples import PAGES_MAY_GO, STORED, facts, file_system, flip
from tests.storage.staged import Process, Replaced, finished, hidden, inodes, wait_until

COUNT = 26
SAMPLE_FILES = [("image", {}), ("mlm", {}), ("volume", {}), ("volume", {"array": "npz"})]
ONE_PER_FORMAT = sorted(dict(reversed(STORED)).items())


class TestWhole:
    @pytest.mark.parametrize(("name", "kind"), ONE_PER_FORMAT)
    def test_a_copy_is_the_dataset(self, made: Made, tmp_path: Path, name: str, kind: str) -> None:
        source = made(name, kind)
        staged = stage(source.folder, tmp_path / "copy")
        copy = verify_dataset(tmp_path / "copy")
        same_samples(copy, source)
        assert [facts(sample) for sample in in_order(copy)] == [facts(sample) for sample in in_order(source)]
        assert copy.manifest == source.manifest
        files = source.data_files()
        assert (staged.num_files, staged.num_bytes) == (len(files), sum(path.stat().st_size for path in files))
        assert staged.copied_bytes == staged.num_bytes
        assert staged.seconds is not None and staged.seconds > 0
        assert hidden(tmp_path) == []

    def test_the_source_is_only_read(self, mine: Made, tmp_path: Path) -> None:
        source = mine("webdataset", "image")
        before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in source.folder.iterdir()}
        stage(source.folder, tmp_path / "copy")
        assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in source.folder.iterdir()} == before

    def test_a_large_file_is_copied_in_parts_by_many(
        self, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(copying, "CHUNK_BYTES", 8192)
        monkeypatch.setattr(copying, "BUFFER_BYTES", 3000)
        threads: set[int] = set()
        copy = copying.SourceFile.copy

        def noted(*arguments: Any) -> None:
            threads.add(threading.get_ident())
            time.sleep(0.001)
            copy(*arguments)

        monkeypatch.setattr(copying.SourceFile, "copy", noted)
        source = made("hdf5", "volume")
        stage(source.folder, tmp_path / "copy", threads=4)
        assert (tmp_path / "copy" / "samples.h5").read_bytes() == (source.folder / "samples.h5").read_bytes()
        assert len(threads) > 1

    def test_progress_counts_every_byte(self, made: Made, tmp_path: Path) -> None:
        seen: list[tuple[int, int]] = []
        staged = stage(
            made("lmdb", "image").folder, tmp_path / "copy", progress=lambda done, total: seen.append((done, total))
        )
        assert {total for _, total in seen} == {staged.num_bytes}
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)
        assert max(done for done, _ in seen) == staged.num_bytes

    def test_a_whole_copy_is_used_again(self, made: Made, tmp_path: Path) -> None:
        source = made("tfrecord", "image")
        stage(source.folder, tmp_path / "copy")
        before = inodes(finished(tmp_path / "copy"))
        again = stage(source.folder, tmp_path / "copy")
        assert (again.copied_bytes, again.seconds) == (0, None)
        assert inodes(finished(tmp_path / "copy")) == before

    def test_what_is_another_dataset_is_refused(self, made: Made, tmp_path: Path) -> None:
        stage(made("webdataset", "image").folder, tmp_path / "copy")
        with pytest.raises(DatasetError, match=r"holds another dataset \(id .*webdataset.*remove it first"):
            stage(made("tfrecord", "image").folder, tmp_path / "copy")
        verify_dataset(tmp_path / "copy")

    def test_the_same_samples_stored_otherwise_are_another_dataset(self, made: Made, tmp_path: Path) -> None:
        stage(made("webdataset", "image").folder, tmp_path / "copy")
        with pytest.raises(DatasetError, match="holds another dataset"):
            stage(made("webdataset", "image", {"shard_samples": 5}).folder, tmp_path / "copy")

    def test_a_copy_that_lost_a_file_is_refused(self, made: Made, tmp_path: Path) -> None:
        source = made("webdataset", "image")
        stage(source.folder, tmp_path / "copy")
        os.truncate(tmp_path / "copy" / "shard-000002.tar", 100)
        with pytest.raises(DatasetError, match=r"shard-000002.tar: 100 bytes, the manifest says"):
            stage(source.folder, tmp_path / "copy")
        (tmp_path / "copy" / "shard-000002.tar").unlink()
        with pytest.raises(DatasetError, match=r"shard-000002.tar: No such file"):
            stage(source.folder, tmp_path / "copy")

    @pytest.mark.parametrize(("kind", "options"), SAMPLE_FILES)
    def test_a_copy_with_a_samples_file_cut_short_is_refused(
        self, made: Made, tmp_path: Path, kind: str, options: dict[str, int | str]
    ) -> None:
        source = made("files", kind, options)
        stage(source.folder, tmp_path / "copy")
        assert stage(source.folder, tmp_path / "copy").copied_bytes == 0
        cut = open_dataset(tmp_path / "copy").data_files()[-1]
        os.truncate(cut, 20)
        with pytest.raises(DatasetError, match=rf"{cut.name}: \d+ bytes, the index says .*stage it anew"):
            stage(source.folder, tmp_path / "copy")

    def test_a_jpeg_of_another_length_is_refused(self, made: Made, tmp_path: Path) -> None:
        source = made("files", "image")
        stage(source.folder, tmp_path / "copy")
        longer = open_dataset(tmp_path / "copy").data_files()[3]
        size = longer.stat().st_size
        os.truncate(longer, size + 1)
        with pytest.raises(DatasetError, match=rf"{longer.name}: {size + 1} bytes, the index says {size}; remove"):
            stage(source.folder, tmp_path / "copy")

    def test_a_folder_that_takes_no_file_is_named_and_no_hidden_file(self, made: Made) -> None:
        with pytest.raises(DatasetError, match=r"^/proc: no file can be made there: "):
            stage(made("files", "image").folder, Path("/proc/copy"))

    def test_itself_and_what_is_no_dataset_are_refused(self, mine: Made, tmp_path: Path) -> None:
        source = mine("files", "image")
        with pytest.raises(DatasetError, match="source and target are the same"):
            stage(source.folder, tmp_path / "deep" / ".." / source.folder.name)
        with pytest.raises(DatasetError, match="not a dataset"):
            stage(tmp_path, tmp_path / "copy")


class TestDamage:
    """One byte is changed on the way, wherever it is."""

    @pytest.mark.parametrize(("name", "kind"), ONE_PER_FORMAT)
    def test_a_changed_byte_is_refused(
        self, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
    ) -> None:
        source = made(name, kind)
        struck: list[int] = []

        def damaging(target: int, content: memoryview, place: int) -> int:
            path = os.readlink(f"/proc/self/fd/{target}")
            if not struck and "index.npy" not in path:
                struck.append(place)
                damaged = bytearray(content)
                damaged[len(damaged) // 2] ^= 1
                return os.pwrite(target, damaged, place)
            return os.pwrite(target, content, place)

        monkeypatch.setattr(copying, "os", Replaced(pwrite=damaging))
        with pytest.raises(DatasetError, match=r"checksum|not a whole|corrupt|CRC|damaged|\.npy"):
            stage(source.folder, tmp_path / "copy")
        assert struck and not (tmp_path / "copy").exists()
        monkeypatch.undo()
        stage(source.folder, tmp_path / "copy")
        verify_dataset(tmp_path / "copy")

    @pytest.mark.parametrize(("name", "kind"), [("files", "image"), ("files", "volume"), ("tokens", "tokens")])
    def test_a_source_that_is_damaged_is_refused(self, mine: Made, tmp_path: Path, name: str, kind: str) -> None:
        source = mine(name, kind)
        path = max(source.data_files(), key=lambda path: path.stat().st_size)
        flip(path, path.stat().st_size - 10, 1)
        with pytest.raises(DatasetError, match="checksum"):
            stage(source.folder, tmp_path / "copy")
        assert not (tmp_path / "copy").exists()

    def test_a_source_cut_short_is_refused(self, mine: Made, tmp_path: Path) -> None:
        source = mine("webdataset", "image")
        os.truncate(source.folder / "shard-000001.tar", 1000)
        with pytest.raises(DatasetError, match=r"shard-000001.tar: 1000 bytes, the manifest says \d+: truncated"):
            stage(source.folder, tmp_path / "copy")
        assert not is_dataset(tmp_path / "copy")


def half_files(making: Path) -> list[Path]:
    return [path for path in making.rglob("*") if path.name.endswith(".copy")]


def stop_in_mid_file(copying: Process, making: Path) -> None:
    """Stop a copy that has finished some files and is at another."""
    for _ in range(1000):
        wait_until(lambda: len(finished(making)) >= 3)
        copying.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, copying.pid, os.WSTOPPED)
        if half_files(making):
            return
        copying.send_signal(signal.SIGCONT)
    raise AssertionError("it was never at a file")


def making_of(target: Path) -> Path:
    """The folder in which a process is making, or has left, a copy."""
    wait_until(lambda: bool(partial_folders(target)))
    (making,) = partial_folders(target)
    return making


class TestInterrupted:
    @pytest.mark.parametrize(("name", "kind"), [("webdataset", "image"), ("files", "image"), ("files", "volume")])
    def test_killed_in_mid_copy_and_taken_up_again(
        self, made: Made, tmp_path: Path, process: Callable[..., Process], name: str, kind: str
    ) -> None:
        """What was finished is kept as it is, half files are not, and nothing passes for a dataset meanwhile."""
        source, target = made(name, kind), tmp_path / "copy"
        killed = process(source.folder, target)
        making = making_of(target)
        stop_in_mid_file(killed, making)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        kept = inodes(finished(making))
        assert not target.exists() and not is_dataset(making)
        assert half_files(making)
        staged = stage(source.folder, target)
        verify_dataset(target)
        assert kept.items() <= inodes(finished(target)).items()
        there = sum((making_size(target, name)) for name in kept)
        assert staged.copied_bytes == staged.num_bytes - there
        assert hidden(tmp_path) == []

    @pytest.mark.parametrize(("name", "kind"), [("webdataset", "image"), ("files", "image"), ("files", "volume")])
    def test_what_was_left_damaged_is_copied_again(
        self, made: Made, tmp_path: Path, process: Callable[..., Process], name: str, kind: str
    ) -> None:
        """As after a power failure: names are there, content is not."""
        source, target = made(name, kind), tmp_path / "copy"
        killed = process(source.folder, target)
        wait_until(lambda: len(finished(making_of(target))) >= 3)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        first, second, *_ = finished(making_of(target))
        flip(first, first.stat().st_size // 2)
        os.truncate(second, 0)
        stage(source.folder, target)
        verify_dataset(target)

    def test_an_error_in_mid_copy_leaves_nothing_that_passes(
        self, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source, written = made("webdataset", "image"), []

        def full(target: int, content: memoryview, place: int) -> int:
            written.append(place)
            if len(written) > 4:
                raise OSError(28, "No space left on device")
            return os.pwrite(target, content, place)

        monkeypatch.setattr(copying, "os", Replaced(pwrite=full))
        with pytest.raises(DatasetError, match="No space left on device"):
            stage(source.folder, tmp_path / "copy")
        assert not (tmp_path / "copy").exists()
        monkeypatch.undo()
        assert unstage(tmp_path / "copy")
        assert list(tmp_path.iterdir()) == []


def making_size(target: Path, name: str) -> int:
    return next(path.stat().st_size for path in target.rglob(name))


class TestOncePerNode:
    def test_two_processes_copy_once(self, made: Made, tmp_path: Path, process: Callable[..., Process]) -> None:
        source, target = made("webdataset", "image"), tmp_path / "copy"
        both = [process(source.folder, target, 0.01) for _ in range(2)]
        said = [each.stdout.read().split() for each in both]
        assert [each.wait(60) for each in both] == [0, 0], said
        assert sorted(int(size) for size, _ in said) == [0, sum(path.stat().st_size for path in source.data_files())]
        assert sorted(seconds == "None" for _, seconds in said) == [False, True]

    def test_who_waits_goes_on_when_the_other_is_killed(
        self, made: Made, tmp_path: Path, process: Callable[..., Process]
    ) -> None:
        source, target = made("webdataset", "image"), tmp_path / "copy"
        first = process(source.folder, target, 0.2)
        making_of(target)
        holders: list[str] = []
        second = threading.Thread(target=stage, args=(source.folder, target), kwargs={"on_wait": holders.append})
        second.start()
        wait_until(lambda: bool(holders))
        assert re.fullmatch(rf"process {first.pid} on .+", holders[0])
        first.send_signal(signal.SIGKILL)
        second.join(30)
        assert not second.is_alive()
        verify_dataset(target)
        assert hidden(tmp_path) == []

    def test_threads_of_one_process_copy_once(self, made: Made, tmp_path: Path) -> None:
        source, copied = made("files", "image"), []
        threads = [
            threading.Thread(target=lambda: copied.append(stage(source.folder, tmp_path / "copy").copied_bytes))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(bool(size) for size in copied) == [False, False, False, True]


class TestSpace:
    def test_too_small_a_disk_is_said_before_the_first_byte(
        self, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = made("hdf5", "volume")
        usage = type("Usage", (), {"free": 20_000})
        monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
        monkeypatch.setattr(copying, "os", Replaced(pwrite=lambda *arguments: pytest.fail("a byte was written")))
        with pytest.raises(DatasetError, match=r"staging needs [\d.]+ [KM]B, its disk has 20 KB free"):
            stage(source.folder, tmp_path / "copy")
        assert not list(tmp_path.glob("*copy*"))

    @pytest.fixture
    def small_disk(self, tmp_path: Path) -> Iterator[Path]:
        folder = tmp_path / "small"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("needs to mount a small tmpfs: root, and the right to mount")
        yield folder
        subprocess.run(["umount", str(folder)], check=True)

    @pytest.mark.parametrize("name", ["files", "webdataset"])
    def test_on_a_disk_that_is_too_small(self, made: Made, small_disk: Path, name: str) -> None:
        source = made(name, "volume")
        with pytest.raises(DatasetError, match=r"needs [\d.]+ [KM]B, its disk has [45]\d\d(\.\d)? KB free"):
            stage(source.folder, small_disk / "copy")
        assert finished(small_disk) == []
        little = made(name, "image")
        stage(little.folder, small_disk / "copy")
        verify_dataset(small_disk / "copy")

    def test_on_a_disk_that_is_full(self, made: Made, small_disk: Path) -> None:
        """There is no room even for the name of who holds the lock."""
        with (small_disk / "other").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
            while True:
                file.write(bytes(4096))
        with pytest.raises(DatasetError, match=r"needs [\d.]+ [KM]B, its disk has 0 B free"):
            stage(made("files", "image").folder, small_disk / "copy")
        assert [path.name for path in small_disk.iterdir()] == ["other"]


class TestPageCache:
    @pytest.fixture
    def on_disk(self, mine: Made, tmp_path: Path) -> Dataset:
        if file_system(tmp_path) in ("tmpfs", "ramfs"):
            pytest.skip("the temporary folder lies in memory: nothing there can be evicted")
        return mine("webdataset", "volume")

    def test_a_cold_source_stays_cold(self, on_disk: Dataset, tmp_path: Path) -> None:
        page_cache.evict(on_disk.data_files())
        staged = stage(on_disk.folder, tmp_path / "copy")
        assert page_cache.residency(on_disk.data_files()).fraction == 0
        assert staged.source_left_as_found

    @PAGES_MAY_GO
    def test_what_was_in_memory_stays_there(self, on_disk: Dataset, tmp_path: Path) -> None:
        files = on_disk.data_files()
        page_cache.evict(files)
        page_cache.warm(files[:1])
        with files[1].open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            os.pread(file.fileno(), 1, 8192)
        before = [page_cache.residency([path]).fraction for path in files]
        assert before[0] == 1 and 0 < (before[1] or 0) < 1 and before[2] == 0
        stage(on_disk.folder, tmp_path / "copy")
        assert [page_cache.residency([path]).fraction for path in files] == before

    def test_the_copy_is_clean_so_that_it_can_be_evicted(self, on_disk: Dataset, tmp_path: Path) -> None:
        stage(on_disk.folder, tmp_path / "copy")
        files = open_dataset(tmp_path / "copy").data_files()
        for path in files:
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)  # drops clean pages alone
            os.close(descriptor)
        assert page_cache.residency(files).fraction == 0

    def test_where_it_cannot_be_told_nothing_is_dropped_and_that_is_said(
        self, on_disk: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        page_cache.evict(on_disk.data_files())
        monkeypatch.setattr(copying, "absent", lambda *arguments: None)
        assert not stage(on_disk.folder, tmp_path / "copy").source_left_as_found
        assert page_cache.residency(on_disk.data_files()).fraction == 1
