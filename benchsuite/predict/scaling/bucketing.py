"""What DDP's gradient buckets leave exposed: those of the trials, and those of a what-if."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from benchsuite.contract.errors import UserError
from benchsuite.predict.scaling import exposed_communication
from benchsuite.predict.scaling.curve import Curve
from benchsuite.predict.scaling.exposed_communication import Exposure, ExposureOf, exposed, faster, ring_s
from benchsuite.predict.scaling.model import Model
from benchsuite.predict.scaling.nodes import SLOWER
from benchsuite.predict.theory.arrays import Floats
from benchsuite.results.render.words import counted

LEAST_EXPOSED = 0.01
"""Of the step: where less is exposed, how far the wire misses it says nothing of other buckets."""


def overlapped(curve: Curve) -> Curve:
    """The curve with what its buckets leave exposed by ranks, where backward passes and exchanges were measured."""
    backward = {point.ranks: point.backward_s for point in curve.points if point.backward_s}
    waits = {
        p.ranks: p.parts["communication"] for p in curve.points if p.ranks > 1 and p.parts and p.parts["communication"]
    }
    if not curve.buckets or not backward or curve.exchange is not None or not (waits or curve.bucket_s):
        return curve
    strong = curve.kind == "strong"
    per_rank_s = float(np.median([seconds * (ranks if strong else 1) for ranks, seconds in backward.items()]))

    def backward_s(ranks: Floats) -> Floats:
        return per_rank_s / ranks if strong else np.full(ranks.shape, per_rank_s)

    measured = {ranks: float(seconds) for ranks, seconds in waits.items() if seconds is not None}
    exposure = _exposure_of(curve, backward_s, measured)
    found = exposure(np.array(curve.buckets), 1.0)
    return replace(curve, exchange=found.seconds, exchange_ends=found.ends, exchange_slow=found.slow, exposure=exposure)


def _exposure_of(curve: Curve, backward_s: Callable[[Floats], Floats], measured: dict[int, float]) -> ExposureOf:
    """By what buckets take as probed; else by the ring that what the trials waited for tells."""
    bucket_s = curve.bucket_s
    wire = None
    if bucket_s is None:
        wire = exposed_communication.by_nodes(np.array(curve.buckets), backward_s, measured, curve.placement)

    def exposure(buckets: Floats, network: float) -> Exposure:
        if wire is None:
            assert bucket_s is not None
            each_s = faster(bucket_s(buckets), network)
        else:
            each_s = ring_s(buckets, wire.latency_s / network, wire.s_per_byte / network)
        slow = exposed(buckets, backward_s, faster(each_s, 1 / SLOWER))
        if wire is None:
            return Exposure(exposed(buckets, backward_s, each_s), None, slow)
        return Exposure(wire.exposed(buckets, network), wire.ends(buckets, network), slow)

    return exposure


def with_buckets(model: Model, cap_mb: float) -> Model:
    """The model, had DDP's buckets this cap (MiB): the same gradients, backward pass and wire.

    Raises:
        UserError: no DDP, or no measurement tells what a bucket takes.
    """
    curve = model.curve
    if not curve.buckets:
        raise UserError(f"{curve.title}: --bucket-cap-mb: no DDP with buckets at 2 ranks or more; allowed: of ddp")
    if curve.exposure is None:
        raise UserError(
            f"{curve.title}: --bucket-cap-mb: its trials do not tell exposed communication and backward passes, and no "
            "`benchsuite probe comm` of these nodes does"
        )
    return _exposing(model, replace(curve, requested_bucket_bytes=cap_mb * 2**20))


def with_network(model: Model, network: float) -> Model:
    """The model, were the network so many times as fast: what that leaves exposed of DDP's buckets.

    As it is where no buckets are modelled; `Model.at` then divides all that is exposed.
    """
    if network == 1 or model.curve.exposure is None or model.curve.exchange is None:
        return model
    return _exposing(model, replace(model.curve, wire_speed=network))


def _exposing(model: Model, asked: Curve) -> Model:
    """The model with other buckets or another network, those of `asked`: what was exposed grows or shrinks with it."""
    assert asked.exposure is not None and model.curve.exchange is not None
    found = asked.exposure(_asked_buckets(asked), asked.wire_speed)
    place, most = model.names.index("measured"), np.array([float(asked.most_ranks)])
    before_s, after_s = (float(seconds(most)[0]) for seconds in (model.curve.exchange, found.seconds))
    known = before_s > LEAST_EXPOSED * asked.points[-1].middle_s
    scales = np.ones(len(model.names))
    scales[place] = after_s / before_s if known else 1.0
    coefficients, draws = model.coefficients * scales, model.draws * scales
    if not known:
        coefficients[place] = draws[:, place] = after_s
    changed = replace(asked, exchange=found.seconds, exchange_ends=found.ends, exchange_slow=found.slow)
    return replace(model, curve=changed, coefficients=coefficients, draws=draws)


def _asked_buckets(curve: Curve) -> Floats:
    cap_bytes = curve.requested_bucket_bytes
    return np.array(curve.buckets) if cap_bytes is None else _buckets(curve, cap_bytes)


def _buckets(curve: Curve, cap_bytes: float) -> Floats:
    """Bytes sent of each bucket, were they capped so; the cap counts gradients."""
    return curve.sent_share * exposed_communication.buckets_of(sum(curve.buckets) / curve.sent_share, cap_bytes)


def of_network(curve: Curve, network: float) -> str:
    """What a what-if of another network rests on."""
    if curve.wire_speed == network:
        ends = "" if curve.bucket_s else "; one end of the interval as if latencies stayed"
        return f"what if: each bucket takes 1/{network:g} of its time on the wire, beside the same backward pass{ends}"
    return f"what if: communication not hidden takes 1/{network:g} of its time; what is hidden stays hidden"


def in_words(curve: Curve) -> list[str]:
    """What a what-if of other buckets rests on."""
    if curve.requested_bucket_bytes is None:
        return []
    count = len(_buckets(curve, curve.requested_bucket_bytes))
    gradients = sum(curve.buckets) / curve.sent_share
    return [
        f"what if: DDP's {gradients / 2**20:.4g} MiB of gradients in {counted(count, 'bucket')} of at most "
        f"{curve.requested_bucket_bytes / 2**20:g} MiB (measured: {counted(len(curve.buckets), 'bucket')}); the "
        "backward pass and the wire stay, a bucket costs no computation, and no parameter, such as an embedding, is "
        "larger than one"
    ]
