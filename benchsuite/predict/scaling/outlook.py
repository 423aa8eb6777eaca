"""Predictions as rows and lines: what is printed of a curve, what it rests on, and how well it did before."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from benchsuite.contract.errors import UserError
from benchsuite.predict.scaling import nodes
from benchsuite.predict.scaling.curve import Curve, Outlook
from benchsuite.predict.scaling.input_wait import input_bytes
from benchsuite.predict.scaling.model import Model, with_buckets, with_network
from benchsuite.predict.scaling.series import MAX_BEYOND, MIN_SCALES, fit, noise_of
from benchsuite.predict.theory.interval import coverage
from benchsuite.results.render.tables import ABSENT, Column, Row, ends, number
from benchsuite.results.render.words import counted
from benchsuite.results.render.words import rate as in_rate


def check_reach(curve: Curve, ranks: Sequence[int], far: bool) -> None:
    """Refuse ranks too far beyond what was measured.

    Raises:
        UserError: more than MAX_BEYOND times the largest measured scale, and `far` is not set; or a batch of all ranks
            that so many cannot share.
    """
    most = curve.most_ranks

    def is_uneven(number: int) -> bool:
        return curve.kind == "strong" and bool(curve.batch % max(1.0, number * curve.data_share))

    uneven = [number for number in ranks if is_uneven(number)]
    if uneven and any(is_uneven(point.ranks) for point in curve.points):
        raise UserError(
            f"{curve.title}: {uneven[0]} ranks cannot share {curve.batch:g} samples a step evenly, nor could all of "
            "those measured; where ranks share samples, say how many: columns tensor and pipeline"
        )
    if uneven:
        raise UserError(
            f"{curve.title}: {uneven[0]} ranks cannot share {curve.batch:g} samples a step evenly; take a divisor of "
            f"{curve.batch:g}, or a series of a larger batch"
        )
    beyond = [number for number in ranks if number > MAX_BEYOND * most]
    if beyond and not far:
        raise UserError(
            f"{curve.title}: {beyond[0]} ranks are {beyond[0] / most:.3g} times the {most} measured; allowed: up to "
            f"{MAX_BEYOND} times ({MAX_BEYOND * most}); measure more ranks, or give --far"
        )


LEAST_FALL, LEAST_OF_STEP = 0.05, 0.01
"""Shares of the larger value, and of the step: less may be an accident."""
NOISES = 3.0
"""As many standard deviations of a median step tell as much."""


def impossible(curve: Curve) -> list[str]:
    """A line for each quantity that falls against what more ranks can do; predictions hold it instead of going on."""
    least = max(LEAST_FALL, NOISES * noise_of(curve.points))
    return [*_of_steps(curve, least), *_of_exchange(curve, least)]


def _of_steps(curve: Curve, least: float) -> list[str]:
    """Weak scaling: a step without input falls. Strong scaling: it falls faster than the ranks divide its work."""
    strong = curve.kind == "strong"
    base = {point.ranks: point.base_s for point in curve.points}
    fallen = _fall({ranks: seconds * (ranks if strong else 1) for ranks, seconds in base.items()}, least, 0.0)
    if fallen is None:
        return []
    few, many = fallen
    why, held = (
        ("faster than the ranks grow", "shortened by no more than the ranks from the largest on")
        if strong
        else ("with the same batch a rank", "held from the largest on")
    )
    return [
        f"warning: a step without input takes {base[few] * 1e3:.1f} ms at {few} and {base[many] * 1e3:.1f} ms at "
        f"{many} ranks, {why}: not modelled, it is {held}; look at what was different at {few}"
    ]


def _of_exchange(curve: Curve, least: float) -> list[str]:
    """A line where communication falls from two ranks on.

    It is not asked for in strong scaling of mixed parallelism, whose messages become smaller.
    """
    if curve.kind == "strong" and curve.data_share not in (1.0, 1 / curve.most_ranks):
        return []
    known = {point.ranks: point.parts["communication"] for point in curve.points if point.ranks > 1 and point.parts}
    fallen = _fall(known, least, LEAST_OF_STEP * max(point.base_s for point in curve.points))
    if fallen is None:
        return []
    few, many = fallen
    return [
        f"warning: communication not hidden takes {known[few] * 1e3:.1f} ms at {few} and {known[many] * 1e3:.1f} ms at "
        f"{many} ranks: more ranks do not shorten it; predicted to grow from between the two"
    ]


def _fall(values: Mapping[int, float], least: float, least_s: float) -> tuple[int, int] | None:
    """The ranks between which a value falls most, where that is by more than `least` of it and `least_s`."""
    pairs = [
        (values[many] / values[few], few, many)
        for few, many in combinations(sorted(values), 2)
        if values[few] - values[many] > least_s
    ]
    worst = min(pairs, default=None)
    return worst[1:] if worst is not None and worst[0] < 1 - least else None


LEAST_ABOVE = 0.005
"""How far above 1 an efficiency is worth a line."""
TELLING = 0.05
"""Share of the step: what the model's terms miss of the largest scale is told from there on."""


def share(name: str) -> Column:
    """A column of a part of the step."""

    def cell(row: Row) -> str:
        value = row.get(f"{name}_share")
        return ABSENT if value is None else f"{value * 100 + 0.0:.0f} %".replace("-0 %", "0 %")

    return Column(name, cell)


COLUMNS = (
    Column("layout", lambda row: str(row.get("label", "")), right=False, optional=True),
    Column("ranks", lambda row: str(row["ranks"])),
    Column("measured", lambda row: number({**row, "repeats": 1}, "measured_s", 1e3), optional=True),
    Column("ms/step [90 %]", lambda row: ends(row, "step_s", 1e3)),
    Column("samples/s [90 %]", lambda row: ends(row, "samples_per_s")),
    Column("efficiency [90 %]", lambda row: ends(row, "efficiency", digits=2)),
    Column("AU [90 %]", lambda row: ends(row, "au", digits=2), optional=True),
    Column("not waiting for input [90 %]", lambda row: ends(row, "fraction_not_waiting", digits=2), optional=True),
    *map(share, ("compute", "communication", "bubble", "imbalance", "load")),
)
TEST_COLUMNS = (
    Column("series", lambda row: str(row.get("label", "")), right=False),
    Column("ranks", lambda row: str(row["ranks"])),
    Column("measured ms/step", lambda row: f"{row['measured_s'] * 1e3:.1f}"),
    Column("predicted [90 %]", lambda row: ends(row, "step_s", 1e3)),
    Column("error", lambda row: f"{row['error'] * 100:+.1f} %"),
    Column("within", lambda row: "yes" if row["within"] else "no"),
)


def row(model: Model, found: Outlook, as_measured: bool = True) -> dict[str, Any]:
    """A flat row of one prediction. Efficiency is P(N) / (P(N0) N / N0), N0 the smallest scale measured.

    There it is 1 by definition, of what was measured (`as_measured`: not of another network or storage), though another
    run's rate may differ.

    Where AU was measured, `au` is the share of the step that does not wait for input, scaled to it; else
    `fraction_not_waiting` is that share.
    """
    anchored = found.au_scale is not None
    waits_told = model.curve.has_input and not anchored
    first = model.curve.points[0]
    seconds = (found.step_s, found.low_s, found.high_s)
    rates = [found.samples / second for second in (seconds[0], seconds[2], seconds[1])]
    ideal = model.curve.samples(first.ranks) / first.middle_s * found.ranks / first.ranks
    measured_so = as_measured and model.curve.staged != "asked" and not model.curve.other_buckets
    is_baseline = measured_so and found.ranks == first.ranks
    efficiencies = [1.0, 1.0, 1.0] if is_baseline else [rate / ideal for rate in rates]
    parts = {f"{name}_share": value / found.step_s for name, value in found.parts.items()}
    known = () if model.curve.batches or model.curve.other_buckets else model.curve.points
    measured = next((point.middle_s for point in known if point.ranks == found.ranks), None)
    return {
        "ranks": found.ranks,
        "measured_s": measured,
        **_three("step_s", seconds),
        **_three("samples_per_s", rates),
        **_three("efficiency", efficiencies),
        **_three("au", found.au if anchored else UNKNOWN),
        **_three("fraction_not_waiting", found.fraction_not_waiting if waits_told else UNKNOWN),
        **parts,
    }


UNKNOWN = (None, None, None)


def _three(name: str, values: Sequence[float | None]) -> dict[str, float | None]:
    """A value and the ends of its interval."""
    numbers = (None if value is None else float(value) for value in values)
    return {f"{name}{end}": value for end, value in zip(("", "_low", "_high"), numbers, strict=True)}


def foretold(
    model: Model,
    ranks: Sequence[int],
    network: float = 1.0,
    storage: float = 1.0,
    bucket_cap_mb: float | None = None,
) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of predictions at these ranks, and what they rest on, were the network and storage so many times as fast.

    And were DDP's buckets of so many MiB, where that is asked.
    """
    model = model if bucket_cap_mb is None else with_buckets(model, bucket_cap_mb)
    model, as_measured = with_network(model, network), network == storage == 1
    rows = [row(model, model.at(count, network, storage), as_measured) for count in ranks]
    return rows, assumptions(model, ranks, network, storage)


def assumptions(model: Model, ranks: Sequence[int], network: float = 1.0, storage: float = 1.0) -> list[str]:
    """What the predictions of a curve rest on, each a line, and what would make them tighter."""
    curve = model.curve
    measured = ", ".join(str(point.ranks) for point in curve.points)
    batch = "the batch of a rank stays" if curve.kind == "weak" else "the batch of all ranks stays"
    lines = [f"fitted to {measured} ranks, {curve.kind}: {batch}; the same machine, network and software at all scales"]
    told = all(point.parts is not None for point in curve.points)
    lines.append(_how_split(told, curve))
    lines += [*nodes.in_words(curve.placement, ranks), *impossible(curve)]
    lines += [f"trials: {', '.join(curve.caveats)}"] if curve.caveats else []
    if max(ranks, default=0) > curve.most_ranks:
        lines.append(
            f"beyond {curve.most_ranks} ranks: the chance that more ranks lose nothing more is {model.linear:.0%}; the "
            "prediction averages over models, perfect scaling among them, and each counts by how well it predicts the "
            f"measurements; a measurement at {min(MAX_BEYOND * curve.most_ranks, max(ranks))} ranks would tighten the "
            "interval most"
        )
    lines += _above_one(curve)
    lines += [*_of_readers(curve), *_of_input(curve, storage)]
    lines += curve.notes
    if storage != 1 and (curve.shared_bytes_per_s is None or not input_bytes(curve)):
        lines.append("what if: --storage changes nothing: no limit of a shared file system is known")
    if network != 1:
        lines.append(_of_network(curve, network))
    return [*lines, *_of_buckets(curve), *measured_in_words(model)]


def _of_network(curve: Curve, network: float) -> str:
    """What a what-if of another network rests on."""
    if curve.overlap is not None and curve.overlap.network == network:
        ends = "" if curve.bucket_s else "; one end of the interval as if latencies stayed"
        return f"what if: each bucket takes 1/{network:g} of its time on the wire, beside the same backward pass{ends}"
    return f"what if: communication not hidden takes 1/{network:g} of its time; what is hidden stays hidden"


def _of_buckets(curve: Curve) -> list[str]:
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


def _above_one(curve: Curve) -> list[str]:
    """Why an efficiency above 1 may be printed: a measured scale has it already."""
    rates = {point.ranks: curve.samples(point.ranks) / point.middle_s / point.ranks for point in curve.points}
    first, best = curve.points[0].ranks, max(rates, key=lambda ranks: rates[ranks])
    if rates[best] <= (1 + LEAST_ABOVE) * rates[first]:
        return []
    return [
        f"efficiency above 1: {rates[best] / rates[first]:.3f} was measured at {best} ranks, each of which does more a "
        f"second than at {first}"
    ]


def _how_split(told: bool, curve: Curve) -> str:
    volume = "the transfers between stages that follow one another" if curve.pipeline else "(N - 1)/N"
    trees = "" if curve.pipeline else ", log2 N"
    by = "by collectives as probed" if curve.exchange is not None else f"as {volume}{trees} and N - 1"
    if curve.exchange is not None and curve.buckets:
        wire = (
            "takes as long as probed"
            if curve.bucket_s is not None
            else "takes as long as in a ring, fitted to the exposed communication of the trials"
        )
        by = f"as the part of the exchange of DDP's buckets that the backward pass does not hide; each bucket {wire}"
    grows = f"communication grows {by}; waiting for the slowest rank grows as the largest of N normal times"
    if told:
        return f"computation, communication and waiting as measured; {grows}"
    bubble = "bubble (N - 1)/m, and what each of m + N - 1 slots costs; " if curve.pipeline else ""
    return f"the parts of steps were not told apart: fitted to the whole; {bubble}{grows}"


def _of_readers(curve: Curve) -> list[str]:
    if curve.readers_bytes_per_s is None or not input_bytes(curve):
        return []
    nodes = curve.placement.at(curve.most_ranks)
    rate = in_rate(curve.readers_bytes_per_s)
    return [
        f"input: the cores of {counted(nodes, 'node')} read and decode {rate} in all, by the verdicts or as "
        "memory gave the bytes: more nodes bring more, faster or node-local storage does not"
    ]


def _of_input(curve: Curve, storage: float) -> list[str]:
    if curve.staged == "asked":
        return [
            "what if: input staged on each node: no shared file system limits it; waits per sample stay as at the "
            "smallest scale"
        ]
    if curve.staged == "trials":
        return ["input: read from copies on each node, no shared file system limits it; waits per sample as measured"]
    if curve.shared_bytes_per_s is not None and input_bytes(curve):
        limit = curve.shared_bytes_per_s * storage
        return [f"input: all ranks share a file system of {in_rate(limit)}, beyond that they wait for it"]
    last = curve.points[-1]
    if curve.readers_bytes_per_s is not None or not any(point.load_s for point in curve.points):
        return []
    if last.io_bytes_per_s is None:
        return ["input: waits per sample as measured, at more ranks as at the most measured; no bytes were counted"]
    return [
        f"input: no limit of a shared file system was seen up to {in_rate(last.io_bytes_per_s)}, none is "
        "assumed; give one with --shared-bandwidth"
    ]


def back_test(curve: Curve) -> tuple[list[dict[str, Any]], list[str]]:
    """Predict the scales above half of the largest from those below, and say how far it was off.

    Raises:
        UserError: fewer than two scales would be left.
    """
    held = [point for point in curve.points if point.ranks > curve.most_ranks / 2]
    left = tuple(point for point in curve.points if point.ranks <= curve.most_ranks / 2)
    if len(left) < MIN_SCALES:
        known = ", ".join(str(point.ranks) for point in curve.points)
        raise UserError(
            f"{curve.title}: measured at {known} ranks: a back-test leaves out those above {curve.most_ranks / 2:g} "
            f"and needs {MIN_SCALES} scales below"
        )
    model = fit(curve.upto(curve.most_ranks / 2))
    rows = [tested(curve.title, p.ranks, p.middle_s, _seconds(model.at(p.ranks))) for p in held]
    fitted_to = ", ".join(str(point.ranks) for point in left)
    return rows, [f"fitted to {fitted_to} ranks", summary(rows)]


def _seconds(found: Outlook) -> tuple[float, float, float]:
    return found.step_s, found.low_s, found.high_s


def tested(label: str, ranks: int, measured_s: float, seconds: Sequence[float]) -> dict[str, Any]:
    """A flat row of a prediction beside what was measured."""
    within = bool(seconds[1] <= measured_s <= seconds[2])
    own = {"label": label, "ranks": ranks, "measured_s": measured_s, **_three("step_s", seconds)}
    return own | {"error": seconds[0] / measured_s - 1, "within": within}


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Errors of a back-test and how many of its intervals hold."""
    errors = np.abs([row["error"] for row in rows])
    measured, low, high = ([row[name] for row in rows] for name in ("measured_s", "step_s_low", "step_s_high"))
    return (
        f"{len(rows)} predicted: error median {np.median(errors):.1%}, mean {errors.mean():.1%}, worst "
        f"{errors.max():.1%}; {coverage(measured, low, high):.0%} within their 90 % intervals"
    )


def measured_in_words(model: Model) -> list[str]:
    """The measured steps, and what no term of the model explains of the last."""
    points = model.curve.points
    first, last = points[0], points[-1]
    steps = ", ".join(f"{point.middle_s * 1e3:.1f} at {point.ranks}" for point in points)
    rates = [model.curve.samples(point.ranks) / point.middle_s / point.ranks for point in (first, last)]
    head = "measured" if not model.curve.batches else "taken as measured"
    lines = [
        f"{head}: ms/step (samples over their rate) {steps} ranks; efficiency {rates[1] / rates[0]:.2f} at {last.ranks}"
    ]
    missed = float(np.expm1(np.median(model.level[:, -1])))
    if missed > TELLING:
        lines.append(
            f"warning: at {last.ranks} ranks the step takes {missed:.0%} more than the model explains: at more ranks "
            "that is held, not taken back"
        )
    return lines
