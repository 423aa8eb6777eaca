"""`search` by real trials on emulated accelerators, and `data generate --samples auto`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchsuite.cli import data
from benchsuite.host import load
from benchsuite.results.store.store import ResultsStore
from benchsuite.storage.dataset.manifest import read_manifest

Run = Callable[..., tuple[int, str, str]]
BASE: dict[str, Any] = {
    "workload": "resnet50",
    "variant": "nano",
    "device": "emulated:200ms",
    "parallelism": "ddp",
    "batch_size": 2,
    "measure": {"steps": 4, "warmup_steps": 1, "repeats": 2, "ceilings": False},
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("data")
    data.generate(made / "files", data.dataset_request("resnet50", "nano", "files", []), 48, 0, "jpeg")
    return made


@pytest.fixture
def file(root: Path, tmp_path: Path) -> Path:
    reads = {"root": str(root), "format": "files", "cache": "warm", "num_workers": 0}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"name": "mine", "base": BASE | {"data": reads}}))
    return path


def test_all_that_are_tried_are_kept_and_the_same_command_runs_nothing_again(run_cli: Run, file: Path, tmp_path: Path):
    words = ["search", file, "--au", 0.2, "--most", 2, "--max-repeats", 3, "--store", tmp_path / "store"]
    code, out, err = run_cli(*words)
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0] == "-> 2 accelerators are kept at AU 0.20 or above; more than 2 were not tried: --most"
    assert [line.split()[0] for line in lines[2:]] == ["1", "2"] and all(line.endswith("  kept") for line in lines[2:])
    assert "dataset: 48 samples; MLPerf Storage asks 2 accelerators for " in err
    records = list(ResultsStore(tmp_path / "store").records())
    assert {record.spec["world_size"] for record in records} == {1, 2}
    again, told, _ = run_cli(*words, "--format", "json")
    assert again == 0
    found = json.loads(told)
    assert [one["verdict"] for one in found["tried"]] == ["kept", "kept"] and found["threshold"] == 0.2
    assert sorted(au for one in found["tried"] for au in one["au"]) == sorted(
        record.figures.au for record in records if record.status == "ok"
    )
    assert len(list(ResultsStore(tmp_path / "store").records())) == len(records)


@pytest.mark.full
def test_a_step_that_no_path_keeps_up_with(run_cli: Run, file: Path, tmp_path: Path):
    words = ["--most", 4, "-o", "device=emulated:10us", "--store", tmp_path / "store"]
    code, out, err = run_cli("search", file, *words)
    assert code == 0, err
    assert out.splitlines()[0] == "-> not even 1 accelerator is known to be kept at AU 0.90 or above; 1: not"


def test_a_dataset_that_is_too_small_is_said(run_cli: Run, file: Path, tmp_path: Path):
    words = ["--most", 2, "-o", "data.cache=cold", "-o", "measure.steps=100", "--store", tmp_path / "store"]
    code, out, err = run_cli("search", file, *words)
    assert code == 4, err
    assert "1: cold: " in out.splitlines()[0]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"grid": {"data.num_workers": [0, 1]}}, "search: mine varies data.num_workers; only world_size may vary"),
        (
            {"base": BASE | {"device": "cpu", "data": {"source": "synthetic"}}},
            "search counts accelerators that are not",
        ),
        ({"grid": {"world_size": [4, 8]}}, "--most 2: mine begins with world_size 4"),
    ],
)
def test_refused(run_cli: Run, file: Path, tmp_path: Path, change: dict[str, Any], line: str):
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | change))
    code, out, err = run_cli("search", file, "--most", 2, "--store", tmp_path / "store")
    assert (code, out) == (2, "") and f"error: {line}" in err, err


class TestAuto:
    def test_as_many_as_the_rule_asks(self, run_cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(load, "memory_bytes", lambda: (40_000, 40_000))
        target = tmp_path / "made"
        words = ["--workload", "gpt_neox", "--variant", "nano", "--format", "tokens"]
        auto = ["--samples", "auto", "--accelerators", 2, "--batch-size", 3, "--hosts", 1]
        code, _, err = run_cli("data", "generate", target, *words, *auto)
        assert code == 0, err
        manifest = read_manifest(target)
        sample = manifest.stored_bytes / manifest.num_samples
        assert manifest.num_samples == max(3000, -(-5 * 40_000 // sample))
        assert "500 steps x batch 3 x 2 accelerators = 3000)" in err

    @pytest.mark.parametrize(
        ("words", "line"),
        [
            (["--samples", "auto"], "--samples auto: give --accelerators and --batch-size"),
            (["--accelerators", 3], "--accelerators, --batch-size and --hosts go with --samples auto"),
            (["--samples", "many"], "--samples 'many': allowed: a whole number from 1 on, or auto"),
            (["--samples", "0"], "--samples '0': allowed: a whole number from 1 on, or auto"),
        ],
    )
    def test_refused(self, run_cli: Run, tmp_path: Path, words: list[object], line: str):
        code, _, err = run_cli("data", "generate", tmp_path / "made", *words)
        assert code == 2 and err == f"error: {line}\n"
