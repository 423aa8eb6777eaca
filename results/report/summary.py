"""The sentence above a table of points, and the line below it that says what the numbers rest on."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from results.report.tables import Row, is_missing


def answer(points: Sequence[Row]) -> str:
    """What the points say, in one or two sentences."""
    ok = [row for row in points if row["status"] == "ok"]
    if not ok:
        return "No point has a result."
    measured = [row for row in ok if not is_missing(row.get("au"))]
    if not measured:
        best = max(ok, key=lambda row: row["samples_per_s"])
        return f"Fastest is {best['label']}: {best['samples_per_s']:.0f} samples/s. No point read from storage."
    best, worst = (pick(measured, key=lambda row: row["au"]) for pick in (max, min))
    verdicts = Counter(str(row["bottleneck"]) for row in measured)
    held = ", ".join(f"{name} in {count}" for name, count in verdicts.most_common())
    text = f"Held back by {held} of {len(measured)} points. Best AU {best['au']:.2f} ({best['label']})"
    if len(measured) > 1:
        text += f", worst {worst['au']:.2f} ({worst['label']})"
    return f"{text}."


def trust(trials: Sequence[Row]) -> str:
    """What the numbers rest on: cache state verified, caveats, what did not run."""
    ok = [row for row in trials if row["status"] == "ok"]
    parts = [f"{len(ok)} of {sum(row['status'] != 'skipped' for row in trials)} trials ok"]
    for state, low, high in (("cold", 0.0, 0.01), ("warm", 0.99, 1.0)):
        asked = [row for row in ok if row.get("spec.data.cache") == state and row.get("spec.data.source") == "storage"]
        seen = [
            row
            for row in asked
            if _within(row.get("cache_resident_before"), low, high) and "cache_unverified" not in row["caveats"]
        ]
        if asked:
            parts.append(f"{state} verified by mincore in {len(seen)} of {len(asked)}")
    found = Counter(name for row in ok for name in row["caveats"])
    parts += [f"{name} in {count}" for name, count in found.most_common()]
    skipped = sum(row["status"] == "skipped" for row in trials)
    return "trust: " + " · ".join([*parts, *([f"{skipped} skipped"] if skipped else [])])


def _within(value: Any, low: float, high: float) -> bool:
    return not is_missing(value) and low <= value <= high


LEGEND = (
    "± = farthest repeat · AU = step time with its input in memory / step time, both of the same trial\n"
    "MB/s = stored bytes of the samples consumed · ms/step = mean of the slowest rank = load + copy to device + "
    "forward + backward + exposed exchange + update"
)
