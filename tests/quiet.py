"""Tests that measure: each is repeated where it fails, and skipped where the machine was busy with something else.

A figure that is wrong on a quiet machine fails each time. Hooks of this file are those of `tests/conftest.py`.
"""

import os
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest

from bench.au import undisturbed
from benchsuite.host.interference import foreign_load
from benchsuite.host.processes import TICKS_PER_S, everyone_s, tree_cpu_s

RERUNS = 2
AGAIN = pytest.mark.flaky(reruns=RERUNS, reruns_delay=5)
MAX_STOLEN_CORES = 0.02
"""So much may a virtual machine's host keep of its cores."""
MAX_LOST_SHARE = 0.005
"""A core may stand still for such a share of the time: the slowest of several ranks is late by several of these."""
SPIN_S, GAP_S = 0.5, 0.0002
"""A loop reads the clock for so long. Between two readings lies a microsecond; a gap where the core stood still."""


@dataclass(frozen=True)
class Moment:
    """Seconds of CPU time, of whomever, until now."""

    at_s: float
    everyone_s: float
    ours_s: float
    stolen_s: float
    """In which cores were ready, and the host of this virtual machine ran something else."""

    @classmethod
    def now(cls) -> Self:
        fields = Path("/proc/stat").read_text().splitlines()[0].split()
        return cls(time.monotonic(), everyone_s(), tree_cpu_s(), int(fields[8]) / TICKS_PER_S)


MOST_SKIPPED = 8
"""Of all that measure, a fiftieth. Where more are skipped, their run fails: it has shown too little."""
BEGAN = pytest.StashKey[Moment]()
SKIPPED = pytest.StashKey[int]()


def lost_share() -> float:
    """The share of the time for which the worst core stands still now, whatever the system says of it."""
    allowed, shares = os.sched_getaffinity(0), []
    try:
        with undisturbed():
            for core in allowed:
                os.sched_setaffinity(0, {core})
                shares.append(_lost_share())
    finally:
        os.sched_setaffinity(0, allowed)
    return max(shares)


def _lost_share() -> float:
    began_s = last_s = time.perf_counter()
    lost_s = 0.0
    while last_s < began_s + SPIN_S:
        now_s = time.perf_counter()
        if now_s - last_s > GAP_S:
            lost_s += now_s - last_s
        last_s = now_s
    return lost_s / (last_s - began_s)


def disturbance(before: Moment, after: Moment, lost: float, cores: int) -> str | None:
    """What kept this machine from being quiet between two moments, or `lost` right after; None where nothing did."""
    passed_s = max(after.at_s - before.at_s, 1e-9)
    stolen = (after.stolen_s - before.stolen_s) / passed_s
    foreign = (after.everyone_s - before.everyone_s - after.ours_s + before.ours_s) / passed_s
    if stolen > MAX_STOLEN_CORES:
        return f"the machine's host kept {stolen:.2f} of {cores} cores"
    if said := foreign_load(foreign, cores):
        return said
    return f"a core stands still for {lost:.1%} of the time" if lost > MAX_LOST_SHARE else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note what the machine has done until a test that measures begins."""
    if item.get_closest_marker("quiet"):
        item.stash[BEGAN] = Moment.now()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """The last failure of a test that measures is no verdict where the machine was not quiet."""
    report = yield
    failure: Any = call.excinfo.value if call.excinfo else None
    began = item.stash.get(BEGAN, None)
    is_last = getattr(item, "execution_count", RERUNS + 1) > RERUNS
    if call.when != "call" or began is None or not is_last or not isinstance(failure, AssertionError):
        return report
    if why := disturbance(began, Moment.now(), lost_share(), len(os.sched_getaffinity(0))):
        file, line, _ = item.location
        what = (str(failure).splitlines() or ["it failed"])[0]
        report.outcome, report.longrepr = "skipped", (file, line or 0, f"Skipped: not quiet: {why}: {what}")
        item.session.stash[SKIPPED] = item.session.stash.get(SKIPPED, 0) + 1
    return report


def too_many_skipped(session: pytest.Session) -> bool:
    """Whether the machine was too busy for too many tests."""
    return session.stash.get(SKIPPED, 0) > MOST_SKIPPED
