"""What if DDP's buckets had another size: against the timeline that made the measurements, and what is refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchsuite.contract.errors import UserError
from benchsuite.predict.scaling import outlook
from benchsuite.predict.scaling.curve import Curve, Point
from benchsuite.predict.scaling.exposed_communication import buckets_of, exposed, ring_s
from benchsuite.predict.scaling.model import Model, with_buckets, with_network
from benchsuite.predict.scaling.series import fit
from benchsuite.predict.theory.arrays import Floats

MB = 2**20
GRADIENTS = 8 * MB
LATENCY_S, S_PER_BYTE = 1e-3, 1 / 50e6
COMPUTE_S, BACKWARD_S = 0.45, 0.3


def backward(ranks: Any) -> Any:
    return np.full(np.shape(ranks), BACKWARD_S)


def truth(ranks: int, cap_mb: float, network: float = 1.0) -> float:
    """A step of 8 MiB of gradients over 50 MB/s, 1 ms a message; or a network so many times as fast."""
    buckets = buckets_of(GRADIENTS, cap_mb * MB)
    left = exposed(buckets, backward, ring_s(buckets, LATENCY_S / network, S_PER_BYTE / network))
    return COMPUTE_S + float(left(np.array([float(ranks)]))[0])


def measured(cap_mb: float, ranks: tuple[int, ...] = (1, 2, 4, 8)) -> Curve:
    points = []
    for n in ranks:
        seconds = truth(n, cap_mb)
        parts = {"compute": COMPUTE_S, "communication": seconds - COMPUTE_S, "imbalance": 0.0}
        points.append(Point(n, (seconds,), 0.0, parts, None, BACKWARD_S))
    return Curve("ddp", "weak", 8, tuple(points), buckets=tuple(buckets_of(GRADIENTS, cap_mb * MB)))


def probed(sizes: Floats) -> Any:
    return ring_s(sizes, LATENCY_S, S_PER_BYTE)


@pytest.mark.parametrize("probe", [False, True], ids=["from exposed communication", "as probed"])
@pytest.mark.parametrize(("cap_mb", "asked_mb"), [(1, 4), (1, 8), (4, 1), (8, 2), (1, 0.5), (2, 0.25)])
def test_as_measured_with_those_buckets(cap_mb: float, asked_mb: float, probe: bool):
    """Large buckets tell little of what a message costs: of smaller ones the interval alone is true then."""
    known = replace(measured(cap_mb), bucket_s=probed if probe else None)
    model = with_buckets(fit(known), asked_mb)
    for ranks in (2, 8, 16):
        real, found = truth(ranks, asked_mb), model.at(ranks)
        if probe or asked_mb >= cap_mb:
            assert found.step_s == pytest.approx(real, rel=0.02), f"{ranks} ranks"
        assert found.low_s < real < found.high_s
    before, after = truth(16, cap_mb), truth(16, asked_mb)
    assert abs(before / after - 1) > 0.02, "buckets that change nothing would prove nothing"


@pytest.mark.parametrize("probe", [False, True], ids=["from exposed communication", "as probed"])
@pytest.mark.parametrize("network", [0.25, 0.5, 2, 8])
def test_another_network_hides_less_or_more(network: float, probe: bool):
    """At two ranks one bucket of eight shows. Over a quarter of the network they outlast the backward pass."""
    known = replace(measured(1), bucket_s=probed if probe else None)
    plain = fit(known)
    model = with_network(plain, network)
    for ranks in (2, 4, 8, 16):
        real, found = truth(ranks, 1, network), model.at(ranks, network=network)
        assert found.step_s == pytest.approx(real, rel=0.05 if probe else 0.1), f"{ranks} ranks"
        assert found.low_s < real < found.high_s
    off = [plain.at(n, network=network).step_s / truth(n, 1, network) - 1 for n in (2, 16)]
    assert max(map(abs, off)) > 0.05, "what is exposed times 1 / network would do as well"


def test_other_buckets_over_another_network():
    model = with_network(with_buckets(fit(measured(1)), 4), 0.5)
    assert model.at(8, network=0.5).step_s == pytest.approx(truth(8, 4, 0.5), rel=0.05)
    (told,) = [line for line in outlook.assumptions(model, [8], 0.5) if "on the wire" in line]
    assert told == (
        "what if: each bucket takes 1/0.5 of its time on the wire, beside the same backward pass; one end of the "
        "interval as if latencies stayed"
    )


@pytest.mark.parametrize("network", [0.5, 2.0])
def test_the_interval_holds_a_network_whose_latencies_stayed(network: float):
    buckets = buckets_of(GRADIENTS, MB)
    kept = exposed(buckets, backward, ring_s(buckets, LATENCY_S, S_PER_BYTE / network))
    for ranks in (8, 16):
        found = with_network(model(), network).at(ranks, network=network)
        real = COMPUTE_S + float(kept(np.array([float(ranks)]))[0])
        assert found.low_s < real < found.high_s and found.low_s < truth(ranks, 1, network) < found.high_s


def test_without_buckets_what_is_hidden_stays_hidden():
    plain = fit(replace(measured(1), buckets=()))
    assert with_network(plain, 2) is plain
    assert "what is hidden stays hidden" in " ".join(outlook.assumptions(plain, [8], 2))


def model(cap_mb: float = 1) -> Model:
    return fit(measured(cap_mb))


def test_the_same_buckets_change_nothing():
    asked, plain = with_buckets(model(), 1).at(16), model().at(16)
    assert asked.step_s == pytest.approx(plain.step_s) and asked.high_s == pytest.approx(plain.high_s)


def test_rows_and_words():
    asked = with_buckets(model(), 4)
    row = outlook.row(asked, asked.at(8))
    assert row["measured_s"] is None, "8 ranks were measured with other buckets"
    told = outlook.assumptions(asked, [8])
    (line,) = [
        line for line in told if "8 MiB of gradients in 2 buckets of at most 4 MiB (measured: 8 buckets)" in line
    ]
    assert line.endswith("and no parameter, such as an embedding, is larger than one"), "DDP splits none"
    assert not any("of gradients in" in line for line in outlook.assumptions(model(), [8]))


def test_a_cap_counts_gradients():
    """8 MiB are sent of 16 MiB of gradients, in 8 buckets of 2 MiB each: a cap of 8 MiB leaves 2."""
    halved = replace(measured(1), sent_share=0.5)
    asked = with_buckets(fit(halved), 8)
    assert asked.at(8).step_s == pytest.approx(truth(8, 4), rel=0.02)
    (told,) = [line for line in outlook.assumptions(asked, [8]) if "of gradients in" in line]
    assert "16 MiB of gradients in 2 buckets of at most 8 MiB (measured: 8 buckets)" in told


def test_next_to_nothing_exposed_says_nothing_of_the_wire():
    """0.6 ms exposed where the probed wire leaves 0.4: noise of so little does not stretch what other buckets take."""
    each_s = 1.5 * MB / 5e9

    def fast(sizes: Floats) -> Any:
        return ring_s(sizes, 0.0, 1 / 5e9)

    parts = {"compute": COMPUTE_S, "communication": 1.5 * each_s, "imbalance": 0.0}
    points = [
        Point(n, (COMPUTE_S,), 0.0, parts | {"communication": parts["communication"] * (n > 1)}, None, 0.3)
        for n in (1, 2, 4)
    ]
    seen = Curve("ddp", "weak", 8, tuple(points), buckets=tuple(buckets_of(GRADIENTS, MB)), bucket_s=fast)
    asked = with_buckets(fit(seen), 8).at(4)
    assert asked.parts["communication"] == pytest.approx(2 * 3 / 4 * GRADIENTS / 5e9, rel=0.02)


def test_what_is_refused():
    with pytest.raises(UserError, match="no DDP with buckets"):
        with_buckets(fit(replace(measured(1), buckets=())), 4)
    blind = replace(measured(1), points=tuple(replace(p, parts=None, backward_s=None) for p in measured(1).points))
    with pytest.raises(UserError, match=r"do not tell exposed communication .* probe comm"):
        with_buckets(fit(blind), 4)
