"""The verbs `results export ...`: what they print and write, filters, and one-line errors."""

import csv
import io
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import duckdb
import pytest

from benchsuite.contract.exit_codes import INTERRUPTED
from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import ResultsStore
from tests.helpers.snapshots import compare_messages
from tests.results.made import made_record
from tests.results.nightly import fill, night_name

Run = Callable[..., tuple[int, str, str]]
VERBS = ["csv", "parquet", "junit", "prometheus", "latex"]


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BENCHSUITE_STORE", raising=False)


def exported(run_cli: Run, store: ResultsStore, *arguments: object) -> str:
    """What a verb prints."""
    code, out, err = run_cli("results", "export", *arguments, "--store", store.path)
    assert (code, err) == (0, "")
    return out


@pytest.mark.parametrize("verb", VERBS)
def test_help(run_cli: Run, verb: str):
    code, out, _ = run_cli("results", "export", verb, "--help")
    assert code == 0 and "--where" in out and "--out" in out and "--store" in out


def test_csv(run_cli: Run, store: ResultsStore):
    found = [*csv.DictReader(io.StringIO(exported(run_cli, store, "csv")))]
    assert [(row["status"], row["samples_per_s"]) for row in found] == [
        ("ok", "100.0"),
        ("ok", "104.0"),
        ("failed", ""),
    ]
    (point, _) = csv.DictReader(io.StringIO(exported(run_cli, store, "csv", "--by", "point")))
    assert (point["samples_per_s"], point["samples_per_s_min"], point["repeats"]) == ("102.0", "100.0", "2")


def test_parquet(run_cli: Run, store: ResultsStore):
    code, out, err = run_cli("results", "export", "parquet", "--store", store.path, "--out", "a.parquet")
    assert (code, out, err) == (0, "", "exported: a.parquet\n")
    query = "SELECT samples_per_s, caveats FROM 'a.parquet' ORDER BY repeat"
    assert duckdb.sql(query).fetchall() == [(100.0, ["not_steady"]), (104.0, ["not_steady"]), (None, [])]


def test_junit(run_cli: Run, store: ResultsStore):
    (suite,) = ElementTree.fromstring(exported(run_cli, store, "junit"))
    assert (suite.get("tests"), suite.get("failures")) == ("3", "1")
    (failure,) = suite.iter("failure")
    assert failure.get("message") == "disk | on"


def test_junit_with_regressions(run_cli: Run, tmp_path: Path):
    def change(night: int, point: int) -> dict[str, float]:
        return {"slower": 0.2} if night >= 33 and point == 1 else {}

    store = fill(tmp_path / "nights", 36, num_points=2, change=change)
    dates = f"{night_name(0)}..{night_name(29)}"
    assert run_cli("baseline", "set", "--date", dates, "--store", store.path)[0] == 0
    tonight = f"session={night_name(35)}"
    trials, check = ElementTree.fromstring(exported(run_cli, store, "junit", "--check", "--where", tonight))
    assert (trials.get("tests"), trials.get("failures")) == ("6", "0")
    assert check.get("failures") == "1"
    assert [case.get("name") for case in check.iter("testcase")] == ["point 1: samples_per_s"]


def test_junit_without_anything_to_check_has_the_trials_and_says_why(run_cli: Run, tmp_path: Path):
    for number, words in ((1, "one night so far"), (2, "is newer than it")):
        store = fill(tmp_path / f"nights-{number}", number, num_points=1)
        if number == 2:
            assert run_cli("baseline", "set", "--store", store.path)[0] == 0
        code, out, err = run_cli("results", "export", "junit", "--check", "--store", store.path, "--out", "all.xml")
        assert (code, out, err) == (0, "", "exported: all.xml\n")
        *trials, check = ElementTree.parse("all.xml").getroot()
        assert [suite.get("tests") for suite in trials] == ["3"] * number
        (skipped,) = check.iter("skipped")
        assert words in str(skipped.get("message")) and check.get("failures") == "0"


def collective(repeat: int, **changes: object) -> TrialRecord:
    spec = {"op": "all_reduce", "algorithm": "ring", "dtype": "fp32", "num_bytes": 1 << 20, "world_size": 2}
    given = {"kind": "comm", "sweep": "probe-comm", "label": "all_reduce ring", "spec": spec}
    return made_record(repeat, **(given | {"figures": {"busbw_bytes_per_s": 1.25e9}} | changes))


def test_junit_of_collectives(run_cli: Run, tmp_path: Path):
    """A wrong sum is a failure; before, a store of `probe comm` alone had nothing to export."""
    store = ResultsStore(tmp_path / "comm")
    store.append(collective(0))
    store.append(collective(1, point_id="other", status="failed", reason="element 3 is 7, not 8", figures={}))
    (suite,) = ElementTree.fromstring(exported(run_cli, store, "junit", "--kind", "comm"))
    assert (suite.get("name"), suite.get("tests"), suite.get("failures")) == ("probe-comm (default)", "2", "1")
    (failure,) = suite.iter("failure")
    assert failure.get("message") == "element 3 is 7, not 8"
    assert "busbw 1.25 GB/s" in str(suite.findtext("system-out"))
    *_, check = ElementTree.fromstring(exported(run_cli, store, "junit", "--kind", "comm", "--check"))
    assert check.get("failures") == "0" and next(check.iter("skipped")) is not None
    code, _, err = run_cli("results", "export", "junit", "--kind", "probe", "--check", "--store", store.path)
    assert code == 2 and "--check --kind probe: allowed with --check: trial, comm" in err


def test_prometheus(run_cli: Run, store: ResultsStore, tmp_path: Path):
    told = 'cache="cold",point="files",point_id="point",source="storage",sweep="made",workload="resnet50"'
    line = f"benchsuite_samples_per_second{{{told}}} 102.0"
    text = exported(run_cli, store, "prometheus")
    assert line in text.splitlines()
    code, out, err = run_cli("results", "export", "prometheus", "--store", store.path, "--out", tmp_path)
    assert (code, out, err) == (0, "", f"exported: {tmp_path}/benchsuite.prom\n")
    assert (tmp_path / "benchsuite.prom").read_text() == text


def test_prometheus_again_and_again(store: ResultsStore, tmp_path: Path):
    """What a filter asks for may come later."""
    written = tmp_path / "nights.prom"
    filters = ("--where", "session=later", "--every", "1")
    command = [sys.executable, "-m", "benchsuite", "results", "export", "prometheus", *filters]
    with subprocess.Popen([*command, "--store", str(store.path), "--out", str(written)]) as process:
        _wait_for(written, "")
        store.append(made_record(700, session="later"))
        _wait_for(written, "benchsuite_samples_per_second")
        process.send_signal(signal.SIGINT)
    assert process.returncode == INTERRUPTED


def _wait_for(path: Path, text: str) -> None:
    deadline_s = time.monotonic() + 60
    while not (path.exists() and text in path.read_text()):
        assert time.monotonic() < deadline_s, f"{path} never had {text!r}"
        time.sleep(0.05)


def test_latex(run_cli: Run, store: ResultsStore):
    lines = exported(run_cli, store, "latex").splitlines()
    assert r"files & 2 & 0.50 $\pm$0.00 & 102 $\pm$2 & 20.0 $\pm$0.0 & storage & a \\" in lines
    assert any("Caveats: a: not steady." in line for line in lines)
    assert r"tar & 0 & - & - & - & failed &  \\" in lines


@pytest.mark.parametrize(
    ("verb", "lost"),
    [
        ("csv", "disk | on"),
        ("junit", "<failure"),
        ("prometheus", 'point="tar"'),
        ("latex", "tar & 0"),
    ],
)
def test_filters(run_cli: Run, store: ResultsStore, verb: str, lost: str):
    """What only the failed trial brings is gone when filters leave it out."""
    assert lost in exported(run_cli, store, verb)
    some = exported(run_cli, store, verb, "--where", "label=files", "--where", "workload=resnet50")
    assert lost not in some and re.search(r"not.?steady", some)


def test_mistakes(run_cli: Run, store: ResultsStore) -> None:
    cases = [
        ["csv", "--where", "label"],
        ["junit", "--where", "lable=files"],
        ["latex", "--where", "label=fils"],
        ["csv", "--by", "pont"],
        ["csv", "--kind", "probe"],
        ["csv", "--out", "gone/a.csv"],
        ["parquet", "--out", "gone/a.parquet"],
        ["parquet"],
        ["prometheus", "--out", "a.txt"],
        ["latex", "--store", "gone"],
        ["xml"],
    ]

    def message(arguments: list[str]) -> str:
        store_option = [] if "--store" in arguments or arguments == ["xml"] else ["--store", store.path]
        code, out, err = run_cli("results", "export", *arguments, *store_option)
        assert (code, out, err.count("\n")) == (2, "", 1) and err.startswith("error: ")
        return err

    compare_messages("exports", cases, message, {str(store.path): "STORE", r'(IO Error: ).*"': r"\1FILE"})


@pytest.mark.parametrize(
    "arguments",
    [
        ("report", "--html", "out"),
        ("report", "--json", "out"),
        *(("results", "export", verb, "--out", "out") for verb in ("csv", "junit", "parquet")),
    ],
)
def test_on_a_full_disk_the_old_file_stays(
    run_cli: Run, store: ResultsStore, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    """Files may not grow beyond 500 bytes; modules compiled meanwhile would stay cut off."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    out = Path("out")
    out.write_text("old")
    before, limits = sorted(Path().iterdir()), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
    try:
        code, _, err = run_cli(*arguments, "--store", store.path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == 2 and f"error: {out}: cannot be written: " in err
    assert (out.read_text(), sorted(Path().iterdir())) == ("old", before)
