"""`sweep --show-config`, and the store that a site's or user's file names."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchsuite.results.store.store import ResultsStore
from tests.helpers.configured import TINY, Files, files, without_settings
from tests.results.made import made_record

__all__ = ["files", "without_settings"]
Run = Callable[..., tuple[int, str, str]]


class TestShowConfig:
    def shown(self, run_cli: Run, *arguments: object) -> dict[str, tuple[Any, Any, str]]:
        code, out, err = run_cli("sweep", "mine.yaml", "--show-config", "--format", "json", *arguments)
        assert (code, err) == (0, "")
        return {row["key"]: (row["value"], row["varies"], row["origin"]) for row in json.loads(out)}

    def test_every_value_with_its_layer(self, files: Files, run_cli: Run, monkeypatch: pytest.MonkeyPatch):
        site = files.write("site", base={"measure": {"steps": 11, "seed": 3}, "batch_size": 9, "compile": True})
        user = files.write("user", base={"measure": {"seed": 4}})
        files.write("mine", base=TINY | {"parallelism": {"dp": 2}}, grid={"precision": ["fp32", "bf16"]})
        monkeypatch.setenv("BENCHSUITE_MEASURE__REPEATS", "2")
        found = self.shown(run_cli, "-o", "grad_accum=2")
        assert found["measure.steps"] == (11, None, str(site))
        assert found["measure.seed"] == (4, None, str(user))
        assert found["compile"] == (True, None, str(site))
        assert found["batch_size"] == (4, None, "mine.yaml")
        assert found["parallelism"] == ({"dp": 2}, None, "mine.yaml")
        assert found["precision"] == (["fp32", "bf16"], "grid", "mine.yaml")
        assert found["measure.repeats"] == (2, None, "BENCHSUITE_MEASURE__REPEATS")
        assert found["grad_accum"] == (2, None, "-o")
        assert found["data.num_workers"] == (2, None, "built-in")
        assert found["optimizer"] == (None, None, "built-in")
        assert found["global_batch_size"] == (None, None, "built-in")

    def test_every_field_is_there_once(self, files: Files, run_cli: Run):
        files.write(
            "mine", base=TINY, grid={"parallelism.dp": [1, 2]}, zip={"batch_size": [1, 2], "compile": [True, False]}
        )
        found = self.shown(run_cli, "-o", "measure.steps=[5, 6]")
        assert {"workload", "data.root", "measure.profile", "device", "parallelism", "comm_hook"} <= set(found)
        assert "data" not in found and "measure" not in found
        assert found["parallelism.dp"] == ([1, 2], "grid", "mine.yaml")
        assert found["batch_size"] == ([1, 2], "zip", "mine.yaml")
        assert found["measure.steps"] == ([5, 6], "grid", "-o")

    def test_as_a_table(self, files: Files, run_cli: Run, tmp_path: Path):
        site = files.write("site", base={"device": "emulated:180ms"})
        files.write("mine", base=TINY, grid={"world_size": [1, 2]})
        code, out, err = run_cli("sweep", "mine.yaml", "--show-config")
        rows = [re.split(r"  +", line.strip()) for line in out.splitlines()]
        assert (code, err, rows[0]) == (0, "", ["field", "value", "from"])
        assert ["device", "emulated:180ms", str(site)] in rows
        assert ["world_size", "grid: [1, 2]", "mine.yaml"] in rows
        assert ["data.root", "null", "built-in"] in rows
        assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.yaml", "site.yaml"], "nothing ran"

    def test_a_bundled_sweep(self, files: Files, run_cli: Run):
        code, out, _ = run_cli("sweep", "weak-scaling.yaml", "--show-config")
        assert code == 0 and "grid: [1, 2]" in out

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--show-config", "-o", "batchsize=3"], ["unknown key 'batchsize'", "nearest: batch_size"]),
            (["--show-config", "-o", "measure.steps=many"], ["measure.steps 'many'"]),
            (["--show-config", "-o", "gird=[1]"], ["unknown key 'gird'"]),
            (["--dry-run", "--format", "json"], ["--show-config"]),
        ],
    )
    def test_mistakes(self, files: Files, run_cli: Run, arguments: list[str], words: list[str]):
        files.write("mine", base=TINY)
        code, out, err = run_cli("sweep", "mine.yaml", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert all(word in err for word in words), err


class TestDefaultStore:
    @pytest.fixture
    def stores(self, tmp_path: Path) -> dict[str, Path]:
        """A store for each layer, whose report asks its name."""
        made = {
            name: tmp_path / name for name in ("site-store", "user-store", "variable", "option", "benchsuite-store")
        }
        for name, path in made.items():
            ResultsStore(path).append(made_record(0, question=f"{name}?"))
        return made

    def test_layers(self, files: Files, run_cli: Run, stores: dict[str, Path], monkeypatch: pytest.MonkeyPatch):
        def asked(*arguments: object) -> str:
            code, out, err = run_cli("report", *arguments)
            assert (code, err) == (0, "")
            return out.splitlines()[0]

        assert asked() == "benchsuite-store?"
        files.write("user", base={})
        assert asked() == "benchsuite-store?"
        files.write("site", store=str(stores["site-store"]))
        assert asked() == "site-store?"
        files.write("user", store=str(stores["user-store"]))
        assert asked() == "user-store?"
        monkeypatch.setenv("BENCHSUITE_STORE", str(stores["variable"]))
        assert asked() == "variable?"
        assert asked("--store", stores["option"]) == "option?"

    def test_verbs_of_verbs_too(self, files: Files, run_cli: Run, stores: dict[str, Path]):
        files.write("site", store=str(stores["site-store"]))
        out = run_cli("results", "show", "--format", "json")[1]
        assert [row["question"] for row in json.loads(out)] == ["site-store?"]

    def test_a_broken_file_is_one_line(self, files: Files, run_cli: Run):
        files.write("site", stoer="x")
        code, out, err = run_cli("report")
        assert (code, out, err.count("\n")) == (2, "", 1) and "nearest: store" in err
