"""`benchsuite probe`: what a user types and sees, and that its records stay apart from trials."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchsuite.contract.errors import UserError
from benchsuite.contract.units import parse_bytes
from benchsuite.probe import storage as probing
from benchsuite.results.store.store import ResultsStore
from benchsuite.storage.rawspeed.probe import Cell, NameCell, Probe
from tests.cli.test_app import Run, error_line, in_folder
from tests.helpers.snapshots import compare_messages
from tests.results.made import made_record
from tests.storage.samples import file_system

__all__ = ["in_folder"]
QUICK = ("--size", "2MiB", "--seconds", "0.03", "--block", "4KiB,64KiB", "--depth", "1,2", "--engine", "own")
ENDLESS = ("inf", "nan", "1e+300")
STATE = ("--workload", "gpt_neox", "--variant", "nano", "--repeats", "2")


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    folder = tmp_path / "disk"
    folder.mkdir()
    return folder


class TestStorage:
    def test_a_sentence_two_tables_and_what_they_rest_on(self, run_cli: Run, disk: Path):
        code, out, err = run_cli("probe", "storage", disk, *QUICK)
        assert code == 0 and err.startswith(f"probing {disk} (measurements): ") and err.count("\n") == 4
        assert out.startswith(f"-> {disk} gives ") and "B/s sequentially" in out and "opens/s." in out
        assert "random 64 KiB" in out and "open + stat" in out
        assert f"trust: {file_system(disk)}, read " in out
        assert list(disk.iterdir()) == []

    def test_its_record(self, run_cli: Run, disk: Path, tmp_path: Path):
        store = tmp_path / "store"
        for _ in range(2):
            code, out, _ = run_cli("probe", "storage", disk, *QUICK, "--store", store, "--format", "json")
            assert code == 0
        printed = json.loads(out)
        records = ResultsStore(store).records()
        assert [(record.kind, record.status, record.repeat) for record in records] == [
            ("probe", "ok", 0),
            ("probe", "ok", 1),
        ]
        assert len({record.point_id for record in records}) == 1 and len({record.trial_id for record in records}) == 2
        last = records[-1]
        assert printed["record_id"] == last.record_id
        assert last.spec["path"] == str(disk) and last.spec["blocks"] == [4096, 65536] and last.spec["engine"] == "own"
        assert last.env["data"]["file_system"] == file_system(disk)
        samples = ResultsStore(store).samples(last)
        assert samples is not None and samples["cells"] == printed["samples"]["cells"]
        assert len(samples["cells"]) == 8 and all(len(cell["bytes_per_s"]) == 3 for cell in samples["cells"])
        best = max(sorted(cell["bytes_per_s"])[1] for cell in samples["cells"] if cell["pattern"] == "sequential")
        assert last.figures.storage_ceiling_bytes_per_s == best
        assert last.figures.opens_per_s and last.figures.random_reads_per_s and last.figures.samples_per_s is None

    def test_mistakes_are_one_line(self, run_cli: Run) -> None:
        cases = [
            ("gone",),
            (".", "--size", "big"),
            (".", "--block", "4KiB,1 parsec"),
            (".", "--depth", "1,two"),
            (".", "--block", "1000"),
            (".", "--size", "1MB"),
            (".", "--size", "900TB"),
            (".", "--seconds", "0"),
            *((".", "--seconds", word) for word in ENDLESS),
            (".", "--engine", "dd"),
            (".", "--session", "a b"),
            ("/sys", "--size", "1GB"),
        ]
        masks = {r"\S+(: needs 900 TB .* has ).* free": r"FOLDER\1... free", r"(/sys: ).*": r"\1(why)"}
        compare_messages(
            "probe_storage", cases, lambda *arguments: error_line(run_cli, "probe", "storage", *arguments), masks
        )

    def test_a_store_that_cannot_be_written_is_said_first(self, run_cli: Run, disk: Path, tmp_path: Path):
        (tmp_path / "file").touch()
        line = error_line(run_cli, "probe", "storage", disk, "--store", tmp_path / "file" / "store")
        assert "cannot be written" in line

    def test_sigterm_leaves_nothing_and_asks_to_be_requeued(self, disk: Path):
        code = "from benchsuite.cli.app import main; import sys\n"
        code += f"sys.argv[1:] = ['probe', 'storage', {str(disk)!r}]; main()"
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not list(disk.glob(".*/data")) and time.monotonic() < deadline:
            time.sleep(0.01)
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 75
        assert list(disk.iterdir()) == []


def made_probe(**changes: Any) -> Probe:
    cells = (
        Cell("sequential", 1 << 20, 1, (2e9, 2.2e9, 1.5e9), (0.0, 0.0, 0.0), (0.1, 0.1, 0.1)),
        Cell("random", 4096, 16, (2e8, 2e8, 3e8), (0.0, 0.0, 0.0), (0.4, 0.9, 0.8)),
    )
    fields: dict[str, Any] = {"access": "direct", "engine": "own", "size_bytes": 10**9, "cells": cells}
    names = tuple(NameCell(operation, 1, (1000.0, 2000.0, 2500.0)) for operation in ("create", "open", "unlink"))
    return Probe(Path("/data"), **(fields | changes), names=names)


class TestWords:
    def test_sentence(self):
        assert probing.sentence(made_probe()) == (
            "/data gives 2.00 ±0.50 GB/s sequentially (1 MiB x 1), 0.20 ±0.10 GB/s at random (4 KiB x 16), "
            "48,828 ±24,414 random reads/s (4 KiB x 16), 2,000 ±1,000 opens/s."
        )

    def test_what_that_is_in_images(self):
        """2e9 and 2e8 bytes/s, 2,000 opens/s: reads at random are the lower bound, or the opens."""
        said = (
            "That is 18,182 images/s of 110 KB (ImageNet's mean) from shards, and at most {} images/s from a file each"
        )
        assert probing.for_images(made_probe()).startswith(said.format("1,818") + " (opens, and random reads of 4 KiB")
        cells = tuple(Cell(pattern, 128 << 10, 1, (2e9,)) for pattern in ("sequential", "random"))
        assert probing.for_images(made_probe(cells=cells)).startswith(said.format("2,000"))

    def test_slow_paths_are_told_in_megabytes(self):
        cells = tuple(Cell(pattern, 4096, 1, (3e6, 2.5e6, 3.1e6)) for pattern in ("sequential", "random"))
        said = probing.sentence(made_probe(cells=cells))
        assert "gives 3.0 ±0.5 MB/s sequentially (4 KiB x 1), 3.0 ±0.5 MB/s at random" in said

    def test_what_others_do_and_rounds_far_apart_are_caveats(self, monkeypatch: pytest.MonkeyPatch):
        """Of 2 read cells and 3 of names, the one read of 232 MB/s had a round at 942."""
        cells = (
            Cell("sequential", 64 << 10, 4, (232e6, 942e6, 200e6)),
            Cell("random", 4096, 1, (1e6, 1.4e6, 0.6e6)),
        )
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
        assert probing.caveats(made_probe(cells=cells), "ext4", 1.94) == [
            "foreign_load: other processes kept 1.9 of 2 cores busy",
            "not_steady: in 1 of 5 cells a round lies more than 50% from the median, in sequential 64 KiB x 4 306%",
        ]
        assert probing.caveats(made_probe(cells=cells[1:]), "ext4", 0.3) == []
        assert probing.figures(made_probe(), 1.94).foreign_cpu_cores == 1.94

    def test_a_cell_that_our_own_reader_may_limit_is_marked(self):
        (detail,) = probing.caveats(made_probe(), "ext4")
        assert detail.startswith("engine_bound: in 1 of 2 cells (~)")

    def test_caches(self):
        cells = tuple(Cell("random", 4096, 1, (1.0,), (resident,)) for resident in (0.0, 0.3))
        (detail,) = probing.caveats(made_probe(access="buffered", cells=cells), "ext4")
        assert detail.startswith("not_cold: up to 30%")
        (detail,) = probing.caveats(made_probe(access="buffered", cells=cells[:1]), "gpfs")
        assert detail.startswith("cache_unverified:")
        assert probing.caveats(made_probe(access="buffered", cells=cells[:1]), "ext4") == []
        (detail,) = probing.caveats(made_probe(access="memory", cells=cells), "tmpfs")
        assert detail == "not_cold: tmpfs is memory: nothing was read from storage"

    def test_rates_from_memory_are_no_storage_figures(self):
        found = probing.figures(made_probe(access="memory"))
        assert (found.storage_ceiling_bytes_per_s, found.random_read_bytes_per_s) == (None, None)
        assert (found.random_reads_per_s, found.opens_per_s) == (None, 2000)
        assert probing.figures(made_probe()).storage_ceiling_bytes_per_s == 2e9

    @pytest.mark.parametrize(
        ("text", "size"), [("4096", 4096), ("4KiB", 4096), ("1 gb", 10**9), ("1.5MiB", 3 << 19), ("2TB", 2 * 10**12)]
    )
    def test_sizes(self, text: str, size: int):
        assert parse_bytes(text, "--size") == size

    @pytest.mark.parametrize("text", ["", "-1", "1GX", "GB", "1e9"])
    def test_no_sizes(self, text: str):
        with pytest.raises(UserError, match="not a size"):
            parse_bytes(text, "--size")


class TestKindsApart:
    @pytest.fixture
    def store(self, tmp_path: Path) -> ResultsStore:
        """A trial, two probes of one path, and a checkpoint."""
        store = ResultsStore(tmp_path / "store")
        store.append(made_record(0))
        for number, rate in enumerate([1e9, 3e9]):
            figures = {"storage_ceiling_bytes_per_s": rate, "opens_per_s": 5.0}
            spec = {"path": "/data", "engine": "own"}
            store.append(made_record(number + 10, kind="probe", point_id="p", spec=spec, figures=figures))
        figures = {"checkpoint_write_bytes_per_s": 2e9, "checkpoint_bytes": 4_000_000}
        spec = {"path": "/data", "mode": "async", "workload": "bert", "variant": "tiny"}
        store.append(made_record(20, kind="checkpoint", point_id="c", spec=spec, figures=figures))
        return store

    def test_frames(self, store: ResultsStore):
        assert list(store.frame()["kind"]) == ["trial"]
        assert list(store.frame(kind="probe")["storage_ceiling_bytes_per_s"]) == [1e9, 3e9]
        by_point = store.frame(by="point", kind="probe")
        assert list(by_point["storage_ceiling_bytes_per_s"]) == [2e9] and list(by_point["repeats"]) == [2]
        assert list(store.frame(kind="checkpoint")["spec.mode"]) == ["async"]
        assert store.frame(kind="comm").empty

    def test_show(self, run_cli: Run, store: ResultsStore):
        _, out, _ = run_cli("results", "show", "--store", store.path, "--format", "csv")
        assert out.count("\n") == 2 and ",probe," not in out
        _, out, _ = run_cli("results", "show", "--store", store.path, "--kind", "probe", "--by", "point")
        assert "/data" in out and "2000 ±1000" in out and "opens/s" in out
        _, out, _ = run_cli("results", "show", "--store", store.path, "--kind", "checkpoint")
        assert "bert tiny" in out and "async" in out and "2000" in out
        line = error_line(run_cli, "results", "show", "--store", store.path, "--kind", "prob")
        assert "nearest: probe; allowed: trial, probe, comm, checkpoint" in line

    @pytest.mark.parametrize("format", ["table", "md", "json"])
    def test_report_is_of_trials(self, run_cli: Run, store: ResultsStore, format: str):
        code, out, _ = run_cli("report", "--store", store.path, "--format", format)
        assert code == 0 and "/data" not in out and "files" in out

    def test_report_without_trials(self, run_cli: Run, tmp_path: Path):
        store = ResultsStore(tmp_path / "probes")
        store.append(made_record(1, kind="probe", spec={"path": "/data"}))
        said = f"no trials in {store.path} yet; it has other records: "
        said += f"`benchsuite results show --kind probe --store {store.path}`\n"
        assert run_cli("report", "--store", store.path) == (0, said, "")
        assert run_cli("report", "--store", store.path, "--redact") == (0, said, ""), "the path that was given"
        for option, out in (("--html", tmp_path / "x.html"), ("--json", tmp_path / "x.json")):
            code, _, err = run_cli("report", "--store", store.path, option, out)
            assert code == 0 and out.exists() and err.endswith(said)

    def test_query_is_of_trials(self, run_cli: Run, store: ResultsStore):
        _, out, _ = run_cli(
            "results", "query", "select count(*) as n from trials", "--store", store.path, "--format", "json"
        )
        assert json.loads(out) == [{"n": 1}]


class TestCheckpoint:
    def test_printed_and_kept(self, run_cli: Run, disk: Path, tmp_path: Path):
        store = tmp_path / "store"
        asked = (*STATE, "--world-size", 2, "--save", "async", "--store", store)
        code, out, err = run_cli("probe", "checkpoint", disk, *asked)
        assert code == 0 and err.startswith(f"written: {store} · next: benchsuite results show --kind checkpoint")
        assert out.startswith("-> gpt_neox nano, adamw, fsdp on 2 ranks, async: ") and "training waits" in out
        assert "while it is written" in out and "2 of 2 read back equal in every value" in out
        (record,) = ResultsStore(store).records()
        assert (record.kind, record.status, record.spec["mode"]) == ("checkpoint", "ok", "async")
        figures = record.figures
        assert figures.checkpoint_bytes and figures.checkpoint_blocked_s and figures.checkpoint_durable_s
        assert figures.checkpoint_write_bytes_per_s and figures.checkpoint_slowdown
        samples = ResultsStore(store).samples(record)
        assert samples is not None and len(samples["ranks"]) == 2 and len(samples["checkpoints"]) == 2
        assert list(disk.iterdir()) == []

    def test_mistakes_are_one_line(self, run_cli: Run) -> None:
        cases = [
            ("gone", *STATE),
            (".", *STATE, "--parallelism", "zero1", "--world-size", "2"),
            (".", *STATE, "--parallelism", "fdsp"),
            (".", *STATE, "--optimizer", "adamx"),
            (".", *STATE, "--save", "both"),
            (".", "--workload", "gpt_neox", "--variant", "micro"),
            ("/sys", *STATE),
        ]
        compare_messages(
            "probe_checkpoint",
            cases,
            lambda *arguments: error_line(run_cli, "probe", "checkpoint", *arguments),
            {r"(/sys: ).*": r"\1(why)"},
        )

    def test_too_full_a_disk_is_said_before_anything_runs(
        self, run_cli: Run, disk: Path, monkeypatch: pytest.MonkeyPatch
    ):
        from benchsuite.probe import checkpoint

        monkeypatch.setattr(checkpoint, "needed_bytes", lambda point: 10**18)
        assert "B free" in error_line(run_cli, "probe", "checkpoint", disk, *STATE)
        assert list(disk.iterdir()) == []

    def test_a_read_only_file_system(self, run_cli: Run, disk: Path):
        if os.geteuid() != 0:
            pytest.skip("needs root, to mount one")
        mount = ["mount", "-t", "tmpfs", "-o", "ro,size=200m", "tmpfs", str(disk)]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("a file system cannot be mounted here")
        try:
            for verb in (("checkpoint", disk, *STATE), ("storage", disk, *QUICK)):
                line = error_line(run_cli, "probe", *verb)
                assert f"{disk}: cannot be written: Read-only file system" in line
        finally:
            subprocess.run(["umount", "-l", str(disk)], check=True)

    def test_a_failure_is_an_error_line_and_a_record(
        self, run_cli: Run, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        from benchsuite.probe import checkpoint

        why = ("failed", "rank 1, in phase measure: no space left\nfor it")
        monkeypatch.setattr(checkpoint, "launched", lambda point, request, launcher: ([], why))
        code, out, err = run_cli("probe", "checkpoint", disk, *STATE, "--store", tmp_path / "store")
        assert (code, out, err) == (3, "", "error: rank 1, in phase measure: no space left for it\n")
        (record,) = ResultsStore(tmp_path / "store").records()
        assert (record.status, record.reason, record.figures.checkpoint_bytes) == ("failed", why[1], None)
