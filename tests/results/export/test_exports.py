"""Exports for other programs, read back by programs that are not ours: CSV, Parquet, JUnit XML, Prometheus text."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import duckdb
import pandas as pd
import pytest
from junitparser import Failure, JUnitXml, Skipped
from prometheus_client.parser import text_string_to_metric_families

from benchsuite.results.export.junit import junit
from benchsuite.results.export.prometheus import metric_name, prometheus, write_textfile
from benchsuite.results.export.tables import csv_text, write_parquet
from benchsuite.results.gate import baseline
from benchsuite.results.render.tables import Row, rows
from benchsuite.results.store.frames import IN_WORDS, by_point, record_frame
from benchsuite.results.store.record import TrialFigures, TrialRecord
from benchsuite.results.store.store import StoreError
from tests.results.made import made_record
from tests.results.nightly import fill, night_name

LOST = {
    "status": "failed",
    "reason": "disk | <on>\nfire & \x1b[31mred\x1b[0m \x00\ud800",
    "figures": {},
    "phase": "load",
}


def frame(*records: TrialRecord) -> pd.DataFrame:
    return record_frame(list(records))


def rows_of(*records: TrialRecord) -> list[Row]:
    return [*rows(frame(*records))]


def lost(number: int = 1, **changes: Any) -> TrialRecord:
    """A trial without a result, of a point of its own; texts as they may come from a log."""
    return made_record(number, **({**LOST, "point_id": "other", "label": "tar"} | changes))


class TestCsv:
    def test_values_come_back(self):
        first = made_record(0, figures={"samples_per_s": 100.25, "au": 0.0}, caveats=["a", "b"], label='wds, "x"')
        got = [*csv.DictReader(io.StringIO(csv_text(frame(first, made_record(1, reason="two\nlines")))))]
        assert [float(got[0]["samples_per_s"]), float(got[0]["au"])] == [100.25, 0.0]
        assert (got[0]["label"], json.loads(got[0]["caveats"])) == ('wds, "x"', ["a", "b"])
        assert got[1]["reason"] == "two\nlines"
        assert got[1]["au"] == "" and got[1]["mfu"] == "", "missing is empty, not zero"

    def test_every_column_is_there(self):
        one = frame(made_record())
        assert csv_text(one).splitlines()[0].split(",") == [*one.columns]


class TestParquet:
    def test_types_and_values(self, tmp_path: Path):
        devices = [{"name": "H100", "driver": "570"}]
        env = {"host": "here", "devices": devices, "cores": 2}
        trials = (made_record(0, caveats=["a", "b"], env=env, figures={"au": 0.5}), lost(1, reason="why"))
        write_parquet(frame(*trials), tmp_path / "t.parquet")
        types = {name: kind for name, kind, *_ in duckdb.sql(f"DESCRIBE FROM '{tmp_path}/t.parquet'").fetchall()}
        assert types["au"] == types["mfu"] == "DOUBLE" and types["repeat"] == types["env.cores"] == "BIGINT"
        assert (types["caveats"], types["label"], types["env.devices"]) == ("VARCHAR[]", "VARCHAR", "VARCHAR")
        names = 'au, mfu, caveats, "env.devices", reason, "env.libraries.torch"'
        first, second = duckdb.sql(f"SELECT {names} FROM '{tmp_path}/t.parquet' ORDER BY repeat").fetchall()
        assert first[:3] == (0.5, None, ["a", "b"]) and json.loads(first[3]) == devices and first[4] is None
        assert second == (None, None, [], "[]", "why", "2.13.0")

    def test_points_have_their_ranges(self, tmp_path: Path):
        trials = [made_record(n, figures={"samples_per_s": rate}) for n, rate in enumerate([90.0, 100.0, 104.0])]
        points = by_point(frame(*trials))
        write_parquet(points, tmp_path / "p.parquet")
        columns = "samples_per_s, samples_per_s_min, samples_per_s_max, samples_per_s_low, repeats, unstable"
        assert duckdb.sql(f"SELECT {columns} FROM '{tmp_path}/p.parquet'").fetchall() == [(100, 90, 104, None, 3, True)]

    def test_a_file_that_cannot_be_written_leaves_nothing(self, tmp_path: Path):
        with pytest.raises(StoreError, match=r"gone/t\.parquet: cannot be written: [^\n]*$"):
            write_parquet(frame(made_record()), tmp_path / "gone" / "t.parquet")
        (tmp_path / "folder.parquet").mkdir()
        with pytest.raises(StoreError, match=r"folder\.parquet: cannot be written"):
            write_parquet(frame(made_record()), tmp_path / "folder.parquet")
        assert [path.name for path in tmp_path.iterdir()] == ["folder.parquet"]


def checked(text: str) -> ElementTree.Element:
    """The document, if it keeps the rules of Ant's schema: order and number of elements, attributes, their patterns."""
    root = ElementTree.fromstring(text)
    assert root.tag == "testsuites" and root.attrib == {}
    for number, suite in enumerate(root):
        cases = suite.findall("testcase")
        assert [child.tag for child in suite] == ["properties", *["testcase"] * len(cases), "system-out", "system-err"]
        required = {"name", "package", "id", "timestamp", "hostname", "tests", "failures", "errors", "skipped", "time"}
        assert {*suite.attrib} == required and all(suite.attrib.values())
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.attrib["timestamp"])
        counts = [int(suite.attrib[name]) for name in ("id", "tests", "failures", "errors", "skipped")]
        found = [len(cases), len(suite.findall("testcase/failure")), 0, len(suite.findall("testcase/skipped"))]
        assert counts == [number, *found]
        for case in cases:
            assert {*case.attrib} == {"name", "classname", "time"} and re.fullmatch(r"\d+\.\d+", case.attrib["time"])
            assert [child.tag for child in case] in ([], ["failure"], ["skipped"])
        assert all({*entry.attrib} == {"name", "value"} for entry in suite.findall("properties/property"))
        assert all(entry.attrib["type"] for entry in suite.findall("testcase/failure"))
    return root


class TestJunit:
    def test_a_case_per_trial(self):
        trials = rows_of(
            made_record(0, wall_s=1.5, figures={"samples_per_s": 100.0, "au": 0.5}, caveats=["not_steady"]),
            lost(1, wall_s=2.25),
            lost(2, status="oom", reason="out of memory"),
            lost(3, status="timeout", reason=None),
            lost(4, status="skipped", reason="dp(2) * tp(3) != 4"),
            lost(5, status="interrupted", reason="Ctrl-C"),
        )
        root = checked(junit(trials))
        (suite,) = JUnitXml.fromstring(junit(trials).encode())
        cases = [*suite]
        assert (suite.tests, suite.failures, suite.skipped, suite.errors) == (6, 3, 2, 0)
        assert (suite.name, suite.hostname, suite.timestamp) == ("made (default)", "here", "2026-01-01T00:00:00")
        assert [case.name for case in cases[:2]] == ["files repeat 0", "tar repeat 1"]
        assert [case.classname for case in cases] == ["benchsuite.made"] * 6
        assert [case.time for case in cases[:2]] == [1.5, 2.25] and suite.time == 3.75
        results = [case.result for case in cases]
        assert results[0] == [] and [type(found) for (found,) in results[1:]] == [Failure] * 3 + [Skipped] * 2
        assert [found.type for (found,) in results[1:4]] == ["failed", "oom", "timeout"]
        assert [found.message for (found,) in results[2:]] == [
            "out of memory",
            "no reason was recorded",
            "dp(2) * tp(3) != 4",
            "interrupted: Ctrl-C",
        ]
        assert "files repeat 0: ok, AU 0.500, 100 samples/s, caveats not_steady" in root[0].findtext("system-out", "")
        assert {p.name: p.value for p in suite.properties()}["libraries.torch"] == "2.13.0"

    def test_what_xml_cannot_hold_is_dropped_and_the_rest_comes_back(self):
        (failure,) = checked(junit(rows_of(lost()))).findall("testsuite/testcase/failure")
        assert failure.get("message") == "disk | <on>"
        assert failure.text == "disk | <on>\nfire & red \nlast phase: load\ntrial: point.default.1"

    def test_suites_are_sweeps_and_sessions_and_names_hold_over_sessions(self):
        sessions = [made_record(n, session=name, repeat=0) for n, name in enumerate(["mon", "tue"])]
        root = checked(junit(rows_of(*sessions, made_record(2, sweep="other"))))
        assert [suite.get("name") for suite in root] == ["made (mon)", "made (tue)", "other (default)"]
        names = [(case.get("classname"), case.get("name")) for case in root.iter("testcase")]
        assert names[0] == names[1] == ("benchsuite.made", "files repeat 0") and names[2][0] == "benchsuite.other"

    def test_points_of_one_label_are_told_apart(self):
        root = checked(junit(rows_of(made_record(0), made_record(1, point_id="other", repeat=0))))
        names = [case.get("name") for case in root.iter("testcase")]
        assert names == ["files [point] repeat 0", "files [other] repeat 0"]

    def test_a_trial_without_a_duration_took_from_its_begin_to_its_end(self):
        times = {"started_at": "2026-01-01T00:00:01+00:00", "finished_at": "2026-01-01T00:00:03.500000+00:00"}
        (case,) = checked(junit(rows_of(made_record(0, **times)))).iter("testcase")
        assert case.get("time") == "2.5"

    def test_regressions_are_failures(self, tmp_path: Path):
        def change(night: int, point: int) -> dict[str, Any]:
            return {"slower": 0.2} if night >= 33 and point == 1 else {}

        store = fill(tmp_path, 36, num_points=3, change=change)
        baseline.set_baseline(store, dates=f"{night_name(0)}..{night_name(29)}")
        last = [row for row in rows(store.frame()) if row["session"] == night_name(35)]
        suites = [*JUnitXml.fromroot(checked(junit(last, baseline.check(store))))]
        assert [(suite.tests, suite.failures) for suite in suites] == [(9, 0), (1, 1)]
        (case,) = suites[1]
        (failure,) = case.result
        assert (case.name, case.classname, failure.type) == ("point 1: samples_per_s", "benchsuite.check", "regression")
        assert failure.message.startswith("point 1: samples_per_s ") and f"since {night_name(33)}" in failure.message
        assert "likely layer: input" in failure.text

    def test_no_regression_is_a_case_that_passes(self, tmp_path: Path):
        store = fill(tmp_path, 30, num_points=2)
        baseline.set_baseline(store, dates=f"{night_name(0)}..{night_name(20)}")
        (suite,) = JUnitXml.fromroot(checked(junit([], baseline.check(store))))
        assert [(case.name, bool(case.result)) for case in suite] == [("no regression", False)]

    def test_nothing_judged_is_no_case_that_passes(self, tmp_path: Path):
        store = fill(tmp_path, 4, num_points=2)
        baseline.set_baseline(store, sessions=[night_name(0)])
        (suite,) = JUnitXml.fromroot(checked(junit([], baseline.check(store))))
        assert [case.name for case in suite] == ["no regression", "point 0 (has 1)", "point 1 (has 1)"]
        assert suite.failures == 0 and suite.skipped == 3


def parsed(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """Values by metric and (point, status or caveat), as Prometheus' own parser reads them."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        assert family.type == "gauge" and family.documentation
        for sample in family.samples:
            extra = [sample.labels[name] for name in ("status", "caveat") if name in sample.labels]
            key = (sample.labels["point"], *extra)
            assert key not in found.setdefault(sample.name, {}), "a series is told once"
            found[sample.name][key] = sample.value
    return found


class TestPrometheus:
    def test_the_newest_session_of_every_point(self):
        old = [made_record(n, figures={"samples_per_s": 50.0, "step_s_mean": 9.0}) for n in range(3)]
        new = [
            made_record(10 + n, session="new", figures={"samples_per_s": rate, "au": 0.0}, caveats=["not_steady"])
            for n, rate in enumerate([100.0, 300.0, 110.0])
        ]
        got = parsed(prometheus(rows_of(*new, *old, lost(20), made_record(21, session="new", **LOST))))
        assert got["benchsuite_samples_per_second"] == {("files",): 110.0}
        assert got["benchsuite_accelerator_utilization_ratio"] == {("files",): 0.0}
        assert "benchsuite_step_mean_seconds" not in got, "what the newest session lacks is not told from an older one"
        counts = got["benchsuite_trials"]
        assert (counts["files", "ok"], counts["files", "failed"], counts["tar", "failed"]) == (3, 1, 1)
        assert sum(counts.values()) == 5 and len(counts) == 14
        assert got["benchsuite_caveat_trials"] == {("files", "not_steady"): 3}
        ended = pd.Timestamp("2026-01-01T00:00:21Z").timestamp()
        assert got["benchsuite_last_finished_timestamp_seconds"]["files",] == ended

    def test_a_training_that_goes_on_is_told_alone(self):
        ended = [made_record(n, figures={"samples_per_s": 50.0}) for n in range(3)]
        (running,) = rows_of(made_record(1, figures={"samples_per_s": 80.0}))
        got = parsed(prometheus([*rows_of(*ended), {**running, "status": "running"}]))
        assert got["benchsuite_samples_per_second"] == {("files",): 80.0}
        counts = got["benchsuite_trials"]
        assert (counts["files", "running"], sum(counts.values())) == (1, 1)

    def test_what_a_point_is(self):
        text = prometheus(rows_of(made_record(0, figures={"bottleneck": "storage"})))
        (family,) = [f for f in text_string_to_metric_families(text) if f.name == "benchsuite_point_info"]
        labels = family.samples[0].labels
        assert (labels["session"], labels["bottleneck"], labels["cache"], labels["host"]) == (
            *("default", "storage"),
            *("cold", "here"),
        )
        assert labels["workload"] == "resnet50" and "commit" not in labels, "no label for what is not known"

    def test_settings_tell_points_apart_in_every_series(self):
        """Points of one label, sweep and workload that differ in one setting each."""
        base = {"workload": "bert", "variant": "tiny", "precision": "fp32", "parallelism": "ddp", "world_size": 2}
        base |= {"batch_size": 8, "global_batch_size": None, "device": "cpu"}
        data = {"source": "storage", "format": "files", "loader": "torch", "cache": "cold", "staging": "none"}
        changes = [{}, {"variant": "base"}, {"precision": "bf16"}, {"world_size": 4}, {"batch_size": 16}]
        changes += [{"batch_size": None, "global_batch_size": 16}, {"parallelism": {"dp": 1, "tp": 2}}]
        changes += [{"device": "cuda"}]
        specs = [{**base, **change, "data": data} for change in changes]
        more = {"format": "hdf5"}, {"loader": "dali"}, {"cache": "warm"}, {"staging": "copy"}, {"source": "synthetic"}
        specs += [{**base, "data": {**data, **change}} for change in more]
        trials = [made_record(n, point_id=f"p{n}", trial_id=f"t{n}", spec=spec) for n, spec in enumerate(specs)]
        text = prometheus(rows_of(*trials))
        (family,) = [f for f in text_string_to_metric_families(text) if f.name == "benchsuite_samples_per_second"]
        told = [{k: v for k, v in sample.labels.items() if k != "point_id"} for sample in family.samples]
        assert len({tuple(sorted(labels.items())) for labels in told}) == len(specs) == 13
        assert told[0]["world_size"] == "2" and told[0]["batch_size"] == "8", "whole, though others lack it"
        assert (told[6]["parallelism"], "batch_size" in told[5]) == ("tp 2", False)
        assert "format" not in told[12] and "loader" not in told[12], "nothing is read"

    def test_no_series_and_no_heading_twice(self):
        """Points of one label; one of them in two sweeps and two sessions."""
        trials = [made_record(n, point_id=f"p{n % 3}", sweep=f"s{n % 2}", session=f"n{n % 2}") for n in range(12)]
        lines = prometheus(rows_of(*trials)).splitlines()
        series = [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]
        headings = [line.split()[1:3] for line in lines if line.startswith("#")]
        assert len({*series}) == len(series) and len({*map(tuple, headings)}) == len(headings)
        for kind in ("HELP", "TYPE"):
            assert [name for found, name in headings if found == kind] == list(
                dict.fromkeys(line.partition("{")[0] for line in series)
            ), "each metric is headed once, and its series stand together"

    def test_what_no_label_can_hold_is_replaced(self, tmp_path: Path):
        text = prometheus(rows_of(made_record(0, label="a\x00b\x1b[31m\rc\ud800\td")))
        (key,) = parsed(text)["benchsuite_samples_per_second"]
        assert key == ("a\ufffdb\ufffd[31m\ufffdc\ufffd\td",)
        assert write_textfile(text, tmp_path).read_text() == text

    def test_labels_come_back_as_they_were(self):
        label = 'a "b" \\n \\ c\nd {e="f"} · ü'
        got = parsed(prometheus(rows_of(made_record(0, label=label))))
        assert got["benchsuite_samples_per_second"] == {(label,): 100.0}

    def test_values_come_back(self):
        figures = {"samples_per_s": 1 / 3, "io_bytes_per_s": 1e18, "tflops_per_device": 1.5}
        row = {**rows_of(made_record(0, figures=figures))[0], "final_loss": float("inf")}
        got = parsed(prometheus([row]))
        values = [got[f"benchsuite_{name}"]["files",] for name in ("samples_per_second", "io_bytes_per_second")]
        assert values == [1 / 3, 1e18]
        assert got["benchsuite_device_flops_per_second"]["files",] == 1.5e12
        assert got["benchsuite_final_loss"]["files",] == float("inf")

    @pytest.mark.parametrize(
        ("figure", "name"),
        [
            ("load_s", "load_seconds"),
            ("step_s_p95", "step_p95_seconds"),
            ("io_bytes_per_s", "io_bytes_per_second"),
            ("read_cpu_s_per_sample", "read_cpu_seconds_per_sample"),
            ("energy_j", "energy_joules"),
            ("cache_hit_fraction", "cache_hit_ratio"),
            ("peak_memory_bytes", "peak_memory_bytes"),
            ("mfu", "model_flops_utilization_ratio"),
        ],
    )
    def test_names_carry_base_units(self, figure: str, name: str):
        assert metric_name(figure) == f"benchsuite_{name}"

    def test_names_of_all_figures(self):
        names = [metric_name(figure) for figure in TrialFigures.model_fields if figure not in IN_WORDS]
        assert len({*names}) == len(names)
        abbreviated = re.compile(r"_(s|ms|j|fraction|tflops|total|count|sum|bucket|info)(_|$)")
        assert [name for name in names if abbreviated.search(name) or not re.fullmatch("[a-z][a-z0-9_]*", name)] == []


class TestTextfile:
    def test_a_folder_gets_a_file_and_nothing_else(self, tmp_path: Path):
        assert write_textfile("a 1\n", tmp_path) == tmp_path / "benchsuite.prom"
        (tmp_path / "benchsuite.prom").chmod(0o644)
        write_textfile("a 2\n", tmp_path / "benchsuite.prom")
        assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("benchsuite.prom", "a 2\n")]

    def test_readers_of_the_old_file_keep_the_old_content(self, tmp_path: Path):
        """Written by rename: an open file is another file afterwards."""
        path = write_textfile("a 1\n", tmp_path)
        with path.open() as reader:
            write_textfile("a 2\na 3\n", tmp_path)
            assert reader.read() == "a 1\n"

    def test_a_name_that_a_node_exporter_passes_over(self, tmp_path: Path):
        with pytest.raises(StoreError, match=r"out\.txt: a node exporter reads only \*\.prom: .*/out\.prom$"):
            write_textfile("", tmp_path / "out.txt")

    def test_a_name_that_may_be_a_folder(self, tmp_path: Path):
        said = r"prom: no such folder; create it, or name FILE\.prom: .*/prom\.prom$"
        with pytest.raises(StoreError, match=said):
            write_textfile("", tmp_path / "prom")
        (tmp_path / "prom").write_text("")
        with pytest.raises(StoreError, match=r"prom: a node exporter reads only \*\.prom"):
            write_textfile("", tmp_path / "prom")

    def test_a_folder_that_is_not_there(self, tmp_path: Path):
        with pytest.raises(StoreError, match=r"gone/a\.prom: cannot be written: No such file"):
            write_textfile("", tmp_path / "gone" / "a.prom")
