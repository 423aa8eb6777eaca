"""Format `lmdb`: the conformance suite; many processes and threads at once; damage."""

import os
import threading
import traceback
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import lmdb
import numpy as np
import pytest

from storage import npy
from storage.convert import in_order
from storage.format import Dataset, DatasetError, Lane
from storage.lmdb import DATA, read
from storage.sample import Recycled
from tests.storage.conformance import FormatConformance, ImageConformance
from tests.storage.conftest import Made
from tests.storage.samples import digests, some_samples

KINDS = ["image", "mlm", "tokens", "volume"]
CHILD_TIMEOUT_S = 60


class TestLmdb(FormatConformance, ImageConformance):
    name = "lmdb"


@pytest.fixture
def by_hand() -> Callable[[Dataset], dict[bytes, bytes]]:
    """All entries of a dataset, by the library alone."""

    def read_all(dataset: Dataset) -> dict[bytes, bytes]:
        path = str(dataset.folder / DATA)
        with lmdb.open(path, subdir=False, readonly=True, lock=False) as environment, environment.begin() as entries:
            return dict(entries.cursor())

    return read_all


def test_the_library_reads_images_by_hand(mine: Made, by_hand: Callable[[Dataset], dict[bytes, bytes]]) -> None:
    entries = by_hand(mine("lmdb", "image"))
    assert list(entries) == [f"{row:010d}/{name}".encode() for row in range(6) for name in ("image", "label")]
    for row, sample in enumerate(some_samples(6)):
        assert entries[f"{row:010d}/image".encode()] == sample.fields["image"]
        assert entries[f"{row:010d}/label".encode()] == sample.fields["label"]


def test_the_library_reads_arrays_by_hand(mine: Made, by_hand: Callable[[Dataset], dict[bytes, bytes]]) -> None:
    volumes, windows = by_hand(mine("lmdb", "volume")), by_hand(mine("lmdb", "tokens"))
    for row, sample in enumerate(some_samples(6, "volume")):
        for name, values in sample.fields.items():
            assert np.array_equal(npy.view(volumes[f"{row:010d}/{name}".encode()], "here"), values)
    for row, sample in enumerate(some_samples(6, "tokens")):
        stored = npy.view(windows[f"{row:010d}/npy".encode()], "here")
        assert np.array_equal(stored, sample.fields["tokens"])


@pytest.mark.parametrize("kind", KINDS)
def test_one_file_and_no_lock_lie_in_the_folder(made: Made, kind: str) -> None:
    names = sorted(path.name for path in made("lmdb", kind).folder.iterdir())
    assert names == ["data.mdb", "index.npy", "manifest.json"]


def test_a_folder_that_may_not_be_written_is_read(mine: Made) -> None:
    dataset = mine("lmdb", "image")
    dataset.data_files()[0].chmod(0o444)
    dataset.folder.chmod(0o555)
    try:
        assert len(list(in_order(dataset))) == 6
    finally:
        dataset.folder.chmod(0o755)


def child_exit_code(work: Callable[[], None]) -> Callable[[], int]:
    """Fork; the returned call waits and says how the child ended: negative for a signal."""
    process = get_context("fork").Process(target=_child, args=(work,))
    process.start()

    def wait() -> int:
        process.join(CHILD_TIMEOUT_S)
        if process.exitcode is None:
            process.kill()
            process.join()
            return 999
        return process.exitcode

    return wait


def _child(work: Callable[[], None]) -> None:
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


class TestProcesses:
    @pytest.mark.parametrize("kind", KINDS)
    def test_four_forked_readers_while_the_parent_reads_too(self, made: Made, kind: str) -> None:
        dataset = made("lmdb", kind)
        written = digests(some_samples(26, kind))
        samples = in_order(dataset)
        first = next(samples)

        def work() -> None:
            for epoch in range(3):
                share = Lane(0, 1, epoch, 0, True, 1, Recycled())
                read_here = {key: value for sample in read(dataset, share) for key, value in digests([sample]).items()}
                assert read_here == written

        waits = [child_exit_code(work) for _ in range(4)]
        assert digests([first, *samples]) == written
        assert [wait() for wait in waits] == [0] * 4
        assert digests(list(in_order(dataset))) == written

    def test_a_child_goes_on_with_what_its_parent_began(self, made: Made) -> None:
        dataset = made("lmdb", "volume")
        samples = in_order(dataset)
        next(samples)

        def work() -> None:
            assert len(list(samples)) == 25

        assert child_exit_code(work)() == 0
        assert len(list(samples)) == 25


class TestThreads:
    def test_many_that_begin_and_end_at_once_read_the_same(self, made: Made) -> None:
        dataset = made("lmdb", "image")
        written = digests(some_samples(26))
        begin = threading.Barrier(4)
        troubles: list[BaseException] = []

        def work() -> None:
            begin.wait()
            try:
                for epoch in range(60):
                    share = Lane(0, 1, epoch, 0, True, 1, Recycled())
                    found = {sample.key: bytes(sample.fields["image"]) for sample in read(dataset, share)}
                    assert found.keys() == written.keys()
                assert found == {sample.key: sample.fields["image"] for sample in some_samples(26)}
            except BaseException as error:
                troubles.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert troubles == []

    def test_the_file_is_closed_after_the_last_reader(self, mine: Made) -> None:
        dataset = mine("lmdb", "image")

        def open_here() -> list[str]:
            links = [Path(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
            return [str(link.readlink()) for link in links if link.is_symlink() and link.readlink().name == DATA]

        first, second = in_order(dataset), in_order(dataset)
        next(first), next(second)
        list(first)
        assert str(dataset.folder / DATA) in open_here()
        list(second)
        assert str(dataset.folder / DATA) not in open_here()


def reads_or_says_why(dataset: Dataset) -> Callable[[], None]:
    """Work for a child: reading either ends well or in one line that names the file."""

    def work() -> None:
        try:
            for sample in in_order(dataset):
                digests([sample])
        except DatasetError as error:
            assert DATA in str(error) and "\n" not in str(error)

    return work


class TestDamage:
    """Reading without verifying first, in a child: a library that maps files can end the process."""

    @pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
    def test_one_cut_short_is_told_by_its_tree_where_the_manifest_says_nothing(self, mine: Made, share: float) -> None:
        dataset = mine("lmdb", "volume")
        path = dataset.data_files()[0]
        os.truncate(path, int(path.stat().st_size * share))
        dataset.manifest.files[0].bytes = path.stat().st_size

        def work() -> None:
            with pytest.raises(DatasetError, match=r"truncated|not an LMDB file"):
                list(in_order(dataset))

        assert child_exit_code(work)() == 0

    @pytest.mark.parametrize("kind", ["image", "volume"])
    def test_a_page_of_something_else_never_crashes_the_reader(self, mine: Made, kind: str) -> None:
        dataset = mine("lmdb", kind)
        path = dataset.data_files()[0]
        whole = path.read_bytes()
        noise = np.random.default_rng(0).bytes(4096)
        codes = {}
        for page in range(len(whole) // 4096):
            path.write_bytes(whole[: page * 4096] + noise + whole[(page + 1) * 4096 :])
            codes[page] = child_exit_code(reads_or_says_why(dataset))()
        assert set(codes.values()) == {0}, codes

    def test_an_entry_that_is_missing_is_named(self, mine: Made) -> None:
        dataset = mine("lmdb", "image")
        with lmdb.open(str(dataset.folder), map_size=1 << 24) as environment, environment.begin(write=True) as change:
            change.delete(b"0000000002/image")
        (dataset.folder / "lock.mdb").unlink()
        path = dataset.data_files()[0]
        dataset.manifest.files[0].bytes = path.stat().st_size
        with pytest.raises(DatasetError) as raised:
            list(in_order(dataset))
        assert str(raised.value) == f"{path}: sample {dataset.key(2)!r}: no entry 0000000002/image"
