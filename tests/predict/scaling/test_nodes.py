"""Series that fill a node and go on to others: what is fitted apart, and how wide it gets where nobody measured."""

from typing import Any

import numpy as np
import pytest

from benchsuite.predict.scaling import outlook
from benchsuite.predict.scaling.curve import Curve, Point
from benchsuite.predict.scaling.exposed_communication import buckets_of, exposed, ring_s
from benchsuite.predict.scaling.from_store import from_series
from benchsuite.predict.scaling.nodes import Placement, in_words, placement_of
from benchsuite.predict.scaling.series import fit
from benchsuite.predict.theory.alpha_beta_fit import Key
from benchsuite.predict.theory.alpha_beta_fit import fit as fit_collective
from benchsuite.results.scaling.series import find_series
from tests.results.scaled import frame, made_trial

ROOM = 4
"""Ranks of a node."""


def nodes(ranks: int) -> int:
    return -(-ranks // ROOM)


def placed(*ranks: int) -> Placement:
    return Placement({n: nodes(n) for n in ranks}, ROOM)


def truth(n: int) -> float:
    """0.2 s of computation, a ring of 10 ms within a node and one of 120 ms between nodes."""
    return 0.2 + 0.01 * (1 - 1 / min(n, ROOM)) + 0.12 * (1 - 1 / nodes(n))


def curve(*ranks: int, told: bool = True) -> Curve:
    points = []
    for n in ranks:
        parts = {"compute": 0.2, "communication": truth(n) - 0.2, "imbalance": 0.0} if told else None
        points.append(Point(n, (0.99 * truth(n), truth(n), 1.01 * truth(n)), 0.0, parts))
    return Curve("made", "weak", 8, tuple(points), placement=placed(*ranks))


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("ranks", [(1, 2, 4, 8), (1, 2, 4, 8, 16)])
def test_a_second_node_is_another_network_and_no_latency(ranks: tuple[int, ...], told: bool):
    """As one growth over all ranks the jump from 4 to 8 goes on: 0.64 s at 64, where it is 0.32."""
    model = fit(curve(*ranks, told=told))
    for n in (8, 32, 64):
        found = model.at(n)
        assert found.step_s == pytest.approx(truth(n), rel=0.03)
        assert found.low_s < truth(n) < found.high_s
    assert "exchange within a node and between nodes are fitted apart" in outlook.assumptions(model, [64])


def test_a_network_that_was_not_measured_widens_the_slow_end_and_is_told():
    """Four ranks of one node say 0.209 s for eight, which take 0.268 over the network between two."""
    model = fit(curve(1, 2, 4))
    found = model.at(8)
    assert found.step_s < 0.22 and found.low_s < truth(8) < found.high_s
    exchange = found.parts["communication"]
    assert found.high_s == pytest.approx(found.step_s + 23 * exchange, rel=0.1)
    (line,) = [line for line in outlook.assumptions(model, [4, 8, 16]) if line.startswith("warning")]
    assert line.startswith("warning: all scales lie on one node, 8 ranks need 2, and nothing was measured of the")
    assert "24 times as long; measure two nodes, or `probe comm` over them" in line
    assert not any("node" in line for line in outlook.assumptions(model, [4]))
    assert model.at(4).high_s < 1.1 * truth(4)


def test_what_ddp_hides_in_a_node_may_show_between_nodes():
    """40 ms of buckets beside 0.3 s hide but for the last; 24 times as slow they do not."""
    buckets = buckets_of(8 * 2**20, 2**20)

    def backward(ranks: Any) -> Any:
        return np.full(np.shape(ranks), 0.3)

    def waits(n: int, rate: float) -> float:
        return float(exposed(buckets, backward, ring_s(buckets, 1e-5, 1 / rate))(np.array([float(n)]))[0])

    points = []
    for n in (1, 2, 4):
        parts = {"compute": 0.45, "communication": waits(n, 200e6), "imbalance": 0.0}
        points.append(Point(n, (sum(parts.values()),), 0.0, parts, None, 0.3))
    found = fit(Curve("ddp", "weak", 8, tuple(points), buckets=tuple(buckets), placement=placed(1, 2, 4))).at(16)
    assert found.high_s > 0.45 + waits(16, 200e6 / 20) > 1.5 * found.step_s
    known = fit(Curve("ddp", "weak", 8, tuple(points), buckets=tuple(buckets))).at(16)
    assert known.step_s == pytest.approx(found.step_s) and known.high_s < 1.3 * known.step_s


def test_ddp_has_a_wire_in_the_node_and_one_between_nodes():
    buckets = buckets_of(8 * 2**20, 2**20)

    def backward(ranks: Any) -> Any:
        return np.full(np.shape(ranks), 0.3)

    def step(n: int) -> float:
        rate = 500e6 if nodes(n) == 1 else 40e6
        return 0.45 + float(exposed(buckets, backward, ring_s(buckets, 1e-5, 1 / rate))(np.array([float(n)]))[0])

    points = []
    for n in (1, 2, 4, 8, 16):
        parts = {"compute": 0.45, "communication": step(n) - 0.45, "imbalance": 0.0}
        points.append(Point(n, (step(n),), 0.0, parts, None, 0.3))
    model = fit(Curve("ddp", "weak", 8, tuple(points), buckets=tuple(buckets), placement=placed(1, 2, 4, 8, 16)))
    for n in (2, 4, 8, 16, 64):
        assert model.at(n).step_s == pytest.approx(step(n), rel=0.05)
    alike = fit(Curve("ddp", "weak", 8, tuple(points), buckets=tuple(buckets)))
    assert abs(alike.at(64).step_s / step(64) - 1) > 0.1


class TestRecords:
    def rows(self, *ranks: int, env: dict[str, Any] | None = None, **spec: Any) -> list[dict[str, Any]]:
        found = frame(*(made_trial(n, 80.0 * n, env=env or {}, spec=spec) for n in ranks))
        return [{str(key): value for key, value in row.items()} for row in found.to_dict(orient="records")]

    def test_cores_and_threads_of_one_node(self):
        assert placement_of(self.rows(1, 2, 4)) == Placement({1: 1, 2: 1, 4: 1}, 8)
        assert placement_of(self.rows(1, 2, threads_per_rank=2, device="cpu")).room == 4
        assert placement_of(self.rows(1, 2, 4, threads_per_rank=4)).room == 4, "not fewer than were there"

    def test_devices_of_one_node(self):
        devices = [{"name": "A100"}] * 4
        found = placement_of(self.rows(1, 2, env={"devices": devices}, device="cuda"))
        assert [found.at(n) for n in (1, 2, 4, 5, 8, 9)] == [1, 1, 1, 2, 2, 3]
        assert placement_of(self.rows(1, 2, device="cuda")).at(64) == 1, "no devices were told"

    def test_nodes_as_they_were(self):
        rows = self.rows(2) + self.rows(4, env={"nodes": [{}, {}]}) + self.rows(12, env={"nodes": [{}] * 4})
        found = placement_of(rows)
        assert [found.at(n) for n in (2, 3, 4, 6, 12, 13)] == [1, 1, 2, 2, 4, 5]
        assert found.crosses

    def test_where_nothing_tells_nothing_is_said(self):
        """Emulated devices share a host; a job's cores that grow with its ranks say nothing of the node's."""
        grown = self.rows(1, env={"cores": 4}) + self.rows(2, env={"cores": 8})
        for rows in (grown, self.rows(1, 2, device="emulated:h100"), []):
            found = placement_of(rows)
            assert found.room is None and found.at(4096) == 1 and in_words(found, [4096]) == []

    def test_a_series_of_one_node_is_wide_beyond_its_cores(self):
        told = {"step_s_mean": 0.1, "communication_min_s": 0.02, "communication_s": 0.02}
        (series,) = find_series(frame(*(made_trial(n, 80.0 * n, figures=told) for n in (1, 2, 4))))
        model = fit(from_series(series, "s", {}, None, False))
        widths = [model.at(n).high_s / model.at(n).step_s for n in (8, 9)]
        assert widths[0] < 1.5 and widths[1] > 3, "8 cores"


class TestProbes:
    def probed(self, ranks: int, beta: float, several: int) -> dict[Key, Any]:
        """Rings of `beta` s/B: an all_gather and a reduce_scatter."""
        sizes = np.array([1e4, 1e5, 1e6, 1e7, 1e8])
        return {
            Key(op, "backend", "fp32", "gloo", ranks, several): fit_collective(sizes, (1 - 1 / ranks) * beta * sizes)
            for op in ("all_gather", "reduce_scatter")
        }

    def curve(self, found: dict[Key, Any]) -> Curve:
        """ZeRO-2 on up to 8 ranks of one node: 10 MB of parameters, gathered and scattered."""
        records = [
            made_trial(
                n,
                8 * n / (0.1 + 20e6 * 1e-9 * (1 - 1 / n)),
                spec={"parallelism": "zero2"},
                figures={"wire_bytes_per_step": 20e6 * (1 - 1 / n), "communication_min_s": 20e6 * 1e-9 * (1 - 1 / n)},
            )
            for n in (2, 4, 8)
        ]
        (series,) = find_series(frame(*records))
        return from_series(series, "s", found, None, False)

    def test_probes_over_nodes_tell_of_the_network(self):
        """1 ns a byte in the node and 10 between: 20 MB take 19 ms on 16 ranks of one network, 188 of the other."""
        inside = self.probed(2, 1e-9, 1) | self.probed(8, 1e-9, 1)
        found = self.curve(inside | self.probed(16, 1e-8, 2) | self.probed(32, 1e-8, 4))
        assert found.placement.probed and found.exchange is not None
        assert found.exchange(np.array([4.0, 16.0, 64.0])) == pytest.approx([15e-3, 187.5e-3, 196.9e-3], rel=0.02)
        model = fit(found)
        assert model.at(8).step_s == pytest.approx(0.1175, rel=0.03)
        assert model.at(32).step_s == pytest.approx(0.1 + 0.194, rel=0.1)
        assert "as `probe comm` found it over several" in " ".join(outlook.assumptions(model, [32]))

    def test_probes_over_nodes_need_not_begin_on_the_host_of_the_series(self):
        """The series ran on `here`; the job over nodes that probed them began on another of the same kind."""
        inside = self.probed(2, 1e-9, 1) | self.probed(8, 1e-9, 1)
        own = {key._replace(host="here"): found for key, found in inside.items()}
        other = {key._replace(host="n17"): found for key, found in self.probed(16, 1e-8, 2).items()}
        found = self.curve(own | other)
        assert found.placement.probed and not any("left out" in note for note in found.notes)
        two = other | {key._replace(host="n18"): found for key, found in other.items()}
        assert not self.curve(own | two).placement.probed

    def test_probes_of_one_node_do_not(self):
        found = self.curve(self.probed(2, 1e-9, 1) | self.probed(8, 1e-9, 1))
        assert found.exchange is not None and not found.placement.probed
        assert fit(found).at(16).high_s > 0.1 + 10 * 0.0188

    def test_probes_on_other_nodes_than_the_ranks_would_fill_are_left_out(self):
        found = self.curve(self.probed(2, 1e-9, 1) | self.probed(8, 1e-9, 1) | self.probed(16, 1e-8, 16))
        assert not found.placement.probed
