"""What was fuzzed, at the end."""

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many examples each target had, and whether one failed."""
    told = []
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            told += [f"{outcome}  {words}" for name, words in report.user_properties if name == "fuzzed"]
    if told:
        terminalreporter.section("fuzzed")
        terminalreporter.write_line("\n".join(told))
