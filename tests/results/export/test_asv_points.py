"""Sweeps as asv's benchmarks: their names, parameters and values."""

import itertools
import math
from typing import Any

import pytest

from benchsuite.contract.errors import dotted_keys
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.results.export.asv_points import Key, Measured, axes_of, key_of, measured, short, suite_of
from benchsuite.workloads.spec import ModelSpec
from tests.results.asvtrials import made_spec, trial

SUITE = "batch_formats__unet3d__ddp"
OTHER = "device=cpu root=/data steps=8 variant=tiny"


def key(ranks: int = 1, format: str = "files", **changes: Any) -> Key:
    usual = Key(SUITE, format, "tuned", "torch", "fp32", "-", ranks, 1, OTHER)
    return usual._replace(**changes)


class TestKeys:
    def test_what_names_hold(self):
        data = {"reader": "stock", "loader": "dali", "num_workers": 4}
        spec = made_spec(16, "hdf5", precision="bf16", batch_size=32, ranks_per_node=4, data=data)
        found = key_of("batch-formats", spec)
        other = "device=cpu num_workers=4 ranks_per_node=4 root=/data steps=8 variant=tiny"
        assert found == (SUITE, "hdf5", "stock", "dali", "bf16", "32", 16, 4, other)
        assert key_of("batch-formats", spec, nodes=2).nodes == 2, "what a record tells of its nodes"
        revised = "device=cpu num_workers=4 ranks_per_node=4 revision=tp 2 root=/data steps=8 variant=tiny"
        assert key_of("batch-formats", spec, revision="tp 2").other == revised

    def test_sources_that_read_no_format_are_named(self):
        specs = [made_spec(data={"source": source}) for source in ("memory", "synthetic")]
        assert [key_of("s", spec)[1:4] for spec in specs] == [("memory", "-", "torch"), ("synthetic", "-", "-")]

    def test_a_reader_from_before_there_was_another_is_our_own(self):
        readers = (None, "tuned", "stock", "/home/me/mine.py:READER")
        found = [key_of("s", made_spec(data={"reader": reader})).reader for reader in readers]
        assert found == ["tuned", "tuned", "stock", "mine.py:READER"]

    def test_a_batch_of_all_ranks_is_named(self):
        assert key_of("s", made_spec(batch_size=4, global_batch_size=64)).batch == "global 64"

    def test_settings_that_are_default_are_not_named(self):
        spec = made_spec(device="cuda", variant="reference", measure={"steps": 30}, data={"root": None})
        assert key_of("s", spec).other == "-"
        repeats = {"steps": 30, "repeats": 5, "timeout_s": 9, "ceilings": False, "profile": "io"}
        assert key_of("s", {**spec, "measure": repeats}).other == "-", "what tells no points apart"

    def test_sizes_of_a_model_rename_nothing_that_has_none(self):
        before = made_spec()
        after = before | {"model": ModelSpec().model_dump()}
        assert key_of("s", after) == key_of("s", before)
        sized = before | {"model": ModelSpec(hidden_size=64, num_layers=2).model_dump()}
        assert key_of("s", sized).other == "device=cpu hidden_size=64 num_layers=2 root=/data steps=8 variant=tiny"

    @pytest.mark.parametrize(("device", "filled_in", "other"), [("cpu", "none", "device"), ("cuda", "device", "none")])
    def test_a_setting_that_is_filled_in_renames_nothing(self, device: str, filled_in: str, other: str):
        """Lines from before there was `cpu_binding` go on; who asks for another one gets another line."""
        before = made_spec(device=device)
        key = key_of("s", before)
        assert key_of("s", before | {"cpu_binding": filled_in}) == key and "cpu_binding" not in key.other
        assert f"cpu_binding={other}" in key_of("s", before | {"cpu_binding": other}).other

    def test_no_two_sections_have_a_setting_of_one_name(self):
        """Else two settings would share a name; one that is added must have another."""
        names = [name for name in dotted_keys(TrialSpec) if not name.startswith("parallelism.")]
        assert len({*map(short, names)}) == len(names)

    def test_data_of_the_nights_have_one_name_wherever_they_lie(self):
        roots = ("/a/nights/.asv/data/seq", "/b/c/.asv/data/seq", "/scratch/seq")
        found = [key_of("s", made_spec(data={"root": root})).other.split("root=")[1].split()[0] for root in roots]
        assert found == ["seq", "seq", "/scratch/seq"]

    def test_degrees_of_parallelism_are_those_that_are_set(self):
        degrees = {"dp": 2, "tp": 2, "pp": 1, "zero": 1, "engine": "torch", "schedule": "1f1b", "cp": 1}
        assert key_of("s", made_spec(4, parallelism=degrees)).suite.startswith("s__unet3d__dp_2_tp_2_zero_1_")

    def test_axes_are_each_value_once_with_ranks_in_order(self):
        keys = [key(4, "hdf5"), key(1), key(2, "hdf5", suite="other")]
        found = axes_of(keys)
        assert found[SUITE][:2] == (("hdf5", "files"), ("tuned",)) and found[SUITE][5] == (1, 4)
        assert found["other"][5] == (2,)
        assert axes_of([]) == {}

    def test_a_class_name_has_nothing_that_asv_reads_as_something_else(self):
        names = [
            suite_of(*parts)
            for parts in itertools.product(("a-b", "a_b", "a.b", "a b", "ab"), ("x", "/home/me.py:X"), ("ddp", "dp 2"))
        ]
        assert all(name.isidentifier() for name in names)
        assert len({*names}) == len(names), "no two share a name"
        assert suite_of("weak-scaling", "resnet50", "ddp") == "weak_scaling__resnet50__ddp"

    def test_every_axis_that_is_added_renames_nothing(self):
        """Each setting varied, one after another: points that were there keep their names, and no two share one."""
        before = [made_spec(ranks, format) for ranks in (1, 2) for format in ("files", "hdf5")]
        known = [key_of("s", spec) for spec in before]
        axes: dict[str, list[Any]] = {
            "precision": ["fp32", "bf16"],
            "batch_size": [4, 8],
            "variant": ["tiny", "reference"],
            "compile": [False, True],
            "channels_last": [False, True],
            "activation_checkpointing": ["none", "full"],
            "optimizer": [None, "adamw"],
            "grad_accum": [1, 2],
            "device": ["cpu", "cuda", "emulated:a100"],
            "parallelism": ["ddp", "fsdp"],
            "ranks_per_node": [None, 1],
            "data.reader": ["tuned", "stock"],
            "data.loader": ["torch", "dali", "threads"],
            "data.num_workers": [2, 8],
            "data.prefetch_factor": [2, 4],
            "data.cache": ["cold", "warm"],
            "data.staging": ["none", "copy"],
            "data.root": ["/data", "/nvme"],
            "data.shuffle": [True, False],
            "measure.steps": [8, 9],
            "measure.warmup_steps": [5, 6],
        }
        specs = before
        for axis, values in axes.items():
            section, _, name = axis.rpartition(".")
            grown = []
            for spec in specs[:64]:
                for value in values:
                    inner = {**spec.get(section, {}), name: value} if section else None
                    grown.append({**spec, section: inner} if section else {**spec, name: value})
            specs = grown
            names = [key_of("s", spec) for spec in specs]
            assert len({*names}) == len(names), f"{axis}: two points share a name"
        assert [key_of("s", spec) for spec in before] == known


class TestMeasured:
    def test_medians_by_hand(self):
        """100 samples/s on one rank and 150 on two: 1/100 s each, and 150 / (100 x 2) = 0.75 efficiency."""
        rates = [(1, 90.0), (1, 100.0), (1, 400.0), (2, 150.0)]
        found = measured([trial(number, rate, ranks) for number, (ranks, rate) in enumerate(rates)])
        one, two = found[key()].values, found[key(2, "files")].values
        assert one["track_seconds_per_sample"] == pytest.approx(0.01)
        assert two["track_seconds_per_sample"] == pytest.approx(1 / 150)
        assert (one["track_one_minus_au"], one["track_peak_memory"]) == (0.25, 1000)
        assert math.isnan(one["track_one_minus_efficiency"]), "the baseline has no efficiency"
        assert two["track_one_minus_efficiency"] == 0.25

    def test_efficiency_is_against_the_same_format(self):
        trials = [trial(0, 100.0), trial(1, 300.0, 1, "hdf5"), trial(2, 300.0, 2, "hdf5"), trial(3, 200.0, 2)]
        found = {key: point.values["track_one_minus_efficiency"] for key, point in measured(trials).items()}
        assert found[key(2, "hdf5")] == 0.5
        assert found[key(2, "files")] == 0.0

    def test_oversubscribed_ranks_have_no_efficiency(self):
        trials = [trial(0, 100.0), trial(1, 150.0, 2, caveats=["oversubscribed"])]
        point = measured(trials)[key(2, "files")]
        assert math.isnan(point.values["track_one_minus_efficiency"])
        assert point.values["track_seconds_per_sample"] == pytest.approx(1 / 150)

    def test_a_doubtful_repeat_counts_only_where_all_are(self):
        doubtful = trial(0, 10.0, caveats=["foreign_load"])
        point = key()
        assert measured([doubtful, trial(1, 100.0)])[point].values["track_seconds_per_sample"] == 0.01
        assert measured([doubtful])[point].values["track_seconds_per_sample"] == 0.1

    def test_utilization_above_one_is_no_result_and_the_throughput_is(self):
        figures = {"samples_per_s": 100.0, "au": 1.3}
        above = trial(0, 100.0, figures=figures, caveats=["au_above_one"])
        point = key()
        values = measured([above])[point].values
        assert math.isnan(values["track_one_minus_au"]) and values["track_seconds_per_sample"] == 0.01
        assert measured([above, trial(1, 100.0)])[point].values["track_one_minus_au"] == 0.25

    def test_a_missing_figure_is_nan_and_not_zero(self):
        point = measured([trial(0, 100.0, figures={"samples_per_s": 100.0})])[key()]
        assert math.isnan(point.values["track_one_minus_au"]) and math.isnan(point.values["track_peak_memory"])

    def test_failed_is_told_and_skipped_is_nan(self):
        trials = [trial(0, None), trial(1, None, 2, status="skipped", reason="no such device")]
        found = measured(trials)
        assert found[key()] == Measured(failure="failed: EIO on part-7")
        assert all(math.isnan(value) for value in found[key(2, "files")].values.values())
        assert len(found[key(2, "files")].values) == 4

    def test_one_good_repeat_is_enough(self):
        assert measured([trial(0, None), trial(1, 50.0)])[key()].failure is None

    def test_an_interrupted_point_is_left_out(self):
        assert measured([trial(0, None, status="interrupted")]) == {}
