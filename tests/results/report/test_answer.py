"""Which choice is best, what cannot be told from it, why others are worse, and what limits it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_ind

from benchsuite.results.report.answer import answer, evidence
from benchsuite.results.report.ranking import MEASURES, are_apart, contests, ranked_rows, repeats_needed

Rows = tuple[list[dict[str, Any]], list[dict[str, Any]]]


def choice(label: str, rates: Sequence[float], **more: Any) -> Rows:
    """A point and its repeats."""
    spec = {"spec.workload": "resnet50", "spec.variant": "tiny", "spec.world_size": 1, "spec.data.source": "storage"}
    common = {"label": label, "point_id": label, "status": "ok", "caveats": [], **spec}
    median = float(np.median(rates))
    ends = {"samples_per_s_min": min(rates), "samples_per_s_max": max(rates), "repeats": len(rates)}
    point = common | {"samples_per_s": median, "au": 0.9, "bottleneck": "storage", **ends, **more}
    return [point], [common | more | {"samples_per_s": rate, "au": 0.9} for rate in rates]


def together(*choices: Rows) -> Rows:
    return [row for points, _ in choices for row in points], [row for _, trials in choices for row in trials]


def said(*choices: Rows, rank_by: str = "samples_per_s") -> list[str]:
    points, trials = together(*choices)
    return answer(points, contests(points, trials, rank_by))


def grounds(*choices: Rows) -> list[str]:
    points, trials = together(*choices)
    return evidence(points, contests(points, trials, "samples_per_s"))


FAST, CLOSE, SLOW = (
    choice("hdf5", [60.0, 61.0, 63.0]),
    choice("tar", [58.0, 59.0, 62.0]),
    choice("files", [49.0, 50.0, 51.0]),
)


def test_the_best_is_named_with_what_cannot_be_told_from_it_and_what_is_worse() -> None:
    assert said(SLOW, CLOSE, FAST) == [
        "Use hdf5: 61 samples/s [60 63]. tar (59 samples/s [58 62]) cannot be told from it: 17 more repeats would "
        "probably tell. files is 18% slower. It is limited by storage."
    ]


def test_a_worse_choice_says_in_which_part_of_the_step() -> None:
    parts = {"step_s_mean": 0.100, "load_s": 0.002, "forward_s": 0.098}
    best = choice("hdf5", [60.0, 61.0, 63.0], **parts, read_s_per_sample=0.001, decode_s_per_sample=0.002)
    longer = {"step_s_mean": 0.122, "load_s": 0.024, "forward_s": 0.098}
    worse = choice("files", [49.0, 50.0, 51.0], **longer, read_s_per_sample=0.012, decode_s_per_sample=0.002)
    [text] = said(best, worse)
    assert (
        "files is 18% slower: its steps wait 22 ms longer for input; a reader reads a sample for 12 ms (the best: 1) "
        "and prepares it for 2 ms (the best: 2)." in text
    )


def test_what_limits_the_best_comes_with_evidence_and_remedy() -> None:
    why = {"bottleneck": "preprocessing", "bottleneck_evidence": "AU 0.90; so", "bottleneck_remedy": "more workers"}
    [text] = said(choice("hdf5", [60.0, 61.0], **why), SLOW)
    assert text.endswith("It is limited by preparing the samples. Try more workers.")
    assert grounds(choice("hdf5", [60.0, 61.0], **why), SLOW) == ["hdf5: AU 0.90; so"]
    other = why | {"bottleneck_evidence": "AU 0.83; so"}
    assert grounds(choice("hdf5", [60.0, 61.0], **other), SLOW) == [
        "hdf5: AU 0.83; so (of the repeat that stands for it)"
    ]
    untold = {"bottleneck": "cannot_tell", "bottleneck_evidence": "too short"}
    assert said(choice("hdf5", [60.0, 61.0], **untold), SLOW)[0].endswith("What limits it is unknown: too short.")


def test_choices_that_nothing_tells_apart_make_no_difference() -> None:
    alike = [choice(name, [40.0, 60.0, 61.0]) for name in ("hdf5", "tar", "files")]
    [text] = said(*alike)
    assert text.startswith("It makes no difference which is used: ")
    assert "cannot be told apart, and not even 50 more repeats would." in text and "Use " not in text


def test_a_disturbed_choice_has_no_rank_however_fast_it_was() -> None:
    busy = choice("lmdb", [90.0, 91.0], caveats=["foreign_load"])
    [text] = said(SLOW, busy, FAST)
    assert text.startswith(
        "It cannot be said yet which to use: lmdb (90.5 samples/s [90 91]) gave more than any that can be ranked, but "
        "other processes used the cores; measure again. The best of the others is hdf5: 61 samples/s [60 63]. files is "
    )
    assert "not ranked" not in text and "Use " not in text
    [near] = said(SLOW, choice("lmdb", [61.0, 64.0], caveats=["foreign_load"]), FAST)
    assert near.startswith("Use hdf5: ") and near.endswith("lmdb is not ranked: other processes used the cores.")
    points, trials = together(SLOW, busy, FAST)
    rows = ranked_rows(points, contests(points, trials, "samples_per_s"))
    assert [(row["label"], row["rank"], row["not_ranked"]) for row in rows] == [
        ("hdf5", 1, None),
        ("files", 2, None),
        ("lmdb", None, "foreign_load"),
    ]


def test_a_choice_that_read_nothing_leaves_no_answer_open() -> None:
    [text] = said(SLOW, choice("lmdb", [90.0, 91.0], caveats=["not_read"]), FAST)
    assert text.startswith("Use hdf5: ")
    assert text.endswith("lmdb is not ranked: readers handed on bytes that nobody read.")


def test_devices_are_no_choices_of_each_other() -> None:
    rates = {"5ms": {"a": 9.0, "b": 8.0}, "9ms": {"c": 4.0, "d": 5.0}}
    choices = [
        choice(name, [rate, rate + 0.1], **{"spec.device": f"emulated:{device}"})
        for device, found in rates.items()
        for name, rate in found.items()
    ]
    told = [text.partition(":")[2].partition(":")[2].partition(":")[0] for text in said(*choices)]
    assert told == [" use a", " use d"]


def test_a_choice_of_which_most_repeats_were_left_alone_has_a_rank() -> None:
    points, trials = choice("lmdb", [90.0, 91.0, 92.0])
    trials[0]["caveats"] = points[0]["caveats"] = ["foreign_load"]
    assert said((points, trials), FAST)[0].startswith("Use lmdb: 91 samples/s")


def test_where_every_choice_was_disturbed_none_is_recommended() -> None:
    found = [choice(name, [50.0, 60.0], caveats=["not_steady"]) for name in ("files", "tar")]
    assert said(*found) == [
        "No choice can be recommended: files and tar were disturbed; measure again on an idle machine. As it was "
        "measured, files gave the most: 55 samples/s [50 60]. It is limited by storage."
    ]


def test_a_utilization_above_one_is_no_rank_by_utilization() -> None:
    above = choice("tar", [60.0, 61.0])
    for row in (*above[0], *above[1]):
        row["au"] = 1.3
    assert "tar is not ranked: AU is not measurable." in said(above, FAST, SLOW, rank_by="au")[0]
    assert "Use hdf5: 61 samples/s" in said(above, FAST)[0], "its rate is one all the same"


def test_choices_on_as_many_ranks_are_compared_and_costs_on_any() -> None:
    double = choice("hdf5 2 ranks", [100.0, 101.0], **{"spec.world_size": 2})
    slower = choice("files 2 ranks", [80.0, 81.0], **{"spec.world_size": 2})
    by_rate = said(FAST, SLOW, double, slower)
    assert [text.partition(":")[0] for text in by_rate] == ["1 rank", "2 ranks"]
    assert by_rate[1].startswith("2 ranks: use hdf5 2 ranks: 100 samples/s [100 101]. files 2 ranks is 20% slower.")
    [by_cost] = said(FAST, SLOW, double, slower, rank_by="cost")
    assert by_cost.startswith(
        "Use hdf5: 61 samples/s a device [60 63]. hdf5 2 ranks is 18% dearer. files is 18% dearer."
    )


def test_models_of_other_sizes_are_compared_by_their_flops_alone() -> None:
    sizes = "spec.model.hidden_size"
    ends = {"tflops_per_device_min": 0.9, "tflops_per_device_max": 1.1}
    narrow = choice("narrow", [60.0, 61.0], tflops_per_device=1.0, **ends, **{sizes: 63.0})
    wide = choice("wide", [50.0, 51.0], tflops_per_device=2.0, **{sizes: 64.0, "spec.model.seq_len": None})
    for trial, flops in zip(wide[1], (1.9, 2.1), strict=True):
        trial["tflops_per_device"] = flops
    [by_flops] = said(narrow, wide, rank_by="tflops")
    assert by_flops.startswith("Use wide: 2 TFLOP/s a device. narrow is 50% lower.")
    points, trials = together(narrow, wide, choice("tar", [55.0, 56.0], **{sizes: 63.0}))
    titles = [found.title for found in contests(points, trials, "samples_per_s")]
    assert titles == ["hidden_size 63", "hidden_size 64"], "narrow and tar are one model"
    assert not any("wide" in text for text in said(narrow, wide, choice("tar", [55.0, 56.0], **{sizes: 63.0})))


def test_other_workloads_and_controls_in_memory_are_no_choices() -> None:
    memory = choice("memory", [99.0, 98.0], **{"spec.data.source": "memory"})
    other = choice("unet3d", [9.0, 9.1], **{"spec.workload": "unet3d"})
    assert said(FAST, SLOW, memory, other)[0].startswith("resnet50: use hdf5: 61 samples/s")
    assert not any("memory" in text or "unet3d" in text for text in said(FAST, SLOW, memory, other))


def test_our_own_reading_beside_stock_is_no_choice() -> None:
    def read(reader: str, rates: Sequence[float]) -> Rows:
        return choice(f"files {reader}", rates, **{"spec.data.reader": reader})

    assert "tuned" not in said(read("stock", [50.0, 51.0]), read("tuned", [90.0, 91.0]), FAST)[0]
    assert said(read("tuned", [90.0, 91.0]), FAST)[0].startswith("Use files tuned")
    stock = choice("hdf5 stock", [30.0, 31.0], **{"spec.data.reader": "stock"})
    points, trials = together(stock, read("tuned", [90.0, 91.0]))
    [alone] = contests(points, trials, "samples_per_s")
    assert [one.label for one in alone.choices] == ["hdf5 stock"], "another format's library was not measured"


def test_points_of_which_no_two_are_choices_say_what_holds_them_back() -> None:
    one = choice("files", [50.0], bottleneck_evidence="AU 0.90; slow", input_stall_fraction=0.1)
    two = choice("files 2", [70.0], input_stall_fraction=0.5, **{"spec.world_size": 2})
    assert said(one) == ["files: It is limited by storage."]
    assert grounds(one) == grounds(one, two) == ["files: AU 0.90; slow"]
    assert said(one, two) == [
        "Limited by storage in 2 of 2 points. files 2 waits most for input. It is limited by storage."
    ]


@pytest.mark.parametrize("points", [[], [{"label": "tar", "status": "failed", "au": None}]])
def test_without_results(points: list[dict[str, Any]]) -> None:
    assert answer(points, contests(points, [], "samples_per_s")) == ["No point has a result."]


@pytest.mark.parametrize("seed", range(20))
def test_choices_are_told_apart_as_welchs_test_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    one, other = (list(rng.normal(mean, 2.0, count)) for mean, count in ((60.0, 4), (rng.uniform(56, 64), 3)))
    expected = ttest_ind(np.log(one), np.log(other), equal_var=False).pvalue < 0.05
    assert are_apart(one, other) == expected


def test_a_single_repeat_tells_nothing_apart() -> None:
    assert not are_apart([1.0], [2.0, 2.1])
    assert (repeats_needed([1.0], [2.0, 2.1]), repeats_needed([1.0, 1.0], [1.0, 1.0])) == (2, None)


def test_so_many_more_repeats_tell_four_times_in_five() -> None:
    """Simulated: pairs of choices 3 % apart, of which a repeat varies by 2 %."""
    rng = np.random.default_rng(5)
    shape = np.array([-1.0, 0.0, 1.0]) * 0.02
    more = repeats_needed(list(np.exp(shape)), list(np.exp(shape + 0.03)))
    assert more is not None
    told = [
        are_apart(list(np.exp(rng.normal(0, 0.02, 3 + more))), list(np.exp(rng.normal(0.03, 0.02, 3 + more))))
        for _ in range(400)
    ]
    assert 0.72 < np.mean(told) < 0.9


def test_every_measure_is_a_value_of_the_sweep_file() -> None:
    from benchsuite.contract.trial_spec import SweepSpec

    (values,) = (SweepSpec.model_json_schema()["properties"]["rank_by"]["enum"],)
    assert set(values) == set(MEASURES)
