"""Collectives night by night: compared and checked as trials are, on their own; no gate of trials moves by them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchsuite.contract.exit_codes import OK, REGRESSION
from benchsuite.results.compare.compare import compare
from benchsuite.results.compare.metrics import DEFAULT_OF, chosen
from benchsuite.results.compare.sides import side
from benchsuite.results.gate.baseline import baseline_of, check, set_baseline
from benchsuite.results.report.compare import check_lines
from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import ResultsStore, StoreError
from tests.results.nightly import fill, night_name, trial

Run = Callable[..., tuple[int, str, str]]
NIGHTS, STEP = 36, 33
SIZES = (1 << 10, 1 << 16, 1 << 20)


def cell(night: int, size: int, us: float, repeat: int = 0, **changes: Any) -> TrialRecord:
    """One collective of a night; a point is its op, dtype, size and ranks."""
    spec = {"op": "all_reduce", "algorithm": "backend", "dtype": "fp32", "num_bytes": size, "world_size": 2, "nodes": 1}
    name = f"c{size}"
    fields: dict[str, Any] = {
        "kind": "comm",
        "point_id": name,
        "trial_id": f"{name}.{night_name(night)}.{repeat}",
        "record_id": f"{name}-{night_name(night)}-{repeat}",
        "label": f"all_reduce backend fp32 {size} gloo 2 ranks",
        "sweep": "probe-comm",
        "spec": {**spec, "backend": "gloo", "device": "cpu"},
        "figures": {"comm_s": us * 1e-6, "busbw_bytes_per_s": size / us * 1e6},
    }
    return trial(night, 0, repeat, 0.0, **(fields | changes))


def add(store: ResultsStore, slower: float = 1.0, noise: float = 0.01, nights: int = NIGHTS) -> ResultsStore:
    """Collectives for every night, in a segment of their own; the largest `slower` since STEP."""
    rng, lines = np.random.default_rng(3), []
    for night in range(nights):
        for size in SIZES:
            late = slower if night >= STEP and size == SIZES[-1] else 1.0
            us = 100.0 * late * (1 + size / 1e5) * (1 + noise * float(rng.normal()))
            lines.append(cell(night, size, us).model_dump_json())
    (store.path / "segments").mkdir(parents=True, exist_ok=True)
    (store.path / "segments" / "comm.jsonl").write_text("\n".join(lines) + "\n")
    return store


@pytest.fixture
def slow(tmp_path: Path) -> ResultsStore:
    store = add(fill(tmp_path / "store", NIGHTS, num_points=2), slower=1.3)
    set_baseline(store, dates=f"{night_name(0)}..{night_name(29)}")
    return store


def test_a_slower_collective_is_a_regression_since_its_night(slow: ResultsStore):
    found = check(slow, "comm")
    (one,) = found.regressions
    assert (one.label, one.metric) == (f"all_reduce backend fp32 {SIZES[-1]} gloo 2 ranks", "comm_s")
    assert (one.since, found.num_judged) == (night_name(STEP), 3)
    assert one.worse == pytest.approx(0.3, abs=0.03) and one.cause.layer is None
    told = check_lines(found)
    assert told[0].startswith("regression: 1 of 3 series") and ": comm_s " in told[1]


def test_trials_are_judged_as_without_collectives(slow: ResultsStore, tmp_path: Path):
    alone = fill(tmp_path / "alone", NIGHTS, num_points=2)
    set_baseline(alone, dates=f"{night_name(0)}..{night_name(29)}")
    assert check(slow) == check(alone) and not check(slow).regressions


def test_steady_collectives_are_quiet(tmp_path: Path):
    store = add(ResultsStore(tmp_path / "store"))
    set_baseline(store, dates=f"{night_name(0)}..{night_name(29)}")
    assert len(baseline_of(store)["sessions"]) == 30, "sessions that measured nothing else count"
    found = check(store, "comm")
    assert not found.regressions and not found.missing and found.num_judged == 3
    with pytest.raises(StoreError, match="have no ok trials"):
        check(store)


def test_a_collective_that_failed_is_missing(slow: ResultsStore):
    lost = {"status": "failed", "reason": "rank 1: element 3 is 4, not 3", "figures": {}}
    slow.append(cell(NIGHTS, SIZES[0], 1.0).model_copy(update=lost))
    for size in SIZES[1:]:
        slow.append(cell(NIGHTS, size, 100.0 * (1 + size / 1e5)))
    (missing,) = check(slow, "comm").missing
    assert missing == f"all_reduce backend fp32 {SIZES[0]} gloo 2 ranks: failed, rank 1: element 3 is 4, not 3"


def test_another_number_of_ranks_is_another_point(tmp_path: Path):
    store = ResultsStore(tmp_path)
    for repeat in range(6):
        store.append(cell(0, 1024, 100 + repeat / 10, repeat))
        more = {"world_size": 4}
        spec = cell(1, 1024, 1).spec | more
        store.append(cell(1, 1024, 200 + repeat / 10, repeat, spec=spec))
    sides = [side(tmp_path, f"session={night_name(night)}", "comm") for night in (0, 1)]
    with pytest.raises(StoreError, match="none is in both"):
        compare(*sides, chosen(DEFAULT_OF["comm"]))


def test_compared_with_their_direction(tmp_path: Path):
    """Six and six, none of one side among the other: p = 2 / 924; time is good down, bandwidth up."""
    store = ResultsStore(tmp_path)
    for repeat in range(6):
        store.append(cell(0, 1024, 100 + repeat / 10, repeat))
        store.append(cell(1, 1024, 120 + repeat / 10, repeat))
    sides = [side(tmp_path, f"session={night_name(night)}", "comm") for night in (0, 1)]
    assert [len(one) for one in sides] == [6, 6]
    found = compare(*sides, chosen(["comm_s", "busbw_bytes_per_s"])).compared
    assert [(one.metric.name, one.verdict) for one in found] == [("comm_s", "worse"), ("busbw_bytes_per_s", "worse")]
    assert (found[0].ratio, found[1].ratio) == (pytest.approx(1.2, rel=1e-3), pytest.approx(1 / 1.2, rel=1e-3))
    assert found[0].p == pytest.approx(2 * 2 / 924)
    with pytest.raises(StoreError, match="no trial has session"):
        side(tmp_path, f"session={night_name(0)}")


def test_the_verbs(slow: ResultsStore, run_cli: Run):
    code, out, err = run_cli("check", "--kind", "comm", "--store", slow.path)
    assert (code, err) == (REGRESSION, "") and out.startswith("regression: 1 of 3 series")
    assert run_cli("check", "--store", slow.path)[0] == OK
    sides = (f"date={night_name(0)}..{night_name(19)}", f"date={night_name(STEP)}..")
    code, out, err = run_cli("compare", *sides, "--kind", "comm", "--store", slow.path)
    assert (code, err) == (0, "") and out.startswith("B against A: 1 worse, ")
    (row,) = [line for line in out.splitlines() if str(SIZES[-1]) in line]
    assert "comm_s" in row and "worse" in row
    assert run_cli("check", "--kind", "probe", "--store", slow.path)[0] == 2


def test_what_nodes_were_like_at_the_moment_is_no_difference(tmp_path: Path):
    """A list of nodes holds how busy each was; their names are told by the host that launched."""
    store = ResultsStore(tmp_path)
    for night, busy in ((0, 0.1), (1, 0.7)):
        nodes = [{"node": "vm", "ranks": [0, 1], "cores": 2, "foreign_cpu_cores": busy}]
        env = cell(night, 1024, 1).env | {"nodes": nodes, "launcher": "local"}
        store.append(cell(night, 1024, 100.0, env=env))
    sides = [side(tmp_path, f"session={night_name(night)}", "comm") for night in (0, 1)]
    assert compare(*sides, chosen(DEFAULT_OF["comm"])).environment == []
