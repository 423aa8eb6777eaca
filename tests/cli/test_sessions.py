"""`benchsuite report` of a store with several sessions: all are shown and said, or one is chosen."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from benchsuite.cli.report import sessions_of
from benchsuite.results.store import segments
from benchsuite.results.store.segments import Passed, Stored, parsed
from benchsuite.results.store.store import ResultsStore
from tests.results.made import made_record

Run = Callable[..., tuple[int, str, str]]
NIGHTS = ("monday", "wednesday", "tuesday")


@pytest.fixture
def nights(tmp_path: Path) -> ResultsStore:
    """Three sessions, of which tuesday was measured last; monday was touched once more by a probe."""
    store = ResultsStore(tmp_path / "store")
    for number, name in enumerate(NIGHTS):
        measured = {"session": name, "figures": {"samples_per_s": 100.0 + number}}
        store.append(made_record(number, trial_id=f"point.{name}.0", **measured))
    store.append(made_record(9, kind="probe", session="monday", trial_id="p.monday.0"))
    return store


def rates(run_cli: Run, store: ResultsStore, *arguments: str) -> list[float]:
    code, out, err = run_cli("report", "--store", store.path, "--format", "json", *arguments)
    assert code == 0, err
    return [row["samples_per_s"] for row in json.loads(out)]


def test_sessions_in_the_order_of_their_last_trial(nights: ResultsStore) -> None:
    assert sessions_of(nights) == [*NIGHTS]


def test_one_session_has_its_own_trials_and_all_probes(nights: ResultsStore) -> None:
    one = ResultsStore(nights.path, "wednesday")
    assert [record.session for record in one.latest()] == ["wednesday", "monday"]
    assert list(one.frame()["session"]) == list(one.frame(by="point")["session"]) == ["wednesday"]
    assert list(one.frame(where="samples_per_s > 100 OR samples_per_s < 100.5")["session"]) == ["wednesday"]
    assert len(one.frame(kind="probe")) == 1
    assert len(ResultsStore(nights.path, "o'clock").frame()) == 0


class TestReport:
    @pytest.mark.parametrize("how", [(), ("--format", "csv"), ("--session", "latest"), ("--html", "out.html")])
    def test_a_report_reads_each_record_once(
        self, run_cli: Run, nights: ResultsStore, how: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        lines: list[int] = []

        def noted(segment: str, offset: int, line: bytes) -> Stored | Passed:
            lines.append(offset)
            return parsed(segment, offset, line)

        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(segments, "parsed", noted)
        code, _, err = run_cli("report", "--store", nights.path, *how)
        assert (code, len(lines)) == (0, len(NIGHTS) + 1), err

    def test_all_are_shown_and_said(self, run_cli: Run, nights: ResultsStore) -> None:
        code, out, err = run_cli("report", "--store", nights.path)
        assert code == 0 and all(f"(session {name})" in out for name in NIGHTS)
        assert err == (
            f"note: all 3 sessions of {nights.path} are shown (monday, wednesday, tuesday); --session latest, or a "
            "name, shows one\n"
        )
        assert rates(run_cli, nights) == [100.0, 101.0, 102.0]

    def test_of_many_the_last_are_named(self, run_cli: Run, nights: ResultsStore) -> None:
        for number in range(10, 15):
            nights.append(made_record(number, trial_id=f"point.n{number}.0", session=f"n{number}"))
        err = run_cli("report", "--store", nights.path)[2]
        assert "note: all 8 sessions" in err and "(..., n10, n11, n12, n13, n14)" in err

    @pytest.mark.parametrize(
        ("name", "rate"), [("latest", 102.0), pytest.param("tuesday", 102.0, marks=pytest.mark.full), ("monday", 100.0)]
    )
    def test_one_is_chosen(self, run_cli: Run, nights: ResultsStore, name: str, rate: float) -> None:
        assert rates(run_cli, nights, "--session", name) == [rate]
        for more in ((), ("--format", "md")):
            code, out, err = run_cli("report", "--store", nights.path, "--session", name, *more)
            assert (code, err) == (0, "") and f"{rate:.0f}" in out and "(session" not in out

    def test_the_page_of_one(self, run_cli: Run, nights: ResultsStore, tmp_path: Path) -> None:
        page = tmp_path / "report.html"
        code, _, err = run_cli("report", "--store", nights.path, "--session", "latest", "--html", page)
        assert code == 0 and "note:" not in err
        assert '"session":["tuesday"]' in page.read_text()

    def test_none_of_that_name(self, run_cli: Run, nights: ResultsStore) -> None:
        code, out, err = run_cli("report", "--store", nights.path, "--session", "tusday")
        assert (code, out) == (2, "")
        allowed = "latest, monday, wednesday, tuesday"
        assert err == f"error: --session 'tusday' is unknown; nearest: tuesday; allowed: {allowed}\n"

    def test_one_session_needs_no_choice(self, run_cli: Run, store: ResultsStore) -> None:
        assert run_cli("report", "--store", store.path)[2] == ""

    def test_no_store(self, run_cli: Run, tmp_path: Path) -> None:
        code, _, err = run_cli("report", "--store", tmp_path / "gone", "--session", "latest")
        assert code == 2 and "no results there" in err


@pytest.mark.parametrize("option", [["--svg", "figures"], ["--pdf", "figures"], ["--mlperf-storage"]])
def test_why_is_refused_beside_what_holds_no_evidence(run_cli: Run, tmp_path: Path, option: list[str]) -> None:
    ResultsStore(tmp_path).append(made_record())
    code, out, err = run_cli("report", "--why", *option, "--store", tmp_path)
    told = f"error: report: --why with {option[0]}, which holds no evidence; --html and --format md always do\n"
    assert (code, out, err) == (2, "", told)
