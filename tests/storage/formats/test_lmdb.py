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

from benchsuite.storage.create.convert import in_order
from benchsuite.storage.dataset.manifest import Dataset, DatasetError, ReaderShare, file_digest, open_dataset
from benchsuite.storage.dataset.sample import Recycled, Sample
from benchsuite.storage.formats import npy
from benchsuite.storage.formats.lmdb import DATA, PAGE, PLACES, environment, read, read_places
from tests.storage.conformance import FormatConformance, ImageConformance
from tests.storage.conftest import Made
from tests.storage.samples import digests, some_samples, store

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


@pytest.mark.parametrize("kind", KINDS)
def test_a_digest_follows_every_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_hand: Callable[[Dataset], dict[bytes, bytes]], kind: str
) -> None:
    """What was committed is never written again, but for the two pages at the beginning."""
    once, often = tmp_path / "once", tmp_path / "often"
    samples = some_samples(40, kind)
    store(samples, kind, once, "lmdb")
    monkeypatch.setattr("benchsuite.storage.formats.lmdb.COMMIT_BYTES", 1)
    dataset = store(samples, kind, often, "lmdb")
    listed = {info.path: info.digest for info in dataset.manifest.files}
    assert listed[DATA].startswith("blake3-from-8192:")
    assert listed == {name: file_digest(often / name, digest) for name, digest in listed.items()}
    assert by_hand(dataset) == by_hand(open_dataset(once))


def test_places_are_noted_also_where_large_samples_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchsuite.storage.formats.lmdb.COMMIT_BYTES", 1)
    monkeypatch.setattr("benchsuite.storage.formats.lmdb.READ_AHEAD_BYTES", 9000)
    sizes = [20_000, 10_000, 5_000, 5_000, 5_000, 5_000]
    samples = [Sample(f"{size}-{row}", {"image": bytes(size), "label": b"0"}) for row, size in enumerate(sizes)]
    dataset = store(samples, "image", tmp_path / "set", "lmdb")
    places = read_places(dataset)
    assert places is not None and [int(length) // PAGE for length in places[:, 1]] == [5, 3, 2, 2, 2, 2]


def test_the_library_reads_arrays_by_hand(mine: Made, by_hand: Callable[[Dataset], dict[bytes, bytes]]) -> None:
    volumes, windows = by_hand(mine("lmdb", "volume")), by_hand(mine("lmdb", "tokens"))
    for row, sample in enumerate(some_samples(6, "volume")):
        for name, values in sample.fields.items():
            assert np.array_equal(npy.view(volumes[f"{row:010d}/{name}".encode()], "here"), values)
    for row, sample in enumerate(some_samples(6, "tokens")):
        stored = npy.view(windows[f"{row:010d}/npy".encode()], "here")
        assert np.array_equal(stored, sample.fields["tokens"])


@pytest.mark.parametrize("kind", KINDS)
def test_data_places_and_no_lock_lie_in_the_folder(made: Made, kind: str) -> None:
    names = sorted(path.name for path in made("lmdb", kind).folder.iterdir())
    assert names == ["data.mdb", "data.mdb.idx", "index.npy", "manifest.json"]


def test_a_folder_that_may_not_be_written_is_read(mine: Made) -> None:
    dataset = mine("lmdb", "image")
    dataset.data_files()[0].chmod(0o444)
    dataset.folder.chmod(0o555)
    try:
        assert len(list(in_order(dataset))) == 6
    finally:
        dataset.folder.chmod(0o755)


class TestPlaces:
    """The file beside the data that says which pages to ask the kernel for."""

    @pytest.mark.parametrize("commit_bytes", [1, 1 << 26])
    @pytest.mark.parametrize(("kind", "field"), [("image", "image"), ("volume", "image"), ("tokens", "tokens")])
    def test_they_hold_the_content_and_nothing_around_it(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, field: str, commit_bytes: int
    ) -> None:
        monkeypatch.setattr("benchsuite.storage.formats.lmdb.COMMIT_BYTES", commit_bytes)
        samples = [wide(sample) for sample in some_samples(9, kind)]
        dataset = store(samples, kind, tmp_path / "set", "lmdb")
        content, places = (dataset.folder / DATA).read_bytes(), read_places(dataset)
        assert places is not None
        for sample, (offset, length) in zip(samples, places.tolist(), strict=True):
            wanted = np.asarray(sample.fields[field]).tobytes()
            assert offset % PAGE == length % PAGE == 0
            assert wanted in content[offset : offset + length]
            assert length < len(wanted) + 2 * PAGE

    def test_values_that_share_a_page_have_none(self, made: Made) -> None:
        assert not np.any(read_places(made("lmdb", "mlm")))

    def test_each_row_is_asked_for_once_and_before_its_use(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        dataset = store([wide(sample) for sample in some_samples(9)], "image", tmp_path / "set", "lmdb")
        places = read_places(dataset)
        assert places is not None
        asked: list[int] = []
        monkeypatch.setattr(
            "benchsuite.storage.formats.lmdb._Environment.fetch", lambda _, offset, length: asked.append(offset)
        )
        used: list[int] = []
        for sample in read(dataset, ReaderShare(1, 2, 0, 0, True, 1)):
            used.append(int(places[sample.index, 0]))
            assert asked[: len(used)] == used
            assert len(asked) <= len(used) + 1
        assert asked == used

    def test_a_dataset_without_them_is_read(self, mine: Made) -> None:
        dataset = mine("lmdb", "image")
        (dataset.folder / PLACES).unlink()
        assert digests(list(in_order(dataset))) == digests(some_samples(6))

    @pytest.mark.parametrize("place", [(-4096, 4096), (0, -1), (1 << 62, 1 << 62), (1 << 60, 4096), (0, 1 << 40)])
    def test_what_they_say_wrongly_changes_nothing_that_is_read(self, mine: Made, place: tuple[int, int]) -> None:
        dataset = mine("lmdb", "image")
        np.tile(np.array(place, "<i8"), (6, 1)).tofile(dataset.folder / PLACES)
        assert digests(list(in_order(dataset))) == digests(some_samples(6))

    @pytest.mark.parametrize("size", [0, 95, 112])
    def test_another_size_is_told(self, mine: Made, size: int) -> None:
        dataset = mine("lmdb", "image")
        (dataset.folder / PLACES).write_bytes(bytes(size))
        with pytest.raises(DatasetError, match=rf"{PLACES}: {size} bytes, the manifest says 96"):
            list(in_order(dataset))
        dataset.manifest.files.pop()
        with pytest.raises(DatasetError, match=rf"{PLACES}: {size} bytes, 6 samples need 96"):
            list(in_order(dataset))

    def test_the_kernel_fetches_what_it_is_asked_for(self, tmp_path: Path) -> None:
        dataset = store([wide(sample) for sample in some_samples(9)], "image", tmp_path / "set", "lmdb")
        path, places = dataset.folder / DATA, read_places(dataset)
        assert places is not None
        with environment(path) as opened:
            opened.fetch(*map(int, places[4]))
            with pytest.raises(OSError, match="Invalid"):
                opened.fetch(0, -1)


def wide(sample: Sample) -> Sample:
    """The sample with content that fills pages of its own."""
    fields = dict(sample.fields)
    name = next(iter(fields))
    value = fields[name]
    fields[name] = np.resize(value, 5000) if isinstance(value, np.ndarray) and value.ndim == 1 else value
    if isinstance(value, bytes):
        fields[name] = value + bytes(9000)
    return Sample(sample.key, fields)


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
                share = ReaderShare(0, 1, epoch, 0, True, 1, Recycled())
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
                    share = ReaderShare(0, 1, epoch, 0, True, 1, Recycled())
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
