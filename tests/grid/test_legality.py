"""Points of a sweep: how they are resolved, and why some are skipped."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from benchsuite.contract.errors import UserError
from benchsuite.grid import validity
from benchsuite.grid.blocks import layout, reader_samples
from benchsuite.grid.validity import what_fits_all
from benchsuite.host.machine import Machine
from benchsuite.storage.dataset.manifest import DatasetError, read_manifest
from benchsuite.workloads.facts import FACTS
from tests.helpers.grids import SYNTHETIC, in_folder, labels, plan, reasons, storage_base

__all__ = ["in_folder"]


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
        assert reasons(plan(grid={"world_size": [1, 2]})) == [
            "parallelism none has 1 rank, world_size is 2: give ddp, or another mode"
        ]

    @pytest.mark.parametrize(("devices", "sizes"), [(0, []), (2, [1, 2])])
    def test_cuda_needs_a_device_per_rank(self, devices: int, sizes: list[int]):
        base = {**SYNTHETIC, "device": "cuda", "parallelism": "ddp"}
        found = plan(base, Machine(cores=4, cuda_devices=devices), grid={"world_size": [1, 2, 4]})
        assert [point.spec.world_size for point in found.points] == sizes
        assert (f"4 ranks > {devices} CUDA devices" if devices else "this node has no CUDA device") in reasons(found)[
            -1
        ]

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
        assert reasons(found) == ["global_batch_size 6 is not a multiple of 4 data-parallel ranks"]

    @pytest.mark.parametrize(
        ("installed", "capability", "expected"),
        [
            (True, (8, 0), ["precision fp8 needs CUDA devices of compute capability 8.9, one here has 8.0"]),
            (
                False,
                (9, 0),
                ["precision fp8 needs torchao, which is not installed: pip install 'benchsuite[fp8]'"],
            ),
            (True, (8, 9), []),
            (True, None, []),
        ],
    )
    def test_fp8_needs_its_package_and_devices(
        self,
        installed: bool,
        capability: tuple[int, int] | None,
        expected: list[str],
        monkeypatch: pytest.MonkeyPatch,
    ):
        monkeypatch.setattr(validity, "is_installed", lambda _name: installed)
        monkeypatch.setattr(validity, "cuda_capability", lambda: capability)
        base = {**SYNTHETIC, "workload": "gpt_neox", "precision": "fp8", "device": "cuda"}
        assert reasons(plan(base, Machine(cores=2, cuda_devices=1))) == expected

    def test_too_few_shards(self, dataset_root: Path):
        base = storage_base(dataset_root, format="webdataset", cache="warm")
        found = plan(base, grid={"data.num_workers": [12, 13]})
        assert [point.spec.data.num_workers for point in found.points] == [12]
        (reason,) = reasons(found)
        assert "12 shards < 13 readers" in reason and "-o shard_samples=" in reason

    def test_too_few_samples_for_the_readers(self, dataset_root: Path):
        base = storage_base(dataset_root, cache="warm") | {"parallelism": "ddp", "world_size": 2}
        found = plan(base, grid={"data.num_workers": [48, 49]})
        assert [point.spec.data.num_workers for point in found.points] == [48]
        assert "96 samples < 98 readers" in reasons(found)[0]

    def test_cold_with_too_few_samples(self, dataset_root: Path):
        """Two readers share 96 samples. Steps of 4: 1 + 2 x (5 + steps / 2) + 4 batches, in whole turns of both."""
        found = plan(storage_base(dataset_root), grid={"measure.steps": [8, 10]})
        assert [point.spec.measure.steps for point in found.points] == [8]
        spec = found.points[0].spec
        assert (layout(spec).loader_batches, reader_samples(spec)) == (1 + 2 * (5 + 4), (12, 48))
        skipped = found.skipped[0].point.spec
        assert (layout(skipped).loader_batches, reader_samples(skipped)) == (1 + 2 * (5 + 6), (14, 56))
        (reason,) = reasons(found)
        assert reason == (
            "cold: measure.steps 8 or fewer fits; or more data (about 112 samples): "
            "each of 2 readers takes 14 batches x 4 = 56 samples, "
            "and its share of the dataset is 48; the rest would come from memory (27 batches a rank, queues and "
            "warm-up included, to count 12)"
        )

    def test_one_set_of_settings_runs_all_that_is_skipped_for_its_samples(self, dataset_root: Path):
        base = storage_base(dataset_root, shuffle_buffer=60) | {"measure": {"steps": 40, "warmup_steps": 1}}
        axes = {"data.format": ["files", "webdataset"], "data.num_workers": [1, 2]}
        found = plan(base, grid=axes)
        assert len(found.skipped) == 4
        told = what_fits_all([skipped.point for skipped in found.skipped])
        all_run = "all points with too few samples would run with"
        settings = re.fullmatch(rf"{all_run} both -o measure\.steps=(\d+) and -o data\.shuffle_buffer=(\d+)", told)
        assert settings is not None, told
        steps, buffer = map(int, settings.groups())
        data = base["data"] | {"shuffle_buffer": buffer}
        again = plan(base | {"measure": {"steps": steps, "warmup_steps": 1}, "data": data}, grid=axes)
        assert len(again.points) == 4, reasons(again)
        large = plan(base | {"batch_size": 64}, grid=axes)
        assert "a smaller batch, or more data (about " in what_fits_all([skipped.point for skipped in large.skipped])

    @pytest.mark.parametrize(
        ("buffer", "steps", "batches", "setting"),
        [(60, 2, [1, 2], "data.shuffle_buffer=28"), (6, 8, [1, 4], "measure.steps=4")],
    )
    def test_what_runs_all_is_what_the_points_are_told(
        self, dataset_root: Path, buffer: int, steps: int, batches: list[int], setting: str
    ):
        """One setting does, and of those that each point is told it is the least."""
        base = storage_base(dataset_root, shuffle_buffer=buffer) | {"measure": {"steps": steps, "warmup_steps": 1}}
        found = plan(base, grid={"data.format": ["webdataset"], "batch_size": batches})
        told = what_fits_all([skipped.point for skipped in found.skipped])
        assert told == f"all points with too few samples would run with -o {setting}", reasons(found)
        name, _, value = setting.partition("=")
        assert any(f"{name} {value} or " in reason for reason in reasons(found))

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
        fits = "cold: measure.steps 6 or fewer fits; or data.shuffle_buffer 40 or less fits; or more data (about 97 "
        assert reasons(found)[0].startswith(fits)
        found = plan(base, grid={"data.shuffle_buffer": [100]})
        fits = "cold: data.shuffle_buffer 40 or less fits; or more data (about 156 "
        assert reasons(found)[0].startswith(fits), "no number of steps does"
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

    @pytest.mark.parametrize("cache", ["cold", "warm"])
    def test_an_epoch_has_the_steps_that_fit_into_it(self, dataset_root: Path, cache: str):
        """One more step and readers would begin the next one."""
        base = storage_base(dataset_root, cache=cache)
        (point,) = plan(base, grid={"measure.epochs": [1]}).points
        assert (point.spec.measure.steps, reader_samples(point.spec)) == (8, (12, 48))
        assert reader_samples(point.spec.with_steps(9))[1] > 48

    def test_an_epoch_of_a_stream_leaves_room_for_its_buffer(self, dataset_root: Path):
        base = storage_base(dataset_root, format="webdataset", num_workers=1, prefetch_factor=1)
        steps = {
            point.spec.data.shuffle_buffer: point.spec.measure.steps
            for point in plan(base, grid={"data.shuffle_buffer": [1, 40], "measure.epochs": [1]}).points
        }
        assert steps == {1: 16, 40: 8}

    def test_epochs_that_have_no_steps(self, dataset_root: Path):
        base = storage_base(dataset_root) | {"measure": {"epochs": 1}}
        assert reasons(plan(base | {"batch_size": "auto"})) == [
            "measure.epochs 1 with batch_size auto: the steps of an epoch need a batch; give one"
        ]
        assert reasons(plan(base | {"batch_size": 20}))[0].startswith("epochs: take fewer steps, a smaller ")
        assert reasons(plan(base, grid={"data.source": ["memory", "synthetic"]})) == [
            f"measure.epochs 1 with source {source}: no dataset is read through" for source in ("memory", "synthetic")
        ]

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
        with pytest.raises(UserError, match=r"'tinny' is unknown; nearest: tiny; allowed: nano, tiny, .*reference"):
            plan({**SYNTHETIC, "variant": "tinny"})


def test_fp8_asks_this_host_only_where_it_is_to_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchsuite.grid.validity.is_installed", lambda module: module != "torchao")
    base = SYNTHETIC | {"workload": "gpt_neox", "variant": "nano", "device": "cuda", "precision": "fp8"}
    (reason,) = reasons(plan(base, Machine(2, 1)))
    assert reason.startswith("precision fp8 needs torchao, which is not installed")
    assert reasons(plan(base, Machine(2, 1, elsewhere=True))) == []


@pytest.mark.parametrize(
    ("changes", "memory_gb", "reason"),
    [
        ({"parallelism": "fsdp", "device": "cuda"}, 100, None),  # parts of it are made on the devices
        (
            {"parallelism": "fsdp", "device": "cuda", "cpu_offload": True},
            100,
            "model as built: 8 ranks on a node x 70,553,706,496 parameters / 8 ranks that share them x 4 bytes = "
            "282.2 GB > 100.0 GB of the host's memory",
        ),
        ({"parallelism": {"engine": "deepspeed", "zero": 3}, "device": "cuda", "cpu_offload": True}, 100, None),
        ({"parallelism": "fsdp", "device": "cpu"}, 300, None),
        (
            {"parallelism": "ddp", "device": "cpu", "precision": "pure_bf16"},
            1000,
            "model as built: 8 ranks on a node x 70,553,706,496 parameters x 2 bytes = 1,128.9 GB > 1,000.0 GB of the "
            "host's memory",
        ),
        (
            {"parallelism": "ddp", "device": "cuda", "workload": "resnet50", "variant": "resnet101"},
            1,
            "model as built: 8 ranks on a node x 44,549,160 parameters x 4 bytes = 1.4 GB > 1.0 GB of the host's "
            "memory",
        ),
        ({"parallelism": "ddp", "device": "cuda", "workload": "resnet50", "variant": "resnet101"}, 2, None),
    ],
)
def test_models_that_exceed_the_hosts_memory_as_they_are_built_are_skipped(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], memory_gb: int, reason: str | None
) -> None:
    """Of devices that are told, none of which is here."""
    monkeypatch.setattr("benchsuite.workloads.engine.is_installed", lambda _package: True)
    told = Machine(cores=64, cuda_devices=8, memory_bytes=memory_gb * 10**9)
    base = SYNTHETIC | {"workload": "gpt_neox", "variant": "llama3-70b", "world_size": 8, "threads_per_rank": 8}
    assert reasons(plan(base | changes, told)) == ([] if reason is None else [reason])
    unknown = Machine(cores=64, cuda_devices=8, elsewhere=True)
    assert reasons(plan(base | changes, unknown)) == []


def test_a_workload_that_is_built_whole_is_so_by_every_rank_on_any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = replace(FACTS["gpt_neox"], built_whole=True)
    monkeypatch.setattr(validity, "FACTS", {"gpt_neox": whole})
    base = SYNTHETIC | {"workload": "gpt_neox", "variant": "llama3-70b", "world_size": 8, "parallelism": "fsdp"}
    (reason,) = reasons(plan(base | {"device": "cuda"}, Machine(64, 8, memory_bytes=10**12)))
    assert reason.startswith("model as built: 8 ranks on a node x 70,553,706,496 parameters x 4 bytes = 2,257.7 GB > ")
