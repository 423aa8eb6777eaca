"""A methods paragraph for papers, from the records: what was measured, where, how, and what must be said against it."""

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median

from results.export.conditions import data, hardware, workload
from results.export.wording import is_emulated, ok_ones, ran_ones, span, told_of
from results.frames import FAILED, MIN_REPEATS_FOR_INTERVAL, UNSTABLE_SPREAD
from results.report.latex import escaped
from results.report.plain import counted, plain
from results.report.summary import CERTIFIED, DISAGREEING, UNVERIFIED, remedies
from results.report.tables import Row, is_missing, whole

WATCHED = "watch"
"""The sweep of loops that are not ours."""
PREPARED = {
    "cold": "evicted from the page cache before the first read",
    "warm": "read into the page cache before the first read",
    "direct": "read past the page cache (O_DIRECT)",
}


def methods(trials: Sequence[Row]) -> str:
    """The paragraph as plain text, a sentence for each fact that the records hold; empty without trials."""
    sentences = (sentence for tell in PARTS for sentence in tell(trials))
    return " ".join(plain(" ".join(sentences)).split()) if trials else ""


def methods_latex(trials: Sequence[Row]) -> str:
    """The same as LaTeX."""
    return escaped(methods(trials))


def _scope(trials: Sequence[Row]) -> list[str]:
    ran = ran_ones(trials)
    if not ran:
        return ["No trial was run."]
    points = Counter((row["session"], row["point_id"]) for row in ran)
    days = sorted({str(row["started_at"])[:10] for row in ran})
    version = told_of(ran, lambda row: row.get("env.benchsuite"))
    commit = told_of(ran, lambda row: row.get("env.commit"))
    where = f"benchsuite {version}".rstrip() + (f", commit {commit}" if commit else "")
    num_points, sessions = len({row["point_id"] for row in ran}), len({row["session"] for row in ran})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    said = f"Measurements were made with {where}, on {when} (UTC): {counted(num_points, 'point')} of the "
    said += f"configuration space in {counted(sessions, 'session')}, {span([*points.values()])} times each, "
    own = [row for row in ran if row["sweep"] != WATCHED]
    found = [f"{said}{counted(len(ran), 'trial')} in all" + (", each in new processes." if own == ran else ".")]
    watched = len(ran) - len(own)
    return found + ([f"Of these, training loops of other programs, watched as they ran: {watched}."] * bool(watched))


def _cache(trials: Sequence[Row]) -> list[str]:
    """What state was asked for, what was measured, and what cannot be seen."""
    stored = [row for row in ok_ones(trials) if row.get("spec.data.source") == "storage"]
    found = []
    for state, when, low, high in CERTIFIED:
        asked = [row for row in stored if row.get("spec.data.cache") == state]
        resident = f"cache_resident_{when}"
        seen = [row for row in asked if UNVERIFIED not in row["caveats"] and not is_missing(row.get(resident))]
        inside = [row for row in seen if low <= row[resident] <= high]
        limit = f"at least {low:.0%}" if state == "warm" else f"at most {high:.0%}"
        if asked:
            found.append(
                f"Files were asked to be {PREPARED[state]} in {counted(len(asked), 'ok trial')}; mincore found "
                f"{limit} of their bytes resident {when} the measurement in {len(inside)} of them"
                + (f" and could not tell in {len(asked) - len(seen)}." if len(seen) < len(asked) else ".")
            )
    disagreeing = sum(DISAGREEING in row["caveats"] for row in stored)
    if disagreeing:
        found.append(f"The kernel's I/O counters told another story in {counted(disagreeing, 'trial')}.")
    if any(row.get("env.data.server_cache") == "unknown" for row in stored):
        found.append("The caches of the storage servers cannot be seen from a client; their state is unknown.")
    return found


def _steps(trials: Sequence[Row]) -> list[str]:
    own = [row for row in ran_ones(trials) if not is_missing(row.get("spec.measure.steps"))]
    if not own:
        return []
    steps = told_of(own, lambda row: whole(row["spec.measure.steps"]))
    warmup = told_of(own, lambda row: whole(row.get("spec.measure.warmup_steps")))
    uncounted = f", after warm-up steps that were not: {warmup}" if warmup else ""
    return [f"Steps that were counted: {steps}{uncounted}."]


def _utilization(trials: Sequence[Row]) -> list[str]:
    """What AU means in these trials."""
    measured = [row for row in ok_ones(trials) if not is_missing(row.get("au"))]
    if not measured:
        return []
    told = "Accelerator utilization (AU) is the time a step needs with its input in memory over the time it took; it "
    told += "is never clipped to 1."
    real = [row for row in measured if not is_emulated(row)]
    found = [told]
    if real:
        found.append(
            f"The former was measured in the same trial ({counted(len(real), 'trial')}), in blocks of steps on one "
            "real batch that alternate with blocks fed by the loader."
        )
    if len(real) < len(measured):
        found.append("On emulated accelerators the former is the emulated step time.")
    return found


def _statistics(trials: Sequence[Row]) -> list[str]:
    rates: dict[tuple[str, str], list[float]] = {}
    for row in ok_ones(trials):
        known = [] if is_missing(row["samples_per_s"]) else [float(row["samples_per_s"])]
        rates.setdefault((str(row["session"]), str(row["point_id"])), []).extend(known)
    counts = Counter((str(row["session"]), str(row["point_id"])) for row in ok_ones(trials))
    if not counts:
        return []
    spread = sum(bool(found) and max(found) - min(found) > UNSTABLE_SPREAD * median(found) for found in rates.values())
    told = f"Throughput spread by more than {UNSTABLE_SPREAD:.0%} of its median over repeats"
    unstable = [f"{told} at {spread} of {counted(len(counts), 'point')}."] if spread else []
    return [_spread(list(counts.values())), *unstable]


def _spread(repeats: Sequence[int]) -> str:
    """How figures of points with so many ok repeats are told."""
    if max(repeats) == 1:
        return "Each figure is of a single trial: nothing is known of its spread."
    told = "Figures of a point are medians over its ok trials in one session"
    if max(repeats) < MIN_REPEATS_FOR_INTERVAL:
        return f"{told}, with their range; they are too few for an interval."
    few = sum(count < MIN_REPEATS_FOR_INTERVAL for count in repeats)
    told += ", with the distribution-free 95 % interval of the median from order statistics (David and Nagaraja, "
    return told + "Order Statistics, 2003, 7.1)" + (f", or the range at {counted(few, 'point')}." if few else ".")


def _losses(trials: Sequence[Row]) -> list[str]:
    counts = Counter(str(row["status"]) for row in trials)
    lost = [f"{counts[name]} {name}" for name in (*FAILED, "interrupted") if counts[name]]
    found = [f"Without a result: {', '.join(lost)} of {counted(len(ran_ones(trials)), 'trial')}."] if lost else []
    if counts["skipped"]:
        skipped = len({row["point_id"] for row in trials if row["status"] == "skipped"})
        found.append(f"Not run, as not possible here: {counted(skipped, 'point')}.")
    return found


def _caveats(trials: Sequence[Row]) -> list[str]:
    ok = ok_ones(trials)
    found = Counter(str(name) for row in ok for name in row["caveats"])
    if not ok:
        return []
    if not found:
        return ["No trial bears a caveat."]
    told = ", ".join(f"{name} in {count}" for name, count in found.most_common())
    details = "; ".join(remedies(ok))
    return [f"Caveats, of {counted(len(ok), 'ok trial')}: {told}" + (f" ({details})." if details else ".")]


PARTS: Sequence[Callable[[Sequence[Row]], list[str]]] = (
    _scope,
    hardware,
    workload,
    data,
    _cache,
    _steps,
    _utilization,
    _statistics,
    _losses,
    _caveats,
)
