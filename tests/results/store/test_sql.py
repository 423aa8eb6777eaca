"""SQL over the same rows as the frame."""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from benchsuite.results.store import query
from benchsuite.results.store.columns import frame_of_tail
from benchsuite.results.store.snapshot import snapshot
from benchsuite.results.store.store import ResultsStore, StoreError
from tests.helpers.snapshots import compare_messages
from tests.results.made import made_record


@pytest.fixture
def store(tmp_path: Path) -> ResultsStore:
    store = ResultsStore(tmp_path)
    for number, rate in enumerate([10.0, 30.0, 20.0]):
        store.append(made_record(number, figures={"samples_per_s": rate}, caveats=["not_cold"] * (number == 1)))
    return store


def test_same_rows_as_the_frame(store: ResultsStore):
    found = store.sql("select * from trials order by repeat")
    frame = store.frame()
    assert found.columns.tolist() == frame.columns.tolist()
    assert found["samples_per_s"].tolist() == [10.0, 30.0, 20.0]
    assert found["trial_id"].tolist() == frame["trial_id"].tolist()


def test_dotted_columns_and_aggregates(store: ResultsStore):
    query = 'select "spec.workload" as workload, max(samples_per_s) as best from trials group by all'
    assert store.sql(query).to_dict(orient="records") == [{"workload": "resnet50", "best": 30.0}]


def test_missing_figures_are_null(store: ResultsStore):
    assert store.sql("select count(*) as n from trials where au is null")["n"].tolist() == [3]


def test_lists_are_lists(store: ResultsStore):
    assert store.sql("select trial_id from trials where list_contains(caveats, 'not_cold')")["trial_id"].tolist() == [
        "point.default.1"
    ]


def test_an_empty_store_can_be_asked(tmp_path: Path):
    store = ResultsStore(tmp_path)
    store.check_writable()
    assert store.sql("select count(*) as n, max(au) as best from trials").to_dict(orient="list")["n"] == [0]


@pytest.mark.parametrize("query", ["selec 1", "select nothing from trials", "select * from points", "select 1 +"])
def test_a_wrong_query_is_one_line(store: ResultsStore, query: str):
    with pytest.raises(StoreError, match=r"^query: ") as caught:
        store.sql(query)
    assert "\n" not in str(caught.value)


def test_what_is_not_there_is_named_with_what_is(store: ResultsStore) -> None:
    cases = [
        "select samples_pers from trials",
        "select workload from trials",
        "select spec.workload from trials",
        "select t.spec.wrkload from trials t",
        'select "spec.data.cahce" from trials',
        "select label from trials where zzzzzzzz > 1",
        "select label from points",
    ]

    def message(query: str) -> str:
        with pytest.raises(StoreError, match=r"^query: ") as caught:
            store.sql(query)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    compare_messages("queries", cases, message)


def test_a_condition_of_a_frame_names_what_is_near(store: ResultsStore):
    with pytest.raises(StoreError, match=r"^frame: no column 'lable' in trials; nearest: label"):
        store.frame(where="lable = 'x'")


def test_columns_have_their_types_and_meanings(store: ResultsStore):
    found = {row["column"]: (row["type"], row["meaning"]) for row in store.columns()}
    assert [*found] == store.sql("select * from trials").columns.tolist()
    assert found["au"] == ("DOUBLE", "step time with its input in memory / step time; never clipped")
    assert found["caveats"] == ("VARCHAR[]", "why a figure must not be trusted blindly")
    assert (found["repeat"][0], found["spec.workload"]) == ("BIGINT", ("VARCHAR", ""))


@pytest.mark.parametrize("query", ["select * from read_csv('/etc/passwd')", "copy trials to '/tmp/stolen.csv'"])
def test_a_query_touches_no_files(store: ResultsStore, query: str):
    with pytest.raises(StoreError, match="disabled"):
        store.sql(query)


@pytest.mark.parametrize("query", ["", " ", "-- nothing"])
def test_an_empty_query_is_one_line(store: ResultsStore, query: str):
    with pytest.raises(StoreError):
        store.sql(query)


def test_a_list_that_is_rarely_filled(tmp_path: Path):
    records = [made_record(number, trial_id=f"t{number}") for number in range(2500)]
    records[7] = made_record(7, trial_id="t7", caveats=["not_cold"])
    store = ResultsStore(tmp_path)
    store.check_writable()
    (tmp_path / "segments" / "a.jsonl").write_text("".join(f"{record.model_dump_json()}\n" for record in records))
    assert len(store.sql("select * from trials")) == 2500
    assert store.sql("select trial_id from trials where len(caveats) > 0")["trial_id"].tolist() == ["t7"]


def test_columns_from_the_command_line(store: ResultsStore, run_cli: Callable[..., tuple[int, str, str]]):
    code, out, err = run_cli("results", "query", "--columns", "--store", store.path, "--format", "csv")
    found = {row["column"]: row for row in csv.DictReader(io.StringIO(out))}
    assert (code, err) == (0, "") and found["spec.data.cache"]["type"] == "VARCHAR"
    assert any(line.split()[:3] == ["au", "DOUBLE", "step"] for line in listed(run_cli, store))
    code, out, err = run_cli("results", "query", "--store", store.path)
    assert (code, out, err.count("\n")) == (2, "", 1) and "columns: --columns" in err
    assert "--columns" in run_cli("results", "query", "--help")[1]


def listed(run_cli: Callable[..., tuple[int, str, str]], store: ResultsStore) -> list[str]:
    return run_cli("results", "query", "--columns", "--store", store.path)[1].splitlines()


def test_a_frame_without_parts_is_what_a_query_would_give(tmp_path: Path) -> None:
    """Later attempts, kinds, sessions, gaps, lists, and values of several types."""
    store = ResultsStore(tmp_path)
    specs: tuple[dict[str, Any], ...] = (
        {"data": {"root": "/a"}},
        {"batch_size": "auto"},
        {"batch_size": 4, "x": [1, None]},
    )
    for number in range(12):
        changes = {"trial_id": f"t{number % 5}", "session": f"s{number % 2}", "spec": specs[number % 3]}
        figures = {"au": None if number % 2 else 0.5, "bottleneck": "compute" if number % 4 else None}
        store.append(
            made_record(11 - number, record_id=f"r{number}", figures=figures, caveats=["a"] * (number % 2), **changes)
        )
    store.append(made_record(20, kind="probe", trial_id="p", record_id="p"))
    for kind, session in (("trial", None), ("trial", "s1"), ("probe", None)):
        now = snapshot(store.path)
        queried = query.opened(now, kind).frame(None, None, session)
        pd.testing.assert_frame_equal(frame_of_tail(now.tail, kind, None, session), queried, check_dtype=False)
    assert [*store.frame(columns=["trial_id", "session"])["trial_id"]] == [*store.frame()["trial_id"]]


def test_a_frame_without_parts_needs_no_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ResultsStore(tmp_path)
    store.append(made_record(0))
    monkeypatch.setattr(query.duckdb, "connect", lambda *_: pytest.fail("the records are in memory already"))
    assert len(store.frame()) == len(store.frame(by="point")) == 1
