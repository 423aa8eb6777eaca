"""MLPerf Storage's summary of made-up records: its hosts, and what keeps a point from being a submission."""

from typing import Any

import pytest

from benchsuite.results.render.tables import rows
from benchsuite.results.report import mlperf
from benchsuite.results.store.frames import record_frame
from tests.results.made import made_record

GIB = 1 << 30
KNOWN = {"workload": "unet3d", "min_au": 0.9, "record_bytes": None, "profile": True}
DATA = {"stored_bytes": 4000 * GIB, "num_samples": 4000 * 1024, "num_files": 4000}
"""Samples of 1 MiB: 500 steps of 8 are 3.9 GiB, so that memory decides."""


def repeats(caveats: dict[int, list[str]] | None = None, **env: Any) -> list[dict[str, Any]]:
    """Five repeats without fault on a host of 64 GiB, but for the caveats of some and what `env` adds."""
    spec = {
        "workload": "unet3d",
        "device": "emulated:h100",
        "world_size": 8,
        "batch_size": 1,
        "global_batch_size": None,
        "data": {"source": "storage", "cache": "cold"},
    }
    figures = {"samples_per_s": 100.0, "au": 0.95, "au_mlperf": 0.94, "ceiling_step_s": 0.323}
    facts = {"host": "n0", "cores": 16, "memory_bytes": 64 * GIB} | env
    made = [
        made_record(n, spec=spec, dataset=DATA, env=facts, figures=figures, caveats=(caveats or {}).get(n, []))
        for n in range(5)
    ]
    return rows(record_frame(made))


def summary(*args: Any, **env: Any) -> dict[str, Any]:
    [found] = mlperf.summaries(repeats(*args, **env), lambda device, workload: KNOWN)
    return found


def nodes(*facts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"node": f"n{n}", "ranks": [2 * n, 2 * n + 1], "cores": 8 + n} | own for n, own in enumerate(facts)]


def test_a_point_without_fault_deviates_in_nothing() -> None:
    found = summary()
    assert found["metric"]["train_au_meet_expectation"] == "success"
    assert (found["benchsuite"]["deviations"], found["benchsuite"]["caveats"]) == ([], [])
    assert (found["num_hosts"], found["host_cpu_count"], found["host_memory_GB"]) == (1, [16], [64.0])
    assert (found["data_size_per_host_GB"], found["potential_caching"]) == (4000.0, [0])


def test_the_result_itself_says_whether_it_can_be_compared() -> None:
    [cell] = [column.cell for column in mlperf.COLUMNS if column.heading == "result"]
    clean, odd = summary(), summary({0: ["not_cold"]})
    assert (clean["benchsuite"]["comparable"], cell(clean)) == (True, "success")
    assert (odd["benchsuite"]["comparable"], cell(odd)) == (False, "success, not comparable: deviates")
    assert odd["metric"]["train_au_meet_expectation"] == "success"
    [one] = mlperf.summaries(repeats()[:1], lambda device, workload: KNOWN | {"min_au": None})
    assert one["benchsuite"]["deviations"] == ["1 repeat, not 5"] and cell(one) == "-"


@pytest.mark.parametrize("name", ["not_cold", "cache_unverified", "counters_disagree", "not_steady", "emulation_late"])
def test_what_was_not_cold_steady_or_on_time_is_a_deviation(name: str) -> None:
    found = summary({1: [name, "foreign_load"], 3: [name]})
    assert found["benchsuite"]["deviations"] == [f"{name} in 2 of 5 repeats"]


def test_caveats_that_do_not_disqualify_stand_in_the_table_alone() -> None:
    found = summary({0: ["foreign_load"], 2: ["oversubscribed"]})
    assert found["benchsuite"]["deviations"] == []
    cells = {column.heading: column.cell(found) for column in mlperf.COLUMNS}
    assert cells["caveats"] == "foreign_load, oversubscribed"


def test_every_node_is_a_host() -> None:
    """Four nodes of 128, 256, 256 and 512 GiB, wherever they tell it: 5 x 1152 GiB are more than 4000 GiB."""
    told = (
        {"memory_bytes": 128 * GIB},
        {"facts": {"memory_bytes": 256 * GIB}},
        {"moment": {"memory_limit_bytes": 256 * GIB}},
        {"memory_bytes": 512 * GIB, "moment": {"memory_limit_bytes": 1}},
    )
    found = summary(nodes=nodes(*told))
    assert (found["num_hosts"], found["host_cpu_count"]) == (4, [8, 9, 10, 11])
    assert found["host_memory_GB"] == [128.0, 256.0, 256.0, 512.0]
    assert (found["data_size_per_host_GB"], found["potential_caching"]) == (1000.0, [0, 0, 0, 0])
    assert found["benchsuite"]["host_memory_assumed"] is False
    [said] = found["benchsuite"]["deviations"]
    assert said == "4295 GB of data, not 6185 GB (500 steps and 5 x the memory of 4 hosts)"


def test_nodes_that_do_not_tell_their_memory_are_taken_to_be_alike_and_that_is_said() -> None:
    found = summary(nodes=nodes(*[{}] * 16))
    assert found["host_memory_GB"] == [64.0] * 16 and found["benchsuite"]["host_memory_assumed"] is True
    [said] = found["benchsuite"]["deviations"]
    assert said.endswith("5 x the memory of 16 hosts, taken to be alike)")


def test_a_share_that_fits_a_host_may_be_cached_there() -> None:
    found = summary(nodes=nodes({"memory_bytes": 2001 * GIB}, {"memory_bytes": 1999 * GIB}))
    assert found["potential_caching"] == [1, 0]
