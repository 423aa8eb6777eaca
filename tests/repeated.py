"""Tests of daemons, servers and several processes: each is repeated once where it fails, and what failed first is told.

On machines that others use, too, one of ten thousand such tests fails now and then. What fails each time still fails.
"""

from collections.abc import Iterable

import pytest

ONCE_MORE = pytest.mark.flaky(reruns=1, reruns_delay=1)
REPEATED = ("slow", "cluster", "engines")
MOST_REPEATED = 3
"""Of the tests of a run that measure nothing. Where more are repeated, the run fails: something is wrong."""


def mark(items: Iterable[pytest.Item]) -> None:
    """Let tests with these marks be repeated; those that measure are repeated in their own way (`tests.quiet`)."""
    for item in items:
        if not item.get_closest_marker("quiet") and any(map(item.get_closest_marker, REPEATED)):
            item.add_marker(ONCE_MORE)


def failed_first(reporter: pytest.TerminalReporter) -> list[pytest.TestReport]:
    """Reports of failures after which a test was repeated."""
    return [each for each in reporter.stats.get("rerun", []) if isinstance(each, pytest.TestReport)]


def too_many(reporter: pytest.TerminalReporter) -> bool:
    """Whether more than MOST_REPEATED tests were repeated that measure nothing."""
    return sum("quiet" not in each.keywords for each in failed_first(reporter)) > MOST_REPEATED


def tell(reporter: pytest.TerminalReporter) -> None:
    """Print why each of them failed at first."""
    found = failed_first(reporter)
    if found:
        reporter.section("failed first, and were repeated")
    for each in found:
        reporter.write_line(f"{each.nodeid}: {each.longreprtext}")
    if too_many(reporter):
        reporter.write_line(f"failed: more than {MOST_REPEATED} tests that measure nothing were repeated")
