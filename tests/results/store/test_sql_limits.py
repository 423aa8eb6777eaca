"""A query may take so much time and memory, and find so many rows, however it is written; then it is one line."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from benchsuite.results.store.query import Limits
from benchsuite.results.store.store import ResultsStore, StoreError
from tests.results.made import made_record

LIMITED = """
import contextlib, io, json, os, re, sys
from functools import partial
from pathlib import Path
from benchsuite.cli import results
from benchsuite.cli.app import run_command
from benchsuite.results.store.query import Limits

for query, limits in json.load(sys.stdin):
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0
        continue
    results.Limits = partial(Limits, **limits)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_command(["results", "query", query, "--store", sys.argv[1]])
    most = int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024
    print(json.dumps([code, out.getvalue(), err.getvalue(), most]), flush=True)
    os._exit(0)
"""
ENDLESS = "select count(*) from range(1000000) a, range(1000000) b"
MANY = "select * from range(200000)"
PIVOT = "pivot (select range as a, range % 3 as m, 1 as b from range(100000)) on m using sum(b) group by a"
HUGE = "select string_agg(repeat('x', 1000), '') from range(3000000)"
WIDE = "select repeat('x', 20000) || range as text from range(90000)"
LISTS = "select range(200000) from range(100000)"
SLOW, ROWS, MEMORY = "stopped after 1 s", "more than 100,000 rows; add a LIMIT", "takes more than 200 MB of memory"


@pytest.fixture
def store(tmp_path: Path) -> ResultsStore:
    store = ResultsStore(tmp_path / "store")
    for number in range(3):
        store.append(made_record(number, figures={"samples_per_s": 10.0 * number or None}))
    return store


TOO_MUCH: list[tuple[str, dict[str, int], str]] = [
    (f"select 1; {ENDLESS}", {"seconds": 1}, SLOW),
    (MANY, {}, ROWS),
    (f"{MANY}; select 1", {}, ROWS),
    (f"select 1; {MANY}", {}, ROWS),
    ("select * from range(100000000); select 1", {}, ROWS),
    (PIVOT, {"num_rows": 90_000}, "more than 90,000 rows; add a LIMIT"),
    (f"from ({PIVOT})", {"num_rows": 90_000}, "more than 90,000 rows; add a LIMIT"),
    (HUGE, {"memory_mb": 200}, MEMORY),
    (WIDE, {"memory_mb": 200}, MEMORY),
    (LISTS, {"memory_mb": 200}, MEMORY),
]
"""Statements before and after are tried with rows."""
ALSO_TOO_MUCH: list[tuple[str, dict[str, int], str]] = [
    (ENDLESS, {"seconds": 1}, SLOW),
    (f"{ENDLESS}; select 1", {"seconds": 1}, SLOW),
    (f"{HUGE}; select 1", {"memory_mb": 200}, MEMORY),
]
QUERIES = [TOO_MUCH, pytest.param(ALSO_TOO_MUCH, marks=pytest.mark.full)]


@pytest.mark.parametrize("queries", QUERIES, ids=["some", "more"])
def test_what_takes_more_is_one_line(store: ResultsStore, queries: list[tuple[str, dict[str, int], str]]):
    """And its process, of those forked from one that has imported all, takes little more than it may."""
    command, asked = [sys.executable, "-c", LIMITED, str(store.path)], [each[:2] for each in queries]
    ended = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr
    found = [json.loads(line) for line in ended.stdout.splitlines()]
    for (query, _, told), (code, out, err, most_mb) in zip(queries, found, strict=True):
        assert (code, out) == (2, ""), (query, err)
        assert err.startswith(f"error: query: {told}") and err.count("\n") == 1, (query, err)
        assert most_mb < 900, query


@pytest.mark.parametrize(
    "query",
    [
        "select * from trials order by repeat",
        "select repeat, samples_per_s from trials order by repeat;",
        "select label from trials where false",
        "select 1 as a; select 2 as b; -- the last one counts",
        "from trials select repeat limit 2 -- some",
        "with few as (from trials limit 1) select repeat, label from few",
        "describe select repeat from trials",
        "pivot trials on repeat using max(samples_per_s) group by label",
        "select range as a, if(range < 5000, null, range) as b, range % 2 = 0 as c, [range] as d from range(9000)",
    ],
)
def test_what_takes_less_is_the_same_with_limits(store: ResultsStore, query: str):
    pd.testing.assert_frame_equal(store.sql(query, Limits()), store.sql(query))


@pytest.mark.parametrize(
    "query", ["select * from range({})", "pivot (select range as a, 1 as m from range({})) on m group by a"]
)
def test_exactly_so_many_rows(store: ResultsStore, query: str):
    limits = Limits(num_rows=3000)
    assert len(store.sql(query.format(3000), limits)) == 3000
    with pytest.raises(StoreError, match="more than 3,000 rows"):
        store.sql(query.format(3001), limits)
