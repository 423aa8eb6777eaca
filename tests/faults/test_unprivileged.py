"""Unprivileged users: on someone else's dataset, and several that share a store."""

import io
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import yaml

from benchsuite.analysis.record_builder import keep_traces
from benchsuite.cli.app import run_command
from benchsuite.contract.trial_spec import SweepSpec
from benchsuite.grid.point import Plan
from benchsuite.host.machine import this_machine
from benchsuite.launch.work_folder import kept_work, work_folder
from benchsuite.launch.zygote import preload
from benchsuite.results.gate.baseline import set_baseline
from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import ResultsStore
from benchsuite.runner.claims import Claims, Holding
from benchsuite.runner.single_trial import run_trial
from benchsuite.runner.status import keep_plan
from benchsuite.storage.dataset.manifest import open_dataset
from benchsuite.storage.observe import page_cache
from tests.faults.conftest import Bench
from tests.results.made import made_record

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
            os.write(writing, run_trial(spec).model_dump_json().encode())
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
    record = run_trial(
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


ALICE, BOB, GROUP = 12345, 12346, 23456
"""Two users that share a group, and the group of a folder that they share."""
SHARED = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become two users")


def as_user(uid: int, act: Callable[[], str], umask: int = 0o022) -> str:
    """What an act returns, or the exception that it raises, in a forked child that has become a user."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(120)
            os.setgroups([GROUP])
            os.setgid(uid)
            os.setuid(uid)
            os.umask(umask)
            os.write(writing, act().encode())
        except BaseException as error:
            os.write(writing, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read().decode()
    os.waitpid(pid, 0)
    return text


@pytest.fixture
def shared_store() -> Iterator[ResultsStore]:
    """A folder for a store that a group shares; not everyone may reach what tests make elsewhere."""
    parent = Path(tempfile.mkdtemp(prefix="benchsuite-shared-", dir="/var/tmp"))
    folder = parent / "store"
    folder.mkdir()
    parent.chmod(0o755)
    os.chown(folder, ALICE, GROUP)
    folder.chmod(0o2770)
    yield ResultsStore(folder)
    shutil.rmtree(parent)


def closed(store: ResultsStore) -> list[str]:
    """What of a store its group cannot read, or is not the group's; and folders that the group cannot write.

    Attempts have folders that their writers alone may write.
    """
    found = []
    for path in store.path.rglob("*"):
        facts = path.stat()
        is_attempt = path.parent.parent == store.path / "work"
        wanted = 0o040 if path.is_file() else 0o050 if is_attempt else 0o070
        if facts.st_mode & wanted != wanted or facts.st_gid != GROUP:
            found.append(f"{path.relative_to(store.path)} {facts.st_mode:o} {facts.st_gid}")
    return found


def everything_written(store: ResultsStore) -> str:
    """Leave one of each thing that is made in a store."""
    opened = ResultsStore(store.path)
    opened.check_writable()
    opened.append(made_record(), {"raw": 1})
    keep_plan(store.path, "s", Plan(SweepSpec(name="n", base={}), [], [], 0, this_machine()))
    holding = Claims.of(store.path, "s").take("done")
    assert isinstance(holding, Holding)
    with holding:
        holding.finish("2026-01-01T00:00:00+00:00")
    with work_folder(store.path, "trial") as folder:
        (folder / "rank-0.log").write_text("said")
        kept_work(folder, store.path)
    with work_folder(store.path, "trial") as folder:
        (folder / "torch-rank-0.json.gz").write_text("trace")
        keep_traces(made_record(), folder, store.path / "traces" / "record-0", store.path)
    opened.compact()
    set_baseline(opened)
    return "written"


@SHARED
def test_a_umask_locks_nobody_out_of_a_shared_store(shared_store: ResultsStore) -> None:
    assert as_user(ALICE, lambda: everything_written(shared_store), umask=0o077) == "written"
    assert closed(shared_store) == []

    def goes_on() -> str:
        store = ResultsStore(shared_store.path)
        assert store.samples(store.records()[0]) is not None and store.damage is None
        claims = Claims.of(store.path, "s")
        assert claims.take("done") is None, "it is read that another has done it"
        assert isinstance(claims.take("other"), Holding)
        store.append(made_record(1), {"raw": 2})
        store.compact()
        set_baseline(store)
        return f"{len(store.records())} records"

    assert as_user(BOB, goes_on, umask=0o077) == "2 records"
    assert closed(shared_store) == []


@SHARED
def test_a_sweep_with_a_umask(shared_store: ResultsStore, bench: Bench) -> None:
    """All that it leaves in the store is there for the group."""
    spec = {"workload": "resnet50", "variant": "nano", "batch_size": 2, "data": {"source": "synthetic"}}
    path = bench.write({"name": "umask", "base": {**spec, "device": "cpu", "measure": {"repeats": 2}}})
    bench.before = ["sh", "-c", 'umask 077; exec "$@"', "sh"]
    code, _, err = bench.run("sweep", path, "--store", shared_store.path, "--launcher", "rehearsed")
    assert code == 0, err
    assert closed(shared_store) == []
    assert {path.name for path in shared_store.path.iterdir()} == {"segments", "claims", "plans", "work", "store-id"}


@SHARED
def test_a_private_store_stays_private(shared_store: ResultsStore) -> None:
    """Files take the bits of the store's folder, and no more than those."""
    shared_store.path.chmod(0o700)
    assert as_user(ALICE, lambda: everything_written(shared_store), umask=0o077) == "written"
    assert all(path.stat().st_mode & 0o077 == 0 for path in shared_store.path.rglob("*"))


def verbs(folder: Path) -> Iterator[list[str]]:
    """Every verb that reads a store and starts no rank."""
    sweep = folder / "sweep.yaml"
    spec = {"workload": "resnet50", "variant": "nano", "batch_size": 2, "data": {"source": "synthetic"}}
    sweep.write_text(yaml.safe_dump({"name": "any", "base": spec}))
    exports = [["csv", "--out", "/dev/null"], ["prometheus"], ["junit"], ["latex"]]
    yield from (["results", "export", *words] for words in exports)
    yield from (["results", *words] for words in (["show"], ["query", "select 1"], ["profile", "point"]))
    yield from (["compare", "session=a", "session=b"], ["check"], ["baseline", "set"], ["scaling"], ["report"])
    yield from (["predict", "--ranks", "4"], ["status"], ["status", str(sweep)], ["sweep", str(sweep), "--dry-run"])
    yield ["submit", "slurm", str(sweep), "--dry-run", "--out", str(folder)]
    yield ["results", "compact"]


@SHARED
def test_a_segment_that_cannot_be_read_is_named_in_every_verb(shared_store: ResultsStore) -> None:
    """Its records are left out, the others are there."""
    assert as_user(ALICE, lambda: everything_written(shared_store)) == "written"
    shutil.rmtree(shared_store.path / "parquet")
    (segment,) = (path for path in (shared_store.path / "segments").glob("*.jsonl") if "samples" not in path.name)
    asked = [[*words, "--store", str(shared_store.path)] for words in verbs(shared_store.path.parent)]

    def reads() -> str:
        store = ResultsStore(shared_store.path)
        store.append(made_record(1, session="b"))
        (passed,) = (store.records(), store.passed)[1]
        return f"{[record.repeat for record in store.records()]} {passed.reason} {len(store.outcomes())}"

    def says() -> str:
        return json.dumps([said(words) for words in asked])

    says()  # for what verbs import, which may be out of this user's reach
    segment.chmod(0o600)
    shutil.rmtree(shared_store.path / "parquet")
    assert as_user(BOB, reads) == f"[1] may not be read, it belongs to user {ALICE} 1"
    told = f"that this user may not read: {segment.name} of user {ALICE}"
    line = f"warning: left out 1 segment of {shared_store.path} {told}"
    for words, err in zip(asked, json.loads(as_user(BOB, says)), strict=True):
        assert err.count("left out") == 1 and line in err.splitlines(), (words, err)


def said(words: list[str]) -> str:
    """What a verb says to people."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        run_command(words)
    return err.getvalue()
