"""Sweep files: which points they mean."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchsuite.contract.errors import UserError
from benchsuite.contract.trial_spec import TrialSpec, parse_sweep, revision_fields
from benchsuite.contract.yaml_file import parse_yaml, read_yaml
from benchsuite.grid.expand import expand, with_nodes
from benchsuite.grid.layers import apply_layers
from benchsuite.host.machine import Machine
from tests.helpers.grids import SYNTHETIC, TWO_CORES, in_folder, labels, load, plan, refused
from tests.helpers.snapshots import compare_messages

__all__ = ["in_folder"]


class TestPoints:
    def test_without_axes_there_is_one(self):
        found = plan()
        assert labels(found) == ["resnet50"]
        assert (found.skipped, found.duplicates) == ([], 0)

    def test_grid_is_a_cartesian_product_in_the_order_of_the_file(self):
        found = plan(grid={"batch_size": [1, 2], "precision": ["fp32", "bf16"]})
        assert labels(found) == [
            "batch_size 1 fp32",
            "batch_size 1 bf16",
            "batch_size 2 fp32",
            "batch_size 2 bf16",
        ]
        assert [(point.spec.batch_size, point.spec.precision) for point in found.points] == [
            (1, "fp32"),
            (1, "bf16"),
            (2, "fp32"),
            (2, "bf16"),
        ]

    def test_zip_varies_keys_together_within_each_point_of_the_grid(self):
        found = plan(grid={"batch_size": [1, 2]}, zip={"world_size": [1, 2], "parallelism": ["none", "ddp"]})
        assert [(p.spec.batch_size, p.spec.world_size, p.spec.parallelism) for p in found.points] == [
            (1, 1, "none"),
            (1, 2, "ddp"),
            (2, 1, "none"),
            (2, 2, "ddp"),
        ]

    def test_include_adds_points(self):
        found = plan(grid={"batch_size": [1]}, include=[{"batch_size": 9, "precision": "bf16"}, {"measure.steps": 5}])
        assert [(p.spec.batch_size, p.spec.precision, p.spec.measure.steps) for p in found.points] == [
            (1, "fp32", 30),
            (9, "bf16", 30),
            (4, "fp32", 5),
        ]

    def test_exclude_drops_what_matches_every_key_of_an_entry(self):
        found = plan(
            grid={"batch_size": [1, 2], "precision": ["fp32", "bf16"]},
            exclude=[{"batch_size": 2, "precision": "bf16"}, {"batch_size": 9}],
        )
        assert labels(found) == ["batch_size 1 fp32", "batch_size 1 bf16", "batch_size 2 fp32"]
        assert [(skipped.point.label, skipped.reason) for skipped in found.skipped] == [
            ("batch_size 2 bf16", "excluded by the file")
        ]

    def test_exclude_drops_included_points_too(self):
        assert labels(plan(include=[{"batch_size": 9}], exclude=[{"batch_size": 9}])) == ["resnet50"]

    def test_duplicates_are_merged_and_counted(self):
        found = plan(grid={"batch_size": [1, 2, 1]}, include=[{"batch_size": 2}])
        assert labels(found) == ["batch_size 1", "batch_size 2"]
        assert found.duplicates == 2

    def test_points_that_differ_only_in_what_their_source_ignores_are_one(self):
        found = plan(grid={"data.num_workers": [1, 2], "data.format": ["files", "webdataset"]})
        assert (len(found.points), found.duplicates) == (1, 3)

    def test_points_know_their_place_in_the_sweep(self):
        found = plan(grid={"world_size": [1, 2], "batch_size": [1, 2, 1]})
        assert [point.order for point in found.points] == [0, 1]
        assert [skipped.point.order for skipped in found.skipped] == [3, 4]

    def test_labels_are_words(self):
        found = plan(grid={"world_size": [1, 2], "parallelism": ["ddp"], "data.num_workers": [1]})
        assert labels(found) == ["1 rank ddp 1 worker", "2 ranks ddp 1 worker"]

    @pytest.mark.parametrize(
        ("asked", "label"),
        [({"engine": "broadcast"}, "resnet50 broadcast"), ({"dp": 1}, "resnet50"), ("ddp", "resnet50")],
    )
    def test_where_nothing_varies_the_label_names_the_engine(self, asked: object, label: str):
        assert labels(plan(SYNTHETIC | {"parallelism": asked})) == [label]

    def test_exclude_sees_the_default_world_size(self):
        assert labels(plan(exclude=[{"world_size": 1}])) == []

    def test_exclude_with_a_nested_entry_matches_or_is_refused(self):
        try:
            found = expand(load(exclude=[{"data": {"source": "synthetic"}}]), TWO_CORES)
        except UserError:
            return
        assert found.points == []

    def test_an_empty_exclude_drops_nothing_or_is_refused(self):
        try:
            found = expand(load(exclude=[{}]), TWO_CORES)
        except UserError:
            return
        assert len(found.points) == 1

    def test_a_key_varies_in_one_way(self):
        assert "batch_size" in refused(grid={"batch_size": [1, 2]}, zip={"batch_size": [3]})


class TestFiles:
    def test_the_name_is_the_files_unless_given(self):
        assert load().name == "made"
        assert load(name="mine").name == "mine"

    def test_a_file_is_read_as_it_stands(self):
        sweep = load(question="Why?", grid={"batch_size": [1, 2]}, scaling="weak")
        assert (sweep.question, sweep.grid, sweep.scaling) == ("Why?", {"batch_size": [1, 2]}, "weak")

    def test_mistakes(self) -> None:
        cases = [
            {"gird": {}},
            {"grid": {"batchsize": [1]}},
            {"grid": {"data.formt": ["files"]}},
            {"zip": {"world_sizes": [1]}},
            {"exclude": [{"data.formt": "files"}]},
            {"include": [{"batchsize": 1}]},
            {"base": {"workload": "resnet50", "batch": 4}},
            {"zip": {"world_size": [1, 2], "batch_size": [1]}},
            {"grid": {"batch_size": []}},
            {"zip": {"batch_size": []}},
            {"scaling": "strong"},
            {"scaling": "weak", "base": {"workload": "resnet50", "global_batch_size": 4}},
            {"base": {}},
            {"grid": {"workload": ["resnet51"]}},
            {"grid": {"variant": ["tinny"]}},
        ]
        compare_messages("sweep_files", cases, lambda change: refused(**change))

    def test_text_that_is_no_mapping(self) -> None:
        cases = [
            "{",
            "a: b: c",
            "\tkey: 1",
            "- 1\n- 2",
            "",
            "just words",
        ]

        def message(text: str) -> str:
            with pytest.raises(UserError) as caught:
                parse_yaml(text, "x.yaml")
            assert "\n" not in str(caught.value)
            return str(caught.value)

        compare_messages("yaml_texts", cases, message)

    def test_a_key_that_is_given_twice_is_refused(self):
        with pytest.raises(UserError, match="batch_size"):
            parse_yaml("base:\n  batch_size: 4\n  batch_size: 8\n", "x.yaml")

    def test_files_that_cannot_be_read(self, tmp_path: Path):
        with pytest.raises(UserError, match=r"missing\.yaml: No such file or directory"):
            read_yaml(Path("missing.yaml"))
        with pytest.raises(UserError, match="a folder, not a regular file"):
            read_yaml(tmp_path)
        Path("binary.yaml").write_bytes(b"\xff\xfe\x00\x81")
        with pytest.raises(UserError, match=r"binary\.yaml: not YAML"):
            read_yaml(Path("binary.yaml"))

    @pytest.mark.parametrize(
        "change",
        [
            {"base": [1, 2]},
            {"base": "resnet50"},
            {"grid": "batch_size"},
            {"grid": [1]},
            {"base": {**SYNTHETIC, "data": {1: 2}}},
        ],
    )
    def test_wrong_types_are_one_line(self, change: dict[str, Any]):
        with pytest.raises(UserError):
            expand(load(**change), TWO_CORES)


class TestOverrides:
    def test_a_scalar_changes_the_base(self):
        sweep = load("batch_size=7", "measure.steps=12", "data.pin_memory=false", "precision=bf16")
        spec = expand(sweep, TWO_CORES).points[0].spec
        assert (spec.batch_size, spec.measure.steps, spec.precision) == (7, 12, "bf16")
        assert sweep.base["data"] == {"source": "synthetic", "pin_memory": False}

    def test_a_list_becomes_an_axis(self):
        assert labels(expand(load("batch_size=[1, 2]"), TWO_CORES)) == ["batch_size 1", "batch_size 2"]

    def test_an_axis_is_replaced(self):
        grid = {"batch_size": [1, 2, 3]}
        assert labels(expand(load("batch_size=[8, 9]", grid=grid), TWO_CORES)) == ["batch_size 8", "batch_size 9"]
        found = expand(load("batch_size=8", grid=grid), TWO_CORES)
        assert [point.spec.batch_size for point in found.points] == [8]

    def test_the_last_one_counts(self):
        assert load("batch_size=1", "batch_size=2").base["batch_size"] == 2

    def test_null_and_equals_signs_in_values(self):
        value = apply_layers({"base": {"batch_size": 4}}, "s.yaml", ["batch_size=null", "data.root=/data/a=b"]).sweep
        assert value["base"] == {"batch_size": None, "data": {"root": "/data/a=b"}}

    def test_what_is_overridden_is_not_changed_itself(self):
        value = {"base": {"data": {"root": "/a"}}, "grid": {"batch_size": [1]}}
        before = json.dumps(value)
        apply_layers(value, "s.yaml", ["data.root=/b", "batch_size=3"])
        assert json.dumps(value) == before

    def test_bad_overrides(self) -> None:
        cases = [
            "batch_size",
            "batch_size=[1",
            "batchsize=1",
            "batchsize=[1, 2]",
            "data.cahce=warm",
            "batch_size=four",
            "batch_size=[]",
            "data=3",
            "=3",
        ]
        compare_messages("overrides", cases, refused)

    @pytest.mark.parametrize("text", ["world_size=3", "world_size=[3]"])
    def test_a_zipped_key_is_replaced_or_refused(self, text: str):
        zipped = {"world_size": [1, 2], "parallelism": ["none", "ddp"]}
        try:
            found = expand(load(text, zip=zipped), TWO_CORES)
        except UserError:
            return
        assert {point.spec.world_size for point in found.points} == {3}


def test_a_point_for_every_node():
    def names() -> list[str]:
        return ["n1", "n2"]

    def never() -> list[str]:
        raise AssertionError("agents are started only where nodes are asked for")

    sweep = parse_sweep({"name": "s", "base": {"workload": "resnet50", "batch_size": 4}})
    assert with_nodes(sweep, never) is sweep
    each = sweep.model_copy(update={"base": sweep.base | {"node": "each"}})
    assert with_nodes(each, names).grid == {"node": ["n1", "n2"]} and "node" not in with_nodes(each, names).base
    axis = sweep.model_copy(update={"grid": {"node": ["each"], "batch_size": [1]}})
    assert with_nodes(axis, names).grid == {"node": ["n1", "n2"], "batch_size": [1]}
    named = sweep.model_copy(update={"grid": {"node": ["n7"]}})
    assert with_nodes(named, never) is named


@pytest.mark.parametrize(
    ("nodes", "ranks", "replicas", "former_id"),
    [(1, 8, 2, "ce7798f6882a"), (2, 16, 2, "ff0c65f3ff6c"), (4, 32, 4, "2ca81d29da9b")],
)
def test_hsdp_has_a_replica_on_each_node_of_the_launcher(nodes: int, ranks: int, replicas: int, former_id: str):
    """Devices are told. A point is revised by it only where it has other replicas than before."""
    base = {"workload": "gpt_neox", "variant": "tiny", "device": "cuda", "batch_size": 2, "data": SYNTHETIC["data"]}
    base |= {"parallelism": "hsdp", "world_size": ranks}
    (point,) = plan(base, Machine(cores=64, cuda_devices=8, nodes=nodes)).points
    assert point.spec.layout.dp_replicate == replicas
    assert TrialSpec.model_validate_json(point.spec.model_dump_json()).layout == point.spec.layout, "as ranks see it"
    told = revision_fields(point.spec, None)
    assert told["former_match_id"] == former_id
    assert told["revision"] == ("fsdp 2" if replicas == 2 else "fsdp 2, hsdp 2")


def test_hsdp_follows_the_ranks_that_the_scheduler_was_asked_for():
    base = {**SYNTHETIC, "workload": "gpt_neox", "parallelism": "hsdp", "world_size": 8}
    machine = Machine(cores=64, cuda_devices=0, nodes=4, ranks_per_node=2)
    assert plan(base, machine).points[0].spec.layout.dp_replicate == 4
    asked = {**base, "nodes": 4}
    assert plan(asked, Machine(cores=64, cuda_devices=0, nodes=4)).points[0].spec.layout.dp_replicate == 4
