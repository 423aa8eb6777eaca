"""A format, a loader, a workload, a launcher and an engine of someone else pass our suites, and run in a sweep."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from benchsuite.launch.agents import AgentLauncher
from benchsuite.launch.launcher import load_launcher
from benchsuite.results.store.store import ResultsStore
from tests.helpers.launchers import LauncherConformance
from tests.plugins.conftest import FOLDERS
from tests.storage.conformance import FormatConformance
from tests.storage.loaders.conformance import LoaderConformance


class TestZip(FormatConformance):
    name = "zip"
    kinds = ("image",)  # said here, since a format of someone else cannot be asked before its tests run


class TestChannelsLast(LoaderConformance):
    name = "channels_last"


class TestEnv(LauncherConformance):
    name = "env"

    @pytest.fixture(scope="class")
    @classmethod
    def made(cls) -> AgentLauncher:
        found = load_launcher("env")
        assert isinstance(found, AgentLauncher)
        return found


def ran(words: Sequence[str], folder: Path) -> str:
    """What a verb prints where these packages are installed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*FOLDERS, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "benchsuite", *words]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_they_are_listed(tmp_path: Path) -> None:
    found = json.loads(ran(["list", "--format", "json"], tmp_path))
    assert "zip" in found["formats"] and "channels_last" in found["loaders"]
    assert "linear" in found["workloads"] and "env" in found["launchers"] and "gather" in found["engines"]


def test_an_engine_trains_as_one_process_does(tmp_path: Path) -> None:
    spec = {"workload": "gpt_neox", "variant": "nano", "batch_size": 4, "data": {"source": "synthetic"}}
    parallelism = {"engine": "gather", "dp": 2}
    (tmp_path / "t.yaml").write_text(yaml.safe_dump({**spec, "parallelism": parallelism, "device": "cpu"}))
    assert "those of one process" in ran(["trial", "t.yaml", "--check-loss"], tmp_path)
    ran(["trial", "t.yaml", "--store", "store", "-o", "measure.steps=4"], tmp_path)
    (record,) = ResultsStore(tmp_path / "store").latest()
    assert (record.status, record.label) == ("ok", "gpt_neox gather")
    assert record.figures.get("wire_bytes_per_step") == 4 * 216_448  # its own gradients, to the other rank


def test_a_sweep_of_someone_elses_everything(tmp_path: Path) -> None:
    asked = ["--workload", "linear", "--variant", "tiny", "--format", "zip", "--samples", "256"]
    ran(["data", "generate", "zip", *asked], tmp_path)
    data = {"root": str(tmp_path), "format": "zip", "loader": "channels_last", "num_workers": 1}
    base = {"workload": "linear", "variant": "tiny", "batch_size": 4, "parallelism": "ddp", "world_size": 2}
    base |= {"data": data}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump({"base": {**base, "measure": {"steps": 4, "repeats": 1}}}))
    ran(["sweep", "s.yaml", "--store", "store", "--launcher", "env"], tmp_path)
    (record,) = [record for record in ResultsStore(tmp_path / "store").latest() if record.kind == "trial"]
    assert (record.status, record.env["launcher"]) == ("ok", "env")
    assert (record.spec["workload"], record.spec["data"]["format"], record.spec["data"]["loader"]) == (
        "linear",
        "zip",
        "channels_last",
    )
