"""The I/O trace: known calls give known counts; in every format the bytes of wrappers and counters reconcile."""

import builtins
import io
import mmap
import os
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchsuite.inside.processes import ProcessIO, process_io
from benchsuite.storage import KINDS, LOADERS, load
from benchsuite.storage.dataset.manifest import Dataset, DatasetError, ReaderShare, open_dataset
from benchsuite.storage.dataset.spec import DataSpec
from benchsuite.storage.loaders.reader import LoaderInput
from benchsuite.storage.observe.io_profile import profile_of
from benchsuite.storage.observe.io_slots import LATENCY_BUCKETS, latency_bounds, latency_bucket, quantile
from benchsuite.storage.observe.io_trace import Tracer, observed
from benchsuite.storage.observe.page_cache import evict
from tests.storage.conftest import Made
from tests.storage.samples import PARAMS, STORED, file_system, skip_without_library

MAPPED = ("lmdb", "tokens")
"""Formats whose samples come as pages of mapped files."""
LOADED = (("threads", 0), ("threads", 2))
"""Loaders and their workers."""
ONCE = [*{name: (name, kind) for name, kind in STORED}.values()]
"""Each format with one kind."""
PATCHED = [(os, name) for name in ("open", "stat", "fstat", "read", "pread", "preadv", "lseek", "close")]
PATCHED += [(os, "posix_fadvise"), (builtins, "open"), (io, "open"), (tarfile, "bltn_open"), (mmap, "mmap")]


def in_turn() -> list[Any]:
    """Each format and kind with one way of loading, the kinds of a format with different ones; the rest is `full`."""
    return [
        pytest.param(*pair, *way, marks=() if number == place % len(LOADED) else pytest.mark.full)
        for place, pair in enumerate(STORED)
        for number, way in enumerate(LOADED)
    ]


@contextmanager
def traced(dataset: Dataset, readers: int = 1, delivered: int = 0) -> Iterator[dict[str, Any]]:
    """The profile of the block, filled when it ends."""
    found: dict[str, Any] = {}
    tracer = Tracer(dataset, readers).start()
    try:
        yield found
    finally:
        found |= profile_of([tracer.finish(delivered)]) or {}


@pytest.fixture
def dataset(made: Made) -> Dataset:
    """Images in files of their own."""
    return made("files", "image")


def counts(profile: dict[str, Any]) -> dict[str, int]:
    return {name: found["count"] for name, found in profile["operations"].items()}


class TestCalls:
    def test_known_calls_give_known_counts(self, dataset: Dataset) -> None:
        first, second = dataset.data_files()[:2]
        size = first.stat().st_size
        with traced(dataset) as found:
            for _ in range(2):
                descriptor = os.open(first, os.O_RDONLY)
                assert os.fstat(descriptor).st_size == os.stat(first).st_size == size
                buffer = bytearray(64)
                assert os.preadv(descriptor, [buffer], 0) == 64
                assert os.pread(descriptor, 32, 64) == first_bytes(first)[64:96]
                assert os.lseek(descriptor, 200, os.SEEK_SET) == 200
                assert os.read(descriptor, 8) == first_bytes(first)[200:208]
                assert os.read(descriptor, 8) == first_bytes(first)[208:216]
                os.posix_fadvise(descriptor, 0, 100, os.POSIX_FADV_WILLNEED)
                os.close(descriptor)
            os.close(os.open(second, os.O_RDONLY))
        # first_bytes reads too: an open, a read of everything and a close, three times a turn
        assert counts(found) == {
            "open": 2 + 1 + 6, "stat": 4, "read": 8 + 6, "seek": 2, "close": 2 + 1 + 6, "advise": 2
        }  # fmt: skip
        assert found["operations"]["read"]["bytes"] == found["bytes"]["seen"] == 2 * (64 + 32 + 8 + 8) + 6 * size
        assert found["operations"]["advise"]["bytes"] == 200
        assert found["order"] == {"first": 8, "onward": 4, "elsewhere": 2}
        assert found["sequential_fraction"] == pytest.approx(4 / 6)
        files = found["files"]
        assert (files["distinct"], files["opens"], files["most_opens"]) == (2, 9, 8)
        assert files["listed"] == files["followed"] == len(dataset.data_files())
        assert sum(found["read_sizes"].values()) == 14
        assert found["read_sizes"]["128"] == found["read_sizes"]["64"] == 2 and found["read_sizes"]["16"] == 4

    def test_files_opened_by_name_are_counted_whatever_wraps_them(self, dataset: Dataset) -> None:
        path = dataset.data_files()[0]
        content = path.read_bytes()
        with traced(dataset) as found:
            with open(path, "rb") as file:
                assert (file.read(10), file.seek(5), file.read()) == (content[:10], 5, content[5:])
            with path.open("rb", buffering=0) as raw:
                buffer = bytearray(20)
                assert raw.readinto(buffer) == 20 and bytes(buffer) == content[:20]
                assert raw.tell() == 20
                assert os.pread(raw.fileno(), 4, 20) == content[20:24]
            with open(path, encoding="latin-1", newline="") as text:
                assert text.read() == content.decode("latin-1")
            descriptor = os.open(path, os.O_RDONLY)
            with os.fdopen(descriptor, "rb", 0) as owned:
                assert owned.read() == content
        assert found["operations"]["open"]["count"] == found["operations"]["close"]["count"] == 4
        assert found["operations"]["read"]["bytes"] >= 3 * len(content) + 24
        assert found["files"]["distinct"] == 1

    def test_mapping_is_counted(self, made: Made) -> None:
        dataset = made("tokens", "tokens")
        path = next(path for path in dataset.data_files() if path.suffix == ".bin")
        with traced(dataset) as found:
            assert len(np.memmap(path, np.uint16, "r")) * 2 == path.stat().st_size
        assert found["operations"]["mmap"]["count"] == 1
        assert found["operations"]["mmap"]["bytes"] == path.stat().st_size

    def test_other_files_and_writing_are_let_alone(self, dataset: Dataset, tmp_path: Path) -> None:
        with traced(dataset) as found:
            (tmp_path / "other").write_bytes(b"12345")
            assert (tmp_path / "other").read_bytes() == b"12345"
            with open(tmp_path / "other", "r+b") as file:
                file.write(b"0")
            os.stat(tmp_path)
            reading, writing = os.pipe()
            os.write(writing, b"x")
            assert os.read(reading, 1) == b"x"
            os.close(reading), os.close(writing)
            assert mmap.mmap(-1, 4096)[:1] == b"\0"
        assert found["operations"] == {} and found["io_s"] == 0
        assert found["metadata_fraction"] is None and found["sequential_fraction"] is None

    def test_failures_are_counted_and_raised(self, dataset: Dataset) -> None:
        gone = dataset.folder / "gone.jpg"
        with traced(dataset) as found:
            for call in (lambda: os.open(gone, os.O_RDONLY), gone.read_bytes, gone.stat):
                with pytest.raises(FileNotFoundError):
                    call()
            with pytest.raises(TypeError):
                open(3.5)  # noqa: SIM115
            with pytest.raises(ValueError):
                open(dataset.data_files()[0], buffering=0)  # noqa: SIM115
        assert found["operations"]["open"]["errors"] == found["operations"]["open"]["count"] == 2
        assert found["operations"]["stat"]["errors"] == 1

    def test_everything_is_given_back(self, dataset: Dataset) -> None:
        before = [getattr(module, name) for module, name in PATCHED]
        tracer = Tracer(dataset, 1).start()
        assert all(getattr(module, name) is not was for (module, name), was in zip(PATCHED, before, strict=True))
        with pytest.raises(RuntimeError, match="another I/O trace"):
            Tracer(dataset, 1).start()
        tracer.stop()
        assert [getattr(module, name) for module, name in PATCHED] == before

    def test_threads_and_forked_processes_note_beside_each_other(self, dataset: Dataset) -> None:
        path, rounds = dataset.data_files()[0], 200

        def work() -> None:
            for _ in range(rounds):
                os.close(os.open(path, os.O_RDONLY))

        with traced(dataset, readers=4) as found:
            threads = [threading.Thread(target=work) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            children = [os.fork() for _ in range(2)]
            if 0 in children:
                work()
                os._exit(0)
            for child in children:
                os.waitpid(child, 0)
        forked = 3  # two children of this process, and one of the first child, which forks as well
        assert counts(found) == {"open": (3 + forked) * rounds, "close": (3 + forked) * rounds}
        assert found["files"]["opens"] == found["files"]["most_opens"] == (3 + forked) * rounds
        assert (found["threads"], found["workers"]) == (3 + forked, forked)

    def test_of_very_many_files_evenly_spaced_ones_are_followed(
        self, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("benchsuite.storage.observe.io_trace.MAX_FOLLOWED_FILES", 9)
        files = dataset.data_files()
        with traced(dataset) as found:
            for path in files:
                path.read_bytes()
        assert (found["files"]["listed"], found["files"]["followed"]) == (26, 9)
        assert found["files"]["distinct"] == found["files"]["opens"] == 9
        assert found["operations"]["open"]["count"] == 26


def first_bytes(path: Path) -> bytes:
    return path.read_bytes()


@pytest.fixture
def all_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small samples come so fast that noting all would take long: here it may."""
    monkeypatch.setattr("benchsuite.storage.observe.io_trace.MAX_SHARE", 1e9)


@pytest.mark.usefixtures("all_batches")
class TestFormats:
    @pytest.mark.parametrize(("name", "kind", "loader", "workers"), in_turn())
    def test_bytes_reconcile(self, made: Made, name: str, kind: str, loader: str, workers: int) -> None:
        """What is handed on was read by calls that were noted, or is pages of a mapped file; nothing is left over."""
        dataset = made(name, kind)
        found = loaded(dataset, loader, workers, epochs=10)
        seen = found["bytes"]
        assert seen["delivered"] >= 9 * dataset.manifest.stored_bytes
        if name in MAPPED:
            assert found["operations"].get("mmap", {"count": 0})["count"] >= (name == "tokens")
            assert seen["mapped"] + seen["seen"] >= seen["delivered"] and seen["mapped"] > 0.4 * seen["delivered"]
            assert found["counters"]["minor_faults"] > 0
        else:
            # what stands in the index alone is handed on as well: labels of files
            assert 0.9 * seen["delivered"] <= seen["seen"] + 600 * (name == "files")
            assert seen["mapped"] == 0
        if workers and loader == "torch":
            assert found["workers"] == 2 and found["counters_of"] == "workers"
        assert found["observed_fraction"] == 1
        if name not in ("lmdb", "hdf5"):  # these libraries read headers for themselves
            assert seen["only_counted"] < 0.05 * seen["delivered"] + 100_000

    @pytest.mark.parametrize("compression", ["none", "gzip"])
    def test_chunks_are_seen_by_counters_alone(self, made: Made, compression: str) -> None:
        dataset = made("hdf5", "volume", {"chunk_bytes": 2048, "compression": compression})
        found = loaded(dataset, "torch", 1, epochs=5)
        assert found["bytes"]["seen"] < 0.05 * found["bytes"]["delivered"]
        assert found["bytes"]["only_counted"] > 0.9 * found["bytes"]["delivered"]
        assert found["seen_fraction"] < 0.1

    def test_dali_maps_files_which_is_not_seen_and_is_told(self, made: Made) -> None:
        pytest.importorskip("nvidia.dali")
        found = loaded(made("files", "image"), "dali", 3, epochs=300)  # 5 MB: what libraries read once is little of it
        assert found["bytes"]["seen"] < 0.05 * found["bytes"]["delivered"]
        assert found["seen_fraction"] < 0.1

    @pytest.mark.parametrize(
        ("name", "kind"), [pytest.param(*pair, marks=() if pair in ONCE else pytest.mark.full) for pair in STORED]
    )
    def test_what_comes_from_storage_is_what_was_evicted(self, made: Made, name: str, kind: str) -> None:
        skip_without_library(name)
        dataset = made(name, kind)
        if file_system(dataset.folder) in ("tmpfs", "ramfs"):
            pytest.skip("the temporary folder lies in memory: nothing is read from storage there")
        cold = loaded(dataset, "torch", 1, epochs=1, cold=True)
        assert cold["counters"]["storage_bytes"] >= 0.9 * dataset.manifest.stored_bytes

    def test_each_file_is_read_once_an_epoch(self, made: Made) -> None:
        dataset = made("files", "image")
        found = loaded(dataset, "threads", 0, epochs=3, exactly=True)
        assert found["files"]["distinct"] == 26
        assert (found["files"]["opens"], found["files"]["most_opens"]) == (78, 3)
        assert found["files"]["bytes_per_size"] == pytest.approx(3)
        assert counts(found) == {"open": 78, "stat": 78, "read": 78, "close": 78}
        assert found["order"] == {"first": 78, "onward": 0, "elsewhere": 0}

    def test_shards_are_read_onward(self, made: Made) -> None:
        dataset = made("webdataset", "volume")
        found = loaded(dataset, "torch", 0, epochs=2)
        assert found["sequential_fraction"] > 0.3
        assert found["files"]["bytes_per_size"] > 0.9

    def test_reading_is_the_same_under_a_trace(self, made: Made) -> None:
        for name, kind in STORED:
            dataset = made(name, kind)
            plain = [sample_facts(sample) for sample in _samples(dataset)]
            with traced(dataset):
                assert [sample_facts(sample) for sample in _samples(dataset)] == plain

    def test_errors_are_the_same_under_a_trace(self, mine: Made) -> None:
        dataset = mine("files", "image")
        dataset.data_files()[0].unlink()
        with traced(dataset) as found, pytest.raises(DatasetError, match="No such file"):
            _samples(dataset)
        assert found["operations"]["open"]["errors"] == 1


def _samples(dataset: Dataset) -> list[Any]:
    from benchsuite.storage import FORMATS

    return list(load(FORMATS, dataset.manifest.format).read(dataset, ReaderShare(0, 1, 0, 0, True, 4)))


def sample_facts(sample: Any) -> tuple[Any, ...]:
    return sample.key, *(bytes(np.ascontiguousarray(value).data) for value in sample.fields.values())


def loaded(
    dataset: Dataset, loader: str, workers: int, epochs: int, cold: bool = False, exactly: bool = False
) -> dict[str, Any]:
    """The profile of a loader over so many epochs (`exactly`: batches of one, and not a sample more)."""
    dataset = open_dataset(dataset.folder)
    kind = dataset.manifest.kind
    _samples(dataset)  # what it imports is not its reading
    if cold:
        evict(dataset.data_files())
    spec = DataSpec(format=dataset.manifest.format, loader=loader, num_workers=workers, pin_memory=False)
    batch = 1 if exactly else 4
    tracer = Tracer(dataset, max(1, workers)).start()
    try:
        built = load(LOADERS, loader)(LoaderInput(dataset, spec, load(KINDS, kind), PARAMS[kind], batch, 0, 1, 5))
        for _ in range(-(-epochs * dataset.manifest.num_samples // batch)):
            next(built)
        found = profile_of([tracer.finish(built.counts().stored_bytes)])
        built.close()
    finally:
        tracer.stop()
    assert found is not None
    return found


class TestDenseReads:
    """Noting may take MAX_SHARE of a reader's time; where reads come too fast for that, few batches are observed."""

    @pytest.mark.parametrize(
        ("name", "loader", "workers"),
        [
            pytest.param(name, *way, marks=() if place == number else pytest.mark.full)
            for place, name in enumerate(("files", "hdf5", "webdataset"))
            for number, way in enumerate(LOADED)
        ],
    )
    def test_some_batches_are_observed_and_reconcile(
        self, made: Made, monkeypatch: pytest.MonkeyPatch, name: str, loader: str, workers: int
    ) -> None:
        monkeypatch.setattr("benchsuite.storage.observe.io_trace.NOTE_NS", 20_000)
        dataset = made(name, "mlm")
        found = loaded(dataset, loader, workers, epochs=100)
        assert 0 < found["observed_fraction"] < 0.7
        seen = found["bytes"]
        assert seen["seen"] > 0
        assert name == "hdf5" or seen["only_counted"] < 0.3 * seen["seen"] + 8192
        assert found["operations"]["read"]["count"] == sum(found["read_sizes"].values())

    def test_calls_are_real_between_observed_batches_and_given_back_at_the_end(
        self, made: Made, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("benchsuite.storage.observe.io_trace.NOTE_NS", 10**9)
        before = [getattr(module, name) for module, name in PATCHED]
        seen = []
        tracer = Tracer(made("files", "image"), 1).start()
        for _ in range(3):
            observed(lambda: os.stat("/"))
            seen.append(tracer.batch(lambda: os.preadv is before[5]))
        tracer.stop()
        assert not seen[0] or seen[1]
        assert [getattr(module, name) for module, name in PATCHED] == before
        assert observed(lambda: 5) == 5


class TestHistograms:
    def test_buckets_hold_what_they_say(self) -> None:
        for value in [*range(1, 3000), 10**6, 10**9, 3_600_000_000_000]:
            low, high = latency_bounds(latency_bucket(value))
            assert low <= value < high
            assert high <= 1.26 * low or value < 8
            assert latency_bucket(value) < LATENCY_BUCKETS

    def test_percentiles_are_within_a_bucket_of_the_truth(self) -> None:
        rng = np.random.default_rng(3)
        values = (1000 * rng.lognormal(3, 1, 5000)).astype(int)
        histogram: dict[int, int] = {}
        for value in values:
            histogram[latency_bucket(int(value))] = histogram.get(latency_bucket(int(value)), 0) + 1
        for share in (0.5, 0.95, 0.99):
            assert quantile(histogram, share) == pytest.approx(np.quantile(values, share), rel=0.1)

    def test_ranks_are_joined(self, made: Made) -> None:
        dataset = made("files", "image")
        traces = []
        for files in (dataset.data_files()[:10], dataset.data_files()[5:20]):
            tracer = Tracer(dataset, 1).start()
            for path in files:
                path.read_bytes()
            traces.append(tracer.finish(1000))
        found = profile_of(traces)
        assert found is not None
        assert (found["ranks"], found["operations"]["open"]["count"], found["files"]["distinct"]) == (2, 25, 20)
        assert found["bytes"]["delivered"] == 2000
        assert profile_of([]) is None


def test_counters_of_a_process_that_is_gone() -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    assert process_io(child) is None
    own = process_io(os.getpid())
    assert own is not None and own.grown(own) == ProcessIO(0, 0, 0)
