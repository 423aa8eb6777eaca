"""T(N) of measured series: known truths found again, interval, input, refusals; and curves from a store."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchsuite.errors import UserError
from benchsuite.predict import outlook
from benchsuite.predict.alphabeta import Key
from benchsuite.predict.alphabeta import fit as fit_collective
from benchsuite.predict.curves import exchange_of, from_series
from benchsuite.predict.model import of_slowest
from benchsuite.predict.series import Curve, Point, check_reach, fit
from results.scaling import find_series
from tests.results.scaled import frame, made_trial


def slowest(ranks: int) -> float:
    return float(of_slowest(np.array([float(ranks)]))[0])


def made(kind: str = "weak", ranks: tuple[int, ...] = (1, 2, 4), told: bool = True, **changes: Any) -> Curve:
    """Computation 0.2 s, a ring of 0.06 (N - 1)/N, jitter of 5 ms; strong ones divide the computation."""
    points = []
    for n in ranks:
        parts = {
            "compute": 0.2 / n if kind == "strong" else 0.2,
            "exchange": 0.06 * (n - 1) / n,
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


def test_parts_are_told_apart():
    parts = fit(made()).at(16).parts
    assert parts["compute"] == pytest.approx(0.2, rel=0.05)
    assert parts["exchange"] == pytest.approx(0.06 * 15 / 16, rel=0.15)
    assert parts["load"] == 0


def test_a_shared_medium_grows_with_every_rank():
    """Exchange of 10 ms (N - 1), as on one bus: at 16 ranks 150 ms."""
    points = tuple(
        Point(n, (0.2 + 0.01 * (n - 1),), 0.0, {"compute": 0.2, "exchange": 0.01 * (n - 1), "imbalance": 0.0})
        for n in (1, 2, 4)
    )
    found = fit(Curve("bus", "weak", 8, points)).at(16)
    assert found.parts["exchange"] == pytest.approx(0.15, rel=0.2)


def test_intervals_hold_over_many_series():
    """Steps drawn with 2 % noise: 80 % or more of 16-rank steps lie within."""
    chosen = np.random.default_rng(0)
    held = []
    for _ in range(60):
        volume, jitter = chosen.uniform(0, 0.08), chosen.uniform(0, 0.01)
        clean = {n: 0.2 + volume * (n - 1) / n + jitter * slowest(n) for n in (1, 2, 4, 16)}
        noisy = {n: tuple(value * (1 + 0.02 * chosen.standard_normal(3))) for n, value in clean.items()}
        curve = Curve("drawn", "weak", 8, tuple(Point(n, noisy[n]) for n in (1, 2, 4)))
        found = fit(curve).at(16)
        held.append(found.low_s <= noisy[16][0] <= found.high_s)
    assert np.mean(held) >= 0.8


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
        staged = fit(self.limited(shared_bytes_per_s=None)).at(8)
        assert staged.load_s == 0
        assert staged.step_s == pytest.approx(0.1, rel=0.1)

    def test_a_limit_that_was_near_widens(self):
        """Input is waited for at 4 ranks, and no limit is known: the slow end is as if this rate were all there is."""
        found = fit(self.limited(shared_bytes_per_s=None)).at(16)
        assert found.high_s >= 16 * 8e6 / 160e6 * 0.98
        assert found.au[1] < 0.2


def test_a_faster_network():
    model = fit(made())
    once, twice = model.at(16), model.at(16, network=2)
    assert twice.parts["exchange"] == pytest.approx(once.parts["exchange"] / 2)
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
        fed = fit(made(has_input=True))
        assert [outlook.row(fed, fed.at(16))[f"au{end}"] for end in ("", "_low", "_high")] == [1, 1, 1]

    def test_assumptions_say_what_was_done(self):
        lines = outlook.assumptions(fit(made(told=False)), [16], network=2)
        assert lines[0].startswith("fitted to 1, 2, 4 ranks, weak: the batch of a rank stays")
        assert "not told apart" in lines[1]
        assert "beyond 4 ranks the interval grows" in lines[2]
        assert "no bytes were counted" in lines[3]
        assert "1/2 of its time" in lines[4]
        told = outlook.assumptions(fit(made()), [4])
        assert told[1].startswith("computation, communication and waiting as measured")
        assert not any("beyond" in line for line in told)

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


class TestStore:
    def curve(self, *records: Any, **changes: Any) -> Curve:
        (series,) = find_series(frame(*records))
        return from_series(series, "s", changes.get("probed", {}), changes.get("limit"), changes.get("staged", False))

    def trials(self, **figures: Any) -> list[Any]:
        return [made_trial(n, 8 * n / 0.1, figures=figures) for n in (1, 2, 4)]

    def test_steps_come_from_rates_and_parts_from_figures(self):
        told = {
            "step_s_mean": 0.1,
            "load_s": 0.02,
            "exchange_s": 0.03,
            "exchange_min_s": 0.02,
            "imbalance_mean_s": 0.005,
        }
        curve = self.curve(*self.trials(**told))
        assert not curve.has_input, "synthetic"
        assert (curve.kind, curve.batch, curve.samples(8)) == ("weak", 8, 64)
        point = curve.points[1]
        assert point.step_s == pytest.approx((0.1,))
        assert point.load_s == 0.02
        assert point.parts == pytest.approx({"compute": 0.055, "exchange": 0.02, "imbalance": 0.005})
        assert curve.points[0].parts == pytest.approx({"compute": 0.08, "exchange": 0.0, "imbalance": 0.0})

    def test_without_parts(self):
        assert all(point.parts is None for point in self.curve(*self.trials()).points[1:])

    def test_a_file_system_that_gave_out(self):
        records = [
            made_trial(n, rate, figures={"io_bytes_per_s": rate * 1e6, "load_s": load, "step_s_mean": 8 * n / rate})
            for n, rate, load in ((1, 80.0, 0.0), (2, 160.0, 0.0), (4, 170.0, 0.09))
        ]
        assert self.curve(*records).shared_bytes_per_s == 170e6
        assert self.curve(*records, staged=True).shared_bytes_per_s is None
        assert self.curve(*records[:2]).shared_bytes_per_s is None
        assert self.curve(*records[:2], limit=1e9).shared_bytes_per_s == 1e9

    def test_buckets_of_ddp_come_from_what_is_sent(self):
        """A ring of 4 sends 1.5 times its gradients: 12 MiB in buckets of 1 and 4 MiB."""
        sent = {1: 0.0, 2: 12 * 2**20, 4: 18 * 2**20}
        waits = {1: 0.0, 2: 0.01, 4: 0.024}
        told = {"step_s_mean": 0.1, "backward_s": 0.05}
        cap = {"bucket_cap_mb": 4}
        records = [
            made_trial(
                n, 80.0 * n, figures=told | {"wire_bytes_per_step": sent[n], "exchange_min_s": waits[n]}, spec=cap
            )
            for n in (1, 2, 4)
        ]
        curve = self.curve(*records)
        assert [size / 2**20 for size in curve.buckets] == [1, 4, 4, 3]
        assert curve.exchange is None and curve.bucket_s is None
        fitted = fit(curve).curve
        assert fitted.exchange is not None
        assert fitted.exchange(np.array([2.0, 4.0])) == pytest.approx([0.01, 0.024], rel=0.1)
        as_probed = self.curve(*records, probed=probed(2, 4))
        assert as_probed.bucket_s is not None
        times = as_probed.bucket_s(np.array([2.0]))[0]
        assert times == pytest.approx([1e-4 + size * 1e-9 for size in curve.buckets], rel=0.05)

    def test_tensor_parallel_ranks_share_their_samples(self):
        records = [
            made_trial(n, 64 / step, spec={"parallelism": "tp", "batch_size": None, "global_batch_size": 64})
            for n, step in ((1, 0.4), (2, 0.25), (4, 0.15))
        ]
        curve = self.curve(*records)
        assert (curve.kind, curve.samples(8)) == ("strong", 64)
        assert curve.points[2].step_s == pytest.approx((0.15,))


def probed(*ranks: int) -> dict[Key, Any]:
    """All-reduces of 0.1 ms (N - 1) and 1 ns a byte, whatever the ranks."""
    sizes = np.array([1e4, 1e5, 1e6, 1e7, 1e8])
    return {
        Key("all_reduce", "backend", "fp32", "gloo", n): fit_collective(sizes, 1e-4 * (n - 1) + 1e-9 * sizes * (n - 1))
        for n in ranks
    }


class TestProbed:
    def test_collectives_grow_as_probed(self):
        """Sent by a ring of 4: 1.5 times the array, so 100 MB of gradients in buckets of 25 MiB."""
        found = exchange_of("ddp", {"wire_bytes_per_step": 150e6, "spec.world_size": 4}, probed(2, 4, 8))
        assert found is not None
        one, other = found(np.array([4.0, 16.0]))
        assert one == pytest.approx(3 * (0.1 + 1e-4 * 100e6 / (25 * 2**20)), rel=0.02)
        assert other == pytest.approx(5 * one, rel=0.02), "linear: (16 - 1)/(4 - 1)"

    @pytest.mark.parametrize(
        ("mode", "row", "ranks"),
        [("pp", {}, (2, 4)), ("ddp", {"wire_bytes_per_step": None}, (2, 4)), ("ddp", {}, (4,)), ("fsdp", {}, (2, 4))],
    )
    def test_nothing_where_the_probes_do_not_tell(self, mode: str, row: dict[str, Any], ranks: tuple[int, ...]):
        figures = {"wire_bytes_per_step": 150e6, "spec.world_size": 4} | row
        assert exchange_of(mode, figures, probed(*ranks)) is None

    def test_is_used_by_the_series(self):
        own = made(told=False)
        linear = replace(own, exchange=lambda n: n - 1.0)
        assert fit(linear).at(32).parts["exchange"] > fit(own).at(32).parts["exchange"]
        assert "as probed" in outlook.assumptions(fit(linear), [8])[1]
