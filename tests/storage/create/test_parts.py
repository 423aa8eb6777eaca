"""Datasets made in parts by several processes: joined they are what one process makes, whoever is last."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchsuite.storage.create import convert
from benchsuite.storage.create.convert import Wanted, generate_dataset, in_order
from benchsuite.storage.create.parallel import in_parallel
from benchsuite.storage.create.parts import Part, generate_part, join
from benchsuite.storage.dataset.manifest import DatasetError, Manifest, is_dataset, open_dataset
from benchsuite.storage.dataset.sample import content_digest
from benchsuite.storage.dataset.verify import verify_dataset
from tests.storage.samples import PARAMS, WORKLOADS

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def by_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """No processes make the samples: that these are the same, test_generation.py shows."""
    monkeypatch.setattr(
        convert, "in_parallel", lambda make, count, workers, **_: in_parallel(make, count, workers, True)
    )


def wanted(kind: str, form: str) -> Wanted:
    return Wanted(WORKLOADS[kind], "tiny", form, kind=kind, params=PARAMS[kind])


def made(target: Path, asked: Wanted, number: int, count: int, total: int, seed: int = 3) -> Manifest | None:
    return generate_part(target, asked, Part(number, count), total, seed, lambda done, total: None, "jpeg")


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        ("image", "tfrecord"),
        ("volume", "files"),
        ("tokens", "webdataset"),
        pytest.param("image", "files", marks=pytest.mark.full),
        pytest.param("image", "webdataset", marks=pytest.mark.full),
    ],
)
def test_joined_parts_are_what_one_process_makes(tmp_path: Path, kind: str, form: str):
    asked, target = wanted(kind, form), tmp_path / "joined"
    assert made(target, asked, 3, 3, 10) is None
    assert made(target, asked, 1, 3, 10) is None
    assert not is_dataset(target)
    joined = made(target, asked, 2, 3, 10)
    whole = generate_dataset(tmp_path / "whole", asked, 10, 3)
    assert joined is not None
    assert (joined.dataset_id, joined.num_samples, joined.stored_bytes) == (whole.dataset_id, 10, whole.stored_bytes)
    assert (joined.params, joined.num_classes, joined.fields) == (whole.params, whole.num_classes, whole.fields)
    verify_dataset(target)
    orders = [
        [(s.key, content_digest(s)) for s in in_order(open_dataset(tmp_path / name))] for name in ("joined", "whole")
    ]
    assert orders[0] == orders[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["joined", "whole"], "parts and marks are gone"
    assert joined.created["parts"] == 3 and "total" not in joined.created


def test_what_is_there_is_not_made_again_and_what_differs_is_refused(tmp_path: Path):
    asked, target = wanted("tokens", "webdataset"), tmp_path / "joined"
    assert made(target, asked, 1, 2, 8) is None
    folder = Part(1, 2).folder(target)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert made(target, asked, 1, 2, 8) is None
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    with pytest.raises(DatasetError, match=r"part-1-of-2: was made with other samples or another seed: remove it"):
        made(target, asked, 1, 2, 8, seed=4)
    with pytest.raises(DatasetError, match=r"its parts were made with different samples or seeds"):
        made(target, asked, 2, 2, 8, seed=4)
    assert not is_dataset(target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["joined.part-1-of-2", "joined.part-2-of-2"]


def test_one_process_joins(tmp_path: Path):
    asked, target = wanted("tokens", "webdataset"), tmp_path / "joined"
    assert made(target, asked, 1, 2, 8) is None
    (tmp_path / "joined.joining").mkdir()
    assert made(target, asked, 2, 2, 8) is None, "another is at it"
    (tmp_path / "joined.joining").rmdir()
    assert join(target, [Part(number, 2).folder(target) for number in (1, 2)]) is not None
    assert join(target, [Part(number, 2).folder(target) for number in (1, 2)]) is None, "it has been joined"
    with pytest.raises(DatasetError, match="exists already"):
        made(target, asked, 2, 2, 8)


def test_formats_of_one_file_and_too_few_samples(tmp_path: Path):
    with pytest.raises(DatasetError, match="format lmdb cannot be made in parts; allowed: files, webdataset, tfrecord"):
        made(tmp_path / "x", wanted("image", "lmdb"), 1, 2, 8)
    with pytest.raises(DatasetError, match="3 samples make no 4 parts"):
        made(tmp_path / "x", wanted("tokens", "webdataset"), 1, 4, 3)


def test_parts_divide_the_samples():
    for total in (4, 9, 10):
        found = [index for number in range(1, 5) for index in Part(number, 4).samples(total)]
        assert found == [*range(total)]


def test_tasks_of_a_job_side_by_side(tmp_path: Path):
    """Two processes as srun starts them."""
    words = ["data", "generate", str(tmp_path / "made"), "--workload", "gpt_neox", "--variant", "nano"]
    command = [
        sys.executable,
        "-m",
        "benchsuite",
        *words,
        "--format",
        "webdataset",
        "--samples",
        "12",
        "--shard",
        "auto",
    ]
    tasks = [
        subprocess.Popen(
            command,
            env=os.environ
            | {"SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [task.communicate(timeout=120)[1] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], said
    assert verify_dataset(tmp_path / "made").manifest.num_samples == 12
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


@pytest.mark.parametrize(
    ("shard", "line"),
    [
        ("3/2", "--shard '3/2': allowed: I/N with 1 <= I <= N, such as 1/4, or auto"),
        ("auto", "--shard auto: this process is no task of torchrun, srun, mpiexec; give I/N, such as 1/4"),
    ],
)
def test_refused(run_cli: Run, tmp_path: Path, shard: str, line: str):
    code, _, err = run_cli("data", "generate", tmp_path / "made", "--shard", shard)
    assert (code, err) == (2, f"error: {line}\n")
