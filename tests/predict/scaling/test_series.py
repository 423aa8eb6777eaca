"""T(N) of measured series: known truths found again, interval, input, refusals."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchsuite.contract.errors import UserError
from benchsuite.predict.scaling import outlook
from benchsuite.predict.scaling.curve import Curve, Point
from benchsuite.predict.scaling.exchange import volume_and_linear
from benchsuite.predict.scaling.model import Model
from benchsuite.predict.scaling.nodes import Placement
from benchsuite.predict.scaling.outlook import check_reach
from benchsuite.predict.scaling.series import fit
from benchsuite.predict.theory.input import of_slowest


def slowest(ranks: int) -> float:
    return float(of_slowest(np.array([float(ranks)]))[0])


def made(kind: str = "weak", ranks: tuple[int, ...] = (1, 2, 4), told: bool = True, **changes: Any) -> Curve:
    """Computation 0.2 s, a ring of 0.06 (N - 1)/N, jitter of 5 ms; strong ones divide the computation."""
    points = []
    for n in ranks:
        parts = {
            "compute": 0.2 / n if kind == "strong" else 0.2,
            "communication": 0.06 * (n - 1) / n,
            "imbalance": 0.005 * slowest(n),
        }
        whole = sum(parts.values())
        points.append(Point(n, (whole * 0.99, whole, whole * 1.01), 0.0, parts if told else None))
    return Curve("made", kind, 8, tuple(points), **changes)


def truth(kind: str, n: int) -> float:
    return (0.2 / n if kind == "strong" else 0.2) + 0.06 * (n - 1) / n + 0.005 * slowest(n)


@pytest.mark.parametrize("kind", ["weak", "strong"])
@pytest.mark.parametrize("told", [True, False])
def test_a_known_truth_is_predicted(kind: str, told: bool):
    model = fit(made(kind, told=told))
    for n, far in ((8, 0.05), (16, 0.12)):
        found = model.at(n)
        assert found.step_s == pytest.approx(truth(kind, n), rel=far)
        assert found.low_s < truth(kind, n) < found.high_s
        assert sum(found.parts.values()) == pytest.approx(found.step_s)
    assert found.samples == (8 * 16 if kind == "weak" else 8)


def test_parts_that_miss_the_measured_step_do_not_decide():
    """Parts of 0.2 s of steps that took 0.26: the prediction is nearer to the step than they are."""
    parts = {"compute": 0.2, "communication": 0.0, "imbalance": 0.0}
    found = fit(Curve("off", "weak", 8, tuple(Point(n, (0.26,), 0.0, parts) for n in (1, 2, 4)))).at(4)
    assert 0.225 < found.step_s < 0.265


def test_parts_are_told_apart():
    parts = fit(made()).at(16).parts
    assert parts["compute"] == pytest.approx(0.2, rel=0.05)
    assert parts["communication"] == pytest.approx(0.06 * 15 / 16, rel=0.15)
    assert parts["load"] == 0


def test_a_shared_medium_grows_with_every_rank():
    """Exchange of 10 ms (N - 1), as on one bus: at 16 ranks 150 ms."""
    points = tuple(
        Point(n, (0.2 + 0.01 * (n - 1),), 0.0, {"compute": 0.2, "communication": 0.01 * (n - 1), "imbalance": 0.0})
        for n in (1, 2, 4)
    )
    found = fit(Curve("bus", "weak", 8, points)).at(16)
    assert found.parts["communication"] == pytest.approx(0.15, rel=0.2)


@pytest.mark.parametrize(("seeds", "draws"), [((0,), 10), pytest.param((0, 1), 30, marks=pytest.mark.full)])
def test_intervals_hold_over_many_series_and_are_not_too_wide(seeds: tuple[int, ...], draws: int):
    """Steps drawn with 2 % noise, one or two doublings beyond 4 or 8 ranks: 80 to 99 % of steps lie within 90 %."""
    held = []
    for seed in seeds:
        for ranks, target in (((1, 2, 4), 16), ((1, 2, 4), 8), ((1, 2, 4, 8), 16)):
            chosen = np.random.default_rng(seed)
            for _ in range(draws):
                volume, jitter, latency = chosen.uniform(0, (0.08, 0.01, 0.005))
                clean = {n: 0.2 + volume * (n - 1) / n + jitter * slowest(n) for n in (*ranks, target)}
                clean = {n: seconds + latency * (n - 1) for n, seconds in clean.items()}
                noisy = {n: tuple(value * (1 + 0.02 * chosen.standard_normal(3))) for n, value in clean.items()}
                found = fit(Curve("drawn", "weak", 8, tuple(Point(n, noisy[n]) for n in ranks))).at(target)
                held.append(found.low_s <= noisy[target][0] <= found.high_s)
    assert 0.80 <= np.mean(held) <= 0.99


def test_interval_widens_with_distance_and_with_fewer_scales():
    model, fewer = fit(made()), fit(made(ranks=(1, 2)))
    widths = [model.at(n).high_s / model.at(n).low_s for n in (4, 8, 16, 32)]
    assert widths == sorted(widths)
    assert fewer.at(16).high_s / fewer.at(16).low_s > widths[2]


def test_pipelines_have_a_bubble():
    """Work of 0.4 s over N stages and 8 microbatches: 0.4/N (8 + N - 1)/8."""
    points = tuple(Point(n, (0.4 / n * (8 + n - 1) / 8,)) for n in (1, 2, 4))
    found = fit(Curve("pp", "strong", 32, points, pipeline=True, microbatches=8)).at(8)
    assert found.step_s == pytest.approx(0.4 / 8 * 15 / 8, rel=0.1)


def test_every_slot_of_a_pipeline_has_a_cost():
    """As many microbatches as stages: 0.4/N (2N - 1)/N of work, and 4 ms in each of 2N - 1 slots."""

    def truth(n: int) -> float:
        return 0.4 / n * (2 * n - 1) / n + 0.004 * (2 * n - 1)

    found = fit(Curve("pp", "strong", 32, tuple(Point(n, (truth(n),)) for n in (1, 2, 4)), pipeline=True)).at(8)
    assert found.step_s == pytest.approx(truth(8), rel=0.14), "154 ms, of which 60 are slots: up to 4 as transfers"
    assert found.low_s < truth(8) < found.high_s


def test_transfers_of_a_pipeline_follow_one_another():
    """As many microbatches as stages, 1F1B: over 2, 4, 8 stages 2, 10 and 26 transfers of 1/2, 1/4, 1/8 of 60 ms."""

    def truth(n: int) -> float:
        return 1.5 / n * (2 * n - 1) / n + 0.016 + {1: 0, 2: 2, 4: 10, 8: 26}[n] / n * 0.06

    points = tuple(Point(n, (truth(n), 1.001 * truth(n))) for n in (1, 2, 4))
    found = fit(Curve("pp", "strong", 64, points, pipeline=True)).at(8)
    assert found.step_s == pytest.approx(truth(8), rel=0.06), "as slots alone 14 % too long"
    assert found.low_s < truth(8) < found.high_s


def latent(ranks: tuple[int, ...]) -> Curve:
    """Exchange of 50 ms (N - 1), in steps whose repeats are 10 % apart."""
    points = []
    for n in ranks:
        parts = {"compute": 0.2 / n, "communication": 0.05 * (n - 1), "imbalance": 0.0}
        whole = sum(parts.values())
        points.append(Point(n, (0.9 * whole, whole, 1.1 * whole), 0.0, parts))
    return Curve("tp", "strong", 8, tuple(points), 0.25)


def test_latencies_are_believed_where_two_scales_show_them():
    found = fit(latent((1, 2, 4))).at(8)
    assert found.parts["communication"] == pytest.approx(0.35, rel=0.06)
    assert found.low_s < 0.375 < found.high_s


def test_two_scales_do_not_tell_a_tree_from_a_ring():
    """0.4 and 0.8 s: 0.4 log2 N is 1.2 s at 8 ranks; 0.533 (N - 1)/N + 0.133 (N - 1), which fits as well, is 1.4."""
    points = [Point(1, (1.5,) * 3, 0.0, {"compute": 1.5, "communication": 0.0, "imbalance": 0.0})]
    for n, exchange in ((2, 0.4), (4, 0.8)):
        whole = 1.5 / n + exchange
        points.append(Point(n, (whole,) * 3, 0.0, {"compute": 1.5 / n, "communication": exchange, "imbalance": 0.0}))
    found = fit(Curve("tp", "strong", 8, tuple(points), 0.25)).at(8)
    assert 1.2 < found.parts["communication"] < 1.4
    assert found.low_s < 1.2 + 0.1875 < found.high_s and found.low_s < 1.4 + 0.1875 < found.high_s


def whole_steps(kind: str, steps: dict[int, float]) -> Model:
    return fit(Curve("whole", kind, 1024.0, tuple(Point(n, (step,)) for n, step in steps.items())))


@pytest.mark.parametrize("steps", [{8: 1.0, 16: 1.0, 32: 1.03}, {8: 1.0, 16: 1.05}])
def test_one_noisy_scale_is_no_loss(steps: dict[int, float]):
    """Perfect scaling with 3 or 5 % in the last scale: eight times as many ranks take hardly longer."""
    most = max(steps)
    assert 1.0 < whole_steps("weak", steps).at(8 * most).step_s < steps[most]


def test_two_scales_of_strong_scaling_tell_amdahls_law():
    model = whole_steps("strong", {n: 0.1 + 0.9 / n for n in (4, 8)})
    for n in (16, 32, 64):
        assert model.at(n).step_s == pytest.approx(0.1 + 0.9 / n, rel=0.04)


def test_contention_and_coherency_are_found_together():
    """A step by the Universal Scalability Law: 3.60 s at 32 ranks, of which the terms alone would find 2.2."""
    truth = {n: 1 + 0.02 * (n - 1) + 0.002 * n * (n - 1) for n in (1, 2, 4, 8, 32)}
    found = whole_steps("weak", {n: truth[n] for n in (1, 2, 4, 8)}).at(32)
    assert 3.0 < found.step_s < 3.7
    assert found.low_s < truth[32] < found.high_s


def test_volume_and_latencies_by_hand():
    assert volume_and_linear({2: 0.05 + 0.01, 4: 0.075 + 0.03}) == pytest.approx((0.1, 0.01))
    assert volume_and_linear({2: 0.06, 4: 0.03})[1] == 0.0


class TestInput:
    def limited(self, **changes: Any) -> Curve:
        """1 MB a sample, batch 8, 0.1 s of computing; 160 MB/s feed two ranks and no more."""
        points = (
            Point(1, (0.1,), 0.0, None, 80e6),
            Point(2, (0.1,), 0.0, None, 160e6),
            Point(4, (0.2,), 0.1, None, 160e6),
        )
        return Curve("io", "weak", 8, points, **({"shared_bytes_per_s": 160e6} | changes))

    def test_ranks_wait_for_a_shared_file_system(self):
        found = fit(self.limited()).at(8)
        assert found.step_s == pytest.approx(8 * 8e6 / 160e6, rel=0.02), "0.4 s"
        assert found.au[0] == pytest.approx(0.25, abs=0.02), "the knee is at 2 ranks: 2/8"

    def test_twice_the_storage_and_none_in_the_way(self):
        assert fit(self.limited()).at(8, storage=2).step_s == pytest.approx(0.2, rel=0.02)
        staged = fit(self.limited(shared_bytes_per_s=None, staged="asked")).at(8)
        assert staged.load_s == staged.load_high_s == 0, "nothing of the shared file system is left in the interval"
        assert staged.high_s < 0.15 and staged.au[1] == 1
        assert staged.step_s == pytest.approx(0.1, rel=0.1)

    def test_two_words_for_faster_storage_say_the_same(self):
        """160 MB/s were seen: twice that by --storage, or 320 MB/s by --shared-bandwidth; not beyond what was given."""
        seen = self.limited(seen_bytes_per_s=160e6)
        for ranks in (4, 8, 16):
            twice = fit(seen).at(ranks, storage=2)
            given = fit(replace(seen, shared_bytes_per_s=320e6)).at(ranks)
            assert twice.step_s == pytest.approx(given.step_s) and twice.load_s == pytest.approx(given.load_s)
        assert fit(seen).at(4).load_s == pytest.approx(0.1), "as measured"
        plenty = fit(replace(seen, shared_bytes_per_s=5e9)).at(4)
        assert plenty.load_s == 0, "what was waited for was the file system"

    @pytest.mark.parametrize("changes", [{}, {"staged": "asked"}, {"shared_bytes_per_s": 5e9}])
    def test_readers_stay_as_fast_as_their_cores(self, changes: dict[str, Any]):
        """160 MB/s is what two cores decode: no storage makes it more, on the one node that all ranks stand on."""
        curve = self.limited(**({"shared_bytes_per_s": None, "readers_bytes_per_s": 160e6} | changes))
        for storage in (1.0, 4.0):
            found = fit(curve).at(8, storage=storage)
            assert found.step_s == pytest.approx(0.4, rel=0.02)
            assert found.fraction_not_waiting[0] == pytest.approx(0.25, abs=0.02)
        (line,) = [line for line in outlook.assumptions(fit(curve), [8]) if "read and decode" in line]
        assert line.startswith("input: the cores of 1 node read and decode 160 MB/s in all")

    def test_another_node_brings_readers(self):
        """Four ranks fill a node: eight have the cores of two, and wait as four did."""
        place = Placement({1: 1, 2: 1, 4: 1}, room=4.0)
        curve = self.limited(shared_bytes_per_s=None, readers_bytes_per_s=160e6, placement=place)
        assert fit(curve).at(8).load_s == pytest.approx(fit(curve).at(4).load_s, rel=0.1)
        assert fit(curve).at(8).load_s == pytest.approx(0.1, rel=0.1)

    def test_utilization_at_a_measured_scale_is_the_measured_one(self):
        """Cores are short at 4 ranks: what is not waited for there is no longer all useful."""
        points = [replace(p, au=au) for p, au in zip(self.limited().points, (1.0, 1.0, 0.4), strict=True)]
        model = fit(replace(self.limited(), points=tuple(points)))
        assert model.at(4).au[0] == pytest.approx(0.4, abs=0.02) and model.at(2).au[0] == pytest.approx(1.0, abs=0.02)
        assert model.at(8).au[0] == pytest.approx(0.2, abs=0.02), "half of it beyond, where the file system gives half"

    def test_a_limit_that_was_near_widens(self):
        """Input is waited for at 4 ranks, and no limit is known: the slow end is as if this rate were all there is."""
        found = fit(self.limited(shared_bytes_per_s=None)).at(16)
        assert found.high_s >= 16 * 8e6 / 160e6 * 0.98
        assert found.au[1] < 0.2

    def test_utilization_of_a_limit_has_two_ends(self):
        """A step of 0.4 s is all the file system's: utilization is as uncertain as the computation."""
        found = fit(self.limited()).at(8)
        value, low, high = found.au
        base = found.step_s - found.load_s
        assert low < value < high
        assert 1 / 3 < (value - low) / (high - value) < 3
        assert 1 / 3 < (high - low) / value / (2 * (base - low * 0.4) / base) < 3

    def test_waits_are_those_measured_and_beyond_at_least_the_last(self):
        loads = {1: 0.0, 2: 0.02, 4: 0.04}
        points = tuple(Point(n, (0.1 + load,), load) for n, load in loads.items())
        model = fit(Curve("waits", "weak", 8, points))
        assert [model.at(n).load_s for n in (1, 2, 4)] == pytest.approx([0, 0.02, 0.04])
        assert model.at(3).load_s == pytest.approx(0.02 + 0.02 * np.log2(1.5))
        assert model.at(16).load_s == pytest.approx(0.04)
        assert model.at(16).load_high_s == pytest.approx(0.08), "20 ms more per doubling"

    def test_measured_utilization_is_the_anchor(self):
        """0.1 of 0.125 s are not waited: 0.8; the suite's AU, against the rate without input, was 0.72."""
        points = tuple(Point(n, (0.125,), 0.025, None, 80e6 * n, None, 0.72) for n in (1, 2, 4))
        model = fit(Curve("io", "weak", 8, points, has_input=True))
        found = model.at(8)
        assert found.fraction_not_waiting[0] == pytest.approx(0.8, rel=0.02)
        assert found.au[0] == pytest.approx(0.72, rel=0.02)
        row = outlook.row(model, found)
        assert row["au"] == found.au[0] and row["fraction_not_waiting"] is None

    def test_waits_as_long_as_the_step(self):
        """Loads are means over ranks and may exceed the median step."""
        points = tuple(Point(n, (0.1,), 0.11, None, 80e6 * n) for n in (1, 2, 4))
        found = fit(Curve("io", "weak", 8, points)).at(8)
        assert np.isfinite([found.step_s, found.low_s, found.high_s]).all() and found.step_s > 0.1


def test_a_faster_network():
    model = fit(made())
    once, twice = model.at(16), model.at(16, network=2)
    assert twice.parts["communication"] == pytest.approx(once.parts["communication"] / 2)
    assert twice.parts["compute"] == once.parts["compute"]


def test_refusals():
    with pytest.raises(UserError, match="measured at 4 ranks: a prediction needs at least 2 scales"):
        fit(made(ranks=(4,)))
    check_reach(made(), [32], far=False)
    check_reach(made(), [64], far=True)
    with pytest.raises(
        UserError, match=r"64 ranks are 16 times the 4 measured; allowed: up to 8 times \(32\); .*--far"
    ):
        check_reach(made(), [8, 64], far=False)


class TestOutlook:
    def test_row(self):
        row = outlook.row(model := fit(made()), model.at(16))
        assert row["samples_per_s"] == pytest.approx(8 * 16 / row["step_s"])
        assert row["samples_per_s_low"] == pytest.approx(8 * 16 / row["step_s_high"])
        assert row["efficiency"] == pytest.approx(truth("weak", 1) / row["step_s"], rel=0.02)
        assert (row["au"], row["au_low"], row["au_high"]) == (None, None, None), "input was not measured"
        model = fit(made(has_input=True))
        row = outlook.row(model, model.at(16))
        assert [row[f"fraction_not_waiting{end}"] for end in ("", "_low", "_high")] == [1, 1, 1]
        assert row["au"] is None, "no utilization was measured, so that its share is not called that"

    def test_assumptions_say_what_was_done(self):
        lines = outlook.assumptions(fit(made(told=False)), [16], network=2)
        assert lines[0].startswith("fitted to 1, 2, 4 ranks, weak: the batch of a rank stays")
        assert "not told apart" in lines[1]
        assert "beyond 4 ranks: the chance that more ranks lose nothing more is " in lines[2]
        assert "1/2 of its time" in lines[3], "nothing of input, which was not waited for"
        waiting = Curve("waiting", "weak", 8, tuple(Point(n, (0.2,), 0.05) for n in (1, 2, 4)))
        assert any("no bytes were counted" in line for line in outlook.assumptions(fit(waiting), [4]))
        told = outlook.assumptions(fit(made()), [4])
        assert told[1].startswith("computation, communication and waiting as measured")
        assert not any("beyond" in line for line in told)

    def test_staging_is_its_own_line(self):
        lines = outlook.assumptions(fit(made(staged="asked")), [8])
        assert any("input staged on each node: no shared file system limits it" in line for line in lines)
        assert not any("no limit" in line for line in lines)

    def test_back_test(self):
        rows, lines = outlook.back_test(made(ranks=(1, 2, 4, 8)))
        (row,) = rows
        assert (row["ranks"], row["within"]) == (8, True)
        assert row["error"] == pytest.approx(row["step_s"] / truth("weak", 8) - 1)
        assert lines[0] == "fitted to 1, 2, 4 ranks"
        assert lines[1].startswith("1 predicted: error median ") and lines[1].endswith(
            "100% within their 90 % intervals"
        )
        with pytest.raises(UserError, match="leaves out those above 1 and needs 2 scales below"):
            outlook.back_test(made(ranks=(1, 2)))


def test_probed_collectives_are_used_by_the_series():
    own = made(told=False)
    linear = replace(own, exchange=lambda n: n - 1.0)
    assert fit(linear).at(32).parts["communication"] > fit(own).at(32).parts["communication"]
    assert "as probed" in outlook.assumptions(fit(linear), [8])[1]


def test_what_communication_grows_by_is_told_with_every_term():
    """Of pipelines neither (N - 1)/N nor log2 N."""
    lines = outlook.assumptions(fit(made()), [8])
    assert any("communication grows as (N - 1)/N, log2 N and N - 1; waiting for" in line for line in lines)
    assert "levels" in fit(made()).names
    points = tuple(Point(n, (0.4 / n * (8 + n - 1) / 8,)) for n in (1, 2, 4))
    model = fit(Curve("pp", "strong", 32, points, pipeline=True, microbatches=8))
    (line,) = [line for line in outlook.assumptions(model, [8]) if "communication grows" in line]
    assert "that follow one another and N - 1, bubble" in line or "log2 N" not in line
    assert "levels" not in model.names
