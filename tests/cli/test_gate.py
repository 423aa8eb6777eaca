"""The verbs `compare`, `baseline` and `check`: what they print, exit codes, and one-line errors."""

import csv
import io
import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from benchsuite.cli import gate
from benchsuite.contract.exit_codes import REGRESSION, SOME_FAILED
from benchsuite.results.report import compare as report
from benchsuite.results.store.store import ResultsStore
from tests.results.made import made_record
from tests.results.nightly import fill, night_name, trial

Run = Callable[..., tuple[int, str, str]]
NIGHTS, STEP = 36, 33


def slow(night: int, point: int) -> Mapping[str, Any]:
    return {"slower": 0.2} if night >= STEP and point == 1 else {}


@pytest.fixture
def nightly(tmp_path: Path, run_cli: Run) -> ResultsStore:
    """Nights with a step of one point in the last three; the first thirty are the baseline."""
    store = fill(tmp_path / "nights", NIGHTS, num_points=3, change=slow)
    dates = f"{night_name(0)}..{night_name(29)}"
    code, out, err = run_cli("baseline", "set", "--date", dates, "--store", store.path)
    assert (code, err) == (0, "")
    assert out == f"baseline of {store.path}: 30 sessions ({night_name(0)} to {night_name(29)})\n"
    return store


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Two stores: six repeats each, the second a tenth slower and on another host."""
    paths = (tmp_path / "a", tmp_path / "b")
    for path, rate, host in zip(paths, (100.0, 90.0), ("here", "there"), strict=True):
        store = ResultsStore(path)
        for n in range(6):
            env = made_record().env | {"host": host}
            store.append(made_record(n, env=env, label="wds | lustre", figures={"samples_per_s": rate + 0.1 * n}))
    return paths


class TestCompare:
    def test_a_table(self, run_cli: Run, pair: tuple[Path, Path]):
        code, out, err = run_cli("compare", *pair)
        head, *lines = out.splitlines()
        assert (code, err) == (0, "")
        assert head == "B against A: 1 worse, 0 better, 0 same, 0 can't tell (1 comparison on 1 point)"
        (row,) = [line for line in lines if "wds | lustre" in line]
        assert row.split()[3:] == ["samples_per_s", "up", "100.2", "90.25", "0.900", "[0.898", "0.903]", "6+6", "worse"]
        assert "environments: host here -> there" in lines
        assert "Hodges-Lehmann" in lines[-1] and "by Holm corrected for 1 comparisons" in lines[-1]

    def test_json(self, run_cli: Run, pair: tuple[Path, Path]):
        found = json.loads(run_cli("compare", *pair, "--format", "json")[1])
        (one,) = found["comparisons"]
        assert (one["verdict"], one["good"], one["repeats_a"]) == ("worse", "up", 6)
        assert one["p_corrected"] == pytest.approx(2 / 924)
        assert found["environment"] == [{"fact": "host", "one": "here", "other": "there", "identity": False}]

    def test_markdown_and_csv(self, run_cli: Run, pair: tuple[Path, Path]):
        out = run_cli("compare", *pair, "--format", "md")[1]
        assert "| wds \\| lustre | samples_per_s | up |" in out and "\n- environments: " in out
        (row,) = csv.DictReader(io.StringIO(run_cli("compare", *pair, "--format", "csv")[1]))
        assert (row["label"], row["verdict"], row["b"]) == ("wds | lustre", "worse", "90.25")

    def test_filters_over_one_store(self, run_cli: Run, nightly: ResultsStore):
        sides = (f"date={night_name(0)}..{night_name(19)}", f"date={night_name(STEP)}..")
        code, out, _ = run_cli("compare", *sides, "--store", nightly.path, "--metrics", "samples_per_s,step_s_mean")
        assert code == 0 and out.startswith("B against A: 2 worse, ")
        assert [line.split()[-1] for line in out.splitlines() if "point 1" in line] == ["worse", "worse"]
        assert "20+3" in out, "sessions, not their repeats"

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["session=a", "session=b"], ["benchsuite-store", "--store"]),
            (["gone", "session=b"], ["'gone' is neither a store nor a filter"]),
            (["session=a"], ["Missing argument 'B'"]),
        ],
    )
    def test_mistakes(
        self, run_cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: list[str]
    ):
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("BENCHSUITE_STORE", raising=False)
        code, out, err = run_cli("compare", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith("error: ") and all(word in err for word in words)

    def test_an_unknown_metric(self, run_cli: Run, pair: tuple[Path, Path]):
        code, _, err = run_cli("compare", *pair, "--metrics", "step_mean")
        assert code == 2 and "metric 'step_mean' is not compared" in err and "nearest: step_s_mean" in err

    def test_unlike_machines(self, run_cli: Run, pair: tuple[Path, Path]):
        ResultsStore(pair[1]).append(made_record(9, env=made_record().env | {"cores": 64}))
        code, _, err = run_cli("compare", *pair)
        assert code == 2 and err.startswith("error: A and B are not comparable: cores is 2 in A and 64 in B")


def at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard output is a terminal of 80 columns."""
    narrow = {"width": 80, "force_terminal": True, "color_system": None, "highlight": False}
    monkeypatch.setattr(gate, "console", lambda: Console(**narrow))


class TestNarrow:
    def test_compare(self, run_cli: Run, nightly: ResultsStore, monkeypatch: pytest.MonkeyPatch):
        at_80_columns(monkeypatch)
        sides = (f"date={night_name(0)}..{night_name(19)}", f"date={night_name(STEP)}..")
        options = ("--store", nightly.path, "--metrics", "samples_per_s,step_s_mean")
        wide = json.loads(run_cli("compare", *sides, *options, "--format", "json")[1])["comparisons"]
        out = run_cli("compare", *sides, *options)[1]
        assert max(map(len, out.splitlines())) <= 80
        assert len(wide) == 6
        for row in wide:
            ends = "-" if row["ratio_low"] is None else f"{row['ratio_low']:.3f} {row['ratio_high']:.3f}"
            assert f"{row['ratio']:.3f} [{ends}]" in out
            assert all(report.in_unit(row["metric"], row[side]) in out for side in ("a", "b"))
            assert row["why"] is None or row["why"] in " ".join(out.split())

    def test_check(self, run_cli: Run, nightly: ResultsStore, monkeypatch: pytest.MonkeyPatch):
        wide = run_cli("check", "--store", nightly.path)[1]
        at_80_columns(monkeypatch)
        code, out, _ = run_cli("check", "--store", nightly.path)
        assert code == REGRESSION and max(map(len, wide.splitlines())) > 80
        assert out.split() == wide.split() and max(map(len, out.splitlines())) <= 80
        assert "\n  likely layer: input: load " in out


class TestCheck:
    def test_a_regression_is_exit_code_10(self, run_cli: Run, nightly: ResultsStore):
        code, out, err = run_cli("check", "--store", nightly.path)
        assert (code, err) == (REGRESSION, "") and REGRESSION == 10
        head, first, *rest = out.splitlines()
        assert head.startswith(f"regression: 1 of 3 series of session {night_name(NIGHTS - 1)}")
        assert first.startswith("point 1: samples_per_s ") and f"since {night_name(STEP)}" in first
        assert rest[0].startswith("  likely layer: input: load ")

    def test_quiet_nights_are_one_line_and_exit_code_0(self, run_cli: Run, tmp_path: Path):
        store = fill(tmp_path / "quiet", 12, num_points=3)
        run_cli("baseline", "set", "--date", f"{night_name(0)}..{night_name(9)}", "--store", store.path)
        code, out, err = run_cli("check", "--store", store.path)
        assert (code, err, out.count("\n")) == (0, "", 1)
        assert out.startswith("ok: no regression in 3 series")

    def test_json(self, run_cli: Run, nightly: ResultsStore):
        code, out, _ = run_cli("check", "--store", nightly.path, "--format", "json")
        found = json.loads(out)
        assert code == REGRESSION and found["regression"] is True
        (one,) = found["regressions"]
        assert (one["label"], one["since"], one["cause"]["layer"]) == ("point 1", night_name(STEP), "input")

    def test_markdown_and_csv(self, run_cli: Run, nightly: ResultsStore):
        code, out, _ = run_cli("check", "--store", nightly.path, "--format", "md")
        assert code == REGRESSION and "| point 1 | samples_per_s | " in out
        code, out, _ = run_cli("check", "--store", nightly.path, "--format", "csv")
        assert code == REGRESSION and [row["label"] for row in csv.DictReader(io.StringIO(out))] == ["point 1"]

    def test_the_new_level_as_baseline_is_no_regression(self, run_cli: Run, nightly: ResultsStore):
        run_cli(
            "baseline", "set", "--session", night_name(STEP), "--session", night_name(STEP + 1), "--store", nightly.path
        )
        code, out, _ = run_cli("check", "--store", nightly.path)
        assert code == 0 and re.match(r"compared with \d+ nights before: .*; judged alone after 4 more nights", out)

    def test_without_a_baseline(self, run_cli: Run, tmp_path: Path):
        store = fill(tmp_path / "bare", 2, num_points=1)
        code, out, err = run_cli("baseline", "show", "--store", store.path)
        assert (code, out) == (2, "") and err.count("\n") == 1
        assert "has no baseline; set one: benchsuite baseline set" in err
        code, out, _ = run_cli("check", "--store", store.path)
        assert code == 0 and out.startswith("compared with 1 night before: ")

    def test_somebody_is_told_of_an_alarm(self, run_cli: Run, nightly: ResultsStore, tmp_path: Path):
        script, told = tmp_path / "tell.py", tmp_path / "told"
        script.write_text(
            "import os, shutil, sys\n"
            "open(sys.argv[1], 'w').write(sys.stdin.read())\n"
            "shutil.copy(os.environ['BENCHSUITE_CHART'], sys.argv[1] + '.png')\n"
        )
        command = f"{sys.executable} {script} '{told}'"
        code, _, err = run_cli("check", "--store", nightly.path, "--on-alarm", command)
        assert (code, err) == (REGRESSION, "")
        subject, blank, *lines = told.read_text().splitlines()
        assert re.match(r"benchsuite: point 1: samples_per_s \d+% worse since ", subject) and not blank
        assert any("likely layer" in line or "changed with it" in line for line in lines)
        assert any(line.startswith("  benchsuite report --store") for line in lines)
        assert Path(f"{told}.png").read_bytes()[:4] == b"\x89PNG"

    def test_a_quiet_night_tells_nobody_and_a_broken_command_is_a_warning(
        self, run_cli: Run, nightly: ResultsStore, tmp_path: Path
    ):
        quiet = fill(tmp_path / "quiet", 8, num_points=1)
        assert run_cli("check", "--store", quiet.path, "--on-alarm", "/nowhere/tell")[0] == 0
        code, _, err = run_cli("check", "--store", nightly.path, "--on-alarm", "/nowhere/tell")
        assert code == REGRESSION
        assert err == "warning: --on-alarm /nowhere/tell: No such file or directory: nobody got the message\n"

    def test_half_the_rate_on_the_second_night_is_exit_code_10(self, run_cli: Run, tmp_path: Path):
        store = fill(tmp_path / "two", 2, num_points=2, change=lambda night, point: {"slower": 1.4 * night * point})
        script, told = tmp_path / "tell.py", tmp_path / "told"
        script.write_text("import sys\nopen(sys.argv[1], 'w').write(sys.stdin.read())\n")
        command = f"{sys.executable} {script} '{told}'"
        code, out, err = run_cli("check", "--store", store.path, "--on-alarm", command)
        assert (code, err) == (REGRESSION, "")
        head, line, *_ = out.splitlines()
        assert head == f"1 point fell to half its rate or less in session {night_name(1)}, which rests on one night"
        assert line.endswith(f"since {night_name(1)}; this rests on 1 night, compared with 1 night before")
        assert re.match(r"benchsuite: point 1: samples_per_s 58% worse since ", told.read_text())
        read = {name: run_cli("check", "--store", store.path, "--format", name) for name in ("json", "csv", "md")}
        assert {code for code, *_ in read.values()} == {REGRESSION}
        (one,) = json.loads(read["json"][1])["halved"]
        assert (one["label"], one["nights_since"], one["nights_before"]) == ("point 1", 1, 1)
        (row,) = csv.DictReader(io.StringIO(read["csv"][1]))
        assert (row["label"], row["nights_since"], row["worse_low"]) == ("point 1", "1", "")
        assert re.search(
            r"\| point 1 \| samples_per_s .* \| 5\d\.\d% \[-\] \| 2026-01-02, rests on 1 night \|", read["md"][1]
        )

    def test_a_baseline_of_doubtful_trials_says_so(self, run_cli: Run, tmp_path: Path):
        store = fill(tmp_path / "nights", 2, num_points=2)
        for repeat in range(3):
            doubted = trial(2, 1, repeat, 0.0).model_copy(update={"caveats": ["foreign_load"]})
            store.append(doubted)
        code, _, err = run_cli("baseline", "set", "--store", store.path)
        assert code == 0
        assert err == "note: doubtful in some of these nights, which then do not count: point 1: foreign_load\n"

    def test_nothing_newer_is_exit_code_4(self, run_cli: Run, tmp_path: Path):
        store = fill(tmp_path / "old", 2, num_points=1)
        run_cli("baseline", "set", "--store", store.path)
        code, out, err = run_cli("check", "--store", store.path)
        assert (code, err) == (4, "")
        assert out.startswith("nothing judged: no session with points of the baseline is newer than it")
        found = json.loads(run_cli("check", "--store", store.path, "--format", "json")[1])
        assert found["regression"] is False and "is newer than it" in found["reason"]

    @pytest.mark.parametrize("set_by_hand", [False, True])
    @pytest.mark.parametrize("num_points", [1, 2])
    def test_a_changed_setting_is_a_new_point(
        self, run_cli: Run, tmp_path: Path, num_points: int, set_by_hand: bool
    ) -> None:
        def slower_device(night: int, point: int) -> Mapping[str, Any]:
            device = "emulated:250ms" if night == 2 and point == 0 else "emulated:100ms"
            spec = {"workload": "resnet50", "batch_size": 8 + point, "device": device}
            return {"spec": spec, "point_id": f"{device}{point}"}

        store = fill(tmp_path / "store", 3, num_points=num_points, change=slower_device)
        if set_by_hand:
            run_cli("baseline", "set", "--date", f"{night_name(0)}..{night_name(1)}", "--store", store.path)
        code, out, err = run_cli("check", "--store", store.path)
        assert (code, err) == (4 if num_points == 1 else SOME_FAILED, "")
        assert (
            f"1 point is new and 1 is gone since {night_name(1)}: they differ in device (emulated:100ms, now "
            "emulated:250ms); a changed setting makes a new point, which is compared with no night before the change\n"
        ) in out
        found = json.loads(run_cli("check", "--store", store.path, "--format", "json")[1])
        assert (found["reason"] if num_points == 1 else found["replaced"]).startswith("1 point is new")

    @pytest.mark.parametrize("verb", [["check"], ["baseline", "show"]])
    def test_no_store(self, run_cli: Run, tmp_path: Path, verb: list[str]):
        code, out, err = run_cli(*verb, "--store", tmp_path / "nosuch")
        assert (code, out) == (2, "") and "nosuch: no results there" in err and "baseline" not in err

    def test_where_and_session(self, run_cli: Run, nightly: ResultsStore):
        only = ("check", "--store", nightly.path, "--where")
        assert run_cli(*only, "label=point 1")[0] == REGRESSION
        assert run_cli(*only, "label=point 0")[0] == 0
        assert run_cli("check", "--store", nightly.path, "--session", night_name(STEP - 2))[0] == 0
        code, _, err = run_cli("check", "--store", nightly.path, "--session", "gone")
        assert code == 2 and "session 'gone' has no points of the baseline" in err

    def test_help_says_what_is_not_judged(self, run_cli: Run):
        assert "memory and energy" in " ".join(run_cli("check", "--help")[1].split())


def test_torn_lines_are_told_by_every_verb_that_reads(run_cli: Run, nightly: ResultsStore):
    with (nightly.path / "segments" / "made.jsonl").open("a") as file:
        file.write('{"record_id": "torn\n')
    sides = (f"date={night_name(0)}..{night_name(19)}", f"date={night_name(STEP)}..")
    for arguments in (
        ["check"],
        ["compare", *sides],
        ["results", "show"],
        ["results", "query", "select label from trials"],
    ):
        err = run_cli(*arguments, "--store", nightly.path)[2]
        told = f"warning: 1 line of {nightly.path} could not be read; the first: made.jsonl, byte "
        assert err.startswith(told) and err.count("\n") == 1, arguments


class TestChoices:
    @pytest.fixture
    def formats(self, tmp_path: Path) -> Path:
        """Two formats of a dataset, lmdb a tenth slower."""
        store = ResultsStore(tmp_path / "formats")
        for format, rate in (("files", 100.0), ("lmdb", 90.0)):
            for batch in (1, 2):
                for n in range(8):
                    spec = {"workload": "resnet50", "batch_size": batch, "data": {"format": format, "root": "/d"}}
                    ids = dict.fromkeys(("record_id", "trial_id"), f"{format}{batch}.{n}")
                    figures = {"samples_per_s": rate * batch + 0.1 * n}
                    dataset = {"dataset_id": format}
                    changes = {"point_id": f"{format}{batch}", "match_id": None, "label": f"{format} {batch}"}
                    record = made_record(n, spec=spec, figures=figures, dataset=dataset, **ids, **changes)
                    store.append(record)
        return store.path

    def test_which_format_wins(self, run_cli: Run, formats: Path):
        code, out, err = run_cli("compare", "data.format=files", "data.format=lmdb", "--store", formats)
        assert (code, err) == (0, "")
        head = "B against A: 2 worse, 0 better, 0 same, 0 can't tell (2 comparisons on 2 points)"
        assert out.splitlines()[0] == f"{head}; data.format is files in A and lmdb in B"
        found = json.loads(
            run_cli("compare", "data.format=files", "data.format=lmdb", "--store", formats, "--format", "json")[1]
        )
        assert found["apart"] == {"spec.data.format": ["files", "lmdb"]}
        assert [one["ratio"] for one in found["comparisons"]] == pytest.approx([0.9, 0.9], abs=0.01)
        assert [one["label"] for one in found["comparisons"]] == ["files 1 -> lmdb 1", "files 2 -> lmdb 2"]

    def test_other_settings_still_tell_points_apart(self, run_cli: Run, formats: Path):
        sides = ("data.format=files,batch_size=1", "data.format=lmdb")
        assert "1 comparison on 1 point" in run_cli("compare", *sides, "--store", formats)[1]
        code, _, err = run_cli("compare", "data.format=files", "session=default,data.format=lmbd", "--store", formats)
        assert code == 2 and "no trial has data.format=lmbd" in err

    def test_commits_that_no_record_tells(self, run_cli: Run, formats: Path):
        code, _, err = run_cli("compare", "commit=x", "commit=y", "--store", formats)
        assert code == 2 and "filter key 'commit': no record tells it" in err and "unknown" not in err


class TestBaseline:
    def test_show(self, run_cli: Run, nightly: ResultsStore):
        code, out, _ = run_cli("baseline", "show", "--store", nightly.path)
        assert code == 0 and f"30 sessions ({night_name(0)} to {night_name(29)})" in out
        found = json.loads(run_cli("baseline", "show", "--store", nightly.path, "--format", "json")[1])
        assert len(found["sessions"]) == 30 and found["schema_version"] == 1

    def test_days_that_are_not_the_sessions_names_are_told(self, run_cli: Run, tmp_path: Path):
        store = ResultsStore(tmp_path / "store")
        for night in range(3):
            name, moment = f"2026-11-{27 + night}", f"2026-11-27T0{night}:00:00.000000+00:00"
            store.append(trial(0, 0, 0, 0.0, session=name, record_id=name, trial_id=f"a.{name}.0", started_at=moment))
        code, out, _ = run_cli("baseline", "set", "--date", "2026-11-27..2026-11-28", "--store", store.path)
        told = "3 sessions (2026-11-27, 2026-11-28, 2026-11-29), measured on 2026-11-27"
        assert (code, out) == (0, f"baseline of {store.path}: {told}\n")

    def test_a_session_that_is_not_there(self, run_cli: Run, nightly: ResultsStore):
        code, _, err = run_cli("baseline", "set", "--session", "tonight", "--store", nightly.path)
        assert code == 2 and "session 'tonight' has no ok trial" in err


def test_a_batch_that_was_found_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """So that no comparison takes it for one that was asked for."""
    from benchsuite.grid.expand import resolve
    from benchsuite.host.machine import Machine
    from benchsuite.results.compare.nights import was_resized
    from benchsuite.runner import sweep
    from benchsuite.runner.claims import Claims
    from tests.helpers.made import made_spec

    def of(batch: int | str) -> bool:
        point = resolve(made_spec(batch_size=batch, data={"source": "synthetic"}), Machine(2, 0), 1, {})
        sized = replace(point, spec=point.spec.model_copy(update={"batch_size": 4}))
        monkeypatch.setattr(sweep, "fit_batch_size", lambda *_: sized)
        monkeypatch.setattr(sweep, "record_skipped", lambda *_: None)
        monkeypatch.setattr(sweep, "run_attempt", lambda attempt, *_: attempt.record("ok"))
        plan = SimpleNamespace(
            sweep=SimpleNamespace(name="made", question=None, rank_by="samples_per_s"), skipped=[], points=[point]
        )
        watcher = SimpleNamespace(started=lambda *_: None, progress=lambda *_: None, finished=lambda *_: None)
        todo = [sweep.Todo(point, 0)]
        claims = Claims.of(tmp_path / str(batch), "s")
        (record,) = sweep.run(plan, todo, ResultsStore(tmp_path), None, "s", watcher, claims).records  # type: ignore[arg-type]
        assert record.spec["batch_size"] == 4
        return was_resized(record)

    assert (of("auto"), of(4)) == (True, False)
