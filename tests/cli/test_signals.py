"""Ctrl-C at the start, a lost terminal, a scheduler's signals: no traceback, and the documented codes."""

import importlib.metadata
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchsuite.contract.exit_codes import INTERRUPTED, OK, REQUEUE
from benchsuite.results.store.store import ResultsStore
from tests.helpers.commands import environment, filled, ran, written

STRIKE = "import os, signal\nos.kill(os.getpid(), signal.{name})\n"
ENTRY = (sys.executable, "-m", "benchsuite")
TESTS = Path(__file__).parents[1]
REHEARSED = ("--launcher", "rehearsed")
"""A launcher that starts nothing, where what a sweep does around its trials is tested."""
PLUGIN = TESTS / "faults" / "plugin"


def struck(folder: Path, module: str, name: str) -> dict[str, str]:
    """An environment in which the import of a module brings a signal, always at the same place."""
    (folder / "first").mkdir(exist_ok=True)
    (folder / "first" / f"{module}.py").write_text(STRIKE.format(name=name))
    return environment({"PYTHONPATH": f"{folder / 'first'}:{PLUGIN}:{TESTS.parent}"})


@pytest.mark.parametrize(
    ("name", "code", "told"),
    [
        ("SIGINT", INTERRUPTED, b"error: interrupted\n"),
        ("SIGHUP", REQUEUE, b"stopped early; nothing was begun\n"),
        ("SIGTERM", REQUEUE, b"stopped early; nothing was begun\n"),
    ],
)
def test_a_signal_while_the_verbs_are_imported(tmp_path: Path, name: str, code: int, told: bytes):
    """What the script of an installation calls."""
    (entry,) = importlib.metadata.distribution("benchsuite").entry_points.select(group="console_scripts")
    command = [sys.executable, "-c", f"from {entry.module} import {entry.attr}; {entry.attr}()", "list"]
    environ = struck(tmp_path, "typer", name)
    ended = subprocess.run(command, env=environ, capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (code, told)


def test_a_signal_on_the_way_out_leaves_the_exit_code(tmp_path: Path):
    """Slurm's warning may come when a sweep is over and Python is not."""
    late = "import atexit, os, signal\natexit.register(os.kill, os.getpid(), signal.SIGUSR1)\n"
    (tmp_path / "sitecustomize.py").write_text(late)
    environ = environment({"PYTHONPATH": f"{tmp_path}:{TESTS.parent}"})
    ended = subprocess.run([*ENTRY, "list"], env=environ, capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (OK, b"")


REPORT, GENERATE = ("report", "--store", "{store}"), ("data", "generate", "{folder}/made", "--samples", "8")


@pytest.mark.parametrize(
    ("words", "name", "code"),
    [
        pytest.param(GENERATE, "SIGINT", INTERRUPTED),
        pytest.param(REPORT, "SIGHUP", REQUEUE),
        pytest.param(GENERATE, "SIGTERM", REQUEUE),
        pytest.param(REPORT, "SIGINT", INTERRUPTED, marks=pytest.mark.full),
        pytest.param(GENERATE, "SIGHUP", REQUEUE, marks=pytest.mark.full),
        pytest.param(REPORT, "SIGTERM", REQUEUE, marks=pytest.mark.full),
    ],
)
def test_a_signal_while_a_verb_imports_what_it_needs(
    tmp_path: Path, store: ResultsStore, words: tuple[str, ...], name: str, code: int
):
    ended = subprocess.run(
        [*ENTRY, *filled(words, tmp_path, store.path)],
        env=struck(tmp_path, "pandas" if words[0] == "report" else "simplejpeg", name),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == code, ended.stderr.decode()
    assert len(ended.stderr.splitlines()) <= 1


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, INTERRUPTED), pytest.param(signal.SIGTERM, REQUEUE, marks=pytest.mark.full)],
)
def test_a_query_that_would_take_for_ever_ends(store: ResultsStore, number: signal.Signals, code: int):
    """DuckDB asks for signals itself while it works, and raises another exception than their handlers."""
    query = "select count(*) from range(100000000000) a, range(1000000) b"
    command = [*ENTRY, "results", "query", query, "--store", str(store.path)]
    process = subprocess.Popen(command, stdout=-1, stderr=-1)
    while b"duckdb" not in Path(f"/proc/{process.pid}/maps").read_bytes():
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(1.0)
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    assert process.returncode == code, told.decode()
    assert len(told.splitlines()) <= 1, told.decode()


def endless(folder: Path) -> Path:
    """A sweep that lasts for minutes."""
    base = {"workload": "resnet50", "variant": "nano", "batch_size": 1, "data": {"source": "synthetic"}}
    measure = {"steps": 100_000, "warmup_steps": 1, "repeats": 3}
    return written(folder, "sweep.yaml", {"name": "long", "base": {**base, "measure": measure}})


def begun(
    command: list[str], store: Path, log: Path, environ: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """A sweep whose first trial makes steps; it has a session of its own, as under a terminal."""
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream, start_new_session=True, env=environ)
    deadline = time.monotonic() + 120
    while not list(store.glob("work/*/*/*progress*")) and not list(store.glob("work/*/*/*heart*")):
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    return process


def test_a_lost_terminal_ends_a_sweep_in_good_order(tmp_path: Path):
    store, log = tmp_path / "store", tmp_path / "log"
    process = begun([*ENTRY, "sweep", str(endless(tmp_path)), "--store", str(store)], store, log)
    os.killpg(process.pid, signal.SIGHUP)  # as the kernel does: to all of the terminal's foreground
    assert process.wait(60) == REQUEUE, log.read_text()
    assert "Traceback" not in log.read_text()
    assert "stopped early" in log.read_text()
    assert [record.status for record in ResultsStore(store).records()] == ["interrupted"]


def test_a_signal_after_the_last_trial_asks_for_no_other_run(tmp_path: Path):
    """It comes while the table is made, which takes pandas: a scheduler would queue the job again in vain."""
    base = {"workload": "resnet50", "variant": "nano", "batch_size": 1, "data": {"source": "synthetic"}}
    measure = {"steps": 2, "warmup_steps": 1, "repeats": 1}
    file = written(tmp_path, "sweep.yaml", {"name": "short", "base": {**base, "measure": measure}})
    command = [*ENTRY, "sweep", str(file), "--store", str(tmp_path / "store"), *REHEARSED]
    environ = struck(tmp_path, "pandas", "SIGUSR1")
    ended = subprocess.run(command, env=environ, capture_output=True, timeout=120, check=False)
    assert ended.returncode == OK, ended.stderr.decode()
    assert b"the table is not shown; what was measured is in the store\nwritten: " in ended.stdout
    assert [record.status for record in ResultsStore(tmp_path / "store").records()] == ["ok"]


def test_nohup_still_keeps_a_sweep_alive(tmp_path: Path):
    store, log = tmp_path / "store", tmp_path / "log"
    command = ["nohup", *ENTRY, "sweep", str(endless(tmp_path)), "--store", str(store), *REHEARSED]
    process = begun(command, store, log, environment({"PYTHONPATH": str(PLUGIN), "REHEARSED_S": "600"}))
    os.killpg(process.pid, signal.SIGHUP)
    time.sleep(1)
    assert process.poll() is None
    process.terminate()
    assert process.wait(60) == REQUEUE


def test_converting_leaves_nothing_when_the_terminal_is_lost(tmp_path: Path):
    process = subprocess.Popen(
        [*ENTRY, "data", "generate", str(tmp_path / "made"), "--samples", "20000", "--variant", "tiny"],
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stderr is not None
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob(".made*")) and not list(tmp_path.glob("*")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGHUP)
    said = process.stderr.read()
    assert process.wait(60) == REQUEUE, said.decode()
    assert b"Traceback" not in said
    assert not list(tmp_path.iterdir())


def test_a_broken_environment_is_no_traceback_of_encodings(tmp_path: Path):
    assert b"Traceback" not in ran(["list"], {"LANG": "nowhere", "TERM": "unheard-of", "COLUMNS": "x"}).stderr
