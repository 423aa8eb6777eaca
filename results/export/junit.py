"""Records as JUnit XML, for continuous integration: a test case per trial; failed ones and regressions are failures.

Valid under the schema of Ant's JUnit task (windyroad/JUnit-Schema), the strictest in use: no attributes of
`testsuites`, every suite with `properties`, `system-out` and `system-err`.
"""

from collections.abc import Sequence
from datetime import datetime
from io import BytesIO

from junitparser import (
    Attr,
    Failure,
    IntAttr,
    JUnitXml,
    Properties,
    Skipped,
    SystemErr,
    SystemOut,
    TestCase,
    TestSuite,
)

from benchsuite.results.compare.environments import facts_of, is_momentary
from benchsuite.results.gate.baseline import Check
from benchsuite.results.render.tables import Row, caveats, is_missing
from benchsuite.results.render.words import plain, rate
from benchsuite.results.report.compare import check_lines, halved_lines, regression_lines
from benchsuite.results.store.frames import FAILED

PACKAGE = "benchsuite"


def junit(trials: Sequence[Row], check: Check | None = None) -> str:
    """The document: a suite for each sweep and session, and one for what the nightly gate found.

    Interrupted trials count as skipped: nothing is known of them.
    """
    suites: dict[tuple[str, str], list[Row]] = {}
    for row in trials:
        suites.setdefault((str(row["sweep"]), str(row["session"])), []).append(row)
    root = JUnitXml()
    for (sweep, session), found in suites.items():
        _add_trials(root, f"{sweep} ({session})", found)
    if check is not None:
        _add_check(root, check)
    text = BytesIO()
    root.write(text, pretty=True)
    return text.getvalue().decode()


def _add_trials(root: JUnitXml, name: str, trials: Sequence[Row]) -> None:
    points: dict[str, set[str]] = {}
    for row in trials:
        points.setdefault(str(row["label"]), set()).add(str(row["point_id"]))
    cases = [_trial(row, ambiguous=len(points[str(row["label"])]) > 1) for row in trials]
    lines = [f"{case.name}: {_figures(row)}" for row, case in zip(trials, cases, strict=True)]
    hosts = sorted({str(row["env.host"]) for row in trials if not is_missing(row.get("env.host"))})
    begun = min(str(row["started_at"]) for row in trials)
    _add_suite(root, name, (begun, ", ".join(hosts)), _facts(trials), cases, lines)


def _trial(row: Row, ambiguous: bool) -> TestCase:
    """A trial; its point's id is told where another point has the same label."""
    label = f"{row['label'] or row['point_id']}" + (f" [{row['point_id']}]" if ambiguous else "")
    name, classname = f"{label} repeat {row['repeat']}", f"{PACKAGE}.{row['sweep']}"
    status = str(row["status"])
    if status == "ok":
        return _case(name, classname, _wall_s(row))
    reason = "no reason was recorded" if is_missing(row["reason"]) else str(row["reason"])
    phase = "" if is_missing(row["phase"]) else f"\nlast phase: {row['phase']}"
    text = f"{reason}{phase}\ntrial: {row['trial_id']}"
    if status in FAILED:
        return _case(name, classname, _wall_s(row), Failure(type_=status), text)
    return _case(name, classname, _wall_s(row), Skipped(), text if status == "skipped" else f"{status}: {text}")


def _wall_s(row: Row) -> float:
    if not is_missing(row["wall_s"]):
        return max(0.0, float(row["wall_s"]))
    ended, begun = (datetime.fromisoformat(str(row[name])) for name in ("finished_at", "started_at"))
    return max(0.0, (ended - begun).total_seconds())


def _figures(row: Row) -> str:
    """A trial in a line."""
    told = [] if is_missing(row.get("au")) else [f"AU {row['au']:.3f}"]
    told += [] if is_missing(row.get("samples_per_s")) else [f"{row['samples_per_s']:.4g} samples/s"]
    told += [] if is_missing(row.get("busbw_bytes_per_s")) else [f"busbw {rate(row['busbw_bytes_per_s'])}"]
    told += [] if is_missing(row.get("bottleneck")) else [f"bottleneck {row['bottleneck']}"]
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


def _add_check(root: JUnitXml, check: Check) -> None:
    """What the gate found; points that could not be judged are skipped, with the reason."""
    classname = f"{PACKAGE}.check"
    cases = [
        _case(f"{found.label}: {found.metric}", classname, 0.0, Failure(type_="regression"), text)
        for found in check.regressions
        for text in ["\n".join(regression_lines(found))]
    ]
    cases += [
        _case(f"{found.label}: {found.metric}", classname, 0.0, Failure(type_="halved"), "\n".join(halved_lines(found)))
        for found in check.halved
    ]
    if not check.num_judged and not check.halved:
        cases.append(_case("no regression", classname, 0.0, Skipped(), check.reason or "nothing could be judged"))
    cases = cases or [_case("no regression", classname)]
    unjudged = (
        (check.too_young, "too few sessions before"),
        (check.doubtful, "doubtful"),
        (check.missing, "no ok trial in this session"),
    )
    cases += [_case(label, classname, 0.0, Skipped(), why) for labels, why in unjudged for label in labels]
    name = f"check of {check.session} against the baseline"
    properties = [("baseline", ", ".join(check.baseline))]
    _add_suite(root, name, (check.date, ""), properties, cases, check_lines(check))


def _add_suite(
    root: JUnitXml,
    name: str,
    place: tuple[str, str],
    properties: Sequence[tuple[str, str]],
    cases: Sequence[TestCase],
    lines: Sequence[str],
) -> None:
    """A suite; `place` is the moment it began (ISO, UTC) and its hosts."""
    suite = _Suite(plain(name))
    suite.package, suite.id = PACKAGE, len(root)
    suite.timestamp, suite.hostname = place[0][:19], plain(place[1]) or "localhost"
    suite.append(Properties())
    for key, value in properties:
        suite.add_property(plain(key), plain(value))
    suite.add_testcases(cases)
    suite.append(SystemOut(plain("\n".join(lines))))
    suite.append(SystemErr(""))
    root.add_testsuite(suite)


class _Suite(TestSuite):  # type: ignore[misc]
    """A suite with the attributes that Ant's schema asks for besides."""

    package = Attr()
    id = IntAttr()


def _case(
    name: str, classname: str, time_s: float = 0.0, result: Failure | Skipped | None = None, text: str = ""
) -> TestCase:
    """A test case; `text` says why it has not passed, and its first line is the message."""
    case = TestCase(plain(name), plain(classname), round(time_s, 3))
    if result is not None:
        result.text = plain(text)
        result.message = next(iter(result.text.splitlines()), "")
        case.result = [result]
    return case
