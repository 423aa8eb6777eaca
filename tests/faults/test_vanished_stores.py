"""A store that is removed or moved under a sweep, as where old scratch is purged: said once, and the rest is kept.

One has ranks of its own; the others' trials are rehearsed, for what they show is what the sweep itself does.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from benchsuite.results.store.store import SAMPLES, ResultsStore
from tests.faults.conftest import Bench, Here

Wait = Callable[[Callable[[], bool]], None]
DEADLINE_S = 240
SWEEP = {
    "name": "purged",
    "base": {
        "workload": "resnet50",
        "variant": "nano",
        "batch_size": 2,
        "data": {"source": "synthetic"},
        "device": "cpu",
        "threads_per_rank": 1,
        "measure": {"steps": 40, "warmup_steps": 2, "repeats": 3, "ceilings": False},
    },
}


def num_done(store: Path) -> int:
    return sum('"state": "done"' in path.read_text() for path in (store / "claims" / "default").glob("[!.]*"))


def struck(
    bench: Bench, wait_until: Wait, strike: Callable[[Path], object], in_flight: bool, launcher: str = "rehearsed"
) -> tuple[int, str]:
    """Exit code and words of a sweep whose store is struck after its first record, and after the second has begun."""
    bench.env["REHEARSED_S"] = "1.0"
    process = bench.start("sweep", bench.write(SWEEP), "--store", bench.store, "--launcher", launcher)
    wait_until(lambda: num_done(bench.store) == 1)
    if in_flight:
        wait_until(lambda: any((bench.store / "work").glob("*/*/progress-0")))
    strike(bench.store)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert "Traceback" not in out + err
    assert bench.wait_gone() == [] and bench.leftovers() == []
    assert not any((bench.store / "work").glob("*/*")), "no work folder is left"
    return process.returncode, err


def files(store: Path, sidecars: bool) -> list[Path]:
    return [path for path in (store / "segments").glob("*.jsonl") if path.name.endswith(SAMPLES) == sidecars]


def remove(store: Path, sidecars: bool) -> str:
    (path,) = files(store, sidecars)
    path.unlink()
    return path.name


def kept(bench: Bench) -> dict[int, str]:
    """How each repeat that is in the store has ended; those that ended well have their samples."""
    store = ResultsStore(bench.store)
    records = store.records()
    assert len({record.repeat for record in records}) == len(records) and len(store.passed) == 0
    lost = [record.repeat for record in records if record.status == "ok" and store.samples(record) is None]
    assert lost in ([], [0]), "what was written after the removal is whole"
    failed = [record for record in records if record.status == "failed"]
    assert all(record.reason and record.reason.startswith("its work folder was removed") for record in failed)
    return {record.repeat: record.status for record in records}


def warnings(err: str) -> list[str]:
    return [line for line in err.splitlines() if line.startswith("warning: ")]


def gone(bench: Bench) -> str:
    rest = "and what was in it is gone; this record and later ones are kept in a new store"
    return f"warning: store {bench.store} was removed meanwhile, {rest}"


def test_removed_after_a_trial(bench: Bench, wait_until: Wait) -> None:
    """The second may have begun by then: it is kept either way."""
    code, err = struck(bench, wait_until, shutil.rmtree, in_flight=False)
    assert warnings(err) == [gone(bench)], err
    found = kept(bench)
    assert found.keys() == {1, 2} and found[2] == "ok"
    assert code == (0 if found[1] == "ok" else 3)


@pytest.mark.full
def test_removed_while_a_trial_runs(bench: Bench, here: Here, wait_until: Wait) -> None:
    code, err = struck(bench, wait_until, shutil.rmtree, in_flight=True, launcher="local")
    assert (code, warnings(err)) == (3, [gone(bench)]), err
    assert kept(bench) == {1: "failed", 2: "ok"}
    assert here("sweep", bench.folder / "sweep.yaml", "--store", bench.store, "--retry", "failed")[0] == 0
    assert len(ResultsStore(bench.store).frame()) == 3, "the same command measures what is gone, and what failed"


def test_moved_away_while_a_trial_runs(bench: Bench, wait_until: Wait) -> None:
    away = bench.folder / "away"
    code, err = struck(bench, wait_until, lambda store: store.rename(away), in_flight=True)
    assert (code, warnings(err)) == (3, [gone(bench)]), err
    assert kept(bench) == {1: "failed", 2: "ok"}
    assert [record.repeat for record in ResultsStore(away).records()] == [0], "no record is in both"


@pytest.mark.parametrize("sidecars", [True, pytest.param(False, marks=pytest.mark.full)], ids=["sidecar", "segment"])
def test_one_file_removed(bench: Bench, wait_until: Wait, sidecars: bool) -> None:
    names: list[str] = []
    code, err = struck(bench, wait_until, lambda store: names.append(remove(store, sidecars)), in_flight=True)
    rest = "and what was in it is gone; this record and later ones are kept in a new file"
    assert (code, warnings(err)) == (
        0,
        [f"warning: store {bench.store}: {names[0]} was removed meanwhile, {rest}"],
    ), err
    assert kept(bench) == {number: "ok" for number in range(3) if sidecars or number}
