"""The raw ceiling of a path: what is read, by whom, and what is left behind (nothing)."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchsuite.storage.errors import DatasetError
from benchsuite.storage.observe import page_cache
from benchsuite.storage.rawspeed import fio, probe
from benchsuite.storage.rawspeed.plain_reader import (
    PATTERNS,
    PIECE_BYTES,
    Pattern,
    aligned_buffers,
    offsets,
    pieces_of,
    read_ceiling,
    read_file,
    slice_rates,
    takes_direct,
)
from benchsuite.storage.rawspeed.probe import (
    Asked,
    Cell,
    NameCell,
    Probe,
    check,
    name_rates,
    temporary_below,
    write_incompressible,
)
from tests.helpers.snapshots import compare_messages
from tests.planted import open_umask
from tests.storage.samples import file_system

__all__ = ["open_umask"]
SMALL = Asked(size_bytes=4 << 20, seconds=0.06, blocks=(4096, 65536), depths=(1, 4), engine="own", rounds=2)
SHM = Path("/dev/shm")


def run(path: Path, asked: Asked = SMALL) -> Probe:
    return probe.probe(path, asked, file_system(path), lambda done, total: None)


class TestReads:
    @pytest.mark.parametrize("pattern", PATTERNS)
    @pytest.mark.parametrize("depth", [1, 3, 4])
    def test_readers_share_the_file_and_read_no_block_twice(self, pattern: Pattern, depth: int):
        plan = offsets(pattern, 64 * 4096, 4096, depth)
        every = [offset for reader in plan for offset in reader]
        assert len(plan) == depth and len(every) == len({*every})
        assert len(every) == (64 if pattern == "random" else 64 // depth * depth)
        assert all(offset % 4096 == 0 and offset < 64 * 4096 for offset in every)

    def test_sequential_readers_go_forward_and_random_ones_do_not(self):
        assert all(reader == sorted(reader) for reader in offsets("sequential", 1 << 20, 4096, 2))
        assert any(reader != sorted(reader) for reader in offsets("random", 1 << 20, 4096, 2))

    @pytest.mark.parametrize("direct", [False, True])
    @pytest.mark.parametrize("pattern", PATTERNS)
    def test_a_file_is_read_whole_once_and_into_the_buffers(self, tmp_path: Path, pattern: Pattern, direct: bool):
        file = tmp_path / "data"
        content = os.urandom(16 * 4096)
        file.write_bytes(content)
        if direct and not takes_direct(file):
            pytest.skip("no O_DIRECT here")
        buffers = aligned_buffers(2, 4096)
        plan = offsets(pattern, 16 * 4096, 4096, 2)
        found = read_file(file, plan, buffers, 60, direct, again=False)
        assert found.num_bytes == 16 * 4096 and found.seconds > 0 and found.lock_s >= 0
        assert [bytes(buffer) for buffer in buffers] == [content[last[-1] : last[-1] + 4096] for last in plan]

    def test_again_goes_on_until_the_time_is_over(self, tmp_path: Path):
        file = tmp_path / "data"
        file.write_bytes(os.urandom(4096))
        found = read_file(file, [[0]], aligned_buffers(1, 4096), 0.05, False, again=True)
        assert found.seconds >= 0.05 and found.num_bytes > 4096

    def test_a_signal_ends_the_readers_at_once(self, tmp_path: Path):
        """Readers that went on to their deadline would still read when the second signal comes."""
        file, seen = tmp_path / "data", []
        file.write_bytes(os.urandom(4096))

        def stop(*_: object) -> None:
            seen.append(1)
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGUSR2, stop)
        timers = [threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGUSR2)) for after_s in (0.1, 10)]
        try:
            for timer in timers:
                timer.start()
            with pytest.raises(KeyboardInterrupt):
                read_file(file, [[0], [0]], aligned_buffers(2, 4096), 20, False, again=True)
            assert len(seen) == 1
        finally:
            for timer in timers:
                timer.cancel()
                timer.join()
            signal.signal(signal.SIGUSR2, before)

    def test_buffers_are_aligned(self):
        import numpy as np

        assert all(np.frombuffer(buffer, np.uint8).ctypes.data % 4096 == 0 for buffer in aligned_buffers(3, 8192))

    def test_content_cannot_be_compressed(self, tmp_path: Path):
        import zlib

        write_incompressible(tmp_path / "data", 300_000)
        content = (tmp_path / "data").read_bytes()
        assert len(content) == 300_000 and len(zlib.compress(content)) > 300_000


class TestProbe:
    def test_every_cell_has_its_samples(self, tmp_path: Path):
        seen: list[tuple[int, int]] = []
        found = probe.probe(tmp_path, SMALL, file_system(tmp_path), lambda done, total: seen.append((done, total)))
        keys = {(cell.pattern, cell.block_bytes, cell.depth) for cell in found.cells}
        assert keys == {(p, b, d) for p in PATTERNS for b in (4096, 65536) for d in (1, 4)}
        assert all(len(cell.bytes_per_s) == 2 and min(cell.bytes_per_s) > 0 for cell in found.cells)
        assert all(len(cell.lock_fraction) == 2 for cell in found.cells)
        assert {(cell.operation, cell.depth) for cell in found.names} == {
            (operation, depth) for operation in ("create", "open", "unlink") for depth in (1, 4)
        }
        assert all(len(cell.per_s) == 2 and min(cell.per_s) > 0 for cell in found.names)
        assert seen == [(number, 20) for number in range(1, 21)]
        assert (found.engine, found.size_bytes) == ("own", 4 << 20)
        assert list(tmp_path.iterdir()) == []

    def test_it_is_cold_and_that_is_measured(self, tmp_path: Path):
        if file_system(tmp_path) in ("tmpfs", "ramfs"):
            pytest.skip("the temporary folder lies in memory: nothing there can be evicted")
        found = run(tmp_path)
        assert found.access == ("direct" if found.access == "direct" else "buffered")
        assert {value for cell in found.cells for value in cell.resident_before} == {0.0}

    def test_without_o_direct_it_evicts_and_reads_no_block_twice(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(probe, "takes_direct", lambda path: False)
        asked: list[bool] = []
        real = read_file

        def noting(file: Path, plan: object, buffers: object, seconds: float, direct: bool, again: bool) -> object:
            asked.append(direct or again)
            found = real(file, plan, buffers, seconds, direct, again)  # type: ignore[arg-type]
            assert found.num_bytes <= SMALL.size_bytes
            return found

        monkeypatch.setattr(probe, "read_file", noting)
        assert run(tmp_path).access == "buffered"
        assert asked and not any(asked)

    def test_memory_is_called_memory(self):
        if not SHM.is_dir() or file_system(SHM) != "tmpfs" or not os.access(SHM, os.W_OK):
            pytest.skip("no tmpfs at /dev/shm")
        before = set(SHM.iterdir())
        assert run(SHM, replace(SMALL, rounds=1)).access == "memory"
        assert set(SHM.iterdir()) == before

    def test_the_best_are_those_with_the_best_median(self):
        cells = (
            Cell("sequential", 4096, 1, (9.0, 1.0, 1.0)),
            Cell("sequential", 65536, 1, (2.0, 3.0, 4.0)),
            Cell("random", 4096, 4, (2.0,)),
            Cell("random", 65536, 4, (8.0,)),
        )
        names = (NameCell("open", 1, (5.0, 7.0)), NameCell("open", 4, (6.5,)), NameCell("create", 1, (1.0,)))
        found = Probe(Path("/p"), "direct", "own", 1, cells, names)
        assert found.best("sequential").block_bytes == 65536
        assert found.best("random").block_bytes == 65536
        assert found.most_reads().block_bytes == 4096
        assert found.names_per_s("open") == 6.5


class TestRefusals:
    def test_what_cannot_be_measured(self) -> None:
        cases = [
            {"blocks": (5000,)},
            {"blocks": ()},
            {"depths": (0,)},
            {"size_bytes": 4096},
            {"seconds": 0.0},
        ]

        def message(changes: dict[str, object]) -> str:
            with pytest.raises(DatasetError) as caught:
                check(replace(SMALL, **changes))  # type: ignore[arg-type]
            return str(caught.value)

        compare_messages("raw_reads", cases, message)

    def test_fio_that_is_missing(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(fio, "installed", lambda: False)
        assert check(replace(SMALL, engine="auto")) == "own"
        with pytest.raises(DatasetError, match="not installed"):
            check(replace(SMALL, engine="fio"))

    def test_no_such_folder_and_a_file(self, tmp_path: Path):
        with pytest.raises(DatasetError, match="no such folder"):
            run(tmp_path / "gone")
        (tmp_path / "file").touch()
        with pytest.raises(DatasetError, match="is no folder"):
            run(tmp_path / "file")

    def test_too_full_a_disk_is_said_before_anything_is_written(self, tmp_path: Path):
        with pytest.raises(DatasetError, match=r"needs 1 PB and 67.11 MB to spare, its disk has [\d.]+ [KMGT]?B free"):
            run(tmp_path, replace(SMALL, size_bytes=10**15))
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_that_cannot_be_written(self):
        with pytest.raises(DatasetError, match=r"/sys: (cannot be written|needs)"):
            run(Path("/sys"))

    def test_nobody_else_may_write_its_folder(self, tmp_path: Path, open_umask: None):
        with temporary_below(tmp_path, "probe", 0) as folder:
            assert folder.stat().st_mode & 0o777 == 0o755

    def test_a_disk_that_fills_up_meanwhile(self, tmp_path: Path):
        with (
            pytest.raises(DatasetError, match="No space left on device; nothing was kept"),
            temporary_below(tmp_path, "probe", 0) as folder,
        ):
            (folder / "data").write_bytes(b"x")
            raise OSError(28, "No space left on device")
        assert list(tmp_path.iterdir()) == []


class TestCleaningUp:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
    def test_nothing_stays_when_it_is_interrupted_or_after_the_next_one(self, tmp_path: Path, number: int):
        code = f"""
import signal
from pathlib import Path
from benchsuite.storage.rawspeed.probe import Asked, probe
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
asked = Asked(size_bytes=4 << 20, seconds=60, blocks=(4096,), depths=(1,), engine="own")
probe(Path({str(tmp_path)!r}), asked, None, lambda done, total: None)
"""
        child = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob(".*/data")) and time.monotonic() < deadline:
            time.sleep(0.01)
        child.send_signal(number)
        if number == signal.SIGINT:
            child.send_signal(number)
        child.wait()
        if number == signal.SIGKILL:
            assert len(list(tmp_path.iterdir())) == 1
            run(tmp_path, replace(SMALL, rounds=1))
        assert list(tmp_path.iterdir()) == []


class TestNames:
    def test_all_that_was_made_is_opened_and_removed(self, tmp_path: Path):
        rates = name_rates(tmp_path, 3, 0.03)
        assert list(rates) == ["create", "open", "unlink"] and min(rates.values()) > 0
        assert list(tmp_path.iterdir()) == []


class TestFio:
    def test_arguments(self):
        words = fio.arguments("data", 1 << 20, "random", 4096, 4, 0.5, direct=True, again=True)
        assert {"--rw=randread", "--bs=4096", "--numjobs=4", "--runtime=500ms", "--direct=1", "--time_based"} <= {
            *words
        }
        assert f"--size={1 << 20}" in words and not any(word.startswith("--offset_increment") for word in words)
        words = fio.arguments("data", 1 << 20, "sequential", 65536, 4, 0.5, direct=False, again=False)
        assert {"--rw=read", "--direct=0", f"--size={1 << 18}", f"--offset_increment={1 << 18}"} <= {*words}
        assert "--time_based" not in words

    def test_what_it_prints(self):
        read = {"io_bytes": 4096, "bw_bytes": 8192, "runtime": 500}
        text = "note: both iodepth >= 1 and synchronous I/O engine\n" + json.dumps({"jobs": [{"read": read}]})
        assert fio.rate(text) == 8192
        for wrong in ("", "{}", '{"jobs": []}', json.dumps({"jobs": [{"read": read | {"io_bytes": 0}}]})):
            with pytest.raises(DatasetError, match="--engine own"):
                fio.rate(wrong)

    def test_a_failure_in_its_own_words(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        program = tmp_path / "failing"
        program.write_text("#!/bin/sh\necho fio: out of luck >&2\nexit 1\n")
        program.chmod(0o755)
        monkeypatch.setattr(fio, "PROGRAM", str(program))
        (tmp_path / "data").write_bytes(b"x" * 4096)
        with pytest.raises(DatasetError, match="out of luck; --engine own"):
            fio.read_file(tmp_path / "data", "random", 4096, 1, 0.1, direct=False, again=False)

    @pytest.mark.skipif(not fio.installed(), reason="fio is not installed")
    def test_a_whole_probe(self, tmp_path: Path):
        odd = tmp_path / "a folder: $(with) odd:characters"
        odd.mkdir()
        found = run(odd, replace(SMALL, engine="fio", rounds=1, depths=(4,), blocks=(65536,)))
        assert found.engine == "fio"
        assert all(cell.median > 0 and cell.lock_fraction == () for cell in found.cells)
        assert list(odd.iterdir()) == []

    @pytest.mark.skipif(not fio.installed(), reason="fio is not installed")
    def test_both_read_the_same_amount_of_a_file_that_is_read_once(self, tmp_path: Path):
        """Agreement in what is done; `make bench SECTIONS=probe` compares how fast."""
        file = tmp_path / "data"
        write_incompressible(file, 1 << 20)
        words = fio.arguments("data", 1 << 20, "random", 4096, 4, 60, direct=False, again=False)
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
        theirs = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]["read"]["io_bytes"]
        plan = offsets("random", 1 << 20, 4096, 4)
        ours = read_file(file, plan, aligned_buffers(4, 4096), 60, False, again=False).num_bytes
        assert ours == theirs == 1 << 20


class TestCeilingOfFiles:
    def test_each_file_is_read_once_and_whole(self, tmp_path: Path):
        sizes = [0, 1, 5000, PIECE_BYTES, 2 * PIECE_BYTES + 3]
        files = []
        for number, size in enumerate(sizes):
            files.append(tmp_path / str(number))
            files[-1].write_bytes(b"x" * size)
        page_cache.evict(files)
        found = read_ceiling(files, 3, 60)
        assert found is not None and found.whole and found.threads == 3
        assert found.num_bytes == sum(sizes)
        assert found.bytes_per_s == pytest.approx(sum(sizes) / found.seconds)
        assert sum(found.samples_bytes_per_s) / len(found.samples_bytes_per_s) == pytest.approx(found.bytes_per_s)
        if file_system(tmp_path) not in ("tmpfs", "ramfs"):
            resident = page_cache.residency(files).fraction
            assert resident is not None and resident > 0, "read through the page cache"

    def test_it_ends_when_the_time_is_over(self, tmp_path: Path):
        (tmp_path / "file").write_bytes(b"x" * 4 * PIECE_BYTES)
        found = read_ceiling([tmp_path / "file"] * 100_000, 1, 0.05)
        assert found is not None and not found.whole
        assert 0 < found.num_bytes < 100_000 * 4 * PIECE_BYTES

    def test_nothing_to_read_is_none_and_a_missing_file_an_error(self, tmp_path: Path):
        (tmp_path / "empty").touch()
        assert read_ceiling([tmp_path / "empty"], 2, 1) is None
        assert read_ceiling([], 2, 1) is None
        with pytest.raises(DatasetError, match="gone: No such file"):
            read_ceiling([tmp_path / "gone"], 2, 1)

    @pytest.mark.parametrize("sizes", [[5000] * 200, [0, PIECE_BYTES, 9 * PIECE_BYTES + 3]])
    def test_nodes_read_each_piece_once_and_alike_many(self, tmp_path: Path, sizes: list[int]):
        files = []
        for number, size in enumerate(sizes):
            files.append(tmp_path / str(number))
            with files[-1].open("wb") as file:
                file.truncate(size)
        shares = [list(pieces_of(files, (number, 3))) for number in range(3)]
        assert sorted(piece for share in shares for piece in share) == sorted(pieces_of(files))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        parts = [read_ceiling(files, 2, 60, (number, 3)) for number in range(3)]
        assert sum(part.num_bytes for part in parts if part) == sum(sizes)

    def test_rates_of_slices(self):
        log = [(0.1, 10), (0.5, 20), (0.9, 30), (1.0, 40)]
        assert slice_rates(log, 1.0, 2) == (20.0, 180.0)


def test_no_fio_is_needed_to_import(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert not fio.installed()
