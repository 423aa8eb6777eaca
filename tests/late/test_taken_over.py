"""Trials of a node that died or slept, on a network file system that shows its files late."""

import signal
from collections.abc import Callable

import pytest

from tests.faults.conftest import Bench
from tests.late.mounts import OTHER_NODE, LateMounts
from tests.late.sweeps import AHEAD, BEHIND, DEADLINE_S, ended, on, records, rehearsed, start

Wait = Callable[..., None]


@pytest.mark.parametrize("clock", [AHEAD, BEHIND])
def test_the_trials_of_a_node_that_died_are_taken_over_after_the_lease(
    mounts: LateMounts, bench: Bench, wait_until: Wait, clock: list[str]
) -> None:
    file = bench.write(rehearsed(points=2))
    bench.env["REHEARSED_S"] = "600"
    dead = start(bench, mounts.first, file, "--launcher", "rehearsed", before=OTHER_NODE)
    wait_until(lambda: any(on(mounts.source).glob("claims/default/*.0")))
    dead.send_signal(signal.SIGKILL)
    dead.communicate(timeout=DEADLINE_S)
    bench.env["REHEARSED_S"] = "0.05"
    ended(start(bench, mounts.second, file, "--launcher", "rehearsed", before=clock))
    assert [record["status"] for record in records(mounts, bench)] == ["ok", "ok"]
    assert len(list(on(mounts.source).glob("claims/default/*.1"))) == 1, "one of them was taken over"


@pytest.mark.full
def test_a_node_that_wakes_after_its_lease_drops_what_it_measured(
    mounts: LateMounts, bench: Bench, wait_until: Wait
) -> None:
    file = bench.write(rehearsed(points=1))
    bench.env["REHEARSED_S"] = "1"
    stopped = start(bench, mounts.first, file, "--launcher", "rehearsed")
    wait_until(lambda: any(on(mounts.source).glob("claims/default/*.0")))
    stopped.send_signal(signal.SIGSTOP)
    ended(start(bench, mounts.second, file, "--launcher", "rehearsed", before=OTHER_NODE))
    stopped.send_signal(signal.SIGCONT)
    assert "another has taken the trial over" in ended(stopped)
    (record,) = records(mounts, bench)
    assert record["status"] == "ok"
