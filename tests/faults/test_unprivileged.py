"""As an unprivileged user on someone else's dataset, cold is evicted but reported unverified, not certified."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchsuite.launch.zygote import preload
from benchsuite.results.store.record import TrialRecord
from benchsuite.runner.single_trial import run
from benchsuite.storage.dataset.manifest import open_dataset
from benchsuite.storage.observe import page_cache

NOBODY = 65534


@pytest.fixture
def foreign_dataset(dataset_root: Path) -> Iterator[Path]:
    """A dataset that root owns and everyone may read."""
    folder = Path(tempfile.mkdtemp(prefix="benchsuite-foreign-", dir="/var/tmp"))
    shutil.copytree(dataset_root / "files", folder / "files")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    yield folder
    shutil.rmtree(folder)


def run_as_nobody(spec: dict[str, object]) -> TrialRecord:
    """Run a trial in a forked child that has given up root; its record through a pipe."""
    preload()  # the interpreter's own files may be out of nobody's reach
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(120)
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(writing, run(spec).model_dump_json().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return TrialRecord.model_validate_json(text)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give it up: root's files must be someone else's")
def test_cold_is_evicted_but_not_certified(foreign_dataset: Path) -> None:
    spec: dict[str, object] = {
        "workload": "resnet50",
        "variant": "nano",
        "data": {"root": str(foreign_dataset), "cache": "cold", "num_workers": 0},
        "batch_size": 4,
        "device": "cpu",
        "threads_per_rank": 1,  # a forked child must not use its parent's thread pool
        "measure": {"steps": 4, "warmup_steps": 1, "ceilings": False},
    }
    files = open_dataset(foreign_dataset / "files").data_files()
    page_cache.warm(files)
    assert page_cache.residency(files).fraction == 1.0
    record = run_as_nobody(spec)
    assert record.status == "ok", record.reason
    assert record.figures.cache_resident_before is None
    assert "cache_unverified" in record.caveats
    assert any("hides it from this user" in detail for detail in record.caveat_details)
    read, delivered = record.figures.mount_read_bytes, record.figures.delivered_bytes
    assert delivered is not None and (read is None or read > 0.5 * delivered), "nothing was evicted"


def test_the_owner_is_certified(dataset_root: Path) -> None:
    record = run(
        {
            "workload": "resnet50",
            "variant": "nano",
            "data": {"root": str(dataset_root), "cache": "cold", "num_workers": 0},
            "batch_size": 4,
            "device": "cpu",
            "measure": {"steps": 4, "warmup_steps": 1},
        }
    )
    assert record.status == "ok", record.reason
    if record.env["data"]["file_system"] == "tmpfs":
        pytest.skip("tmpfs has no storage below it: nothing can be evicted")
    assert record.figures.cache_resident_before == 0.0
    assert "cache_unverified" not in record.caveats
