"""What DDP leaves exposed, by ranks: hand-made timelines, and a wire found again from what it exposed."""

from typing import Any

import numpy as np
import pytest

from benchsuite.predict.scaling import outlook
from benchsuite.predict.scaling.curve import Curve, Point
from benchsuite.predict.scaling.exposed_communication import (
    BUCKET_BYTES,
    FIRST_BUCKET_BYTES,
    Overlap,
    buckets_of,
    exposed,
    exposed_s,
    ring_s,
    rings_of,
)
from benchsuite.predict.scaling.nodes import UNTOLD
from benchsuite.predict.scaling.series import fit

MB = 2**20
BUCKETS = buckets_of(8 * MB, MB)
RATE = 50e6


def backward(ranks: Any) -> Any:
    return np.full(np.shape(ranks), 0.3)


def truth(ranks: Any) -> Any:
    """Eight buckets of 1 MiB over 50 MB/s, 1 ms a message, beside 0.3 s of backward."""
    return exposed(BUCKETS, backward, ring_s(BUCKETS, 1e-3, 1 / RATE))(np.asarray(ranks, dtype=float))


def test_buckets():
    assert buckets_of(10 * MB, 4 * MB).tolist() == [4 * MB, 4 * MB, 2 * MB]
    assert buckets_of(12 * MB, 4 * MB).tolist() == [4 * MB, 4 * MB, 4 * MB]
    assert buckets_of(60 * MB).tolist() == [MB, 25 * MB, 25 * MB, 9 * MB], "a small first one where no cap is given"
    assert buckets_of(60 * MB, 25 * MB).tolist() == [25 * MB, 25 * MB, 10 * MB]
    assert buckets_of(0.5 * MB).tolist() == buckets_of(0.5 * MB, MB).tolist() == [0.5 * MB]
    assert BUCKETS.sum() == 8 * MB


@pytest.mark.parametrize("cap", [None, 0.25, 1, 4, 25])
def test_buckets_are_what_pytorch_assigns_to_small_parameters(cap: float | None):
    """DistributedDataParallel gives the reducer the small first limit where bucket_cap_mb is None alone."""
    import torch
    import torch.distributed as dist

    assert dist._DEFAULT_FIRST_BUCKET_BYTES == FIRST_BUCKET_BYTES == MB and BUCKET_BYTES == 25 * MB
    tensors = [torch.empty(16 * 1024 // 4, device="meta") for _ in range(60 * 64)]
    limits = [FIRST_BUCKET_BYTES, BUCKET_BYTES] if cap is None else [int(cap * MB)]
    buckets, _ = dist._compute_bucket_assignment_by_size(tensors, limits)
    assert buckets_of(60 * MB, None if cap is None else cap * MB).tolist() == [len(of) * 16 * 1024 for of in buckets]


def test_a_timeline_by_hand():
    """Ready at 1, 2 and 9 s: 3 s each follow one another to 7 s; the last begins when it is ready."""
    ready, exchange = np.array([[1.0, 2.0, 9.0], [1.0, 2.0, 10.0]]), np.array([[3.0, 3.0, 2.0], [20.0, 20.0, 20.0]])
    assert exposed_s(np.array([9.0, 10.0]), ready, exchange).tolist() == [2, 61 - 10]


def test_exposed_lies_between_its_bounds():
    generator = np.random.default_rng(5)
    exchange, ready = generator.uniform(0, 0.3, (200, 8)), np.sort(generator.uniform(0, 1, (200, 8)))
    ready[:, -1] = 1.0
    found = exposed_s(np.ones(200), ready, exchange)
    least = np.maximum(exchange.sum(-1) - 1, exchange[:, -1])
    assert np.all(found <= exchange.sum(-1) + 1e-12) and np.all(found >= least - 1e-12)


def test_smaller_buckets_hide_more_until_latency_counts():
    """100 MB over 10 GB/s and 0.5 ms a message: one bucket hides nothing, a thousand pay for messages."""
    left = {}
    for number in (1, 10, 1000):
        sizes = np.full(number, 100e6 / number)
        found = exposed(sizes, lambda n: np.full(len(n), 0.02), lambda n, of=sizes: (5e-4 + of / 10e9)[None])
        left[number] = float(found(np.array([2.0]))[0])
    assert left[1] == pytest.approx(0.0105)
    assert left[10] == pytest.approx(0.0015) and left[1000] > 0.4


def test_a_ring():
    found = ring_s(np.array([1e6, 2e6]), 1e-3, 1e-8)(np.array([1.0, 2.0, 4.0]))
    assert found == pytest.approx(np.array([[0, 0], [2e-3 + 0.01, 2e-3 + 0.02], [6e-3 + 0.015, 6e-3 + 0.03]]))


def test_only_the_last_bucket_shows_while_the_others_hide():
    """Two ranks: 23 ms a bucket, ready every 37.5 ms. 16 ranks: 69 ms each, 0.0375 + 8 x 0.069 - 0.3 = 0.292 s."""
    each = {n: 2 * (n - 1) * 1e-3 + 2 * (n - 1) / n * MB / RATE for n in (2, 16)}
    assert truth([2])[0] == pytest.approx(each[2])
    assert truth([16])[0] == pytest.approx(0.0375 + 8 * each[16] - 0.3)
    assert truth([1])[0] == 0


def test_the_wire_is_found_again():
    measured = dict(zip((2, 4, 8), truth([2, 4, 8]), strict=True))
    wires = rings_of(BUCKETS, backward, measured, UNTOLD)
    found = Overlap(BUCKETS, backward, UNTOLD, None, wires)
    assert found.seconds(np.array([16.0]))[0] == pytest.approx(truth([16])[0], rel=0.15)
    assert wires[0, 0, 1] == pytest.approx(1 / RATE, rel=0.3)
    low, high = found.ends(np.array([16.0]))
    assert low[0] < truth([16])[0] < high[0]


def curve(ranks: tuple[int, ...], buckets: tuple[float, ...]) -> Curve:
    points = []
    for n in ranks:
        parts = {"compute": 0.45, "communication": float(truth([n])[0]), "imbalance": 0.0}
        points.append(Point(n, (sum(parts.values()),), 0.0, parts, None, 0.3))
    return Curve("ddp", "weak", 8, tuple(points), buckets=buckets)


def test_a_series_sees_when_nothing_more_can_hide():
    """From 2 to 8 ranks 23 to 155 ms are exposed, at 16 292."""
    real = 0.45 + float(truth([16])[0])
    seen = fit(curve((1, 2, 4, 8), tuple(BUCKETS))).at(16)
    assert abs(seen.step_s / real - 1) < 0.06
    assert seen.low_s < real < seen.high_s
    assert "exchange of DDP's buckets that" in outlook.assumptions(fit(curve((1, 2, 4), tuple(BUCKETS))), [8])[1]


def test_held_back_points_tell_nothing():
    """A back-test fits the wire to the smaller scales alone."""
    spoilt = curve((1, 2, 4, 8), tuple(BUCKETS))
    last = spoilt.points[-1]
    worse = Point(8, (9.0,), 0.0, {"compute": 0.45, "communication": 8.55, "imbalance": 0.0}, None, 3.0)
    one = outlook.back_test(spoilt)[0][0]
    other = outlook.back_test(Curve("ddp", "weak", 8, (*spoilt.points[:-1], worse), buckets=tuple(BUCKETS)))[0][0]
    assert last.ranks == 8
    assert one["step_s"] == other["step_s"]
