"""SQL over the same rows as the frame."""

from pathlib import Path

import pytest

from results.store import ResultsStore, StoreError
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
