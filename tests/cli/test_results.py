"""`benchsuite results`: what a user types and sees."""

import csv
import io
import json
from pathlib import Path

import pytest

from benchsuite.results.store.store import ResultsStore
from tests.cli.test_app import Run, in_folder, sweep_file
from tests.results.made import made_record
from tests.results.scaled import made_trials

__all__ = ["in_folder", "sweep_file"]


class TestResults:
    def test_show_as_json(self, run_cli: Run, store: ResultsStore):
        code, out, err = run_cli("results", "show", "--store", store.path, "--format", "json")
        assert (code, err) == (0, "")
        rows = json.loads(out)
        assert [row["samples_per_s"] for row in rows] == [100.0, 104.0, None]
        assert rows[0]["spec.workload"] == "resnet50"
        assert rows[0]["caveats"] == ["not_steady"]
        assert rows[2]["reason"] == "disk | on\nfire"

    def test_show_as_csv(self, run_cli: Run, store: ResultsStore):
        code, out, _ = run_cli("results", "show", "--store", store.path, "--format", "csv")
        rows = list(csv.DictReader(io.StringIO(out)))
        assert code == 0
        assert [row["trial_id"] for row in rows] == [f"point.default.{number}" for number in range(3)]
        assert [row["au"] for row in rows] == ["0.5", "0.5", ""]
        assert rows[2]["reason"] == "disk | on\nfire"

    def test_show_as_markdown(self, run_cli: Run, store: ResultsStore):
        code, out, _ = run_cli("results", "show", "--store", store.path, "--format", "md")
        lines = out.splitlines()
        assert code == 0 and len(lines) == 5
        assert all(line.startswith("|") and line.endswith("|") for line in lines)
        assert "point.default.2" in lines[4] and "failed" in lines[4]

    def test_show_as_a_table(self, run_cli: Run, store: ResultsStore):
        code, out, _ = run_cli("results", "show", "--store", store.path)
        assert code == 0
        assert "point.default.1" in out and "not_steady" in out

    def test_show_by_point(self, run_cli: Run, store: ResultsStore):
        out = run_cli("results", "show", "--store", store.path, "--by", "point", "--format", "json")[1]
        first, second = json.loads(out)
        assert (first["samples_per_s"], first["samples_per_s_min"], first["repeats"]) == (102.0, 100.0, 2)
        assert (second["status"], second["repeats_failed"]) == ("failed", 1)

    def test_query(self, run_cli: Run, store: ResultsStore):
        query = "select status, count(*) as n from trials group by status order by n desc"
        out = run_cli("results", "query", query, "--store", store.path, "--format", "json")[1]
        assert json.loads(out) == [{"status": "ok", "n": 2}, {"status": "failed", "n": 1}]
        out = run_cli("results", "query", query, "--store", store.path, "--format", "csv")[1]
        assert out == "status,n\nok,2\nfailed,1\n"

    def test_query_prints_nulls_as_other_tables_do(self, run_cli: Run, store: ResultsStore):
        out = run_cli("results", "query", "select null as x, 1 as y", "--store", store.path, "--format", "md")[1]
        assert "None" not in out

    def test_report_as_markdown(self, run_cli: Run, store: ResultsStore):
        code, out, err = run_cli("report", "--store", store.path, "--format", "md")
        assert (code, err) == (0, "")
        assert out.startswith("## Why so slow?")
        assert "files (doubtful: the rate changed while it was measured): It is limited by storage." in out
        assert "trust: 2 of 3 trials ok" in out
        assert any("tar" in line and "failed" in line and "disk" in line for line in out.splitlines())

    def test_report_as_json(self, run_cli: Run, store: ResultsStore):
        code, out, _ = run_cli("report", "--store", store.path, "--format", "json")
        assert code == 0
        assert [row["status"] for row in json.loads(out)] == ["ok", "ok", "failed"]

    def test_report_as_an_object(self, run_cli: Run, store: ResultsStore, tmp_path: Path):
        """What the Markdown says, and every field."""
        code, out, err = run_cli("report", "--store", store.path, "--json", tmp_path / "report.json")
        assert (out, err) == ("", f"written: {tmp_path / 'report.json'}\n")
        text = run_cli("report", "--store", store.path, "--format", "md")[1]
        (section,) = (found := json.loads((tmp_path / "report.json").read_text()))["sections"]
        assert code == 0
        assert [row["status"] for row in section["trials"]] == ["ok", "ok", "failed"]
        assert [(row["label"], row["samples_per_s"]) for row in section["points"]] == [("files", 102.0), ("tar", None)]
        assert (section["sweep"], section["session"], section["title"]) == ("made", "default", "Why so slow?")
        assert section["answer"] in text and section["answer"].startswith("files")
        assert section["trust"] in text and "2 of 3 trials ok" in section["trust"]
        assert section["failures"] == ["failed: tar: disk | on\nfire"]
        assert found["environments"]["host"] == ["here"] and found["scaling"] == found["predicted"] == []
        assert found["commands"] == {"made": ["benchsuite sweep made.yaml --session default"]}

    def test_an_object_has_efficiencies_and_predictions(self, run_cli: Run, tmp_path: Path):
        store = ResultsStore(tmp_path / "scaled")
        for record in made_trials({1: [100.0, 100.0], 2: [160.0, 160.0]}):
            store.append(record)
        run_cli("report", "--store", store.path, "--json", tmp_path / "report.json")
        found = json.loads((tmp_path / "report.json").read_text(), parse_constant=pytest.fail)
        (series,) = found["scaling"]
        assert [point["weak_efficiency"] for point in series["points"]] == [1.0, 0.8]
        assert found["predicted"][0]["points"][-1]["ranks"] > 2
        assert len(found["sections"][0]["trials"]) == 4

    def test_sessions_of_a_report_are_apart(self, run_cli: Run, tmp_path: Path):
        store = ResultsStore(tmp_path / "two")
        for number, session in enumerate(("mon", "tue")):
            store.append(made_record(number, trial_id=session, session=session, question="Why?"))
        lines = run_cli("report", "--store", store.path)[1].splitlines()
        second = lines.index("Why? (session tue)")
        assert lines[0] == "Why? (session mon)" and lines[second - 1] == ""
        assert lines.count("") == 1 and all(line == line.rstrip() for line in lines)

    def test_report_as_a_table(self, run_cli: Run, store: ResultsStore):
        code, out, _ = run_cli("report", "--store", store.path)
        assert code == 0
        assert out.startswith("Why so slow?\n-> files")
