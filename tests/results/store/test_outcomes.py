"""How trials ended, read without keeping records: the same as the records say, however much is compacted."""

from pathlib import Path
from typing import Any

import pytest

from benchsuite.results.store.outcomes import Ended, alike_of
from benchsuite.results.store.store import ResultsStore
from tests.results.made import made_record

ATTEMPTS: list[dict[str, Any]] = [
    {"trial_id": "a.default.0", "status": "failed", "reason": "killed", "finished_at": "2026-01-01T00:00:01+00:00"},
    {"trial_id": "b.default.0", "status": "ok", "reason": None, "finished_at": "2026-01-01T00:00:02+00:00"},
    {"trial_id": "a.default.0", "status": "ok", "reason": None, "finished_at": "2026-01-01T00:00:03+00:00"},
    {
        "trial_id": "b.default.0",
        "status": "oom",
        "finished_at": "2026-01-01T00:00:01.5+00:00",
        "spec": {"measure": {"profile": None}},
    },
    {"trial_id": "c.default.0", "status": "ok", "spec": {"measure": {"profile": "io"}}},
    {"trial_id": "d.default.0", "status": "skipped", "reason": "2 ranks > 0 CUDA devices"},
]


@pytest.mark.parametrize("compacted", range(len(ATTEMPTS) + 1))
def test_the_last_attempt_of_each_trial(tmp_path: Path, compacted: int) -> None:
    path = tmp_path / "store"
    for number, change in enumerate(ATTEMPTS):
        ResultsStore(path).append(made_record(number, **change))
        if number + 1 == compacted:
            ResultsStore(path).compact()
    store = ResultsStore(path)
    found = store.outcomes()
    assert store.damage is None, "what holds nothing has no column"
    assert {name: (ended.status, ended.profile) for name, ended in found.items()} == {
        "a.default.0": ("ok", None),
        "b.default.0": ("ok", None),
        "c.default.0": ("ok", "io"),
        "d.default.0": ("skipped", None),
    }
    expected = [
        Ended(
            record.trial_id,
            record.status,
            record.finished_at,
            record.reason,
            (record.spec.get("measure") or {}).get("profile"),
            record.kind,
            record.sweep,
            record.wall_s,
            alike_of(record.spec),
        )
        for record in ResultsStore(path).latest()
    ]
    assert sorted(found.values(), key=lambda ended: ended.trial_id) == expected


def test_a_line_that_is_no_record_counts_for_nothing(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path)
    store.append(made_record(1, trial_id="a.default.0"))
    (segment,) = (tmp_path / "segments").glob("*[0-9a-f].jsonl")
    line = segment.read_bytes()
    torn = line.replace(b"a.default.0", b"b.default.0")
    segment.write_bytes(line + torn[: len(torn) // 2] + b"\n" + torn.replace(b'"figures"', b'"figure\xff"'))
    assert list(ResultsStore(tmp_path).outcomes()) == ["a.default.0"]


def test_no_store_and_a_damaged_part(tmp_path: Path) -> None:
    assert ResultsStore(tmp_path / "none").outcomes() == {}
    store = ResultsStore(tmp_path / "store")
    store.append(made_record(1))
    store.compact()
    (part,) = (tmp_path / "store" / "parquet").glob("*.parquet")
    part.write_bytes(b"nothing")
    store = ResultsStore(tmp_path / "store")
    assert [ended.status for ended in store.outcomes().values()] == ["ok"], "segments hold it, too"
    assert "compact again" in str(store.damage)
