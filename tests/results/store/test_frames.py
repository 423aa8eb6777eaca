"""Frames: columns of the contract, and what is said of repeats."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom

from benchsuite.results.render.tables import outcome
from benchsuite.results.store.frames import IN_WORDS, flatten, median_interval, record_frame
from benchsuite.results.store.record import TrialFigures, TrialRecord
from benchsuite.results.store.store import ResultsStore
from tests.results.made import made_record

IDENTITY = {
    "record_id",
    "trial_id",
    "point_id",
    "session",
    "repeat",
    "sweep",
    "question",
    "status",
    "reason",
    "caveats",
}
FIGURES = set((Path(__file__).parent / "fixtures" / "figures.txt").read_text().split())
"""TrialFigures of the contract that are numbers."""

# n -> k: the k-th smallest and k-th largest of n values hold the median with at least 95 % (tables of the sign test).
SIGN_TEST = {6: 1, 7: 1, 8: 1, 9: 2, 10: 2, 11: 2, 12: 3, 13: 3, 14: 3, 15: 4, 16: 4, 17: 5, 18: 5, 19: 5, 20: 6, 25: 8}


def repeats_of(rates: list[float], **changes: Any) -> list[TrialRecord]:
    return [made_record(number, figures={"samples_per_s": rate}, **changes) for number, rate in enumerate(rates)]


def by_point(tmp_path: Path, records: list[TrialRecord]) -> pd.DataFrame:
    store = ResultsStore(tmp_path)
    for record in records:
        store.append(record)
    return store.frame(by="point")


def test_columns_of_the_contract():
    frame = record_frame([made_record()])
    assert IDENTITY | FIGURES | {"bottleneck", "bottleneck_evidence"} <= set(frame.columns)
    assert {str(frame[name].dtype) for name in FIGURES} == {"float64"}
    assert str(frame["repeat"].dtype) == "int64"


def test_columns_are_there_without_any_record(tmp_path: Path):
    store = ResultsStore(tmp_path)
    store.check_writable()
    frame = store.frame()
    assert len(frame) == 0
    assert set(frame.columns) >= IDENTITY | FIGURES
    assert {str(frame[name].dtype) for name in FIGURES} == {"float64"}


def test_no_points_without_any_record(tmp_path: Path):
    store = ResultsStore(tmp_path)
    store.check_writable()
    assert len(store.frame(by="point")) == 0


def test_nested_facts_become_dotted_columns():
    frame = record_frame([made_record(dataset={"dataset_id": "ab", "num_samples": 3})])
    row = frame.iloc[0]
    assert row["spec.workload"] == "resnet50"
    assert row["spec.data.source"] == "storage"
    assert row["env.libraries.torch"] == "2.13.0"
    assert row["env.devices"] == []
    assert row["dataset.num_samples"] == 3
    assert "spec" not in frame and "env" not in frame and "figures" not in frame


def test_flatten():
    assert flatten("a", {"b": 1, "c": {"d": [2], "e": {}}, "f": None}) == {"a.b": 1, "a.c.d": [2], "a.f": None}


def test_records_with_unlike_fields_share_a_frame():
    frame = record_frame([made_record(0), made_record(1, spec={"workload": "bert", "new": 1})])
    assert frame["spec.workload"].tolist() == ["resnet50", "bert"]
    assert pd.isna(frame["spec.new"][0]) and frame["spec.new"][1] == 1


def test_missing_is_null_and_zero_is_zero():
    frame = record_frame([made_record(0, figures={"cache_hit_fraction": 0.0, "au": None}), made_record(1, figures={})])
    assert frame["cache_hit_fraction"][0] == 0.0
    assert np.isnan(frame["cache_hit_fraction"][1])
    assert frame["au"].isna().all()
    assert frame["samples_per_s"].isna().all()


def test_frame_by_trial_has_last_attempts(tmp_path: Path):
    store = ResultsStore(tmp_path)
    store.append(made_record(0, trial_id="a", status="failed", reason="broke", figures={}))
    store.append(made_record(1, trial_id="b"))
    store.append(made_record(2, trial_id="a", figures={"samples_per_s": 7}))
    frame = store.frame().set_index("trial_id")
    assert frame["status"].to_dict() == {"a": "ok", "b": "ok"}
    assert frame["samples_per_s"].to_dict() == {"a": 7.0, "b": 100.0}


def test_median_and_range_over_repeats(tmp_path: Path):
    (point,) = by_point(tmp_path, repeats_of([104.0, 100.0, 101.0])).to_dict(orient="records")
    assert (point["samples_per_s"], point["samples_per_s_min"], point["samples_per_s_max"]) == (101.0, 100.0, 104.0)
    assert (point["repeats"], point["repeats_failed"]) == (3, 0)
    assert pd.isna(point["samples_per_s_low"]) and pd.isna(point["samples_per_s_high"]), "three repeats: no interval"
    assert pd.isna(point["au"]) and pd.isna(point["au_min"]), "null stays null"
    assert point["spec.workload"] == "resnet50"


def test_interval_from_six_repeats_on(tmp_path: Path):
    (point,) = by_point(tmp_path, repeats_of([106.0, 101, 105, 102, 104, 103])).to_dict(orient="records")
    assert (point["samples_per_s_low"], point["samples_per_s_high"]) == (101.0, 106.0)


def test_intervals_reach_over_the_sessions_of_a_point(tmp_path: Path):
    records = repeats_of([106.0, 101, 105, 102, 104, 103])
    records += [
        made_record(number, session=session, trial_id=f"{session}.{number}", figures={"samples_per_s": rate})
        for session, rate in (("second", 90.0), ("third", 104.0))
        for number in range(6)
    ]
    points = by_point(tmp_path, records).set_index("session")
    assert points.loc["default", ["samples_per_s", "samples_per_s_low", "samples_per_s_high"]].tolist() == [
        103.5,
        90,
        106,
    ]
    assert points.loc["third", ["samples_per_s_low", "samples_per_s_high"]].tolist() == [90, 104]


def test_ranges_of_few_repeats_reach_over_the_sessions_of_a_point(tmp_path: Path):
    rates = {"first": [100.0, 101, 104], "second": [90.0, 91, 92], "third": []}
    records = [
        made_record(number, session=session, trial_id=f"{session}.{number}", figures={"samples_per_s": rate})
        for session, found in rates.items()
        for number, rate in enumerate(found)
    ]
    records.append(made_record(9, session="third", trial_id="third.0", status="timeout", reason="late", figures={}))
    points = by_point(tmp_path, records).set_index("session")
    ranges = points[["samples_per_s_min", "samples_per_s", "samples_per_s_max"]]
    assert ranges.loc["first"].tolist() == [91, 101, 104]
    assert ranges.loc["second"].tolist() == [90, 91, 101]
    assert ranges.loc["third"].isna().all()
    assert points["samples_per_s_low"].isna().all() and not points["unstable"].any()


def test_sessions_of_a_watched_loop_stay_apart(tmp_path: Path):
    """Before a change of the script, and after it."""
    rates = {"before": 100.0, "after": 200.0}
    records = [
        made_record(0, session=session, trial_id=f"{session}.0", sweep="watch", figures={"samples_per_s": rate})
        for session, rate in rates.items()
    ]
    points = by_point(tmp_path, records).set_index("session")
    assert points.loc["before", ["samples_per_s_min", "samples_per_s_max"]].tolist() == [100, 100]


@pytest.mark.parametrize(("sessions", "ends"), [(2, None), (5, None), (6, (100.0, 105.0)), (9, (101.0, 107.0))])
def test_sessions_of_a_single_repeat_have_an_interval_from_six_on(
    tmp_path: Path, sessions: int, ends: tuple[float, float] | None
):
    """As the sign test has it, of sessions as of repeats."""
    records = [
        made_record(session=f"{number}", trial_id=f"{number}", figures={"samples_per_s": 100.0 + number})
        for number in range(sessions)
    ]
    points = by_point(tmp_path, records)
    found = set(zip(points["samples_per_s_low"], points["samples_per_s_high"], strict=True))
    assert found == {ends} if ends else points["samples_per_s_low"].isna().all()


def test_failed_repeats_are_counted_and_left_out_of_medians(tmp_path: Path):
    records = repeats_of([100.0, 102.0])
    records.append(made_record(2, status="timeout", reason="late", figures={}, caveats=["oversubscribed"]))
    records.append(made_record(3, status="oom", reason="full", figures={"samples_per_s": 1.0}))
    (point,) = by_point(tmp_path, records).to_dict(orient="records")
    assert (point["status"], point["repeats"], point["repeats_failed"]) == ("ok", 2, 2)
    assert (point["samples_per_s"], point["samples_per_s_min"]) == (101.0, 100.0)
    assert point["caveats"] == ["oversubscribed"]


def test_a_point_without_any_result_keeps_its_status(tmp_path: Path):
    records = [made_record(number, status="failed", reason="broke", figures={}) for number in range(2)]
    (point,) = by_point(tmp_path, records).to_dict(orient="records")
    assert (point["status"], point["reason"], point["repeats"], point["repeats_failed"]) == ("failed", "broke", 0, 2)
    assert pd.isna(point["samples_per_s"])
    assert point["unstable"] is False


def test_points_and_sessions_are_kept_apart(tmp_path: Path):
    records = [
        made_record(0, trial_id="a", figures={"samples_per_s": 1}),
        made_record(1, trial_id="b", figures={"samples_per_s": 2}, session="tonight"),
        made_record(2, trial_id="c", figures={"samples_per_s": 3}, point_id="other"),
    ]
    frame = by_point(tmp_path, records)
    assert frame[["point_id", "session", "samples_per_s"]].to_numpy().tolist() == [
        ["point", "default", 1.0],
        ["point", "tonight", 2.0],
        ["other", "default", 3.0],
    ]


def test_points_stand_in_the_order_of_the_sweep(tmp_path: Path):
    records = [
        made_record(n, trial_id=f"t{n}", point_id=point, order=order)
        for n, (point, order) in enumerate([("late", 2), ("first", 0), ("second", 1), ("first", 0)])
    ]
    assert by_point(tmp_path, records)["point_id"].tolist() == ["first", "second", "late"]


def test_caveats_of_all_repeats_are_named_once(tmp_path: Path):
    records = [made_record(0, caveats=["not_steady"]), made_record(1, caveats=["not_cold", "not_steady"])]
    assert by_point(tmp_path, records)["caveats"][0] == ["not_cold", "not_steady"]


@pytest.mark.parametrize(
    ("rates", "unstable"),
    [
        ([100.0], False),
        ([95.0, 100.0, 105.0], False),
        ([95.0, 100.0, 105.1], True),
        ([50.0, 100.0, 101.0], True),
    ],
)
def test_unstable_is_a_spread_above_a_tenth_of_the_median(tmp_path: Path, rates: list[float], unstable: bool):
    assert by_point(tmp_path, repeats_of(rates))["unstable"].tolist() == [unstable]


def test_verdict_and_evidence_are_those_of_the_median_utilization(tmp_path: Path):
    found = [(0.97, "compute"), (0.80, "storage"), (0.60, "preprocessing")]
    records = [
        made_record(n, figures={"au": au, "samples_per_s": 1, "bottleneck": name, "bottleneck_evidence": f"why {name}"})
        for n, (au, name) in enumerate(found)
    ]
    (point,) = by_point(tmp_path, records).to_dict(orient="records")
    assert (point["bottleneck"], point["bottleneck_evidence"]) == ("storage", "why storage")


def test_a_points_verdict_is_that_of_most_repeats(tmp_path: Path):
    found = [(0.97, "compute"), (0.94, "mixed"), (0.96, "compute"), (0.93, "mixed"), (0.98, "compute")]
    records = [
        made_record(n, figures={"au": au, "samples_per_s": 1, "bottleneck": name, "bottleneck_evidence": f"AU {au}"})
        for n, (au, name) in enumerate(found)
    ]
    (point,) = by_point(tmp_path, records).to_dict(orient="records")
    assert (point["au"], point["bottleneck"], point["bottleneck_repeats"]) == (0.96, "compute", 3)
    assert point["bottleneck_evidence"] == "AU 0.97", "the median of those three"
    assert outcome(point) == "compute (3 of 5)"
    assert outcome({**point, "bottleneck_repeats": 5, "repeats_failed": 1}) == "compute (1 failed)"


def test_parts_of_a_point_add_up_to_its_step(tmp_path: Path):
    halves = [(0.010, 0.030), (0.030, 0.011), (0.020, 0.022)]
    records = [
        made_record(n, figures={"load_s": load, "forward_s": rest, "step_s_mean": load + rest, "samples_per_s": 1})
        for n, (load, rest) in enumerate(halves)
    ]
    (point,) = by_point(tmp_path, records).to_dict(orient="records")
    assert point["load_s"] + point["forward_s"] == pytest.approx(point["step_s_mean"])


def test_of_an_even_number_every_column_is_the_mean_of_the_middle_two(tmp_path: Path):
    """Four samples a step: (16 + 8) / 2 samples/s, and (250 + 500) / 2 ms, of which loading (50 + 200) / 2."""
    records = [
        made_record(n, figures={"samples_per_s": 4 / step, "step_s_mean": step, "load_s": load, "forward_s": rest})
        for n, (step, load, rest) in enumerate([(0.25, 0.05, 0.2), (0.5, 0.2, 0.3)])
    ]
    (point,) = by_point(tmp_path, records).to_dict(orient="records")
    found = [point[name] for name in ("samples_per_s", "step_s_mean", "load_s", "forward_s")]
    assert found == pytest.approx([12.0, 0.375, 0.125, 0.25])
    assert pd.isna(point["communication_s"])


def test_of_four_repeats_the_middle_two_count_and_a_part_that_one_lacks_is_missing(tmp_path: Path):
    parts = [(0.1, 0.01), (9.0, 8.0), (0.3, 0.02), (0.2, None)]
    records = [
        made_record(n, figures={"step_s_mean": step, "load_s": load, "forward_s": step / 2, "samples_per_s": 1})
        for n, (step, load) in enumerate(parts)
    ]
    (point,) = by_point(tmp_path, records).to_dict(orient="records")
    assert (point["step_s_mean"], point["forward_s"]) == (pytest.approx(0.25), pytest.approx(0.125))
    assert pd.isna(point["load_s"])


def test_interval_is_that_of_scipys_quantile():
    """Up to 300 repeats: the ranks are those by scipy.stats.binom, which the module does not import."""
    for count in range(6, 301):
        rank = max(int(binom.ppf(0.025, count, 0.5)) - 1, 0)
        assert median_interval([float(value) for value in range(count)]) == (rank, count - 1 - rank)


@pytest.mark.parametrize("count", range(6))
def test_no_interval_below_six(count: int):
    assert median_interval([1.0] * count) == (None, None)


@pytest.mark.parametrize(("count", "k"), SIGN_TEST.items())
def test_interval_is_the_order_statistics_of_the_sign_test(count: int, k: int):
    ordered = [float(value) ** 2 for value in range(count)]
    shuffled = np.random.default_rng(count).permutation(ordered).tolist()
    assert median_interval(shuffled) == (ordered[k - 1], ordered[-k])


@pytest.mark.parametrize("count", range(6, 21))
def test_interval_covers_the_median(count: int):
    """The true median of a skewed distribution lies inside in at least 93 of 100 campaigns (95 are asked for)."""
    low, high = (int(rank) for rank in median_interval([float(rank) for rank in range(count)]) if rank is not None)
    draws = np.sort(np.random.default_rng(count).lognormal(mean=0.0, sigma=0.5, size=(20_000, count)), axis=1)
    covered = (draws[:, low] <= 1.0) & (draws[:, high] >= 1.0)
    assert covered.mean() >= 0.93


def test_interval_of_one_campaign_is_that_of_its_ranks():
    values = np.random.default_rng(1).lognormal(size=12).tolist()
    ordered = sorted(values)
    assert median_interval(values) == (ordered[2], ordered[9])


def test_every_numeric_figure_has_a_range(tmp_path: Path):
    frame = by_point(tmp_path, [made_record()])
    numeric = set(TrialFigures.model_fields) - IN_WORDS
    assert {f"{name}_{end}" for name in numeric for end in ("min", "max", "low", "high")} <= set(frame.columns)
