"""The lines below a table of points: what the numbers rest on, and what would help those that cannot be trusted."""

from collections import Counter
from collections.abc import Sequence

from benchsuite.results.compare.drift import drifted
from benchsuite.results.render.caveats import advice
from benchsuite.results.render.naming import last_part
from benchsuite.results.render.tables import Row, caveat_names, is_missing
from benchsuite.results.render.words import and_

UNVERIFIED = "cache_unverified"
DISAGREEING = "counters_disagree"
CERTIFIED = {"cold": ("before", 0.0, 0.01), "warm": ("before", 0.99, 1.0), "direct": ("after", 0.0, 0.05)}
"""Cache states, when residency is looked at, and between what shares it must be."""
ABOVE_ONE = "au_above_one"


def _residency(ok: Sequence[Row], state: str) -> tuple[list[Row], list[Row]]:
    """Return the trials that read from storage and asked for a cache state, and those of them that had it."""
    when, low, high = CERTIFIED[state]
    column = f"cache_resident_{when}"
    asked = [row for row in ok if row.get("spec.data.cache") == state and row.get("spec.data.source") == "storage"]
    seen = [row for row in asked if UNVERIFIED not in row["caveats"] and not is_missing(row.get(column))]
    return asked, [row for row in seen if low <= row[column] <= high]


def trust(trials: Sequence[Row]) -> str:
    """What the numbers rest on: cache state verified, caveats, what did not run."""
    ok = [row for row in trials if row["status"] == "ok"]
    parts = [f"{len(ok)} of {sum(row['status'] != 'skipped' for row in trials)} trials ok", *_read_by(ok)]
    for state in CERTIFIED:
        asked, seen = _residency(ok, state)
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


def _read_by(ok: Sequence[Row]) -> list[str]:
    """Which readers read from storage, those of other libraries with their names and versions."""
    libraries: dict[str, dict[str, None]] = {}
    for row in ok:
        if row.get("spec.data.source") == "storage" and not is_missing(reader := row.get("spec.data.reader")):
            told = row.get("env.reader")
            libraries.setdefault(last_part(reader), {}).update({} if is_missing(told) else {str(told): None})
    named = [f"{name} ({', '.join(told)})" if told and ":" not in name else name for name, told in libraries.items()]
    return [f"read by {and_(named)}"] if named else []


def remedies(points: Sequence[Row]) -> list[str]:
    """What helps against each caveat of the points, the commonest first."""
    found = Counter(name for row in points if row["status"] == "ok" for name in caveat_names(row))
    lines = [advice(name) for name, _ in found.most_common(MAX_REMEDIES)]
    return lines + ([f"and {len(found) - MAX_REMEDIES} more kinds of caveat"] if len(found) > MAX_REMEDIES else [])


def arithmetic(trials: Sequence[Row]) -> list[str]:
    """Each caveat once, the commonest first, with the arithmetic of its commonest detail."""
    found = Counter(str(detail) for row in trials if row["status"] == "ok" for detail in row["caveat_details"])
    by_name: dict[str, list[tuple[str, int]]] = {}
    for detail, count in found.most_common():
        by_name.setdefault(detail.partition(":")[0], []).append((detail, count))
    lines = [_commonest(details) for details in by_name.values()]
    more = (
        [f"and {len(lines) - MAX_REMEDIES} more kinds: see caveat_details in `results show --format json`"]
        if len(lines) > MAX_REMEDIES
        else []
    )
    return lines[:MAX_REMEDIES] + more


def _commonest(details: Sequence[tuple[str, int]]) -> str:
    """The commonest detail of a caveat, and in how many trials it or another like it stands."""
    text, count = details[0]
    everywhere = sum(number for _, number in details)
    alike = f" (the commonest of {everywhere} such remarks)" if len(details) > 1 else f" (in {count} trials)"
    return text + (alike if everywhere > 1 else "")


MAX_REMEDIES = 5
LEGEND = (
    "± = farthest repeat; of AU of the epoch also what its error reaches · est. = estimated from the counted window\n"
    "AU = step time with its input in memory / step time, both of the same trial\n"
    "MB/s = stored bytes of the samples consumed · ms/step = mean of the slowest rank = load + copy to device + "
    "forward + backward + exposed communication + optimizer\n"
    "bubble = waiting for other stages of a pipeline · MFU = the model's FLOPs / the device's dense peak\n"
    "AU and samples/s leave out what the prefetch queue lost meanwhile; ms/step is as it was\n"
    "verdict: storage (reading) | preprocessing (decoding) | client_cpu (readers and model wait for cores) | compute | "
    "communication | imbalance (a slower rank)"
)
