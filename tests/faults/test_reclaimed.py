"""What killed compactions leave, in the temporary folder and in the store, goes with the next one."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchsuite.results.store.manifest import load
from benchsuite.results.store.store import ResultsStore
from tests.faults.conftest import COMMAND, Bench
from tests.results.made import made_record

KILLED = """
import os, signal
from benchsuite.results.store import compaction, manifest

def killed(*arguments, **named):
    os.kill(os.getpid(), signal.SIGKILL)

{}.publish = killed
from benchsuite.cli.app import main

main()
"""
PROBE = """
import resource, signal, sys
from benchsuite.results.store.store import ResultsStore

signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
ResultsStore(sys.argv[1]).check_writable()
"""


def below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize("module", ["compaction", "manifest"], ids=["at a part", "at the manifest"])
def test_of_a_killed_compaction(bench: Bench, module: str) -> None:
    store = ResultsStore(bench.store)
    for number in range(3):
        store.append(made_record(number))
    before = below(bench.store) | {"parquet", "parquet/manifest.json"}
    bench.command = [sys.executable, "-c", KILLED.format(module)]
    assert bench.run("results", "compact", "--store", bench.store)[0] == -signal.SIGKILL
    assert bench.leftovers(), "it was killed while it had a temporary folder"
    unfinished = {name for name in below(bench.store) - before if not name.endswith(".parquet") or "/." in name}
    assert len(unfinished) >= 1 and any("/." in name for name in unfinished), "and an unfinished file"
    bench.command = COMMAND
    code, _, err = bench.run("results", "compact", "--store", bench.store)
    assert (code, err) == (0, "")
    assert bench.leftovers() == []
    left = below(bench.store) - before - {f"parquet/{name}" for name in load(bench.store).files()}
    assert not any("/." in name for name in left), left
    assert len(left) == (module == "manifest"), "a part that no manifest names stays for a day"


def test_of_a_compaction_that_runs_or_ran_elsewhere(bench: Bench) -> None:
    """That of another host stays for a day, whoever compacts."""
    ResultsStore(bench.store).append(made_record(0))
    (bench.store / "parquet").mkdir()
    others = [bench.store / "parquet" / f".compaction.partial-{'0123456789abcdef'}-1-{n}-abcd" for n in (1, 2)]
    for other in others:
        other.mkdir()
        (other / "trial.parquet").touch()
    os.utime(others[1], (0, 0))
    assert bench.run("results", "compact", "--store", bench.store)[0] == 0
    assert [other.exists() for other in others] == [True, False]


def test_of_a_process_killed_while_it_looks_whether_a_store_can_be_written(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", PROBE, str(tmp_path / "store")], timeout=60, check=False)
    assert killed.returncode == -signal.SIGXFSZ, "at its first byte"
    assert below(tmp_path / "store") == {"segments"}
