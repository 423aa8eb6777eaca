"""Drift of the environment between trials: what is far enough to be told, and what is not."""

import math
from typing import Any

import pytest

from benchsuite.results.compare.drift import drifted, ranges
from benchsuite.results.compare.environments import differences
from benchsuite.results.report.provenance import environments
from benchsuite.results.report.summary import trust
from tests.results.made import made_record


def rows(column: str, *values: Any, **others: Any) -> list[dict[str, Any]]:
    """Trials of a host with 8 cores and 100 GB."""
    host = {"status": "ok", "env.host": "n1", "env.cores": 8, "env.moment.memory_limit_bytes": 100_000_000_000}
    return [host | {column: value, "caveats": []} | others for value in values]


@pytest.mark.parametrize(
    ("column", "values", "text"),
    [
        ("foreign_cpu_cores", (0.2, 1.5, 0.1), "others kept 0.1 to 1.5 cores busy"),
        ("foreign_cpu_cores", (0.2, 1.3), None),  # 1.1 of 8 cores is under 15 %
        ("env.moment.cpu_mhz", (3600.0, 3200.0), "CPU at 3.2 to 3.6 GHz"),
        ("env.moment.cpu_mhz", (3600.0, 3300.0), None),
        ("env.moment.cpu_limit_mhz", (3500.0, 2000.0), "CPU's limit 2.0 to 3.5 GHz"),
        ("env.moment.cpu_throttled_meanwhile", (0, 7), "CPU held back for heat 0 to 7 times a trial"),
        ("env.moment.cpu_throttled_meanwhile", (0, 0), None),
        ("env.moment.memory_available_bytes", (90e9, 60e9), "60.0 to 90.0 GB of memory available"),
        ("env.moment.memory_available_bytes", (90e9, 66e9), None),
        ("env.moment.users", (["ann"], ["ann", "bob"]), "users came or went: ann, bob"),
        ("env.moment.users", (["ann"], ["ann"]), None),
        ("env.load_average", (0.1, 50.0), None),  # a sweep's own ranks are in it
    ],
)
def test_what_drifts_far_is_told(column: str, values: tuple[Any, ...], text: str | None) -> None:
    trials = rows(column, *values)
    assert drifted(trials) == ([text] if text else [])
    assert trust(trials) == f"trust: {len(values)} of {len(values)} trials ok" + (f" · drift: {text}" if text else "")


@pytest.mark.parametrize("missing", [None, math.nan, True, "4"])
def test_what_is_missing_is_not_zero(missing: Any) -> None:
    assert drifted(rows("foreign_cpu_cores", 4.0, missing)) == []
    assert drifted(rows("foreign_cpu_cores", 4.0, missing, 0.0)) == ["others kept 0.0 to 4.0 cores busy"]


def test_failed_trials_and_other_hosts_are_no_drift() -> None:
    assert drifted([*rows("foreign_cpu_cores", 0.0), *rows("foreign_cpu_cores", 8.0, status="failed")]) == []
    other = rows("foreign_cpu_cores", 8.0, 4.0, **{"env.host": "n2"})
    assert drifted([*rows("foreign_cpu_cores", 0.0), *other]) == ["n2: others kept 4.0 to 8.0 cores busy"]


def test_provenance_tells_ranges_near_or_far() -> None:
    env = {"host": "n1", "cores": 8, "moment": {"cpu_mhz": 3600.0}}
    records = [made_record(number, env=env | {"load_average": 0.5 + number}) for number in range(3)]
    found = dict(environments(records))
    assert found["load_average"] == ["0.5 to 2.5"] and found["cpu_mhz"] == ["CPU at 3.6 to 3.6 GHz"]
    assert "moment" not in found
    assert ranges([{"env.load_average": 1.0}]) == [], "one trial has no range"


def test_what_drifts_makes_no_two_environments_differ() -> None:
    one = {"host": "n1", "moment": {"cpu_mhz": 1.0, "users": ["ann"]}, "order": {"number": 1, "seed": 3}}
    other = {"host": "n1", "moment": {"cpu_mhz": 2.0, "users": []}, "order": {"number": 2, "seed": None}}
    assert differences(one, other) == []
    assert [found.fact for found in differences(one, other | {"host": "n2"})] == ["host"]
