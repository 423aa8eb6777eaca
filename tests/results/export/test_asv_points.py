"""Sweeps as asv's benchmarks: their parameters and values."""

import math

import pytest

from benchsuite.results.export.asv_points import Key, Measured, axes_of, class_name, keys_of, measured
from tests.results.asvtrials import made_spec, trial


class TestKeys:
    def test_of_workload_format_and_ranks(self):
        assert keys_of([made_spec(1), made_spec(2, "hdf5")]) == [("unet3d", "files", 1), ("unet3d", "hdf5", 2)]

    def test_sources_that_read_no_format_are_named(self):
        specs = [made_spec(data={"source": "memory"}), made_spec(data={"source": "synthetic"})]
        assert [key.format for key in keys_of(specs)] == ["memory", "synthetic"]

    def test_what_else_varies_stands_with_the_format(self):
        specs = [made_spec(ranks, data={"loader": name}) for ranks in (1, 2) for name in ("torch", "dali")]
        assert [key.format for key in keys_of(specs)] == ["files data.loader=torch", "files data.loader=dali"] * 2

    def test_the_reader_is_told_where_it_is_not_our_own(self):
        """So that the history of a sweep from before there was another goes on with what it measured."""
        readers = (None, "tuned", "stock", "/home/me/mine.py:READER")
        specs = [made_spec(number, data={"reader": reader}) for number, reader in enumerate(readers, 1)]
        assert [key.format for key in keys_of(specs)] == ["files", "files", "files stock", "files mine.py:READER"]

    def test_what_follows_from_ranks_or_workload_does_not(self):
        specs = [
            made_spec(1, parallelism="none", batch_size=4, threads_per_rank=2),
            made_spec(2, parallelism="ddp", batch_size=2, threads_per_rank=1),
            made_spec(1, workload="bert", data={"root": "/bert"}),
        ]
        assert [key.format for key in keys_of(specs)] == ["files", "files", "files"]

    def test_paths_and_repeats_tell_no_points_apart(self):
        others = {"steps": 8, "repeats": 5, "timeout_s": 9, "ceilings": False, "profile": None}
        specs = [made_spec(data={"root": "/a"}), made_spec(data={"root": "/b"}, measure=others)]
        assert keys_of(specs) == [("unet3d", "files", 1)] * 2

    def test_steps_do(self):
        found = keys_of([made_spec(), made_spec(measure={"steps": 9})])
        assert [key.format for key in found] == ["files measure.steps=8", "files measure.steps=9"]

    def test_degrees_of_parallelism_are_those_that_are_set(self):
        degrees = {"dp": 2, "tp": 1, "pp": 1, "zero": 1, "engine": "torch", "schedule": "1f1b", "cp": 1}
        specs = [
            made_spec(2),
            made_spec(2, parallelism=degrees),
            made_spec(2, parallelism={**degrees, "zero": 0, "pp": 2, "loss_parallel": True, "microbatches": None}),
        ]
        assert [key.format for key in keys_of(specs)] == [
            "files parallelism=ddp",
            "files parallelism=dp 2 zero 1",
            "files parallelism=dp 2 pp 2 schedule 1f1b loss_parallel",
        ]

    def test_axes_are_each_value_once_with_ranks_in_order(self):
        keys = [Key("unet3d", "hdf5", 4), Key("unet3d", "files", 1), Key("bert", "hdf5", 2)]
        assert axes_of(keys) == (["unet3d", "bert"], ["hdf5", "files"], [1, 2, 4])
        assert axes_of([]) == ([], [], [])

    def test_a_class_name_has_nothing_that_asv_reads_as_something_else(self):
        assert class_name("weak-scaling.v2") == "weak_scaling_v2"


class TestMeasured:
    def test_medians_by_hand(self):
        """100 samples/s on one rank and 150 on two: 1/100 s each, and 150 / (100 x 2) = 0.75 efficiency."""
        rates = [(1, 90.0), (1, 100.0), (1, 400.0), (2, 150.0)]
        found = measured([trial(number, rate, ranks) for number, (ranks, rate) in enumerate(rates)])
        one, two = found[Key("unet3d", "files", 1)].values, found[Key("unet3d", "files", 2)].values
        assert one["track_seconds_per_sample"] == pytest.approx(0.01)
        assert two["track_seconds_per_sample"] == pytest.approx(1 / 150)
        assert (one["track_one_minus_au"], one["track_peak_memory"]) == (0.25, 1000)
        assert math.isnan(one["track_one_minus_efficiency"]), "the baseline has no efficiency"
        assert two["track_one_minus_efficiency"] == 0.25

    def test_efficiency_is_against_the_same_format(self):
        trials = [trial(0, 100.0), trial(1, 300.0, 1, "hdf5"), trial(2, 300.0, 2, "hdf5"), trial(3, 200.0, 2)]
        found = {key: point.values["track_one_minus_efficiency"] for key, point in measured(trials).items()}
        assert found[Key("unet3d", "hdf5", 2)] == 0.5
        assert found[Key("unet3d", "files", 2)] == 0.0

    def test_oversubscribed_ranks_have_no_efficiency(self):
        trials = [trial(0, 100.0), trial(1, 150.0, 2, caveats=["oversubscribed"])]
        point = measured(trials)[Key("unet3d", "files", 2)]
        assert math.isnan(point.values["track_one_minus_efficiency"])
        assert point.values["track_seconds_per_sample"] == pytest.approx(1 / 150)

    def test_a_doubtful_repeat_counts_only_where_all_are(self):
        doubtful = trial(0, 10.0, caveats=["foreign_load"])
        key = Key("unet3d", "files", 1)
        assert measured([doubtful, trial(1, 100.0)])[key].values["track_seconds_per_sample"] == 0.01
        assert measured([doubtful])[key].values["track_seconds_per_sample"] == 0.1

    def test_utilization_above_one_is_no_result_and_the_throughput_is(self):
        figures = {"samples_per_s": 100.0, "au": 1.3}
        above = trial(0, 100.0, figures=figures, caveats=["au_above_one"])
        key = Key("unet3d", "files", 1)
        values = measured([above])[key].values
        assert math.isnan(values["track_one_minus_au"]) and values["track_seconds_per_sample"] == 0.01
        assert measured([above, trial(1, 100.0)])[key].values["track_one_minus_au"] == 0.25

    def test_a_missing_figure_is_nan_and_not_zero(self):
        point = measured([trial(0, 100.0, figures={"samples_per_s": 100.0})])[Key("unet3d", "files", 1)]
        assert math.isnan(point.values["track_one_minus_au"]) and math.isnan(point.values["track_peak_memory"])

    def test_failed_is_told_and_skipped_is_nan(self):
        trials = [trial(0, None), trial(1, None, 2, status="skipped", reason="no such device")]
        found = measured(trials)
        assert found[Key("unet3d", "files", 1)] == Measured(failure="failed: EIO on part-7")
        assert all(math.isnan(value) for value in found[Key("unet3d", "files", 2)].values.values())
        assert len(found[Key("unet3d", "files", 2)].values) == 4

    def test_one_good_repeat_is_enough(self):
        assert measured([trial(0, None), trial(1, 50.0)])[Key("unet3d", "files", 1)].failure is None

    def test_an_interrupted_point_is_left_out(self):
        assert measured([trial(0, None, status="interrupted")]) == {}
