"""Sweeps as real processes, with the plugin of faulty workloads, and proof that nothing of them is left."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from benchsuite.runner.claims import latest_generations

PLUGIN = Path(__file__).parent / "plugin"
COMMAND = [sys.executable, "-c", "from benchsuite.cli.app import main; main()"]


Here = Callable[..., tuple[int, str, str]]


class Bench:
    """Runs the command line as its own process and finds its descendants by a mark in their environment."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, folder / "store"
        self.mark = uuid.uuid4().hex
        self.command = COMMAND
        self.before: list[str] = []
        """What every command is started by."""
        self.temporary = Path(tempfile.mkdtemp(prefix="bs-"))
        self.env = {
            **os.environ,
            "TMPDIR": str(self.temporary),
            "PYTHONPATH": str(PLUGIN),
            "BENCHSUITE_TEST_MARK": self.mark,
        }

    def write(self, sweep: dict[str, Any], name: str = "sweep.yaml") -> Path:
        path = self.folder / name
        path.write_text(yaml.safe_dump(sweep))
        return path

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.before, *self.command, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.env,
            cwd=self.folder,
        )

    def run(self, *arguments: object) -> tuple[int, str, str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=240)
        return process.returncode, out, err

    def sweep(self, path: Path, *arguments: object) -> tuple[int, str, str]:
        return self.run("sweep", path, "--store", self.store, *arguments)

    def records(self) -> list[dict[str, Any]]:
        """The trials' records in the order in which they ended: segments of one second have names in no order."""
        found = []
        for segment in sorted((self.store / "segments").glob("*.jsonl")):
            if not segment.name.endswith(".samples.jsonl"):
                whole = segment.read_text().split("\n")[:-1]  # the last line may be on its way to a late mount
                found += map(json.loads, whole)
        return sorted((each for each in found if each["kind"] == "trial"), key=itemgetter("finished_at"))

    def claims(self) -> dict[str, str]:
        """The state of each trial's last claim: a holder that was silent for a while makes the next one itself."""
        folder = self.store / "claims" / "default"
        last = latest_generations(folder).items()
        return {trial: json.loads((folder / f"{trial}.{number}").read_text())["state"] for trial, number in last}

    def leftovers(self) -> list[Path]:
        """What is left in the temporary folder, torch's own cache aside."""
        return [path for path in self.temporary.iterdir() if not path.name.startswith("torchinductor")]

    def processes(self) -> list[psutil.Process]:
        """Every running process that carries the mark, zombies aside."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("BENCHSUITE_TEST_MARK") == self.mark:
                    found.append(process)
            except psutil.Error:
                continue
        return [process for process in found if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]

    def wait_gone(self, seconds: float = 20) -> list[psutil.Process]:
        """Wait for every marked process to end; those that have not."""
        deadline = time.monotonic() + seconds
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    for process in made.processes():
        process.send_signal(signal.SIGKILL)
    shutil.rmtree(made.temporary)


@pytest.fixture
def here(bench: Bench, run_cli: Here, monkeypatch: pytest.MonkeyPatch) -> Here:
    """Run the command line as `bench.run` does, but in this process, which has its imports behind it."""
    monkeypatch.syspath_prepend(str(PLUGIN))
    monkeypatch.chdir(bench.folder)
    monkeypatch.setattr(tempfile, "tempdir", str(bench.temporary))

    def run(*arguments: object) -> tuple[int, str, str]:
        paths = os.pathsep.join(filter(None, (str(PLUGIN), os.environ.get("PYTHONPATH"))))
        for name, value in (bench.env | {"PYTHONPATH": paths}).items():
            monkeypatch.setenv(name, value)
        return run_cli(*arguments)

    return run


@pytest.fixture
def wait_until() -> Callable[[Callable[[], bool]], None]:
    """Wait for a condition; fail the test when it does not come."""

    def wait(condition: Callable[[], bool], seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come"
            time.sleep(0.02)

    return wait
