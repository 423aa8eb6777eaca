"""What DDP's gradient buckets leave exposed: those of the trials, and those of a what-if."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from benchsuite.errors import UserError
from benchsuite.predict import hidden
from benchsuite.predict.arrays import Floats
from benchsuite.predict.hidden import Exposure, ExposureOf

if TYPE_CHECKING:
    from benchsuite.predict.series import Curve, Model

LEAST_EXPOSED = 0.01
"""Of the step: where less is exposed, how far the wire misses it says nothing of other buckets."""
BackwardS = Callable[[Floats], Floats]


def overlapped(curve: "Curve") -> "Curve":
    """The curve with what its buckets leave exposed by ranks, where backward passes and exchanges were measured."""
    backward = {point.ranks: point.backward_s for point in curve.points if point.backward_s}
    waits = {p.ranks: p.parts["exchange"] for p in curve.points if p.ranks > 1 and p.parts and p.parts["exchange"]}
    if not curve.buckets or not backward or curve.exchange is not None or not (waits or curve.bucket_s):
        return curve
    strong = curve.kind == "strong"
    per_rank_s = float(np.median([seconds * (ranks if strong else 1) for ranks, seconds in backward.items()]))

    def backward_s(ranks: Floats) -> Floats:
        return per_rank_s / ranks if strong else np.full(ranks.shape, per_rank_s)

    measured = {ranks: float(seconds) for ranks, seconds in waits.items() if seconds is not None}
    exposure = _as_probed(curve, backward_s) if curve.bucket_s else _as_told(curve, backward_s, measured)
    found = exposure(np.array(curve.buckets))
    return replace(curve, exchange=found.seconds, exchange_ends=found.ends, exchange_slow=found.slow, exposure=exposure)


def _as_probed(curve: "Curve", backward_s: BackwardS) -> ExposureOf:
    assert curve.bucket_s is not None
    bucket_s = curve.bucket_s

    def exposure(buckets: Floats) -> Exposure:
        each_s = bucket_s(buckets)
        slow = hidden.exposed(buckets, backward_s, hidden.slower(each_s))
        return Exposure(hidden.exposed(buckets, backward_s, each_s), None, slow)

    return exposure


def _as_told(curve: "Curve", backward_s: BackwardS, measured: dict[int, float]) -> ExposureOf:
    """By the ring that what the trials waited for tells."""
    wire = hidden.by_nodes(np.array(curve.buckets), backward_s, measured, curve.placement)

    def exposure(buckets: Floats) -> Exposure:
        ring_s = hidden.ring_s(buckets, wire.latency_s, wire.s_per_byte)
        slow = hidden.exposed(buckets, backward_s, hidden.slower(ring_s))
        return Exposure(wire.exposed(buckets), wire.ends(buckets), slow)

    return exposure


def with_buckets(model: "Model", cap_mb: float) -> "Model":
    """The model, had DDP's buckets this cap (MiB): the same gradients, backward pass and wire.

    Raises:
        UserError: no DDP, or no measurement tells what a bucket takes.
    """
    curve = model.curve
    if not curve.buckets:
        raise UserError(f"{curve.title}: --bucket-cap-mb: no DDP with buckets at 2 ranks or more; allowed: of ddp")
    if curve.exposure is None:
        raise UserError(
            f"{curve.title}: --bucket-cap-mb: its trials do not tell exposed exchange and backward passes, and no "
            "`benchsuite probe comm` of these nodes does"
        )
    found = curve.exposure(_buckets(curve, cap_mb * 2**20))
    place, most = model.names.index("measured"), np.array([float(curve.most_ranks)])
    before_s, after_s = (float(one.seconds(most)[0]) for one in (curve.exposure(np.array(curve.buckets)), found))
    known = before_s > LEAST_EXPOSED * curve.points[-1].middle_s
    scales = np.ones(len(model.names))
    scales[place] = after_s / before_s if known else 1.0
    coefficients, draws = model.coefficients * scales, model.draws * scales
    if not known:
        coefficients[place] = draws[:, place] = after_s
    changed = replace(
        curve,
        exchange=found.seconds,
        exchange_ends=found.ends,
        exchange_slow=found.slow,
        asked_cap_bytes=cap_mb * 2**20,
    )
    return replace(model, curve=changed, coefficients=coefficients, draws=draws)


def _buckets(curve: "Curve", cap_bytes: float) -> Floats:
    """Bytes sent of each bucket, were they capped so; the cap counts gradients."""
    return curve.sent_share * hidden.buckets_of(sum(curve.buckets) / curve.sent_share, cap_bytes)


def in_words(curve: "Curve") -> list[str]:
    """What a what-if of other buckets rests on."""
    if curve.asked_cap_bytes is None:
        return []
    count = len(_buckets(curve, curve.asked_cap_bytes))
    gradients = sum(curve.buckets) / curve.sent_share
    return [
        f"what if: DDP's {gradients / 2**20:.4g} MiB of gradients in {_count(count)} of at most "
        f"{curve.asked_cap_bytes / 2**20:g} MiB (measured: {_count(len(curve.buckets))}); the backward pass and the "
        "wire stay, a bucket costs no computation"
    ]


def _count(buckets: int) -> str:
    return f"{buckets} bucket{'s' * (buckets != 1)}"
