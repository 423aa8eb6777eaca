"""The sentence above a table of points, and the line below it that says what the numbers rest on."""

from collections import Counter
from collections.abc import Sequence

from benchsuite.results.compare.drift import drifted
from benchsuite.results.render.tables import Row, is_above_one, is_missing
from benchsuite.results.render.words import counted
from benchsuite.results.report.readers import is_beside_stock
from benchsuite.results.store.record import CANNOT_TELL, MAX_AU

UNVERIFIED = "cache_unverified"
DISAGREEING = "counters_disagree"
CERTIFIED = {"cold": ("before", 0.0, 0.01), "warm": ("before", 0.99, 1.0), "direct": ("after", 0.0, 0.05)}
"""Cache states, when residency is looked at, and between what shares it must be."""
ABOVE_ONE = "au_above_one"
DOUBTFUL = frozenset({"not_steady", "foreign_load", "counters_disagree"})
"""Caveats with which a point is not named best or worst while there are others."""


def answer(points: Sequence[Row]) -> str:
    """What the points say, in one or two sentences."""
    ok = [row for row in points if row["status"] == "ok"]
    if not ok:
        return "No point has a result."
    ok = [row for row in ok if not is_beside_stock(row, ok)]
    measured = [row for row in ok if not is_missing(row.get("au"))]
    if not measured:
        return _without_ceiling(ok)
    trusted = [row for row in measured if not _doubts(row)]
    trusted = trusted or [row for row in measured if ABOVE_ONE not in _doubts(row)]
    text = f"{_held_back(measured)}{_all_doubtful(measured)}. "
    if not trusted:
        return f"{text}No best AU: each is above 1 by more than its noise ({MAX_AU}). Measure again on an idle machine."
    best, worst = (pick(trusted, key=lambda row: row["au"]) for pick in (max, min))
    text += f"Best AU {best['au']:.2f} ({best['label']})"
    if len(measured) > 1:
        text += f", worst {worst['au']:.2f} ({worst['label']})"
    remedy = worst.get("bottleneck_remedy")
    text += _evidence(worst)
    text += "" if is_missing(remedy) or not remedy else f". What may help it: {remedy}"
    left_out = _left_out(measured, trusted)
    return f"{text}. {left_out} for best and worst." if left_out else f"{text}."


def _held_back(points: Sequence[Row]) -> str:
    """How many points each thing holds back, and of how many that cannot be told."""
    verdicts = Counter("nothing known" if is_missing(row["bottleneck"]) else row["bottleneck"] for row in points)
    untold, of = verdicts.pop(CANNOT_TELL, 0), f"of {counted(len(points), 'point')}"
    held = ", ".join(f"{name.replace('_', ' ')} in {count}" for name, count in verdicts.most_common())
    if not untold:
        return f"Held back by {held} {of}"
    told = f"Held back by {held} {of}; what" if held else "What"
    return f"{told} holds {untold} {of} back cannot be told"


def _evidence(row: Row) -> str:
    """A point's evidence, which is of one repeat; said where that has another AU than the point."""
    why = row.get("bottleneck_evidence")
    if is_missing(why) or not why:
        return ""
    other = why.startswith("AU ") and not why.startswith(f"AU {row['au']:.2f}")
    return f"; in one of its repeats: {why}" if other else f": {why}"


def _doubts(row: Row) -> frozenset[str]:
    """Why a point is named neither best nor worst nor fastest while there are others."""
    found = DOUBTFUL & {*row["caveats"]} | ({"unstable"} if row.get("unstable") else set())
    return found | ({ABOVE_ONE} if is_above_one(row) else set())


def _left_out(points: Sequence[Row], trusted: Sequence[Row]) -> str:
    """How many points were not considered, and why; nothing where all were."""
    out = [row for row in points if not any(row is one for one in trusted)]
    count, why = len(out), " or ".join(sorted({name for row in out for name in _doubts(row)}))
    return f"{count} {why} point{'s are' if count > 1 else ' is'} not considered" if count else ""


def _all_doubtful(points: Sequence[Row]) -> str:
    """A warning where no point is free of what makes points doubtful; else nothing."""
    found = Counter(name for row in points for name in _doubts(row))
    if not all(_doubts(row) for row in points):
        return ""
    return f"; every one is doubtful ({', '.join(name for name, _ in found.most_common())}): see below"


def _without_ceiling(ok: Sequence[Row]) -> str:
    """What points without AU say: how long they wait for input, as watched loops tell; else which is fastest."""
    waiting = [row for row in ok if not is_missing(row.get("input_stall_fraction"))]
    if waiting:
        worst = max(waiting, key=lambda row: row["input_stall_fraction"])
        return f"{_held_back(waiting)}. {worst['label']}: {worst['bottleneck_evidence']}."
    rated = [row for row in ok if not is_missing(row.get("samples_per_s"))]
    if not rated:
        return "No point has a rate."
    trusted = [row for row in rated if not _doubts(row)] or rated
    best = max(trusted, key=lambda row: row["samples_per_s"])
    left_out = _left_out(rated, trusted)
    text = f"Fastest is {best['label']}: {best['samples_per_s']:.0f} samples/s"
    faster = sum(row["samples_per_s"] > best["samples_per_s"] for row in rated)
    beyond = f", {faster} of them faster" if faster else ""
    text += f"; {left_out}{beyond}." if left_out else f"{_all_doubtful(rated)}."
    read = any(row.get("spec.data.source") == "storage" for row in rated)
    return f"{text} {'No point has an AU.' if read else 'No point read from storage.'}"


def residency(ok: Sequence[Row], state: str) -> tuple[list[Row], list[Row], list[Row]]:
    """Trials that read from storage and asked for a cache state; those whose residency was seen; and found as asked."""
    when, low, high = CERTIFIED[state]
    column = f"cache_resident_{when}"
    asked = [row for row in ok if row.get("spec.data.cache") == state and row.get("spec.data.source") == "storage"]
    seen = [row for row in asked if UNVERIFIED not in row["caveats"] and not is_missing(row.get(column))]
    return asked, seen, [row for row in seen if low <= row[column] <= high]


def trust(trials: Sequence[Row]) -> str:
    """What the numbers rest on: cache state verified, caveats, what did not run."""
    ok = [row for row in trials if row["status"] == "ok"]
    parts = [f"{len(ok)} of {sum(row['status'] != 'skipped' for row in trials)} trials ok"]
    for state in CERTIFIED:
        asked, _, seen = residency(ok, state)
        agreeing = sum(DISAGREEING not in row["caveats"] for row in seen)
        if asked:
            but = f" (and by counters in {agreeing})" if agreeing < len(seen) else ""
            parts.append(f"{state} verified by mincore in {len(seen)} of {len(asked)}{but}")
    if any(row.get("env.data.server_cache") == "unknown" for row in ok):
        parts.append("the server's cache unknown")
    found = Counter(name for row in ok for name in row["caveats"])
    parts += [f"{name} in {count}" for name, count in found.most_common()]
    parts += [f"drift: {', '.join(far)}"] if (far := drifted(trials)) else []
    skipped = sum(row["status"] == "skipped" for row in trials)
    return "trust: " + " · ".join([*parts, *([f"{skipped} skipped"] if skipped else [])])


def remedies(trials: Sequence[Row]) -> list[str]:
    """Each caveat once, the commonest first, with the arithmetic of its commonest detail and what would help."""
    found = Counter(str(detail) for row in trials if row["status"] == "ok" for detail in row["caveat_details"])
    by_name: dict[str, list[tuple[str, int]]] = {}
    for detail, count in found.most_common():
        by_name.setdefault(detail.partition(":")[0], []).append((detail, count))
    lines = [_remedy(details) for details in by_name.values()]
    more = (
        [f"and {len(lines) - MAX_REMEDIES} more kinds: see caveat_details in `results show --format json`"]
        if len(lines) > MAX_REMEDIES
        else []
    )
    return lines[:MAX_REMEDIES] + more


def _remedy(details: Sequence[tuple[str, int]]) -> str:
    """The commonest detail of a caveat, and in how many trials it or another like it stands."""
    text, count = details[0]
    everywhere = sum(number for _, number in details)
    alike = f" (the commonest of {everywhere} such remarks)" if len(details) > 1 else f" (in {count} trials)"
    return text + (alike if everywhere > 1 else "")


MAX_REMEDIES = 5
LEGEND = (
    "± = farthest repeat · AU = step time with its input in memory / step time, both of the same trial\n"
    "MB/s = stored bytes of the samples consumed · ms/step = mean of the slowest rank = load + copy to device + "
    "forward + backward + exposed communication + optimizer\n"
    "bubble = waiting for other stages of a pipeline · MFU = the model's FLOPs / the device's dense peak\n"
    "AU and samples/s leave out what the prefetch queue lost meanwhile; ms/step is as it was\n"
    "verdict: storage (reading) | preprocessing (decoding) | client_cpu (readers and model wait for cores) | compute | "
    "communication | imbalance (a slower rank)"
)
