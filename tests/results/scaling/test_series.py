"""Which trials make a series, where its baseline is, and what stays out."""

from typing import Any

import pytest

from benchsuite.results.scaling.series import ScalingPoint, Series, batches, data_ranks, find_series, laws
from benchsuite.results.store.store import StoreError
from tests.results.scaled import frame, made_trial, made_trials

SLURM = [{"scheduler": {"SLURM_JOB_ID": job}} for job in ("7", "8")]


def only(*records: Any, **options: Any) -> Series:
    """The one series of these trials."""
    (found,) = find_series(frame(*records), **options)
    return found


def point(series: Series, ranks: int) -> ScalingPoint:
    (found,) = (p for p in series.points if p.ranks == ranks)
    return found


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"parallelism": "ddp"}, 8),
        ({"parallelism": "fsdp"}, 8),
        ({"parallelism": "ep"}, 8),
        ({"parallelism": "tp"}, 1),
        ({"parallelism": "pp"}, 1),
        ({"parallelism": {"dp": None, "tp": 2, "pp": 2, "cp": 1}}, 2),
        ({"parallelism": {"dp": 4, "tp": 2, "pp": 1, "cp": 1}}, 4),
    ],
)
def test_ranks_that_see_samples_of_their_own(spec: dict[str, Any], expected: int):
    (row,) = frame(made_trial(8, 1.0, spec=spec)).to_dict(orient="records")
    assert data_ranks(row) == expected
    assert batches(row) == {"weak": 8, "strong": 8 * expected}


def test_a_weak_series():
    series = only(*made_trials({1: [100.0], 2: [190.0], 4: [320.0]}))
    assert (series.kind, series.batch, series.baseline_ranks) == ("weak", 8, 1)
    assert [p.efficiency for p in series.points] == pytest.approx([1.0, 0.95, 0.8])


def test_a_strong_series():
    whole = {"spec": {"batch_size": None, "global_batch_size": 32}}
    series = only(*made_trials({2: [100.0], 4: [180.0], 8: [240.0]}, **whole))
    assert (series.kind, series.batch, series.baseline_ranks) == ("strong", 32, 2)
    assert [p.efficiency for p in series.points] == pytest.approx([1.0, 0.9, 0.6])


def test_a_grid_of_batches_and_ranks_holds_both_kinds():
    records = [
        *made_trials({1: [100.0], 2: [180.0]}, spec={"batch_size": 4}),
        *made_trials({1: [110.0], 2: [200.0]}, spec={"batch_size": 8}),
    ]
    found = find_series(frame(*records))
    assert [(s.kind, s.batch) for s in found] == [("weak", 4), ("weak", 8), ("strong", 8)]
    # 8 on one rank, 4 on each of two
    assert point(found[2], 2).efficiency == pytest.approx(180 / 110 / 2)


def test_tensor_parallel_ranks_share_their_batch_and_scale_strongly():
    series = only(*made_trials({1: [100.0], 2: [150.0]}, spec={"parallelism": "tp"}))
    assert (series.kind, series.batch) == ("strong", 8)


def test_a_single_rank_without_parallelism_is_the_baseline_of_ddp():
    series = only(made_trial(1, 100.0, spec={"parallelism": "none"}), made_trial(2, 190.0))
    assert point(series, 2).efficiency == pytest.approx(0.95)


def test_it_is_not_the_baseline_of_what_shards():
    records = [
        made_trial(1, 100.0, spec={"parallelism": "none"}),
        *made_trials({2: [190.0], 4: [360.0]}, spec={"parallelism": "fsdp"}),
    ]
    assert only(*records).baseline_ranks == 2


@pytest.mark.parametrize(
    "change",
    [{"precision": "bf16"}, {"data": {"source": "storage", "format": "files"}}, {"measure": {"steps": 9}}],
)
def test_points_that_differ_in_more_than_ranks_make_no_series(change: dict[str, Any]):
    assert find_series(frame(made_trial(1, 100.0), made_trial(2, 190.0, spec=change))) == []


@pytest.mark.parametrize("change", [{"timeout_s": 60}, {"repeats": 9}])
def test_how_long_and_how_often_is_no_difference(change: dict[str, Any]):
    assert find_series(frame(made_trial(1, 100.0), made_trial(2, 190.0, spec={"measure": change})))


def test_sessions_are_series_of_their_own():
    nights = [made_trials({1: [100.0], 2: [rate]}, session=night) for night, rate in (("a", 190.0), ("b", 150.0))]
    found = find_series(frame(*nights[0], *nights[1]))
    assert [point(series, 2).efficiency for series in found] == pytest.approx([0.95, 0.75])


def test_one_number_of_ranks_is_no_series():
    assert find_series(frame(*made_trials({2: [100.0, 101.0]}))) == []


def test_trials_that_do_not_say_their_batch_are_in_no_series():
    records = made_trials({1: [100.0], 2: [190.0]}, spec={"batch_size": None})
    assert find_series(frame(*records)) == []


def test_a_failed_point_stands_where_it_belongs():
    series = only(*made_trials({1: [100.0], 2: [None], 4: [320.0]}))
    lost = point(series, 2)
    assert (lost.status, lost.reason, lost.efficiency, lost.trials) == ("failed", "EIO", None, ())
    assert point(series, 4).efficiency == pytest.approx(0.8)


def test_a_point_that_others_of_the_sweep_have_is_missing():
    records = [
        *made_trials({1: [100.0], 2: [190.0], 4: [380.0]}),
        *made_trials({1: [100.0], 4: [300.0]}, spec={"precision": "bf16"}),
    ]
    whole, lacking = find_series(frame(*records))
    assert [p.ranks for p in whole.points] == [p.ranks for p in lacking.points] == [1, 2, 4]
    assert point(lacking, 2).status == "missing"


def test_what_an_interrupted_sweep_was_to_run_is_missing():
    planned = {"planned_world_sizes": [1, 2, 4, 8]}
    series = only(*made_trials({1: [100.0], 2: [190.0]}, env=planned))
    assert [(p.ranks, p.status) for p in series.points] == [(1, "ok"), (2, "ok"), (4, "missing"), (8, "missing")]
    whole = only(*made_trials({1: [100.0], 2: [190.0], 4: [380.0], 8: [760.0]}, env=planned))
    assert {p.status for p in whole.points} == {"ok"}


def test_a_plan_of_whole_batches_is_none_of_batches_per_rank():
    weak = made_trials({1: [100.0], 2: [190.0]}, env={"planned_world_sizes": [1, 2]})
    spec = {"batch_size": None, "global_batch_size": 16}
    strong = made_trials({1: [100.0], 2: [190.0]}, spec=spec, env={"planned_world_sizes": [1, 2, 4]})
    found = {series.kind: [p.ranks for p in series.points] for series in find_series(frame(*weak, *strong))}
    assert found == {"weak": [1, 2], "strong": [1, 2, 4]}


def test_what_only_happens_to_have_the_same_batch_misses_nothing():
    records = [
        record
        for batch in (4, 8)
        for record in made_trials({1: [100.0], 2: [190.0], 4: [380.0]}, spec={"batch_size": batch})
    ]
    strong = [series for series in find_series(frame(*records)) if series.kind == "strong"]
    assert [(series.batch, [p.ranks for p in series.points]) for series in strong] == [(8, [1, 2]), (16, [2, 4])]


def test_a_baseline_that_failed_is_replaced_by_the_next():
    series = only(*made_trials({1: [None], 2: [200.0], 4: [360.0]}))
    assert series.baseline_ranks == 2
    assert point(series, 1).status == "failed"
    assert point(series, 4).efficiency == pytest.approx(0.9)


def test_without_any_rate_there_is_no_baseline():
    series = only(*made_trials({1: [None], 2: [None]}))
    assert series.baseline_ranks is None
    assert all(fit.problem for fit in laws(series))


def test_repeats_that_failed_are_told():
    (found,) = (p for p in only(*made_trials({1: [100.0], 2: [190.0, None, 188.0]})).points if p.ranks == 2)
    assert found.reason == "1 of 3 repeats failed"
    assert found.efficiency == pytest.approx(0.945)


def test_what_must_stay_out_stays_out_and_is_told():
    caveat = "oversubscribed"
    records = [
        *made_trials({1: [100.0], 2: [190.0]}),
        made_trial(4, 200.0, caveats=[caveat], caveat_details=[f"{caveat}: the arithmetic"]),
    ]
    left = point(only(*records), 4)
    assert (left.status, left.reason, left.efficiency) == ("left out", f"{caveat}: the arithmetic", None)
    assert left.caveats == (caveat,)


def test_other_caveats_stay_with_their_figures():
    found = point(only(made_trial(1, 100.0), made_trial(2, 190.0, caveats=["not_steady"])), 2)
    assert (found.efficiency, found.caveats) == (pytest.approx(0.95), ("not_steady",))


def test_repeats_that_spread_too_far_are_unstable():
    series = only(*made_trials({1: [100.0, 101.0, 102.0], 2: [170.0, 190.0, 191.0]}))
    assert [p.caveats for p in series.points] == [(), ("unstable",)]


def test_rates_are_grouped_by_allocation():
    records = [
        made_trial(ranks, 100.0 * ranks + job, repeat=3 * job + k, env=SLURM[job])
        for ranks in (1, 2)
        for job in (0, 1)
        for k in range(3)
    ]
    series = only(*records)
    assert point(series, 2).rates == {"7": [200.0] * 3, "8": [201.0] * 3}
    assert point(series, 2).bounds.kind == "range", "two jobs do not tell by what jobs differ"
    assert series.rates == {1: [100.0] * 3 + [101.0] * 3, 2: [200.0] * 3 + [201.0] * 3}


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"cpu": "another"}, "cpu 'a cpu' at 1 rank, 'another' at 2 ranks"),
        ({"libraries": {"torch": "2.12.0"}}, "libraries.torch '2.13.0' at 1 rank, '2.12.0' at 2 ranks"),
        ({"devices": [{"name": "H100"}]}, "devices.name 'none' at 1 rank, 'H100' at 2 ranks"),
        ({"cores": 4}, "cores 8 at 1 rank, 4 at 2 ranks"),
    ],
)
def test_unlike_environments_are_refused_unless_told(env: dict[str, Any], words: str):
    records = [made_trial(1, 100.0), made_trial(2, 190.0, env=env)]
    with pytest.raises(StoreError) as error:
        find_series(frame(*records))
    assert words in str(error.value) and "--mix-environments" in str(error.value)
    assert "\n" not in str(error.value)
    series = only(*records, mix_environments=True)
    assert series.mixed == (words,)
    assert point(series, 2).efficiency == pytest.approx(0.95)


@pytest.mark.parametrize("env", [{"host": "there"}, {"load_average": 9.0}, {"cores": 16}, SLURM[0]])
def test_other_hosts_and_cores_that_grow_with_the_ranks_are_no_mixture(env: dict[str, Any]):
    assert only(made_trial(1, 100.0), made_trial(2, 190.0, env=env)).mixed == ()


def test_trials_that_do_not_count_may_be_from_elsewhere():
    records = [*made_trials({1: [100.0], 2: [190.0]}), made_trial(4, None, env={"cpu": "another"})]
    assert only(*records).mixed == ()


def test_unlike_environments_of_two_series_are_no_mixture():
    records = [
        *made_trials({1: [100.0], 2: [190.0]}),
        *made_trials({1: [100.0], 2: [190.0]}, spec={"precision": "bf16"}, env={"cpu": "another"}),
    ]
    assert len(find_series(frame(*records))) == 2


def parts(load: float, wire: float, waiting: float, forward: float) -> dict[str, float]:
    exchange = wire + waiting
    mean = load + exchange + forward
    return {
        "load_s": load,
        "communication_s": exchange,
        "communication_min_s": wire,
        "forward_s": forward,
        "step_s_mean": mean,
    }


@pytest.mark.parametrize("kind", ["weak", "strong"])
def test_losses_add_up_to_what_efficiency_lacks(kind: str):
    small, large = parts(0.01, 0.0, 0.0, 0.09), parts(0.02, 0.01, 0.005, 0.08)
    batch: dict[str, Any] = {"batch_size": 8} if kind == "weak" else {"batch_size": None, "global_batch_size": 16}
    whole = (8, 32) if kind == "weak" else (16, 16)
    records = [
        made_trial(1, whole[0] / small["step_s_mean"], figures=small, spec=batch),
        made_trial(4, whole[1] / large["step_s_mean"], figures=large, spec=batch),
    ]
    found = point(only(*records), 4)
    assert found.efficiency is not None
    assert found.efficiency == pytest.approx(0.1 / (1 if kind == "weak" else 4) / 0.115)
    assert sum(share or 0.0 for share in found.losses.values()) == pytest.approx(1 - found.efficiency)
    ideal = 1.0 if kind == "weak" else 0.25
    assert found.losses["load"] == pytest.approx((0.02 - ideal * 0.01) / 0.115)
    assert found.losses["imbalance"] == pytest.approx(0.005 / 0.115)
    assert found.losses["rest"] == pytest.approx((0.08 - ideal * 0.09) / 0.115)


def test_losses_are_those_of_the_repeat_with_the_median_step():
    rates = [(0.02, 80.0), (0.03, 75.0), (0.9, 10.0)]
    records = [made_trial(1, 100.0, figures=parts(0.01, 0.0, 0.0, 0.07))] + [
        made_trial(2, rate, k, figures=parts(load, 0.0, 0.0, 0.07)) for k, (load, rate) in enumerate(rates)
    ]
    assert point(only(*records), 2).losses["load"] == pytest.approx(0.02 / 0.1)


def test_laws_by_kind():
    weak = only(*made_trials({1: [100.0], 2: [190.0], 4: [360.0], 8: [700.0]}))
    assert [fit.law for fit in laws(weak)] == ["Gustafson", "USL"]
    whole = {"spec": {"batch_size": None, "global_batch_size": 32}}
    strong = only(*made_trials({1: [100.0], 2: [190.0], 4: [340.0], 8: [560.0]}, **whole))
    assert [fit.law for fit in laws(strong)] == ["Amdahl", "Karp-Flatt", "USL"]
    assert [estimate.name for estimate in laws(strong)[1].estimates] == ["2 ranks", "4 ranks", "8 ranks"]


def test_trusted_repeats_count_alone_where_there_are_any():
    """2 ranks: 195 three times, and 60 three times beside foreign load; alone 100."""
    loaded = [made_trial(2, 60.0, 3 + k, caveats=["foreign_load"]) for k in range(3)]
    series = only(*made_trials({1: [100.0] * 3, 2: [195.0] * 3}), *loaded)
    found = point(series, 2)
    assert (found.efficiency, found.left_out, found.caveats) == (pytest.approx(0.975), 3, ())
    assert found.reason == "3 of 6 repeats left out: foreign_load"
    assert [*series.rates] == [1, 2] and series.rates[2] == [195.0] * 3


def test_doubtful_repeats_count_where_there_are_no_others():
    series = only(*made_trials({1: [100.0] * 3, 2: [60.0] * 3}, caveats=["foreign_load"]))
    found = point(series, 2)
    assert (found.efficiency, found.left_out, found.caveats) == (pytest.approx(0.3), 0, ("foreign_load",))


def test_facts_that_may_differ_are_kept_with_their_values():
    first = made_trial(1, 100.0, env={"commit": "abc", "data": {"mount": "/a"}, "os": "x"})
    other = made_trial(2, 190.0, env={"commit": "def", "data": {"mount": "/b"}, "os": "x"})
    assert only(first, other).differing == {"commit": ("abc", "def"), "data.mount": ("/a", "/b")}
    assert only(first, made_trial(2, 190.0, env=dict(first.env))).differing == {}
