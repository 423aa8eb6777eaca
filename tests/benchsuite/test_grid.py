"""Sweep files: which points they mean, and why some are skipped."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchsuite.blocks import layout, reader_samples
from benchsuite.errors import UserError
from benchsuite.grid import Plan, expand, load_sweep, override, parse_yaml, read_yaml
from benchsuite.machine import Machine
from benchsuite.spec import parse_sweep
from storage.format import DatasetError, read_manifest

TWO_CORES = Machine(cores=2, cuda_devices=0)
SYNTHETIC: dict[str, Any] = {
    "workload": "resnet50",
    "variant": "tiny",
    "batch_size": 4,
    "data": {"source": "synthetic"},
}


def plan(base: dict[str, Any] | None = None, machine: Machine = TWO_CORES, **sweep: Any) -> Plan:
    """The plan of a sweep over a base that reads nothing, unless another is given."""
    return expand(parse_sweep({"name": "s", "base": SYNTHETIC if base is None else base, **sweep}), machine)


def storage_base(root: Path, **data: Any) -> dict[str, Any]:
    """A base that reads the small dataset: 2 workers, 2 batches each, 8 steps."""
    settings = {"root": str(root), "num_workers": 2, "prefetch_factor": 2} | data
    return {"workload": "resnet50", "variant": "tiny", "batch_size": 4, "data": settings, "measure": {"steps": 8}}


def labels(found: Plan) -> list[str]:
    return [point.label for point in found.points]


def reasons(found: Plan) -> list[str]:
    return [skipped.reason for skipped in found.skipped]


def refused(*overrides: str, machine: Machine = TWO_CORES, **sweep: Any) -> str:
    """The one line that refuses a sweep file with these contents."""
    with pytest.raises(UserError) as caught:
        expand(load(*overrides, **sweep), machine)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load(*overrides: str, **sweep: Any) -> Any:
    """A sweep that went through a file."""
    path = Path("made.yaml")
    path.write_text(yaml.safe_dump({"base": SYNTHETIC, **sweep}))
    return load_sweep(path, list(overrides))


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

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"gird": {}}, ["unknown key 'gird'", "nearest: grid"]),
            ({"grid": {"batchsize": [1]}}, ["unknown key 'batchsize'", "batch_size", "nearest: batch_size"]),
            ({"grid": {"data.formt": ["files"]}}, ["unknown key 'data.formt'", "nearest: data.format"]),
            ({"zip": {"world_sizes": [1]}}, ["unknown key 'world_sizes'", "nearest: world_size"]),
            ({"exclude": [{"data.formt": "files"}]}, ["unknown key 'data.formt'", "nearest: data.format"]),
            ({"include": [{"batchsize": 1}]}, ["unknown key 'batchsize'", "nearest: batch_size"]),
            ({"base": {"workload": "resnet50", "batch": 4}}, ["unknown key 'batch'", "nearest: batch_size"]),
            ({"zip": {"world_size": [1, 2], "batch_size": [1]}}, ["zip", "differ in length", "'world_size': 2"]),
            ({"grid": {"batch_size": []}}, ["'batch_size'", "no values"]),
            ({"zip": {"batch_size": []}}, ["'batch_size'", "no values"]),
            ({"scaling": "strong"}, ["scaling", "global_batch_size"]),
            ({"scaling": "weak", "base": {"workload": "resnet50", "global_batch_size": 4}}, ["scaling", "batch_size"]),
            ({"base": {}}, ["'workload' is missing"]),
            ({"grid": {"workload": ["resnet51"]}}, ["workload 'resnet51'", "nearest: resnet50"]),
            ({"grid": {"variant": ["tinny"]}}, ["variant", "'tinny'", "nearest: tiny"]),
            ({"grid": {"precision": ["fp32", "fp16"]}}, ["precision 'fp16'", "not yet supported"]),
        ],
    )
    def test_mistakes(self, change: dict[str, Any], words: list[str]):
        message = refused(**change)
        assert all(word in message for word in words), message

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("{", ["x.yaml", "not YAML"]),
            ("a: b: c", ["x.yaml", "not YAML"]),
            ("\tkey: 1", ["x.yaml", "not YAML"]),
            ("- 1\n- 2", ["x.yaml", "list"]),
            ("", ["x.yaml", "is empty"]),
            ("just words", ["x.yaml", "str"]),
        ],
    )
    def test_text_that_is_no_mapping(self, text: str, words: list[str]):
        with pytest.raises(UserError) as caught:
            parse_yaml(text, "x.yaml")
        assert "\n" not in str(caught.value)
        assert all(word in str(caught.value) for word in words), str(caught.value)

    def test_a_key_that_is_given_twice_is_refused(self):
        with pytest.raises(UserError, match="batch_size"):
            parse_yaml("base:\n  batch_size: 4\n  batch_size: 8\n", "x.yaml")

    def test_files_that_cannot_be_read(self, tmp_path: Path):
        with pytest.raises(UserError, match=r"missing\.yaml: No such file or directory"):
            read_yaml(Path("missing.yaml"))
        with pytest.raises(UserError, match="Is a directory"):
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
        value = override({"base": {"batch_size": 4}}, ["batch_size=null", "data.root=/data/a=b"])
        assert value["base"] == {"batch_size": None, "data": {"root": "/data/a=b"}}

    def test_what_is_overridden_is_not_changed_itself(self):
        value = {"base": {"data": {"root": "/a"}}, "grid": {"batch_size": [1]}}
        before = json.dumps(value)
        override(value, ["data.root=/b", "batch_size=3"])
        assert json.dumps(value) == before

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("batch_size", ["-o 'batch_size'", "key=value"]),
            ("batch_size=[1", ["-o 'batch_size=[1'", "not a YAML value"]),
            ("batchsize=1", ["unknown key 'batchsize'", "nearest: batch_size"]),
            ("batchsize=[1, 2]", ["unknown key 'batchsize'", "nearest: batch_size"]),
            ("data.cahce=warm", ["unknown key 'data.cahce'", "nearest: data.cache"]),
            ("batch_size=four", ["batch_size 'four'", "integer"]),
            ("batch_size=[]", ["'batch_size'", "no values"]),
            ("data=3", ["data 3"]),
            ("=3", ["unknown key ''"]),
        ],
    )
    def test_bad_overrides(self, text: str, words: list[str]):
        message = refused(text)
        assert all(word in message for word in words), message

    @pytest.mark.parametrize("text", ["world_size=3", "world_size=[3]"])
    def test_a_zipped_key_is_replaced_or_refused(self, text: str):
        zipped = {"world_size": [1, 2], "parallelism": ["none", "ddp"]}
        try:
            found = expand(load(text, zip=zipped), TWO_CORES)
        except UserError:
            return
        assert {point.spec.world_size for point in found.points} == {3}


class TestResolving:
    def test_device_and_world_size_are_filled_in(self):
        (point,) = plan().points
        assert (point.spec.device, point.spec.world_size) == ("cpu", 1)
        (point,) = plan(machine=Machine(cores=2, cuda_devices=1)).points
        assert point.spec.device == "cuda"

    @pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (4, 1), (8, 2), (15, 3), (16, 4)])
    def test_threads_are_cores_by_the_largest_world_size_for_every_point(self, cores: int, threads: int):
        found = plan(machine=Machine(cores, 0), grid={"world_size": [1, 2, 4], "parallelism": ["ddp"]})
        assert [point.spec.threads_per_rank for point in found.points] == [threads] * 3

    def test_threads_that_are_given_stay(self):
        found = plan({**SYNTHETIC, "threads_per_rank": 5}, grid={"world_size": [1, 2], "parallelism": ["ddp"]})
        assert [point.spec.threads_per_rank for point in found.points] == [5, 5]

    def test_the_dataset_of_a_format_is_found_below_the_root(self, dataset_root: Path):
        found = plan(storage_base(dataset_root, cache="warm"), grid={"data.format": ["files", "webdataset"]})
        assert [point.dataset for point in found.points] == [dataset_root / "files", dataset_root / "webdataset"]
        assert [point.manifest for point in found.points] == [
            read_manifest(dataset_root / name) for name in ("files", "webdataset")
        ]

    def test_a_root_may_be_a_dataset_itself(self, dataset_root: Path):
        (point,) = plan(storage_base(dataset_root / "files")).points
        assert point.dataset == dataset_root / "files"

    def test_a_root_is_absolute_however_it_is_written(self, dataset_root: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.chdir(dataset_root.parent)
        monkeypatch.setenv("HOME", str(dataset_root.parent))
        written = [dataset_root, Path(dataset_root.name), Path("~") / dataset_root.name]
        ids = {plan(storage_base(root)).points[0].point_id for root in written}
        assert len(ids) == 1

    def test_memory_drops_what_only_the_pipeline_uses(self, dataset_root: Path):
        axes = {"data.num_workers": [0, 4], "data.cache": ["cold", "warm"], "data.prefetch_factor": [1, 3]}
        found = plan(storage_base(dataset_root, source="memory"), grid=axes)
        assert (len(found.points), found.duplicates) == (1, 7)
        assert found.points[0].dataset == dataset_root / "files", "its one batch is a real one"

    def test_synthetic_drops_everything_about_data(self, dataset_root: Path):
        spec = plan(storage_base(dataset_root, source="synthetic", format="webdataset")).points[0].spec
        assert spec.data.model_dump(exclude_defaults=True) == {"source": "synthetic"}

    def test_ids_are_those_of_the_dataset(self, dataset_root: Path, tmp_path: Path):
        (first,) = plan(storage_base(dataset_root)).points
        other = tmp_path / "other"
        shutil.copytree(dataset_root / "files", other / "files")
        assert read_manifest(other / "files").dataset_id == read_manifest(dataset_root / "files").dataset_id
        (second,) = plan(storage_base(other)).points
        assert second.point_id != first.point_id, "the path is part of the point"

    def test_repeats_and_time_limits_are_one_point(self):
        first = plan({**SYNTHETIC, "measure": {"repeats": 1}}).points[0]
        second = plan({**SYNTHETIC, "measure": {"repeats": 9, "timeout_s": 5}}).points[0]
        assert first.point_id == second.point_id


class TestSkipping:
    def test_none_has_one_rank(self):
        assert reasons(plan(grid={"world_size": [1, 2]})) == ["parallelism none has 1 rank, world_size is 2"]

    @pytest.mark.parametrize(("devices", "sizes"), [(0, []), (2, [1, 2])])
    def test_cuda_needs_a_device_per_rank(self, devices: int, sizes: list[int]):
        base = {**SYNTHETIC, "device": "cuda", "parallelism": "ddp"}
        found = plan(base, Machine(cores=4, cuda_devices=devices), grid={"world_size": [1, 2, 4]})
        assert [point.spec.world_size for point in found.points] == sizes
        assert f"4 ranks > {devices} CUDA devices" in reasons(found)[-1]

    def test_a_global_batch_must_be_divisible(self):
        base = {
            "workload": "resnet50",
            "variant": "tiny",
            "global_batch_size": 6,
            "parallelism": "ddp",
            "data": SYNTHETIC["data"],
        }
        found = plan(base, grid={"world_size": [1, 2, 3, 4]}, scaling="strong")
        assert [point.spec.rank_batch for point in found.points] == [6, 3, 2]
        assert reasons(found) == ["global_batch_size 6 is not a multiple of 4 ranks"]

    def test_too_few_shards(self, dataset_root: Path):
        base = storage_base(dataset_root, format="webdataset", cache="warm")
        found = plan(base, grid={"data.num_workers": [12, 13]})
        assert [point.spec.data.num_workers for point in found.points] == [12]
        (reason,) = reasons(found)
        assert "12 shards < 13 readers" in reason and "--shard-samples" in reason

    def test_too_few_samples_for_the_readers(self, dataset_root: Path):
        base = storage_base(dataset_root, cache="warm") | {"parallelism": "ddp", "world_size": 2}
        found = plan(base, grid={"data.num_workers": [48, 49]})
        assert [point.spec.data.num_workers for point in found.points] == [48]
        assert "96 samples < 98 readers" in reasons(found)[0]

    def test_cold_with_too_few_samples(self, dataset_root: Path):
        """Two readers share 96 samples: 48 each. Steps of 4 samples: 1 + 2 x (5 + steps / 2) + 4 batches, half each."""
        found = plan(storage_base(dataset_root), grid={"measure.steps": [8, 10]})
        assert [point.spec.measure.steps for point in found.points] == [8]
        spec = found.points[0].spec
        assert (layout(spec).loader_batches, reader_samples(spec)) == (1 + 2 * (5 + 4), (12, 48))
        skipped = found.skipped[0].point.spec
        assert (layout(skipped).loader_batches, reader_samples(skipped)) == (1 + 2 * (5 + 5), (13, 52))
        (reason,) = reasons(found)
        assert "each of 2 readers takes 13 batches x 4 = 52 samples" in reason
        assert "share of the dataset is 48" in reason

    def test_cold_counts_whole_shards(self, dataset_root: Path):
        """Of 12 shards of 8 samples, one of 5 readers gets only two: 16 samples, where 96 / 5 would be 19."""
        data = {"format": "webdataset", "num_workers": 5, "prefetch_factor": 1, "shuffle": False}
        base = storage_base(dataset_root, **data) | {"batch_size": 2}
        found = plan(base, grid={"measure.steps": [20, 28]})
        assert [point.spec.measure.steps for point in found.points] == [20]
        assert "share of the dataset is 16" in reasons(found)[0]

    def test_cold_counts_what_a_shuffle_buffer_reads_ahead(self, dataset_root: Path):
        """One reader of 96 samples takes 1 + 2 x (2 + 4) + 1 = 14 batches of 4: 56, and 40 more fit the dataset."""
        base = storage_base(dataset_root, format="webdataset", num_workers=1, prefetch_factor=1)
        found = plan(base, grid={"data.shuffle_buffer": [40, 41]})
        assert [point.spec.data.shuffle_buffer for point in found.points] == [40]
        assert "56 samples and holds 41 more (data.shuffle_buffer)" in reasons(found)[0]
        found = plan(storage_base(dataset_root), grid={"data.shuffle_buffer": [1000]})
        assert len(found.points) == 1, "files are drawn in any order, without a buffer"

    def test_cold_shares_the_dataset_among_ranks(self, dataset_root: Path):
        base = storage_base(dataset_root) | {"parallelism": "ddp"}
        found = plan(base, grid={"world_size": [1, 2]})
        assert [point.spec.world_size for point in found.points] == [1]
        assert "each of 4 readers" in reasons(found)[0] and "share of the dataset is 24" in reasons(found)[0]

    def test_warm_may_go_through_the_dataset_again(self, dataset_root: Path):
        found = plan(storage_base(dataset_root, cache="warm"), grid={"measure.steps": [8, 1000]})
        assert (len(found.points), found.skipped) == (2, [])

    def test_memory_needs_one_batch_only(self, dataset_root: Path):
        found = plan(storage_base(dataset_root, source="memory", num_workers=200), grid={"measure.steps": [1000]})
        assert (len(found.points), found.skipped) == (1, [])

    def test_a_format_that_is_missing_beside_one_that_is_there(self, dataset_root: Path, tmp_path: Path):
        shutil.copytree(dataset_root / "files", tmp_path / "data" / "files")
        found = plan(storage_base(tmp_path / "data"), grid={"data.format": ["files", "webdataset"]})
        assert labels(found) == ["files"]
        (reason,) = reasons(found)
        assert f"{tmp_path / 'data' / 'webdataset'}: no dataset there" in reason and "has files" in reason

    def test_a_root_of_another_format(self, dataset_root: Path):
        found = plan(storage_base(dataset_root / "files", format="webdataset"))
        assert "holds format files, not webdataset" in reasons(found)[0]

    def test_too_many_classes(self, dataset_root: Path, tmp_path: Path):
        folder = tmp_path / "data" / "files"
        shutil.copytree(dataset_root / "files", folder)
        manifest = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps(manifest | {"num_classes": 1001}))
        (reason,) = reasons(plan(storage_base(folder.parent)))
        assert "1001 classes" in reason and "1000" in reason

    def test_another_kind_of_sample(self, dataset_root: Path, tmp_path: Path):
        folder = tmp_path / "data" / "files"
        shutil.copytree(dataset_root / "files", folder)
        manifest = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps(manifest | {"kind": "volume"}))
        assert "holds volume samples, resnet50 takes image" in reasons(plan(storage_base(folder.parent)))[0]

    def test_one_skipped_point_costs_no_other(self, dataset_root: Path):
        found = plan(storage_base(dataset_root), grid={"batch_size": [4, 4000], "world_size": [1, 2]})
        assert (len(found.points), len(found.skipped)) == (1, 3)


class TestDatasetMistakes:
    def test_a_missing_root_is_an_error(self, tmp_path: Path):
        with pytest.raises(UserError, match="no such folder") as caught:
            plan(storage_base(tmp_path / "nowhere"))
        assert str(tmp_path / "nowhere") in str(caught.value) and "benchsuite data" in str(caught.value)

    @pytest.mark.parametrize("source", ["storage", "memory"])
    def test_a_source_that_reads_needs_a_root(self, source: str):
        with pytest.raises(UserError, match=r"data\.root is missing"):
            plan({**SYNTHETIC, "data": {"source": source}})

    def test_a_broken_manifest_is_an_error(self, tmp_path: Path):
        (tmp_path / "data" / "files").mkdir(parents=True)
        (tmp_path / "data" / "files" / "manifest.json").write_text("{")
        with pytest.raises(DatasetError, match=r"manifest\.json") as caught:
            plan(storage_base(tmp_path / "data"))
        assert "\n" not in str(caught.value)

    def test_an_unknown_variant_is_an_error_even_where_nothing_is_read(self):
        with pytest.raises(UserError, match="'tinny' is unknown; allowed: tiny, reference; nearest: tiny"):
            plan({**SYNTHETIC, "variant": "tinny"})
