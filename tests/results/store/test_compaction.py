"""Compaction: Parquet and segments read as one, whatever was compacted when."""

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import duckdb
import pytest

from benchsuite.results.render.tables import rows
from benchsuite.results.store import compaction
from benchsuite.results.store.frames import record_frame
from benchsuite.results.store.manifest import VERSION, load
from benchsuite.results.store.store import SAMPLES, ResultsStore, StoreError
from tests.results.made import made_record

UNLIKE: list[dict[str, Any]] = [
    {
        "caveats": ["not_steady", 'ä "q"'],
        "figures": {"au": 0.25, "peak_memory_bytes": 2**53 - 1, "bottleneck": "mixed"},
    },
    {"figures": {}, "reason": "line one\nline 'two'", "status": "failed", "dataset": {"num_samples": 3}},
    {"spec": {"workload": "bert", "late": 1, "mixed": "text", "flag": True, "sizes": [1, 2], "bucket": None}},
    {"spec": {"workload": "bert", "late": 2.5, "mixed": 7, "flag": None, "sizes": [], "bucket": 25}},
    {"env": {"devices": [{"name": "A100"}], "names": ["a", "b"], "huge": 2**70}},
    {"spec": {"workload": "gpt", "mixed": [1], "flag": False}, "env": {"names": []}},
]
"""Changes that leave columns missing, and of unlike types."""


def filled(path: Path, changes: list[dict[str, Any]], first: int = 0) -> ResultsStore:
    """A store to which a new writer appended such records."""
    store = ResultsStore(path)
    for number, change in enumerate(changes, first):
        store.append(made_record(number, **change), {"raw": [number]})
    return ResultsStore(path)


def contents(store: ResultsStore) -> tuple[list[Any], list[dict[str, Any]]]:
    """Everything that a store says: records and rows, missing as null."""
    return store.records(), [dict(sorted(row.items())) for row in rows(store.frame())]


def parts(store: ResultsStore) -> list[str]:
    return [part.file for part in load(store.path).parts]


def some_of(number: int, in_ci: set[int]) -> list[Any]:
    """Numbers of records that are compacted before others come: in CI within a part of four, and beyond it."""
    return [pytest.param(each, marks=() if each in in_ci else pytest.mark.full) for each in range(number)]


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "PART_RECORDS", 4)


@pytest.mark.parametrize("compacted", some_of(len(UNLIKE) + 1, {2, 5}))
def test_reads_the_same_however_much_is_compacted(tmp_path: Path, compacted: int, small_parts: None):
    store = filled(tmp_path / "store", UNLIKE[:compacted])
    if compacted:
        assert store.compact().num_records == compacted
    filled(tmp_path / "store", UNLIKE[compacted:], first=compacted)
    assert [r.record_id for r in store.records()] == [f"record-{number}" for number in range(len(UNLIKE))]
    assert contents(store)[1] == [dict(sorted(row.items())) for row in rows(record_frame(store.latest()))], (
        "as pandas makes of the records themselves"
    )
    for number, record in enumerate(store.records()):
        assert record == made_record(number, **UNLIKE[number], samples_file=record.samples_file)
        assert store.samples(record) == {"record_id": f"record-{number}", "raw": [number]}


def test_known_values(tmp_path: Path):
    store = filled(tmp_path, UNLIKE)
    store.compact()
    frame = store.frame()
    assert frame["au"].isna().tolist() == [False, True, True, True, True, True]
    assert frame["peak_memory_bytes"][0] == 2**53 - 1
    found = rows(frame)
    assert [row["spec.late"] for row in found] == [None, None, 1.0, 2.5, None, None]
    assert [row["spec.mixed"] for row in found] == [None, None, "text", 7, None, [1]]
    assert [row["spec.flag"] for row in found] == [None, None, True, None, None, False]
    assert [row["spec.sizes"] for row in found] == [None, None, [1, 2], [], None, None]
    assert [row["env.names"] for row in found] == [None, None, None, None, ["a", "b"], []]
    assert found[0]["caveats"] == ["not_steady", 'ä "q"'] and found[1]["caveats"] == []
    assert found[4]["env.devices"] == [{"name": "A100"}]
    assert found[4]["env.huge"] == 2**70
    assert store.sql("select sum(\"spec.late\") as n from trials where reason like '%''two''%' or true")["n"][0] == 3.5


def test_names_that_differ_by_case_lose_nothing(tmp_path: Path):
    store = filled(tmp_path, [{"env": {"host": "low", "HOST": "high"}}])
    store.compact()
    assert {"low", "high"} <= {value for value in rows(store.frame())[0].values() if isinstance(value, str)}


@pytest.mark.parametrize("compacted", some_of(6, {3, 5}))
def test_the_last_attempt_counts_wherever_it_is(tmp_path: Path, compacted: int, small_parts: None):
    attempts = [("a", "failed"), ("b", "ok"), ("a", "timeout"), ("c", "ok"), ("a", "ok"), ("c", "oom")]
    changes: list[dict[str, Any]] = [{"trial_id": trial, "status": status} for trial, status in attempts]
    store = filled(tmp_path, changes[:compacted])
    store.compact() if compacted else None
    filled(tmp_path, changes[compacted:], first=compacted)
    for _ in range(2):
        frame = store.frame()
        assert list(zip(frame["trial_id"], frame["status"], strict=True)) == [("a", "ok"), ("b", "ok"), ("c", "oom")]
        counted = store.sql("select trial_id, count(*) as n from trials group by all order by all")
        assert counted["n"].tolist() == [1, 1, 1]
        assert len(store.records()) == len(attempts)
        store.compact()


def test_an_attempt_that_came_late_but_ended_early_does_not_count(tmp_path: Path):
    store = filled(tmp_path, [{"trial_id": "a", "status": "ok"}], first=5)
    store.compact()
    filled(tmp_path, [{"trial_id": "a", "status": "failed"}], first=1)
    assert store.frame()["status"].tolist() == ["ok"]
    store.compact()
    assert store.frame()["status"].tolist() == ["ok"]


def test_doubled_records_are_read_once(tmp_path: Path):
    store = filled(tmp_path, [{}, {}])
    (segment,) = [p for p in (tmp_path / "segments").glob("*.jsonl") if "samples" not in p.name]
    shutil.copy(segment, segment.with_name("copy.jsonl"))
    store.compact()
    shutil.copy(segment, segment.with_name("another.jsonl"))
    assert [record.record_id for record in store.records()] == ["record-0", "record-1"]
    assert store.frame()["repeat"].tolist() == [0, 1]


def test_kinds_are_kept_apart(tmp_path: Path):
    changes: list[dict[str, Any]] = [{"kind": kind, "trial_id": kind} for kind in ("trial", "probe", "checkpoint")]
    store = filled(tmp_path, [*changes, {"kind": "probe", "trial_id": "p", "spec": {"mode": "x"}}])
    store.compact()
    assert {kind: len(store.frame(kind=kind)) for kind in ("trial", "probe", "checkpoint", "comm")} == {
        "trial": 1,
        "probe": 2,
        "checkpoint": 1,
        "comm": 0,
    }
    assert "spec.mode" in store.frame(kind="probe") and "spec.mode" not in store.frame()


def test_a_torn_line_is_read_once_it_is_whole(tmp_path: Path):
    store = filled(tmp_path, [{}])
    line = made_record(1).model_dump_json().encode()
    segment = tmp_path / "segments" / "slow.jsonl"
    segment.write_bytes(line[:100])
    assert store.compact().num_records == 1
    assert len(store.records()) == 1 and len(store.passed) == 1
    segment.write_bytes(line + b"\n" + line.replace(b"record-1", b"record-2")[:-9])
    assert store.compact().num_records == 2
    assert [record.record_id for record in store.records()] == ["record-0", "record-1"]


def test_lines_that_a_newer_version_knows_are_found_by_it(tmp_path: Path):
    store = filled(tmp_path, [{}])
    newer = made_record(1).model_dump_json().replace('"kind":"trial"', '"kind":"dream"')
    known = made_record(2).model_dump_json()
    (tmp_path / "segments" / "newer.jsonl").write_text(f"not json\n{newer}\n{known}\n")
    assert (store.compact().num_passed, len(store.records()), len(store.passed)) == (2, 2, 2)
    field = '"kind":"dream"'
    path = tmp_path / "segments" / "newer.jsonl"
    path.write_text(path.read_text().replace(field, '"kind":"trial"'))  # as if this version knew it
    assert [record.record_id for record in store.records()] == ["record-0", "record-1", "record-2"]
    assert len(store.passed) == 1
    done = store.compact()
    assert (done.num_new, done.num_passed, len(store.frame()), len(store.passed)) == (1, 1, 3, 1)


def test_fields_of_a_newer_version_survive(tmp_path: Path):
    store = filled(tmp_path, [{}])
    value = json.loads(made_record(1).model_dump_json()) | {"weather": "fair"}
    value["figures"]["cosmic_rays_per_s"] = 3
    (tmp_path / "segments" / "newer.jsonl").write_text(json.dumps(value) + "\n")
    store.compact()
    (part,) = load(tmp_path).parts
    assert (part.columns["weather"], part.columns["cosmic_rays_per_s"]) == ("string", "integer")
    assert not {"weather", "cosmic_rays_per_s"} & set(store.frame())


def test_small_parts_grow_together(tmp_path: Path, small_parts: None):
    store = ResultsStore(tmp_path)
    for number in range(12):
        filled(tmp_path, [{}], first=number)
        store.compact()
    assert sum(part.num_records for part in load(tmp_path).parts) == 12
    assert len(parts(store)) <= 6
    assert [record.repeat for record in store.records()] == list(range(12))
    assert store.frame()["repeat"].tolist() == list(range(12))


def test_records_stay_when_compacted_segments_are_taken_away(tmp_path: Path):
    store = filled(tmp_path, UNLIKE)
    before = contents(store)
    store.compact()
    shutil.move(tmp_path / "segments", tmp_path / "archive")
    (tmp_path / "segments").mkdir()
    assert contents(store) == before


def test_nothing_new_writes_nothing(tmp_path: Path):
    store = filled(tmp_path, [{}])
    store.compact()
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "parquet").iterdir()}
    assert store.compact().num_new == 0
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "parquet").iterdir()} == before


def test_what_no_manifest_names_goes_after_a_day(tmp_path: Path):
    store = filled(tmp_path, [{}])
    store.compact()
    old, young = (tmp_path / "parquet" / name for name in (".x.tmp", "young.parquet"))
    for path, age_s in ((old, 90_000), (young, 3600)):
        path.write_bytes(b"x")
        os.utime(path, (time.time() - age_s,) * 2)
    store.compact()
    assert (old.exists(), young.exists()) == (False, True)
    assert len(store.records()) == 1


def test_segments_are_left_as_they_are(tmp_path: Path):
    store = filled(tmp_path, UNLIKE)
    before = {path.name: path.read_bytes() for path in (tmp_path / "segments").iterdir()}
    store.compact()
    assert {path.name: path.read_bytes() for path in (tmp_path / "segments").iterdir()} == before


DAMAGES = [
    "missing",
    "cut",
    "flipped",
    "alien",
    "text",
    "pipe",
    "manifest",
    "a manifest of another",
    "a manifest's places",
    "a manifest's pipe",
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_parts_that_are_damaged_cost_nothing(tmp_path: Path, damage: str):
    store = filled(tmp_path, [{}, {"caveats": ["not_steady"]}])
    before = contents(store)
    store.compact()
    path = tmp_path / "parquet" / (parts(store)[0] if "manifest" not in damage else "manifest.json")
    content = path.read_bytes()
    match damage:
        case "missing":
            path.unlink()
        case "pipe" | "a manifest's pipe":
            path.unlink()
            os.mkfifo(path)
        case "flipped":
            path.write_bytes(content[:4] + bytes(byte ^ 0x55 for byte in content[4:-8]) + content[-8:])
        case "alien":
            duckdb.execute(f"COPY (SELECT 1 AS one) TO '{path}' (FORMAT parquet)")
        case "text":
            rest = "* EXCLUDE (caveats), 'no JSON' AS caveats"
            duckdb.execute(f"CREATE OR REPLACE TEMP TABLE part AS SELECT {rest} FROM read_parquet('{path}')")
            duckdb.execute(f"COPY part TO '{path}' (FORMAT parquet)")
        case "a manifest's places":
            (segment,) = load(tmp_path).covered_bytes
            path.write_text(content.decode().replace('"passed":{', f'"passed":{{"{segment}":[[{10**30},1]]'))
        case "a manifest of another":
            path.write_text('{"version": 2, "parts": [1], "covered_bytes": {"x": "y"}}')
        case _:
            path.write_bytes(content[:-20])
    store = ResultsStore(tmp_path)
    assert contents(store) == before
    assert store.sql("select count(*) as n from trials")["n"][0] == 2
    if damage != "text":
        assert f"remove {tmp_path / 'parquet'} and compact again" in str(store.damage)
        assert "\n" not in str(store.damage)
    with pytest.raises(StoreError, match="no column 'nowhere'"):
        store.sql("select nowhere from trials")
    assert store.compact().num_records == 2
    if damage != "text":
        assert contents(store) == before and store.damage is None, "made anew"


def test_parts_of_before_records_were_checked_are_read_and_made_anew(tmp_path: Path):
    """A compaction of an earlier version may have carried in what no verb can do with; a segment may be gone."""
    store = filled(tmp_path, [{}, {"repeat": 5}])
    before = contents(store)
    store.compact()
    (part,) = (tmp_path / "parquet" / name for name in parts(store))
    fields = {name: f"replace({name}, '\"repeat\":5', '\"repeat\":99999999999999999999')" for name in ("_record",)}
    replaced = ", ".join(f"{text} AS {name}" for name, text in fields.items())
    duckdb.execute(f"CREATE OR REPLACE TEMP TABLE part AS SELECT * REPLACE ({replaced}) FROM read_parquet('{part}')")
    duckdb.execute(f"COPY part TO '{part}' (FORMAT parquet)")
    manifest = tmp_path / "parquet" / "manifest.json"
    manifest.write_text(manifest.read_text().replace(f'"version":{VERSION}', '"version":1'))
    (segment,) = (path for path in (tmp_path / "segments").iterdir() if not path.name.endswith(SAMPLES))
    segment.unlink()
    for _ in range(2):
        store = ResultsStore(tmp_path)
        assert contents(store) == ([before[0][0]], [before[1][0]])
        assert list(store.outcomes()) == [before[0][0].trial_id]
        store.compact()
    assert load(tmp_path).version == VERSION and parts(store) != [part.name]


def test_a_store_that_is_not_there(tmp_path: Path):
    with pytest.raises(StoreError, match="--store"):
        ResultsStore(tmp_path / "nowhere").compact()
    assert not (tmp_path / "nowhere").exists()


class TestFrame:
    def test_chosen_columns_in_their_order(self, tmp_path: Path):
        store = filled(tmp_path, UNLIKE)
        for _ in range(2):
            frame = store.frame(columns=["spec.workload", "au"])
            assert frame.columns.tolist() == ["spec.workload", "au"]
            assert frame["spec.workload"].tolist() == ["resnet50", "resnet50", "bert", "bert", "resnet50", "gpt"]
            store.compact()

    def test_a_condition_in_sql(self, tmp_path: Path):
        store = filled(tmp_path, UNLIKE)
        for _ in range(2):
            bert = store.frame(where="\"spec.workload\" = 'bert' -- both", columns=["repeat"])
            assert bert["repeat"].tolist() == [2, 3]
            store.compact()

    def test_points_have_columns_of_their_own(self, tmp_path: Path):
        frame = filled(tmp_path, [{}, {}]).frame(by="point", columns=["samples_per_s_min", "repeats"])
        assert frame.to_dict("records") == [{"samples_per_s_min": 100.0, "repeats": 2}]

    @pytest.mark.parametrize("by", ["trial", "point"])
    def test_an_unknown_column_names_the_nearest(self, tmp_path: Path, by: Any):
        with pytest.raises(StoreError, match=r"column 'sample_per_s' is unknown; allowed: .*; nearest: samples_per_s"):
            filled(tmp_path, [{}]).frame(by=by, columns=["sample_per_s"])

    @pytest.mark.parametrize("where", ["nothing = 1", "au =", "true; drop view trials"])
    def test_a_condition_that_is_none_is_one_line(self, tmp_path: Path, where: str):
        with pytest.raises(StoreError, match=r"^frame: ") as caught:
            filled(tmp_path, [{}]).frame(where=where)
        assert "\n" not in str(caught.value)

    def test_a_query_reaches_no_part(self, tmp_path: Path):
        store = filled(tmp_path, [{}])
        store.compact()
        part = tmp_path / "parquet" / parts(store)[0]
        before = part.read_bytes()
        for query in (f"copy (select 1) to '{part}'", f"prepare p as copy (select 1) to '{part}'; execute p"):
            with pytest.raises(StoreError, match="is disabled"):
                store.sql(query)
        assert part.read_bytes() == before
