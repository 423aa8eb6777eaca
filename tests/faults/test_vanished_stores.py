"""A store that is removed or moved under a sweep, or whose file system is unmounted: nothing is made in its place.

Some have ranks of their own; the others' trials are rehearsed, for what they show is what the sweep itself does.
"""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import SAMPLES, ResultsStore
from tests.faults.conftest import Bench, Here
from tests.faults.enclosure import NEEDS_ROOT

Wait = Callable[[Callable[[], bool]], None]
DEADLINE_S = 240


def sweep(repeats: int = 3, steps: int = 40) -> dict[str, Any]:
    measure = {"steps": steps, "warmup_steps": 2, "repeats": repeats, "ceilings": False}
    base = {"workload": "resnet50", "variant": "nano", "batch_size": 2, "data": {"source": "synthetic"}}
    return {"name": "purged", "base": {**base, "device": "cpu", "threads_per_rank": 1, "measure": measure}}


def num_done(store: Path) -> int:
    return sum('"state": "done"' in path.read_text() for path in (store / "claims" / "default").glob("[!.]*"))


def ended(bench: Bench, process: "subprocess.Popen[str]") -> tuple[int, str]:
    """Exit code and words of a sweep that leaves no process behind."""
    out, err = process.communicate(timeout=DEADLINE_S)
    assert "Traceback" not in out + err
    assert bench.wait_gone() == []
    return process.returncode, err


def struck_in_flight(bench: Bench, here: Here, wait_until: Wait, strike: Callable[[Path], object]) -> tuple[int, str]:
    """Exit code and words of a sweep whose store has one trial, and is struck while the second runs."""
    bench.env["REHEARSED_S"] = "0"
    assert here("sweep", bench.write(sweep(1)), "--store", bench.store, "--launcher", "rehearsed")[0] == 0
    goes_on = bench.folder / "goes-on"
    bench.env |= {"REHEARSED_S": str(DEADLINE_S), "REHEARSED_FILE": str(goes_on)}
    process = bench.start("sweep", bench.write(sweep()), "--store", bench.store, "--launcher", "rehearsed")
    wait_until(lambda: any((bench.store / "work").glob("*/*/progress-0")))
    strike(bench.store)
    goes_on.touch()
    return ended(bench, process)


def struck(bench: Bench, wait_until: Wait, strike: Callable[[Path], object]) -> tuple[int, str]:
    """Exit code and words of a sweep whose store is struck after its first record; the second may have begun."""
    bench.env["REHEARSED_S"] = "1.0"
    process = bench.start("sweep", bench.write(sweep()), "--store", bench.store, "--launcher", "rehearsed")
    wait_until(lambda: num_done(bench.store) == 1)
    strike(bench.store)
    return ended(bench, process)


def vanished(bench: Bench, code: int, err: str) -> list[TrialRecord]:
    """The records that a sweep has kept elsewhere, which it says in one line, as its store is gone."""
    (line,) = [line for line in err.splitlines() if line.startswith(("error", "warning"))]
    assert code == 75 and line.startswith(f"error: store {bench.store} is no longer there"), err
    assert line.endswith("; the same command goes on once it is back")
    folders = bench.leftovers()
    paths = [path for folder in folders for path in files(folder, sidecars=False)]
    assert all(f"its last record is kept in {path} " in line for path in paths) and len(paths) == len(folders) <= 1
    return [record for folder in folders for record in ResultsStore(folder).trials()]


def files(store: Path, sidecars: bool) -> list[Path]:
    return [path for path in (store / "segments").glob("*.jsonl") if path.name.endswith(SAMPLES) == sidecars]


def remove(store: Path, sidecars: bool) -> str:
    (path,) = files(store, sidecars)
    path.unlink()
    return path.name


def done(store: Path) -> list[int]:
    """The repeats that a store has, all ended well, each with its samples."""
    found = ResultsStore(store)
    trials = found.trials()
    assert {trial.status for trial in trials} == {"ok"} and len(found.passed) == 0
    assert all(found.samples(trial) is not None for trial in trials)
    return sorted(trial.repeat for trial in trials)


def unmount(store: Path) -> None:
    subprocess.run(["umount", "--lazy", store], check=True)


@pytest.fixture
def mount(bench: Bench) -> Iterator[Callable[[], None]]:
    """Mount the same folder again where the store is; it is mounted now."""
    disk = bench.folder / "disk"
    for folder in (disk, bench.store):
        folder.mkdir()

    def mounted() -> None:
        subprocess.run(["mount", "--bind", disk, bench.store], check=True)

    mounted()
    yield mounted
    subprocess.run(["umount", "--lazy", bench.store], check=False)  # where a test fails it may not be mounted


@NEEDS_ROOT
def test_unmounted_and_mounted_again(bench: Bench, here: Here, wait_until: Wait, mount: Callable[[], None]) -> None:
    code, err = struck_in_flight(bench, here, wait_until, unmount)
    assert vanished(bench, code, err) == [], "a trial that the store took with it has no record"
    assert [*bench.store.iterdir()] == [], "nothing lies on the bare mount point"
    bench.env["SLURM_RESTART_COUNT"] = "1"
    code, out, err = bench.sweep(bench.folder / "sweep.yaml", "--launcher", "rehearsed")
    assert (code, out) == (75, "") and "is not there, though this job ran before" in err
    assert [*bench.store.iterdir()] == [], "the job that is queued again makes none either"
    mount()
    assert done(bench.store) == [0]
    assert bench.sweep(bench.folder / "sweep.yaml", "--launcher", "rehearsed")[0] == 0
    assert done(bench.store) == [0, 1, 2]


@NEEDS_ROOT
def test_unmounted_while_a_trial_runs(bench: Bench, here: Here, wait_until: Wait, mount: Callable[[], None]) -> None:
    """The trial ends as it would have, and its record can be added to the store once that is back."""
    process = bench.start("sweep", bench.write(sweep(2, steps=300)), "--store", bench.store)
    wait_until(lambda: any((bench.store / "work").glob("*/*/progress-0")))
    unmount(bench.store)
    code, err = ended(bench, process)
    kept = vanished(bench, code, err)
    assert [(record.repeat, record.status) for record in kept] == [(0, "ok")], err
    assert [*bench.store.iterdir()] == []
    mount()
    command = err.partition("(to add it: ")[2].partition(")")[0]
    subprocess.run(command, shell=True, check=True)
    assert done(bench.store) == [0]
    assert here("sweep", bench.folder / "sweep.yaml", "--store", bench.store, "--launcher", "rehearsed")[0] == 0
    assert done(bench.store) == [0, 1]
    assert ResultsStore(bench.store).trials()[0] == kept[0], "what was added is not measured again"


def test_removed_after_a_trial(bench: Bench, wait_until: Wait) -> None:
    """The second may have begun by then."""
    away = bench.folder / "away"  # to remove a folder that is written to may fail
    code, err = struck(bench, wait_until, lambda store: store.rename(away))
    vanished(bench, code, err)
    assert not bench.store.exists(), "no store is made in its place"


def test_moved_away_while_a_trial_runs(bench: Bench, here: Here, wait_until: Wait) -> None:
    away = bench.folder / "away"
    code, err = struck_in_flight(bench, here, wait_until, lambda store: store.rename(away))
    assert vanished(bench, code, err) == [] and not bench.store.exists()
    assert done(away) == [0]


@pytest.mark.parametrize("sidecars", [True, pytest.param(False, marks=pytest.mark.full)], ids=["sidecar", "segment"])
def test_one_file_removed(bench: Bench, wait_until: Wait, sidecars: bool) -> None:
    names: list[str] = []
    code, err = struck(bench, wait_until, lambda store: names.append(remove(store, sidecars)))
    rest = "and its content is lost; this record and later ones go to a new file"
    assert (code, [line for line in err.splitlines() if line.startswith("warning: ")]) == (
        0,
        [f"warning: store {bench.store}: {names[0]} was removed while the sweep ran, {rest}"],
    ), err
    store = ResultsStore(bench.store)
    assert [record.repeat for record in store.trials()] == [number for number in range(3) if sidecars or number]
    lost = [record.repeat for record in store.trials() if store.samples(record) is None]
    assert lost == ([0] if sidecars else []) and bench.leftovers() == []
    assert not any((bench.store / "work").glob("*/*")), "no work folder is left"
