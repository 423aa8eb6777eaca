"""Layers of configuration: which value wins, what gives way, and what is said of where it came from."""

import re
from pathlib import Path
from typing import Any

import pytest

from benchsuite.contract.trial_spec import check_staging, parse_trial
from benchsuite.contract.yaml_file import flat, set_key
from benchsuite.grid.expand import _combinations, expand, load_sweep, resolve
from benchsuite.grid.layers import RESERVED, RESERVED_PREFIXES, environment_fields
from tests.helpers.configured import TINY, Files, files, without_settings
from tests.helpers.grids import TWO_CORES
from tests.helpers.snapshots import compare_messages

ROOT = Path(__file__).parents[2]
__all__ = ["files", "without_settings"]


def without(base: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in base.items() if key not in keys}


class TestPrecedence:
    def test_each_layer_wins_over_those_below(self, files: Files, monkeypatch: pytest.MonkeyPatch):
        found = [files.spec().measure.steps]
        files.write("site", base={"measure": {"steps": 11}})
        found.append(files.spec().measure.steps)
        files.write("user", base={"measure": {"steps": 12}})
        found.append(files.spec().measure.steps)
        base = TINY | {"measure": {"steps": 13}}
        found.append(files.spec(base=base).measure.steps)
        monkeypatch.setenv("BENCHSUITE_MEASURE__STEPS", "14")
        found.append(files.spec(base=base).measure.steps)
        found.append(files.spec("measure.steps=15", base=base).measure.steps)
        assert found == [30, 11, 12, 13, 14, 15]

    def test_a_layer_leaves_its_neighbours_alone(self, files: Files):
        files.write("site", base={"measure": {"steps": 11, "seed": 7}, "precision": "bf16"})
        spec = files.spec(base=TINY | {"measure": {"steps": 13}})
        assert (spec.measure.steps, spec.measure.seed, spec.precision, spec.measure.repeats) == (13, 7, "bf16", 3)

    def test_dotted_keys_are_the_same_as_nested_ones(self, files: Files):
        files.write("site", base={"measure.steps": 11, "measure": {"seed": 7}})
        assert files.spec(base=TINY | {"measure.seed": 8}).measure.model_dump(include={"steps", "seed"}) == {
            "steps": 11,
            "seed": 8,
        }

    def test_null_in_the_sweep_is_a_value(self, files: Files):
        files.write("site", base={"data": {"root": "/site"}})
        assert files.sweep(base=TINY | {"data": {"root": None}}).base["data"] == {"root": None}

    def test_an_axis_wins_over_defaults(self, files: Files):
        files.write("site", base={"measure": {"steps": 11}, "precision": "bf16"})
        plan = expand(files.sweep(grid={"precision": ["fp32", "bf16"]}), TWO_CORES)
        assert [(point.spec.precision, point.spec.measure.steps) for point in plan.points] == [
            ("fp32", 11),
            ("bf16", 11),
        ]

    def test_the_environment_wins_over_an_axis_and_an_override_brings_it_back(
        self, files: Files, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setenv("BENCHSUITE_PRECISION", "bf16")
        axis = {"precision": ["fp32", "fp16"]}
        assert files.spec(grid=axis).precision == "bf16"
        plan = expand(files.sweep("precision=[fp32, fp16]", grid=axis), TWO_CORES)
        assert [point.spec.precision for point in plan.points] == ["fp32", "fp16"]

    def test_the_environment_gives_paths_and_degrees(self, files: Files, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("BENCHSUITE_DATA__ROOT", "/x")
        monkeypatch.setenv("BENCHSUITE_PARALLELISM", "{dp: 2}")
        monkeypatch.setenv("BENCHSUITE_WORLD_SIZE", "")
        sweep = files.sweep()
        assert sweep.base["data"] == {"source": "synthetic", "root": "/x"}
        assert files.spec().world_size == 2

    def test_the_users_file_lies_where_xdg_says(self, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.delenv("BENCHSUITE_USER_CONFIG")
        (tmp_path / "benchsuite.yaml").write_text("base: {measure: {seed: 5}}")
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        assert files.spec().measure.seed == 5
        monkeypatch.delenv("XDG_CONFIG_HOME")
        monkeypatch.setenv("HOME", str(tmp_path))
        assert files.spec().measure.seed == 0
        (tmp_path / ".config").mkdir()
        (tmp_path / "benchsuite.yaml").rename(tmp_path / ".config" / "benchsuite.yaml")
        assert files.spec().measure.seed == 5


class TestIdentity:
    def test_an_id_does_not_depend_on_where_values_come_from(self, files: Files, monkeypatch: pytest.MonkeyPatch):
        base = TINY | {"precision": "bf16", "measure": {"steps": 11}}

        def ids(*overrides: str, base: dict[str, Any]) -> list[str]:
            return [point.point_id for point in expand(files.sweep(*overrides, base=base), TWO_CORES).points]

        wanted = ids(base=base)
        assert len(wanted) == 1
        assert ids("precision=bf16", "measure.steps=11", base=TINY) == wanted
        files.write("site", base={"precision": "bf16", "measure": {"steps": 12}})
        assert ids("measure.steps=11", base=TINY) == wanted
        files.write("user", base={"measure": {"steps": 11}})
        assert ids(base=TINY) == wanted
        files.write("site", base={"measure": {"steps": 12}})
        assert ids(base=TINY) != wanted
        monkeypatch.setenv("BENCHSUITE_PRECISION", "bf16")
        assert ids(base=TINY) == wanted


class TestWhatGivesWay:
    def test_a_batch_size_to_the_sweeps_global_one(self, files: Files):
        files.write("site", base={"batch_size": 32})
        base = without(TINY, "batch_size")
        assert files.spec(base=base).batch_size == 32
        for sweep in (
            {"base": base | {"global_batch_size": 8}},
            {"base": base, "grid": {"global_batch_size": [8]}},
            {"base": base, "zip": {"global_batch_size": [8]}},
        ):
            spec = files.spec(**sweep)
            assert (spec.batch_size, spec.global_batch_size) == (None, 8)
        assert files.spec("global_batch_size=8", base=base).global_batch_size == 8

    def test_a_batch_size_of_the_site_to_the_users_global_one(self, files: Files):
        files.write("site", base={"batch_size": 32})
        files.write("user", base={"global_batch_size": 16})
        spec = files.spec(base=without(TINY, "batch_size"))
        assert (spec.batch_size, spec.global_batch_size) == (None, 16)

    def test_a_null_is_no_batch_size(self, files: Files):
        files.write("site", base={"batch_size": 32})
        assert files.spec(base=without(TINY, "batch_size") | {"global_batch_size": None}).batch_size == 32

    def test_the_sweeps_batch_size_to_the_environments_global_one(self, files: Files, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("BENCHSUITE_GLOBAL_BATCH_SIZE", "8")
        assert (files.spec().batch_size, files.spec().global_batch_size) == (None, 8)
        assert files.spec("batch_size=2").batch_size == 2

    def test_a_sweep_with_both_is_still_refused(self, files: Files):
        assert "and not both" in files.refused(base=TINY | {"global_batch_size": 8})

    def test_ranks_to_the_sweeps_degrees(self, files: Files):
        files.write("site", base={"world_size": 4, "parallelism": "ddp"})
        assert files.spec(base=TINY | {"parallelism": {"dp": 2}}).world_size == 2
        assert files.spec(base=TINY | {"parallelism": "none"}).world_size == 1
        assert files.spec(base=TINY | {"parallelism": "fsdp"}).world_size == 4
        assert files.spec(grid={"parallelism": [{"dp": 2}]}).world_size == 2

    def test_ranks_to_no_mode_at_all(self, files: Files):
        files.write("site", base={"world_size": 4})
        assert files.spec().world_size == 1
        assert files.spec(base=TINY | {"parallelism": "ddp"}).world_size == 4

    def test_degrees_to_the_sweeps_ranks(self, files: Files):
        files.write("site", base={"parallelism": {"dp": 2}})
        assert files.spec().world_size == 2
        assert files.spec(base=TINY | {"world_size": 1}).parallelism == "none"

    def test_degrees_of_two_layers_do_not_mix(self, files: Files):
        files.write("site", base={"parallelism": {"dp": 2, "zero": 3}})
        assert files.spec(base=TINY | {"parallelism": {"dp": 3}}).parallelism.model_dump(include={"dp", "zero"}) == {
            "dp": 3,
            "zero": 0,
        }

    def test_a_folder_for_copies_where_nothing_is_copied(self, files: Files):
        files.write("site", base={"data": {"staging_dir": "/nvme"}})
        assert files.sweep().base["data"] == {"source": "synthetic"}
        staged = files.sweep(grid={"data.staging": ["none", "copy"]})
        assert staged.base["data"] == {"source": "synthetic", "staging_dir": "/nvme"}
        assert "without data.staging" in files.refused(base=TINY | {"data": {"staging_dir": "/nvme"}})

    @pytest.mark.parametrize(
        "path", sorted((ROOT / "benchsuite" / "sweeps").glob("*.yaml")), ids=lambda path: path.stem
    )
    def test_no_bundled_sweep_is_made_another(self, files: Files, path: Path):
        def points() -> list[Any]:
            sweep = load_sweep(path, [])
            nested = []
            for varied in _combinations(sweep):
                nested.append({})
                for key, value in {**flat(sweep.base), **varied}.items():
                    set_key(nested[-1], key, value)
            specs = [parse_trial(values) for values in nested]
            check_staging(specs)
            return [resolve(spec, TWO_CORES, 2, {}).spec for spec in specs]

        before = points()
        assert before
        files.write("site", base={"batch_size": 2, "data": {"staging_dir": "/nvme"} if not _stages(before) else {}})
        files.write("user", base={"world_size": 4} if {spec.parallelism for spec in before} == {"none"} else {})
        assert points() == before


def _stages(specs: list[Any]) -> bool:
    return any(spec.data.staging != "none" for spec in specs)


class TestRefused:
    @pytest.mark.parametrize("which", ["site", "user"])
    def test_names_the_file(self, files: Files, which: str) -> None:
        cases = [
            {"bse": {}},
            {"base": {"data": {"rot": "/x"}}},
            {"base": {"batchsize": 4}},
            {"base": {"measure": {"steps": "many"}}},
            {"base": {"precision": "bf61"}},
            {"base": {"batch_size": 4, "global_batch_size": 8}},
            {"base": [1]},
            {"store": 5},
            {"submit": {"acount": "x"}},
            {"submit": {"time": "2h"}},
            {"submit": {"mode": "arry"}},
        ]

        def message(value: dict[str, Any]) -> str:
            path = files.write(which, **value)
            line = files.refused()
            assert line.startswith(f"{path}: ")
            return line.removeprefix(f"{path}: ")

        compare_messages("configuration_files", cases, message)

    def test_names_the_variable(self, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
        cases = [
            ("BENCHSUITE_MEASURE__STEP", "5"),
            ("BENCHSUITE_DATA", "{}"),
            ("BENCHSUITE_STOER", "x"),
            ("BENCHSUITE_MEASURE__STEPS", "many"),
            ("BENCHSUITE_MEASURE__STEPS", "[1, 2]"),
            ("BENCHSUITE_MEASURE__STEPS", "{"),
        ]

        def message(name: str, value: str) -> str:
            with monkeypatch.context() as patch:
                patch.setenv(name, value)
                return files.refused()

        compare_messages("configuration_variables", cases, message)

    def test_a_file_that_a_variable_names_must_be_there(self, files: Files, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("BENCHSUITE_SITE", "/gone.yaml")
        assert files.refused() == "BENCHSUITE_SITE=/gone.yaml: no such file"

    def test_a_file_that_is_no_yaml(self, files: Files):
        files.write("site").write_text("a: b: c")
        assert "site.yaml: not YAML" in files.refused()

    def test_every_variable_that_the_packages_use_is_known(self):
        used = set()
        for package in ("benchsuite", "storage", "workloads", "results", "tests/storage", "tests/faults"):
            for path in (ROOT / package).rglob("*.py"):
                used |= set(re.findall(r"\"BENCHSUITE_([A-Z_]+[A-Z])\"", path.read_text()))
        assert {"STORE", "NIGHTLY_SWEEP"} <= used
        fields = set(environment_fields({f"BENCHSUITE_{name}": "1" for name in used}))
        others = {name for name in used if f"BENCHSUITE_{name}" not in fields}
        assert all(name in RESERVED or name.startswith(RESERVED_PREFIXES) for name in others)
