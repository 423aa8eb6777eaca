"""A file system that does not answer any more: of data it costs trials, of a store it is one line."""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from benchsuite.host.environment import file_system
from benchsuite.results.store.store import ResultsStore, StoreVanished
from benchsuite.runner.single_trial import run_trial
from benchsuite.storage.dataset.manifest import DatasetError, is_dataset
from tests.faults.conftest import Bench, Here
from tests.results.made import made_record

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("bindfs") is None or not Path("/dev/fuse").exists(),
    reason="needs root, FUSE and Debian's bindfs",
)
DEAD = "Transport endpoint is not connected"


class Mount:
    """A folder that is seen through FUSE, whose server can be killed."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.source, self.folder = source, folder
        source.mkdir(exist_ok=True)
        folder.mkdir()
        self.mount()

    def mount(self) -> None:
        subprocess.run(["bindfs", self.source, self.folder], check=True)

    def kill(self) -> None:
        """End its server without a word, as a crash does."""
        line = ["bindfs", str(self.source), str(self.folder)]
        (server,) = [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == line]
        server.send_signal(signal.SIGKILL)
        server.wait()

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", self.folder], check=True)


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[[Path, str], Mount]]:
    """Mount a folder below a name."""
    made: list[Mount] = []

    def of(source: Path, name: str) -> Mount:
        made.append(Mount(source, tmp_path / name))
        return made[-1]

    yield of
    for each in made:
        each.unmount()


def spec(root: Path) -> dict[str, object]:
    return {
        "workload": "resnet50",
        "variant": "nano",
        "batch_size": 4,
        "data": {"root": str(root), "num_workers": 0},
        "device": "cpu",
        "threads_per_rank": 1,
        "measure": {"steps": 4, "warmup_steps": 1, "repeats": 9, "ceilings": False},
    }


def test_what_cannot_be_asked_is_unknown(tmp_path: Path, mount: Callable[[Path, str], Mount]) -> None:
    dead = mount(tmp_path / "source", "dead")
    assert file_system(dead.folder)["free_bytes"] is not None
    dead.kill()
    found = file_system(dead.folder / "files")
    assert found["mount"] == str(dead.folder) and found["file_system"] == "fuse"
    assert found["free_bytes"] is None and found["read_ahead_kb"] is None
    with pytest.raises(DatasetError, match=DEAD):
        is_dataset(dead.folder)


def test_a_dataset_that_is_gone_since_the_plan(
    tmp_path: Path, dataset_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the file system is unmounted: what is left is a folder without a dataset."""
    root = tmp_path / "mount"
    shutil.copytree(dataset_root / "files", root)

    def unmounted(*_: object, **__: object) -> None:
        shutil.rmtree(root)
        root.mkdir()

    monkeypatch.setattr("benchsuite.runner.attempt.write_known_flops", unmounted)
    record = run_trial(spec(root))
    assert record.status == "failed" and "not a dataset" not in str(record.reason)
    assert f"{root}: the dataset was there when the trial was planned, and is gone" in str(record.reason)


def test_an_outage_of_data(bench: Bench, dataset_root: Path, mount: Callable[[Path, str], Mount]) -> None:
    """The sweep waits after three failures, which are said to be the file system's, and the rest is measured."""
    data = mount(dataset_root / "files", "data")
    path = bench.write({"name": "outage", "base": spec(data.folder)})
    process = bench.start("sweep", path, "--store", bench.store)
    said: list[str] = []
    assert process.stderr is not None
    for line in process.stderr:
        said.append(line)
        if line.startswith("[1/9]"):
            data.kill()
        if "waiting for" in line:
            data.unmount()
            data.mount()
    assert process.wait() == 3
    err = "".join(said)
    assert err.count("3 trials in a row failed") == err.count(" is back: the sweep goes on") == 1, err
    assert "Traceback" not in err and "not a dataset" not in err
    statuses = [record["status"] for record in bench.records()]
    failed = [record["reason"] for record in bench.records() if record["status"] == "failed"]
    assert len(statuses) == 9 and 3 <= len(failed) <= 4 and statuses[5:] == ["ok"] * 4, statuses
    assert all(DEAD in reason for reason in failed[-3:])


def verbs(bench: Bench) -> list[list[object]]:
    sweep = bench.write({"name": "any", "base": spec(bench.folder) | {"data": {"source": "synthetic"}}})
    return [
        ["report"],
        ["status"],
        ["status", sweep],
        ["results", "show"],
        ["results", "query", "select 1"],
        ["results", "compact"],
        ["results", "export", "csv", "--out", bench.folder / "out.csv"],
        ["results", "export", "prometheus"],
        ["compare", "session=a", "session=b"],
        ["baseline", "set"],
        ["baseline", "show"],
        ["check"],
        ["scaling"],
        ["predict", "--ranks", "4"],
        ["sweep", sweep],
        ["sweep", sweep, "--dry-run"],
        ["search", sweep],
        ["demo"],
        ["probe", "storage", bench.folder],
        ["probe", "comm"],
        ["submit", "slurm", sweep, "--time", "1:00:00", "--cpus-per-rank", "1", "--dry-run"],
    ]


def test_a_dead_store_is_one_line_in_every_verb(
    bench: Bench, here: Here, tmp_path: Path, mount: Callable[[Path, str], Mount]
) -> None:
    ResultsStore(tmp_path / "source").append(made_record())
    dead = mount(tmp_path / "source", "dead")
    dead.kill()
    for verb in verbs(bench):
        code, out, err = here(*verb, "--store", dead.folder)
        assert (code, out, err.count("\n")) == (2, "", 1), (verb, code, out, err)
        assert err.startswith(f"error: store {dead.folder}: cannot be ") and err.endswith(f": {DEAD}\n"), (verb, err)


def test_a_store_that_dies_while_it_is_written(
    bench: Bench, tmp_path: Path, mount: Callable[[Path, str], Mount], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(bench.temporary))
    store = mount(tmp_path / "source", "dead")
    opened = ResultsStore(store.folder)
    opened.append(made_record(0), {"number": 0})
    store.kill()
    with pytest.raises(StoreVanished, match=f"does not answer: {DEAD}; its last record is kept in"):
        opened.append(made_record(1), {"number": 1})
    (kept,) = bench.leftovers()
    assert [record.repeat for record in ResultsStore(kept).records()] == [1]
    store.unmount()
    store.mount()
    opened.append(made_record(2), {"number": 2})
    assert [record.repeat for record in ResultsStore(store.source).records()] == [0, 2]


def test_a_sweep_whose_store_dies(
    bench: Bench, tmp_path: Path, mount: Callable[[Path, str], Mount], wait_until: Callable[[Callable[[], bool]], None]
) -> None:
    store, goes_on = mount(tmp_path / "source", "dead"), bench.folder / "goes-on"
    bench.env |= {"REHEARSED_S": "240", "REHEARSED_FILE": str(goes_on)}
    path = bench.write({"name": "dies", "base": spec(bench.folder) | {"data": {"source": "synthetic"}}})
    process = bench.start("sweep", path, "--store", store.folder, "--launcher", "rehearsed")
    wait_until(lambda: any((store.folder / "work").glob("*/*/progress-0")))
    store.kill()
    goes_on.touch()
    out, err = process.communicate(timeout=240)
    assert (process.returncode, "Traceback" in out + err) == (75, False), err
    assert err.splitlines()[-1].startswith(f"error: store {store.folder} does not answer: {DEAD}; ")
    assert bench.wait_gone() == [] and bench.leftovers() == []
