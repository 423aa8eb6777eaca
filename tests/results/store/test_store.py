"""The store: appending, reading what is whole, and losing nothing."""

import errno
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchsuite.contract.trial_spec import SweepSpec
from benchsuite.grid.point import Plan
from benchsuite.host.machine import this_machine
from benchsuite.launch.work_folder import work_folder
from benchsuite.results.store.place import ID, SEGMENTS, written_to
from benchsuite.results.store.segments import Segment
from benchsuite.results.store.store import SAMPLES, ResultsStore, StoreError, StoreVanished
from benchsuite.runner.claims import Claims
from benchsuite.runner.status import keep_plan
from tests.results.made import made_record

WRITER = """
import sys
from benchsuite.results.store.store import ResultsStore
from tests.results.made import made_record

store, name, count = ResultsStore(sys.argv[1]), sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
for number in range(count):
    store.append(made_record(number, record_id=f"{name}-{number}"), {"writer": name, "number": number})
"""

REQUEUED = """
import os, sys
from benchsuite.results.store.store import ResultsStore

os.environ["SLURM_RESTART_COUNT"] = "1"
ResultsStore(sys.argv[1]).check_writable()
"""
"""What a job does that is queued again: of the store it knows the id alone."""


@contextmanager
def mounted(folder: Path) -> Iterator[None]:
    """A file system in memory over a folder."""
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def segments(store: ResultsStore) -> list[Path]:
    return sorted(path for path in (store.path / "segments").iterdir() if not path.name.endswith(SAMPLES))


def ids(store: ResultsStore) -> list[str]:
    return [record.record_id for record in store.records()]


@pytest.fixture
def store(tmp_path: Path) -> ResultsStore:
    """A store with three records."""
    store = ResultsStore(tmp_path / "store")
    for number in range(3):
        store.append(made_record(number))
    return store


def test_reads_what_was_appended(tmp_path: Path):
    store = ResultsStore(tmp_path / "new" / "store")
    appended = [store.append(made_record(number)) for number in range(3)]
    assert appended == [made_record(number) for number in range(3)]
    assert ResultsStore(tmp_path / "new" / "store").records() == appended


def test_one_segment_per_writer_one_line_per_record(store: ResultsStore):
    other = ResultsStore(store.path)
    other.append(made_record(3))
    lines = [path.read_bytes() for path in segments(store)]
    assert sorted(text.count(b"\n") for text in lines) == [1, 3]
    assert all(text.endswith(b"\n") for text in lines)
    assert ids(store) == ["record-0", "record-1", "record-2", "record-3"]


def test_every_record_is_on_disk_before_append_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    synced: list[tuple[bool, int]] = []

    def fsync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.is_dir() or path.parent.name != SEGMENTS:  # a new segment's name is flushed too, and the store's id
            return
        synced.append((path.name.endswith(SAMPLES), path.read_bytes().count(b"\n")))

    monkeypatch.setattr(os, "fsync", fsync)
    store = ResultsStore(tmp_path)
    store.append(made_record(0), {"raw": [1]})
    store.append(made_record(1))
    assert synced == [(True, 1), (False, 1), (False, 2)], "raw samples first, then the record, each line flushed"


def test_raw_samples_are_found_by_record(tmp_path: Path):
    first, second = ResultsStore(tmp_path), ResultsStore(tmp_path)
    one = first.append(made_record(0), {"raw": [1.5, 2.5]})
    two = second.append(made_record(1), {"raw": [3.5]})
    none = first.append(made_record(2))
    three = first.append(made_record(3), {"raw": []})
    reader = ResultsStore(tmp_path)
    assert reader.samples(one) == {"record_id": "record-0", "raw": [1.5, 2.5]}
    assert reader.samples(two) == {"record_id": "record-1", "raw": [3.5]}
    assert reader.samples(three) == {"record_id": "record-3", "raw": []}
    assert reader.samples(none) is None
    assert reader.records() == [one, two, none, three]


def test_lost_raw_samples_are_none(tmp_path: Path):
    store = ResultsStore(tmp_path)
    record = store.append(made_record(0), {"raw": [1]})
    (tmp_path / "segments" / str(record.samples_file)).unlink()
    assert store.samples(record) is None


@pytest.mark.parametrize(
    "damage",
    [
        b'{"schema_version":1,"record_id":"torn","trial',
        b"not json\n",
        b"\n",
        b"[1, 2]\n",
        b"3\n",
        b"null\n",
        b"\x00\x00\x00\x00\x00\x00\n",
        b"\xff\xfe\x80\n",
        b'{"some":"object"}\n',
    ],
)
def test_a_damaged_line_costs_no_other(store: ResultsStore, damage: bytes):
    path = segments(store)[0]
    whole = path.read_bytes()
    path.write_bytes(whole + damage)
    assert ids(store) == ["record-0", "record-1", "record-2"]
    if damage.endswith(b"\n"):
        first, *rest = whole.splitlines(keepends=True)
        path.write_bytes(first + damage + b"".join(rest))
        assert ids(store) == ["record-0", "record-1", "record-2"]


@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.full)])
def test_cut_at_every_byte_of_the_last_record(store: ResultsStore, step: int):
    """Cuts are some bytes apart unless all are asked for; the last one lacks the end of the line alone."""
    path = segments(store)[0]
    whole = path.read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for end in range(len(whole) - 1, last - 1, -step):
        path.write_bytes(whole[:end])
        missing_only_newline = end == len(whole) - 1
        assert ids(store) == ["record-0", "record-1"] + ["record-2"] * missing_only_newline, f"cut at byte {end}"


def test_appending_after_a_torn_line_loses_nothing(store: ResultsStore):
    path = segments(store)[0]
    path.write_bytes(path.read_bytes()[:-20])
    again = ResultsStore(store.path)
    again.append(made_record(3))
    assert ids(again) == ["record-0", "record-1", "record-3"]


def test_doubled_records_are_read_once(store: ResultsStore):
    path = segments(store)[0]
    path.write_bytes(path.read_bytes() * 2)
    path.with_name("copy.jsonl").write_bytes(path.read_bytes())
    assert ids(store) == ["record-0", "record-1", "record-2"]


def test_oldest_first_whatever_the_segment(tmp_path: Path):
    for number in (5, 1, 3):
        ResultsStore(tmp_path).append(made_record(number))
    assert ids(ResultsStore(tmp_path)) == ["record-1", "record-3", "record-5"]


def test_latest_is_the_last_attempt_of_each_trial(tmp_path: Path):
    store = ResultsStore(tmp_path)
    attempts = [("a", "failed"), ("b", "ok"), ("a", "timeout"), ("a", "ok"), ("c", "oom")]
    for number, (trial, status) in enumerate(attempts):
        store.append(made_record(number, trial_id=trial, status=status))
    assert [(record.trial_id, record.status) for record in store.latest()] == [("a", "ok"), ("b", "ok"), ("c", "oom")]
    assert len(store.records()) == 5, "earlier attempts stay in the store"


def test_writers_in_many_processes_lose_and_double_nothing(tmp_path: Path):
    writers, count = [f"writer{number}" for number in range(4)], 25
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), name, str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for name in writers
    ]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.close()
    assert [process.wait(timeout=60) for process in processes] == [0] * len(writers)
    for process in processes:
        assert process.stdout is not None
        process.stdout.close()
    store = ResultsStore(tmp_path)
    records = store.records()
    assert sorted(record.record_id for record in records) == sorted(
        f"{name}-{number}" for name in writers for number in range(count)
    )
    assert len(segments(store)) == len(writers)
    assert sum(path.read_bytes().count(b"\n") for path in segments(store)) == len(writers) * count
    for record in records[::10]:
        name, _, number = record.record_id.partition("-")
        samples = store.samples(record)
        assert samples is not None and (samples["writer"], samples["number"]) == (name, int(number))


@pytest.mark.parametrize("sweep", ["../../escape", "a/b", "with space", "ünïcode"])
def test_segments_stay_inside_the_store(tmp_path: Path, sweep: str):
    store = ResultsStore(tmp_path / "store")
    store.append(made_record(sweep=sweep), {"raw": 1})
    segments = (tmp_path / "store" / "segments").iterdir()
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {*(path.name for path in segments), ID}
    assert store.records()[0].sweep == sweep


def test_missing_store(tmp_path: Path):
    store = ResultsStore(tmp_path / "nowhere")
    for read in (store.records, store.latest, store.frame, lambda: store.sql("select 1")):
        with pytest.raises(StoreError) as caught:
            read()
        assert str(tmp_path / "nowhere") in str(caught.value)
        assert "--store" in str(caught.value)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "nowhere").exists(), "reading makes nothing"


def test_empty_store(tmp_path: Path):
    store = ResultsStore(tmp_path)
    store.check_writable()
    assert store.records() == []
    assert list((tmp_path / "segments").iterdir()) == [], "the probe file is gone"


@pytest.mark.parametrize("act", [ResultsStore.check_writable, lambda store: store.append(made_record())])
def test_unwritable_store(tmp_path: Path, act: Callable[[ResultsStore], object]):
    (tmp_path / "file").write_text("in the way")
    store = ResultsStore(tmp_path / "file" / "store")
    with pytest.raises(StoreError) as caught:
        act(store)
    assert str(store.path) in str(caught.value)
    assert os.strerror(errno.ENOTDIR) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unreadable_segment(store: ResultsStore, monkeypatch: pytest.MonkeyPatch):
    def failing(*_: object) -> Iterator[bytes]:
        raise OSError(errno.EIO, "Input/output error")

    store.append(made_record(1))
    monkeypatch.setattr("benchsuite.results.store.segments.lines", failing)
    with pytest.raises(StoreError, match="cannot be read: Input/output error"):
        store.records()


def test_disk_full_at_fsync(store: ResultsStore, monkeypatch: pytest.MonkeyPatch):
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(StoreError) as caught:
            store.append(made_record(3))
    assert "No space left on device" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert ids(store)[:3] == ["record-0", "record-1", "record-2"]
    store.append(made_record(4))
    assert ids(store)[-1] == "record-4", "once there is room, the same store goes on"


def test_disk_full_in_the_middle_of_a_line(store: ResultsStore):
    """A file size limit makes the kernel write half a line, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (segments(store)[0].stat().st_size + 100, hard))
    try:
        with pytest.raises(StoreError, match="cannot append") as caught:
            store.append(made_record(3))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(caught.value)
    assert not segments(store)[0].read_bytes().endswith(b"\n"), "half a line is there"
    assert ids(store) == ["record-0", "record-1", "record-2"]
    store.append(made_record(4))
    assert ids(store) == ["record-0", "record-1", "record-2", "record-4"]


def test_a_record_without_its_samples_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = ResultsStore(tmp_path)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError):
        store.append(made_record(), {"raw": [1]})
    assert store.records() == []


def without_its_segment(store: ResultsStore) -> None:
    for path in segments(store):
        path.unlink()


def without_its_sidecar(store: ResultsStore) -> None:
    for path in store.path.glob(f"segments/*{SAMPLES}"):
        path.unlink()


def striking(
    patched: pytest.MonkeyPatch, store: ResultsStore, number_of_call: int, strike: Callable[[ResultsStore], object]
) -> None:
    """Strike before any of the writes, flushes and looks that a record takes."""
    calls = iter(range(100))

    def struck(act: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            if next(calls) == number_of_call:
                strike(store)
            return act(*arguments)

        return call

    patched.setattr(Segment, "append", struck(Segment.append))
    patched.setattr(Segment, "is_gone", struck(Segment.is_gone))
    patched.setattr(os, "fsync", struck(os.fsync))


@pytest.mark.parametrize("number_of_call", range(5))
@pytest.mark.parametrize("strike", [without_its_segment, without_its_sidecar])
def test_a_file_removed_while_a_record_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number_of_call: int, strike: Callable[[ResultsStore], None]
):
    """The second record is whole, and so is the third."""
    store, told = ResultsStore(tmp_path / "store"), list[Path]()
    store.on_vanished = told.append
    store.append(made_record(0), {"number": 0})
    with monkeypatch.context() as patched:
        striking(patched, store, number_of_call, strike)
        store.append(made_record(1), {"number": 1})
    store.append(made_record(2), {"number": 2})
    again = ResultsStore(store.path)
    assert [record.repeat for record in again.records()] in ([1, 2], [0, 1, 2])
    assert [again.samples(record) for record in again.records()[-2:]] == [
        {"record_id": f"record-{number}", "number": number} for number in (1, 2)
    ]
    assert len(told) == 1 and len(again.passed) == 0
    lines = b"".join(path.read_bytes() for path in segments(store)).splitlines()
    assert len(lines) == len(again.records()), "none is there twice"


class TestVanished:
    """A store that is gone, or another in its place: nothing is made there, and what was measured is kept."""

    @pytest.fixture(autouse=True)
    def temporary(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        folder = tmp_path / "temporary"
        folder.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        return folder

    @staticmethod
    def kept(said: str, temporary: Path) -> ResultsStore:
        """The store in the temporary folder that holds the record which an error names."""
        (folder,) = temporary.iterdir()
        (path,) = segments(ResultsStore(folder))
        assert f"its last record is kept in {path} " in said and "\n" not in said
        return ResultsStore(folder)

    @pytest.mark.parametrize("number_of_call", range(5))
    def test_while_a_record_is_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temporary: Path, number_of_call: int
    ):
        store, away = ResultsStore(tmp_path / "store"), tmp_path / "away"
        store.append(made_record(0), {"number": 0})
        with monkeypatch.context() as patched, pytest.raises(StoreVanished, match="is no longer there") as caught:
            striking(patched, store, number_of_call, lambda store: store.path.rename(away))
            store.append(made_record(1), {"number": 1})
        assert not store.path.exists(), "no store is made in its place"
        found = self.kept(str(caught.value), temporary)
        assert found.samples(found.records()[0]) == {"record_id": "record-1", "number": 1}
        assert ids(found) == ["record-1"] and ids(ResultsStore(away)) == ["record-0"], "it is in one of them"

    def test_another_in_its_place(
        self, store: ResultsStore, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        """A job that was queued again keeps its record, too."""
        monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
        store.path.rename(tmp_path / "away")
        (store.path / "segments").mkdir(parents=True)
        (store.path / ID).write_text("another")
        with pytest.raises(StoreVanished, match="is another one now") as caught:
            store.append(made_record(3))
        assert segments(store) == [] and ids(self.kept(str(caught.value), temporary)) == ["record-3"]

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount")
    def test_a_copy_on_another_device(self, store: ResultsStore, temporary: Path, tmp_path: Path):
        """It has the id, but what is written to it is lost where the store's own file system is mounted again."""
        store.check_writable()
        shutil.copytree(store.path, tmp_path / "copy")
        with mounted(store.path):
            shutil.copytree(tmp_path / "copy", store.path, dirs_exist_ok=True)
            with pytest.raises(StoreVanished, match="is another one now") as caught:
                store.append(made_record(3))
        assert ids(self.kept(str(caught.value), temporary)) == ["record-3"]
        store.append(made_record(4))
        assert ids(store)[-1] == "record-4", "once it is back, the same store goes on"
        with mounted(store.path):
            shutil.copytree(tmp_path / "copy", store.path, dirs_exist_ok=True)
            subprocess.run([sys.executable, "-c", REQUEUED, store.path], check=True)

    def test_nothing_else_is_made_there(self, store: ResultsStore, tmp_path: Path):
        store.path.rename(tmp_path / "away")
        store.path.mkdir()
        claims = Claims.of(store.path, "s")
        makers: list[Callable[[], object]] = [
            lambda: claims.take("trial"),
            lambda: keep_plan(store.path, "s", Plan(SweepSpec(name="n", base={}), [], [], 0, this_machine())),
            lambda: work_folder(store.path, "trial").__enter__(),
            store.exists,
        ]
        for make in makers:
            with pytest.raises(StoreVanished):
                make()
        assert [*store.path.iterdir()] == []

    def test_a_requeued_job_makes_none(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("SLURM_RESTART_COUNT", "10")
        store = ResultsStore(tmp_path / "mount" / "store")
        with pytest.raises(StoreVanished, match="is not there, though this job ran before"):
            store.check_writable()
        assert not store.path.parent.exists()
        (store.path / "segments").mkdir(parents=True)
        store.check_writable()
        monkeypatch.setenv("SLURM_RESTART_COUNT", "0")
        ResultsStore(tmp_path / "first").check_writable()

    @pytest.mark.parametrize("number", [errno.EEXIST, errno.EPERM], ids=["made meanwhile", "no hard links"])
    @pytest.mark.parametrize("unnamed", [True, False], ids=["without a name", "named"])
    def test_its_id(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, unnamed: bool):
        def link(_source: object, target: Path, **_: object) -> None:
            if number == errno.EEXIST:
                target.write_text("of another process")
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "link", link)
        if not unnamed:
            monkeypatch.setattr(os, "O_TMPFILE", 0)  # a folder cannot be opened so for writing
        store = ResultsStore(tmp_path / "store")
        store.check_writable()
        found = (store.path / ID).read_text()
        assert (found == "of another process") == (number == errno.EEXIST) and len(found) > 10
        store.append(made_record())
        assert sorted(path.name for path in store.path.iterdir()) == ["segments", ID], "nothing unfinished is left"


def test_a_segment_that_another_replaces(store: ResultsStore):
    """A restored copy has its name, and is another file."""
    (path,) = segments(store)
    copy = path.read_bytes()
    path.unlink()
    path.write_bytes(copy)
    store.append(made_record(3))
    assert ids(store) == [f"record-{number}" for number in range(4)] and path.read_bytes() == copy


def test_a_store_that_goes_while_something_is_written_into_it_is_said_to_be_gone(tmp_path: Path):
    store = ResultsStore(tmp_path / "store")
    store.check_writable()
    with pytest.raises(StoreVanished, match="is no longer there"), written_to(store.path):
        store.path.rename(tmp_path / "away")
        (store.path / "new").mkdir()
    (tmp_path / "away").rename(store.path)
    with pytest.raises(StoreError, match=r"cannot be written: No such file") as told, written_to(store.path):
        (store.path / "gone" / "new").mkdir()
    assert not isinstance(told.value, StoreVanished)
