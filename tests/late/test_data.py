"""Datasets and staged copies on network file systems: two nodes at one folder, each late to see the other's files."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchsuite.storage.dataset.manifest import open_dataset
from benchsuite.storage.dataset.verify import verify_dataset
from tests.faults.conftest import Bench
from tests.late.mounts import OTHER_NODE, LateMounts

SAMPLES = 64
MADE = ("--workload", "resnet50", "--variant", "nano", "--samples", SAMPLES, "--format", "webdataset")


def both(run: Callable[[Path], tuple[int, str, str]], mounts: LateMounts) -> list[tuple[int, str, str]]:
    """What two nodes were told that did the same at once."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(run, (mounts.first, mounts.second)))


def test_a_dataset_that_two_nodes_make_at_once_is_made_once(mounts: LateMounts, bench: Bench) -> None:
    told = both(lambda mount: bench.run("data", "generate", mount / "data", *MADE, "-o", "shard_samples=8"), mounts)
    assert sorted(code for code, _, _ in told) in ([0, 2], [0, 0]), told
    assert all("Traceback" not in err for _, _, err in told)
    mounts.settle()
    for mount in (mounts.first, mounts.second):
        code, out, err = bench.run("data", "verify", mount / "data")
        assert code == 0 and f"{SAMPLES} samples" in out, err
    assert [path.name for path in mounts.source.iterdir()] == ["data"], "nothing unfinished is left"
    assert mounts.hidden() == []


def test_a_dataset_made_on_one_node_is_read_on_the_other(mounts: LateMounts, bench: Bench) -> None:
    (mounts.second / "data").exists()  # its kernel knows from now on that there is none
    assert bench.run("data", "generate", mounts.first / "data", *MADE)[0] == 0
    code, _, err = bench.run("data", "verify", mounts.second / "data")
    assert code in (0, 2) and "Traceback" not in err, "there, or not there yet: never half of it"
    mounts.settle()
    assert bench.run("data", "verify", mounts.first / "data", mounts.second / "data")[0] == 0
    first, second = open_dataset(mounts.first / "data"), open_dataset(mounts.second / "data")
    assert first.manifest == second.manifest and (first.index == second.index).all()


@pytest.mark.parametrize("many", [8, pytest.param(1, marks=pytest.mark.full)], ids=["eight files", "one file"])
def test_a_copy_that_two_nodes_stage_at_once_is_right(mounts: LateMounts, bench: Bench, many: int) -> None:
    """Locks of one mount are not seen by the other, as on NFS that is mounted with local locks."""
    source = bench.folder / "data"
    assert bench.run("data", "generate", source, *MADE, "-o", f"shard_samples={SAMPLES // many}")[0] == 0
    told = both(lambda mount: bench.run("data", "stage", source, "--to", mount / "staged"), mounts)
    assert all(code == 0 or "error: " in err for code, _, err in told), told
    assert all("Traceback" not in err for _, _, err in told) and 0 in {code for code, _, _ in told}
    mounts.settle()
    for mount in (mounts.source, mounts.first, mounts.second):
        (copy,) = [path for path in (mount / "staged").iterdir() if not path.name.startswith(".")]
        assert verify_dataset(copy).manifest.dataset_id == open_dataset(source).manifest.dataset_id
    code, _, err = bench.run("data", "stage", source, "--to", mounts.first / "staged", "--remove")
    assert code == 0, err
    mounts.settle()
    assert mounts.hidden() == []


@pytest.mark.full
@pytest.mark.parametrize("staging", ["copy", "lazy"])
def test_trials_of_two_nodes_stage_beside_each_other(mounts: LateMounts, bench: Bench, staging: str) -> None:
    """A staging folder should be local to a node. Where it is not, copies of two nodes must not meet."""
    data = mounts.source.parent / "data"
    assert bench.run("data", "generate", data, *MADE, "-o", "shard_samples=8")[0] == 0

    def trials(mount: Path) -> tuple[int, str, str]:
        bench.before = OTHER_NODE if mount == mounts.second else []
        stored = {"root": str(data), "format": "webdataset", "staging": staging, "num_workers": 2, "cache": "warm"}
        base = {"workload": "resnet50", "variant": "nano", "device": "cpu", "batch_size": 2}
        measure = {"steps": 3, "warmup_steps": 1, "repeats": 2, "ceilings": False}
        placed = stored | {"staging_dir": str(mount / "staged")}
        file = bench.write(
            {"name": "staged", "base": base | {"data": placed, "measure": measure}}, f"{mount.name}.yaml"
        )
        return bench.run("sweep", file, "--store", bench.folder / f"store-{mount.name}")

    for code, out, err in both(trials, mounts):
        assert code == 0 and "trust: 2 of 2 trials ok" in out, err
    left = [path.name for path in (mounts.source / "staged").iterdir()]
    assert left == [] and mounts.hidden() == []
