"""Records as JUnit XML, for continuous integration: a test case per trial; failed ones and regressions are failures.

Valid under the schema of Ant's JUnit task (windyroad/JUnit-Schema), the strictest in use: no attributes of
`testsuites`, every suite with `properties`, `system-out` and `system-err`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from results.baseline import Check
from results.environments import facts_of, is_momentary
from results.frames import FAILED
from results.report.compare import check_lines, regression_lines
from results.report.plain import plain
from results.report.tables import Row, caveats, is_missing

PACKAGE = "benchsuite"


@dataclass(frozen=True)
class Case:
    """A test case."""

    name: str
    classname: str
    time_s: float = 0.0
    outcome: Literal["ok", "failure", "skipped"] = "ok"
    type: str = ""
    """Of a failure: failed, oom, timeout, regression."""
    text: str = ""
    """Why, for what is not ok."""


def junit(trials: Sequence[Row], check: Check | None = None) -> str:
    """The document: a suite for each sweep and session, and one for what the nightly gate found.

    Interrupted trials count as skipped: nothing is known of them.
    """
    suites: dict[tuple[str, str], list[Row]] = {}
    for row in trials:
        suites.setdefault((str(row["sweep"]), str(row["session"])), []).append(row)
    root = Element("testsuites")
    for (sweep, session), found in suites.items():
        _add_trials(root, f"{sweep} ({session})", found)
    if check is not None:
        _add_check(root, check)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _add_trials(root: Element, name: str, trials: Sequence[Row]) -> None:
    points: dict[str, set[str]] = {}
    for row in trials:
        points.setdefault(str(row["label"]), set()).add(str(row["point_id"]))
    cases = [_case(row, ambiguous=len(points[str(row["label"])]) > 1) for row in trials]
    lines = [f"{case.name}: {_figures(row)}" for row, case in zip(trials, cases, strict=True)]
    hosts = sorted({str(row["env.host"]) for row in trials if not is_missing(row.get("env.host"))})
    begun = min(str(row["started_at"]) for row in trials)
    _add_suite(root, name, (begun, ", ".join(hosts)), _facts(trials), cases, lines)


def _case(row: Row, ambiguous: bool) -> Case:
    """A trial; its point's id is told where another point has the same label."""
    label = f"{row['label'] or row['point_id']}" + (f" [{row['point_id']}]" if ambiguous else "")
    name, classname = f"{label} repeat {row['repeat']}", f"{PACKAGE}.{row['sweep']}"
    status = str(row["status"])
    if status == "ok":
        return Case(name, classname, _wall_s(row))
    reason = "no reason was recorded" if is_missing(row["reason"]) else str(row["reason"])
    phase = "" if is_missing(row["phase"]) else f"\nlast phase: {row['phase']}"
    text = f"{reason}{phase}\ntrial: {row['trial_id']}"
    if status in FAILED:
        return Case(name, classname, _wall_s(row), "failure", status, text)
    return Case(name, classname, _wall_s(row), "skipped", status, text if status == "skipped" else f"{status}: {text}")


def _wall_s(row: Row) -> float:
    if not is_missing(row["wall_s"]):
        return max(0.0, float(row["wall_s"]))
    ended, begun = (datetime.fromisoformat(str(row[name])) for name in ("finished_at", "started_at"))
    return max(0.0, (ended - begun).total_seconds())


def _figures(row: Row) -> str:
    """A trial in a line."""
    told = [] if is_missing(row["au"]) else [f"AU {row['au']:.3f}"]
    told += [] if is_missing(row["samples_per_s"]) else [f"{row['samples_per_s']:.4g} samples/s"]
    rate = row.get("busbw_bytes_per_s")
    told += [] if rate is None or is_missing(rate) else [f"busbw {rate / 1e9:.4g} GB/s"]
    told += [] if is_missing(row["bottleneck"]) else [f"bottleneck {row['bottleneck']}"]
    told += [f"caveats {named}"] if (named := caveats(row)) else []
    return ", ".join([str(row["status"]), *told])


def _facts(trials: Sequence[Row]) -> list[tuple[str, str]]:
    """Facts of the environment, with all their values."""
    found: dict[str, dict[str, None]] = {}
    for row in trials:
        for name, value in facts_of(row).items():
            if not is_momentary(name) and not isinstance(value, list):
                found.setdefault(name, {})[str(value)] = None
    return [(name, ", ".join(values)) for name, values in found.items()]


def _add_check(root: Element, check: Check) -> None:
    """What the gate found; points that could not be judged are skipped, with the reason."""
    classname = f"{PACKAGE}.check"
    cases = [
        Case(f"{found.label}: {found.metric}", classname, 0.0, "failure", "regression", _lines(regression_lines(found)))
        for found in check.regressions
    ]
    if not check.num_judged:
        cases.append(Case("no regression", classname, 0.0, "skipped", "", check.reason or "nothing could be judged"))
    cases = cases or [Case("no regression", classname)]
    unjudged = (
        (check.too_young, "too few sessions before"),
        (check.doubtful, "doubtful"),
        (check.missing, "no ok trial in this session"),
    )
    cases += [Case(label, classname, 0.0, "skipped", "", why) for labels, why in unjudged for label in labels]
    name = f"check of {check.session} against the baseline"
    properties = [("baseline", ", ".join(check.baseline))]
    _add_suite(root, name, (check.date, ""), properties, cases, check_lines(check))


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines)


def _add_suite(
    root: Element,
    name: str,
    place: tuple[str, str],
    properties: Sequence[tuple[str, str]],
    cases: Sequence[Case],
    lines: Sequence[str],
) -> None:
    """A suite; `place` is the moment it began (ISO, UTC) and its hosts."""
    counts = Counter(case.outcome for case in cases)
    attributes = {
        "name": name,
        "package": PACKAGE,
        "id": str(len(root)),
        "timestamp": place[0][:19],
        "hostname": place[1] or "localhost",
        "tests": str(len(cases)),
        "failures": str(counts["failure"]),
        "errors": "0",
        "skipped": str(counts["skipped"]),
        "time": f"{sum(case.time_s for case in cases):.3f}",
    }
    suite = SubElement(root, "testsuite", {key: plain(value) for key, value in attributes.items()})
    listed = SubElement(suite, "properties")
    for key, value in properties:
        SubElement(listed, "property", {"name": plain(key), "value": plain(value)})
    for case in cases:
        _add_case(suite, case)
    SubElement(suite, "system-out").text = plain(_lines(lines))
    SubElement(suite, "system-err").text = ""


def _add_case(suite: Element, case: Case) -> None:
    names = {"name": plain(case.name), "classname": plain(case.classname), "time": f"{case.time_s:.3f}"}
    element = SubElement(suite, "testcase", names)
    text = plain(case.text)
    if case.outcome == "failure":
        head = next(iter(text.splitlines()), "")
        SubElement(element, "failure", {"message": head, "type": case.type}).text = text
    elif case.outcome == "skipped":
        SubElement(element, "skipped", {"message": next(iter(text.splitlines()), "")}).text = text
