"""A format, a stock reader, a loader, a workload, a launcher and an engine of someone else pass our suites, and run."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from benchsuite.launch.agents import AgentLauncher
from benchsuite.launch.launcher import load_launcher
from benchsuite.results.store.store import ResultsStore
from benchsuite.storage import stock_reader
from benchsuite.storage.stock.reader import Stock
from tests.helpers.launchers import LauncherConformance
from tests.plugins.conftest import FOLDERS
from tests.storage.conformance import FormatConformance
from tests.storage.conftest import Made
from tests.storage.loaders.conformance import LoaderConformance
from tests.storage.samples import check_stock_fields


class TestZip(FormatConformance):
    name = "zip"
    kinds = ("image",)  # said here, since a format of someone else cannot be asked before its tests run


def test_its_stock_reader_gives_what_was_stored(made: Made) -> None:
    dataset = made("zip", "image", {})
    stock: Stock = stock_reader("zip")
    assert stock.by_row is not None
    opened = stock.by_row(dataset)
    check_stock_fields({dataset.key(row): opened[row] for row in range(26)}, "image", 26)


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


@pytest.fixture
def ran(
    run_cli: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """What a verb prints where these packages are installed, and in a folder of its own."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*FOLDERS, os.environ.get("PYTHONPATH", "")]))
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> str:
        code, out, err = run_cli(*words)
        assert code == 0, out + err
        return out

    return run


def test_they_are_listed(ran: Callable[..., str]) -> None:
    found = json.loads(ran("list", "--format", "json"))
    assert "zip" in found["formats"] and "channels_last" in found["loaders"]
    assert "linear" in found["workloads"] and "env" in found["launchers"] and "gather" in found["engines"]


def test_an_engine_trains_as_one_process_does(ran: Callable[..., str], tmp_path: Path) -> None:
    spec = {"workload": "gpt_neox", "variant": "nano", "batch_size": 4, "data": {"source": "synthetic"}}
    parallelism = {"engine": "gather", "dp": 2}
    (tmp_path / "t.yaml").write_text(yaml.safe_dump({**spec, "parallelism": parallelism, "device": "cpu"}))
    assert "those of one process" in ran("trial", "t.yaml", "--check-loss")
    ran("trial", "t.yaml", "--store", "store", "-o", "measure.steps=4", "-o", "measure.warmup_steps=1")
    (record,) = ResultsStore(tmp_path / "store").latest()
    assert (record.status, record.label) == ("ok", "gpt_neox gather")
    assert record.figures.get("wire_bytes_per_step") == 4 * 216_448  # its own gradients, to the other rank


def test_a_sweep_of_someone_elses_everything(ran: Callable[..., str], tmp_path: Path) -> None:
    asked = ["--workload", "linear", "--variant", "tiny", "--format", "zip", "--samples", "128"]
    ran("data", "generate", "zip", *asked)
    data = {"root": str(tmp_path), "format": "zip", "loader": "channels_last", "num_workers": 1}
    base = {"workload": "linear", "variant": "tiny", "batch_size": 4, "parallelism": "ddp", "world_size": 2}
    base |= {"data": data}
    measure = {"steps": 4, "warmup_steps": 1, "repeats": 1, "ceilings": False}
    grid = {"data.loader": ["channels_last", "torch"]}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump({"base": {**base, "measure": measure}, "grid": grid}))
    ran("sweep", "s.yaml", "--store", "store", "--launcher", "env")
    found = [record for record in ResultsStore(tmp_path / "store").latest() if record.kind == "trial"]
    assert {(record.status, record.env["launcher"], record.spec["workload"]) for record in found} == {
        ("ok", "env", "linear")
    }
    read = {
        record.spec["data"]["loader"]: (record.spec["data"]["reader"], record.env.get("reader")) for record in found
    }
    assert read == {"torch": ("stock", "zipfile"), "channels_last": ("tuned", None)}
