"""`benchsuite results compact`: what it says, and that the other verbs print the same after it."""

import json
from collections.abc import Callable
from pathlib import Path

from benchsuite.results.store.store import ResultsStore
from tests.results.made import made_record

Run = Callable[..., tuple[int, str, str]]


def test_says_what_it_did(run_cli: Run, tmp_path: Path):
    store = ResultsStore(tmp_path)
    for number in range(3):
        store.append(made_record(number))
    shown = [
        ("results", "show", "--store", tmp_path, "--format", "json"),
        ("results", "query", "select max(repeat) as last from trials", "--store", tmp_path, "--format", "csv"),
        ("report", "--store", tmp_path, "--format", "md"),
    ]
    before = [run_cli(*arguments) for arguments in shown]
    code, out, err = run_cli("results", "compact", "--store", tmp_path)
    assert (code, err) == (0, "")
    assert out.startswith(f"compacted 3 new records of {tmp_path}: 3 in 1 Parquet part, ")
    assert [run_cli(*arguments) for arguments in shown] == before
    assert before[1] == (0, "last\n2\n", "")
    done = json.loads(run_cli("results", "compact", "--store", tmp_path, "--format", "json")[1])
    assert (done["num_new"], done["num_records"], done["num_passed"]) == (0, 3, 0)


def test_warns_of_damage(run_cli: Run, tmp_path: Path):
    ResultsStore(tmp_path).append(made_record())
    (tmp_path / "segments" / "bad.jsonl").write_text("not json\n")
    code, _, err = run_cli("results", "compact", "--store", tmp_path)
    told = f"warning: 1 line of {tmp_path} could not be read; the first: "
    assert code == 0 and err.startswith(told) and err.count("\n") == 1


def test_a_store_that_is_not_there(run_cli: Run, tmp_path: Path):
    code, out, err = run_cli("results", "compact", "--store", tmp_path / "nowhere")
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and "--store" in err and err.count("\n") == 1
