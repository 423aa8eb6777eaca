"""What DDP's gradient buckets leave exposed: those of the trials, and those of a what-if."""

from dataclasses import replace

import numpy as np

from benchsuite.contract.errors import UserError
from benchsuite.predict.scaling.curve import Curve
from benchsuite.predict.scaling.exposed_communication import Overlap, buckets_of, rings_of
from benchsuite.predict.scaling.model import Model
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

    sizes, wires = np.array(curve.buckets), None
    if curve.bucket_s is None:
        measured = {ranks: float(seconds) for ranks, seconds in waits.items() if seconds is not None}
        wires = rings_of(sizes, backward_s, measured, curve.placement)
    overlap = Overlap(sizes, backward_s, curve.placement, curve.bucket_s, wires)
    return replace(curve, exchange=overlap.seconds, overlap=overlap)


def with_buckets(model: Model, cap_mb: float) -> Model:
    """The model, had DDP's buckets this cap (MiB): the same gradients, backward pass and wire.

    Raises:
        UserError: no DDP, or no measurement tells what a bucket takes.
    """
    curve = model.curve
    if not curve.buckets:
        raise UserError(f"{curve.title}: --bucket-cap-mb: no DDP with buckets at 2 ranks or more; allowed: of ddp")
    if curve.overlap is None:
        raise UserError(
            f"{curve.title}: --bucket-cap-mb: its trials do not tell exposed communication and backward passes, and no "
            "`benchsuite probe comm` of these nodes does"
        )
    cap_bytes = cap_mb * 2**20
    sent = curve.sent_share * buckets_of(sum(curve.buckets) / curve.sent_share, cap_bytes)  # the cap counts gradients
    return _exposing(model, replace(curve.overlap, buckets=sent, cap_bytes=cap_bytes))


def with_network(model: Model, network: float) -> Model:
    """The model, were the network so many times as fast: what that leaves exposed of DDP's buckets.

    As it is where no buckets are modelled; `Model.at` then divides all that is exposed.
    """
    if network == 1 or model.curve.overlap is None:
        return model
    return _exposing(model, replace(model.curve.overlap, network=network))


def _exposing(model: Model, asked: Overlap) -> Model:
    """The model with other buckets or another network: what was exposed grows or shrinks with it."""
    assert model.curve.overlap is not None
    place, most = model.names.index("measured"), np.array([float(model.curve.most_ranks)])
    before_s, after_s = (float(overlap.seconds(most)[0]) for overlap in (model.curve.overlap, asked))
    known = before_s > LEAST_EXPOSED * model.curve.points[-1].middle_s
    scales = np.ones(len(model.names))
    scales[place] = after_s / before_s if known else 1.0
    coefficients, draws = model.coefficients * scales, model.draws * scales
    if not known:
        coefficients[place] = draws[:, place] = after_s
    changed = replace(model.curve, exchange=asked.seconds, overlap=asked)
    return replace(model, curve=changed, coefficients=coefficients, draws=draws)


def of_network(curve: Curve, network: float) -> str:
    """What a what-if of another network rests on."""
    if curve.overlap is not None and curve.overlap.network == network:
        ends = "" if curve.bucket_s else "; one end of the interval as if latencies stayed"
        return f"what if: each bucket takes 1/{network:g} of its time on the wire, beside the same backward pass{ends}"
    return f"what if: communication not hidden takes 1/{network:g} of its time; what is hidden stays hidden"


def in_words(curve: Curve) -> list[str]:
    """What a what-if of other buckets rests on."""
    if not curve.other_buckets:
        return []
    assert curve.overlap is not None and curve.overlap.cap_bytes is not None
    count, cap_bytes = len(curve.overlap.buckets), curve.overlap.cap_bytes
    gradients = sum(curve.buckets) / curve.sent_share
    return [
        f"what if: DDP's {gradients / 2**20:.4g} MiB of gradients in {counted(count, 'bucket')} of at most "
        f"{cap_bytes / 2**20:g} MiB (measured: {counted(len(curve.buckets), 'bucket')}); the "
        "backward pass and the wire stay, a bucket costs no computation, and no parameter, such as an embedding, is "
        "larger than one"
    ]
