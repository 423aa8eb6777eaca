"""The nightly benchmarks under the real asv: a run, an export from batch jobs, another run, and what asv reads."""

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchsuite.cli.data import dataset_request, generate
from benchsuite.contract.errors import UserError
from benchsuite.nightly import measuring
from benchsuite.nightly.measuring import Nightly, nightly_of
from benchsuite.results.export.asv_points import UNITS, Key, key_of
from benchsuite.results.store.store import ResultsStore
from benchsuite.storage.dataset.manifest import read_manifest
from tests.results.made import made_record

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchsuite" / "nightly" / "template" / "benchmarks"
pytest.importorskip("asv", reason="asv is an extra: pip install 'benchsuite[asv]'")


@dataclass(frozen=True)
class Checkout:
    """A repository with asv.conf.json and the benchmarks, and a home of its own."""

    repo: Path
    sweep: Path
    said: dict[str, str] = field(default_factory=dict)
    """What each command printed."""

    def call(self, *command: str, allowed: tuple[int, ...] = (0,)) -> str:
        env = {name: value for name, value in os.environ.items() if not name.startswith("BENCHSUITE_")}
        identity = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        env |= {"HOME": str(self.repo.parent), "BENCHSUITE_NIGHTLY_SWEEP": str(self.sweep), **identity}
        done = subprocess.run(command, cwd=self.repo, env=env, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode in allowed, done.stdout + done.stderr
        return done.stdout.strip()

    def asv(self, *words: str, **options: Any) -> str:
        return self.call(sys.executable, "-m", "asv", *words, **options)

    def asv_run(self, *words: str) -> str:
        """`asv run` as the README has it; 2 says that a benchmark failed."""
        commit = self.call("git", "rev-parse", "HEAD")
        return self.asv("run", "-E", f"existing:{sys.executable}", "--set-commit-hash", commit, *words, allowed=(0, 2))

    def commit(self, name: str) -> str:
        self.call("git", "add", "-A")
        self.call("git", "commit", "-q", "--allow-empty", "-m", name)
        return self.call("git", "rev-parse", "HEAD")

    def results(self, machine: str) -> dict[str, dict[str, Any]]:
        """Results files of a machine, by the start of their name: a commit's 8 digits and the environment's kind."""
        files = (self.repo / ".asv/results" / machine).glob("*-*.json")
        return {path.name[:17]: json.loads(path.read_text())["results"] for path in files}


def values(benchmark: list[Any]) -> dict[tuple[str, ...], Any]:
    """A benchmark's values by format and ranks, from asv's own row of values and parameters; all else is the same."""
    found, (formats, *same, ranks, nodes, other) = benchmark[:2]
    assert all(len(some) == 1 for some in (*same, nodes, other)), same
    keys = [(format.strip("'"), rank) for format in formats for rank in ranks]
    return dict(zip(keys, found or [None] * len(keys), strict=True))


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """Two commits; a sweep whose `files` are whole, `webdataset` is damaged, and `hdf5` is missing."""
    folder = tmp_path_factory.mktemp("nightly")
    repo, data = folder / "repo", folder / "data"
    site = BENCHMARKS.parent
    shutil.copytree(site, repo / site.relative_to(ROOT), ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "asv.conf.json", repo)
    for name in ("files", "webdataset"):
        options = ["shard_samples=8"] if name == "webdataset" else []
        generate(data / name, dataset_request("bert", "tiny", name, options), 64, 1, "jpeg")
    for shard in (data / "webdataset").glob("**/*.tar"):
        shard.unlink()
    settings = {"root": str(data), "num_workers": 0, "cache": "warm", "shuffle_buffer": 1}
    base = {
        "workload": "bert",
        "variant": "tiny",
        "device": "emulated:20ms",
        "parallelism": "ddp",
        "batch_size": 2,
        "threads_per_rank": 1,
        "data": settings,
        "measure": {"steps": 4, "warmup_steps": 1, "repeats": 1, "timeout_s": 60, "ceilings": False},
    }
    grid = {"data.format": ["files", "webdataset", "hdf5"], "world_size": [1, 2]}
    sweep = folder / "site.yaml"
    sweep.write_text(yaml.safe_dump({"name": "site-nightly", "base": base, "grid": grid}))
    made = Checkout(repo, sweep)
    made.call("git", "init", "-q", "-b", "main")
    made.asv("machine", "--yes", "--machine", "here")
    return made


@dataclass(frozen=True)
class Story:
    """What the commits are, and what was there at each step."""

    checkout: Checkout
    older: str
    newer: str
    first_run: dict[str, Any]
    exported: Path
    exported_before: bytes


@pytest.fixture(scope="module")
def story(checkout: Checkout) -> Story:
    """`asv run`, `results export asv` of two commits, `asv run` again."""
    older = checkout.commit("older")
    newer = checkout.commit("newer")
    checkout.said["run"] = checkout.asv_run("--machine", "here", "--show-stderr")
    first_run = checkout.results("here")[f"{newer[:8]}-existing"]
    store = ResultsStore(checkout.repo.parent / "batch-store")
    own = next(record.spec for record in ResultsStore(checkout.repo / ".asv/store").records())
    for number, record in enumerate(batch_trials(older, newer, own)):
        store.append(made_record(number, **record))
    benchsuite = [sys.executable, "-c", "from benchsuite.cli.app import main; main()"]
    command = [*benchsuite, "results", "export", "asv", "--store", str(store.path), "--asv-machine", "cluster"]
    checkout.said["export"] = checkout.call(*command)
    exported = checkout.repo / ".asv/results/cluster" / f"{newer[:8]}-benchsuite.json"
    before = exported.read_bytes()
    checkout.said["second run"] = checkout.asv_run("--machine", "here", "--bench", "batch_formats")
    return Story(checkout, older, newer, first_run, exported, before)


def batch_trials(older: str, newer: str, own: dict[str, Any]) -> list[dict[str, Any]]:
    """100 and 160 samples/s at the older commit, 80 and a failure at the newer one; hdf5 was skipped at both.

    And the nightly sweep itself, whose specs are like `own`, on four ranks.
    """
    rates = {older: (100.0, 160.0), newer: (80.0, None)}
    trials: list[dict[str, Any]] = []
    for commit, found in rates.items():
        fields: dict[str, Any] = {"sweep": "batch-formats", "session": commit[:8], "env": {"commit": commit[:12]}}
        for ranks, rate in enumerate(found, start=1):
            spec = {"workload": "unet3d", "parallelism": "ddp", "world_size": ranks, "data": {"format": "files"}}
            ok = {"status": "ok", "figures": {"samples_per_s": rate, "au": 0.5}}
            trials.append({**fields, "spec": spec, **(ok if rate else {"status": "failed", "figures": {}})})
        spec = {"workload": "unet3d", "parallelism": "ddp", "world_size": 1, "data": {"format": "hdf5"}}
        trials.append({**fields, "spec": spec, "status": "skipped", "reason": "no dataset", "figures": {}})
    spec = {**own, "world_size": 4, "data": {**own["data"], "format": "files"}}
    trials.append({**trials[0], "sweep": "site-nightly", "spec": spec})
    return [{**trial, "trial_id": f"t{number}", "point_id": f"p{number}"} for number, trial in enumerate(trials)]


class TestRun:
    def test_every_metric_of_every_point(self, story: Story):
        assert {*story.first_run} == {f"sweeps.site_nightly__bert__ddp.{metric}" for metric in UNITS}
        for benchmark in story.first_run.values():
            points = [(format, rank) for format in ("files", "webdataset", "hdf5") for rank in ("1", "2")]
            assert [*values(benchmark)] == points

    def test_values_are_the_stores(self, story: Story):
        store = ResultsStore(story.checkout.repo / ".asv/store")
        ok = {record.spec["world_size"]: record.figures for record in store.latest() if record.status == "ok"}
        seconds, au, lost = (
            values(story.first_run[f"sweeps.site_nightly__bert__ddp.{metric}"])
            for metric in ("track_seconds_per_sample", "track_one_minus_au", "track_one_minus_efficiency")
        )
        for ranks in (1, 2):
            key = ("files", str(ranks))
            assert seconds[key] == pytest.approx(1 / (ok[ranks].samples_per_s or 0))
            assert au[key] == pytest.approx(1 - (ok[ranks].au or 0), abs=1e-4)
        efficiency = (ok[2].samples_per_s or 0) / (ok[1].samples_per_s or 1) / 2
        assert lost["files", "2"] == pytest.approx(1 - efficiency, abs=1e-4)
        assert math.isnan(lost["files", "1"])

    def test_failures_are_failed_and_skips_are_not(self, story: Story):
        for name, benchmark in story.first_run.items():
            found = values(benchmark)
            assert found["webdataset", "1"] is None and found["webdataset", "2"] is None, name
            assert math.isnan(found["hdf5", "1"]) and math.isnan(found["hdf5", "2"]), name

    def test_a_failure_says_why(self, story: Story):
        lines = [line.strip() for line in story.checkout.said["run"].splitlines() if "RuntimeError: " in line]
        assert len(lines) >= 2 * len(UNITS)
        assert all(line.startswith("RuntimeError: failed: rank ") and ".tar" in line for line in lines), lines

    def test_one_sweep_for_all_metrics(self, story: Story):
        records = ResultsStore(story.checkout.repo / ".asv/store").records()
        tried = [record.trial_id for record in records if record.status in ("ok", "failed")]
        assert len(tried) == len({*tried}) == 4
        assert len({record.session for record in records}) == 1


class TestAfterAnExport:
    def test_it_says_what_it_wrote(self, story: Story):
        lines = story.checkout.said["export"].splitlines()
        commits = (story.older[:8], story.newer[:8])
        assert [line.rpartition(": ")[0] for line in lines] == [
            *(f"batch-formats · 3 points · session {commit} · commit {commit} · cluster" for commit in commits),
            f"site-nightly · 1 point · session {commits[0]} · commit {commits[0]} · cluster",
        ]

    def test_a_later_run_drops_nothing(self, story: Story):
        assert story.exported.read_bytes() == story.exported_before
        listed = json.loads((story.checkout.repo / ".asv/results/benchmarks.json").read_text())
        suites = ("site_nightly__bert__ddp", "batch_formats__unet3d__ddp")
        names = {f"sweeps.{suite}.{metric}" for suite in suites for metric in UNITS}
        assert {*listed} == names | {"version"}
        again = story.checkout.results("here")[f"{story.newer[:8]}-existing"]
        for name, benchmark in story.first_run.items():
            now = values(again[name])
            assert [repr(now[key]) for key in values(benchmark)] == [
                repr(value) for value in values(benchmark).values()
            ]

    def test_points_of_the_nightly_sweep_from_batch_jobs_stay_beside_its_own(self, story: Story):
        listed = json.loads((story.checkout.repo / ".asv/results/benchmarks.json").read_text())
        name = "sweeps.site_nightly__bert__ddp.track_seconds_per_sample"
        formats, *_, ranks, _, _ = (sorted(values) for values in listed[name]["params"])
        assert (formats, ranks) == (["'files'", "'hdf5'", "'webdataset'"], ["1", "2", "4"])
        said = story.checkout.asv("show", story.older, "--machine", "cluster", "--bench", name)
        assert "10.0ms" in said and "failed" not in said

    def test_a_later_run_measures_no_batch_sweep(self, story: Story):
        again = story.checkout.results("here")[f"{story.newer[:8]}-existing"]
        for metric in UNITS:
            found = values(again[f"sweeps.batch_formats__unet3d__ddp.{metric}"])
            assert all(math.isnan(value) for value in found.values())
        assert "Setting up" in story.checkout.said["run"]
        assert "Setting up" not in story.checkout.said["second run"]

    def test_show_reads_both(self, story: Story):
        said = story.checkout.asv("show", story.newer)
        assert "sweeps.site_nightly__bert__ddp.track_seconds_per_sample [here/existing-" in said
        _, _, after = said.partition("sweeps.batch_formats__unet3d__ddp.track_seconds_per_sample [cluster/benchsuite]")
        table = after.partition("started:")[0]
        assert "12.5ms" in table and "failed" in table and "n/a" in table

    def test_compare_takes_larger_for_worse(self, story: Story):
        said = story.checkout.asv("compare", story.older, story.newer, "--machine", "cluster")
        name = "batch_formats__unet3d__ddp.track_seconds_per_sample"
        rows = [line for line in said.splitlines() if name in line]
        cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
        found = {(cell[4].partition("('")[2].partition("'")[0], cell[4].count(", 2, 1,")): cell[:4] for cell in cells}
        assert found["files", 0] == ["+", "10.0ms", "12.5ms", "1.25"]
        assert found["files", 1][:3] == ["!", "6.25ms", "failed"]
        assert found["hdf5", 0][0] == "", "skipped at both"

    def test_publish_draws_both(self, story: Story):
        story.checkout.asv("publish", "--no-pull")
        html = story.checkout.repo / ".asv/html"
        index = json.loads((html / "index.json").read_text())
        assert {*index["machines"]} == {"here", "cluster"}
        drawn = {path.stem: path for path in (html / "graphs").glob("**/machine-cluster/**/*.json")}
        points = json.loads(drawn["sweeps.batch_formats__unet3d__ddp.track_seconds_per_sample"].read_text())
        assert [found[0] for _, found in points] == [0.01, 0.0125]
        here = {path.stem for path in (html / "graphs").glob("**/machine-here/**/*.json")}
        assert "sweeps.site_nightly__bert__ddp.track_seconds_per_sample" in here


class TestFolder:
    def test_the_sweep_beside_the_benchmarks_and_the_nearest_configuration(self, monkeypatch: pytest.MonkeyPatch):
        for name in ("BENCHSUITE_NIGHTLY_SWEEP", "BENCHSUITE_NIGHTLY_FOLDER", "BENCHSUITE_STORE"):
            monkeypatch.delenv(name, raising=False)
        found = nightly_of(BENCHMARKS)
        assert found == Nightly((BENCHMARKS.parent / "sweeps" / "nightly.yaml",), ROOT)
        assert found.store_folder == ROOT / ".asv/store" and found.results_dir == ROOT / ".asv/results"

    def test_a_site_names_its_own(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        (tmp_path / "asv.conf.json").write_text('{"results_dir": "history", /* as asv allows */ "version": 1}')
        monkeypatch.setenv("BENCHSUITE_NIGHTLY_SWEEP", "/site/nightly.yaml")
        monkeypatch.setenv("BENCHSUITE_NIGHTLY_FOLDER", str(tmp_path))
        monkeypatch.setenv("BENCHSUITE_STORE", "/scratch/store")
        found = nightly_of(BENCHMARKS)
        assert found == Nightly((Path("/site/nightly.yaml"),), tmp_path)
        assert (found.results_dir, found.store_folder) == (tmp_path / "history", Path("/scratch/store"))

    def test_no_configuration(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("BENCHSUITE_NIGHTLY_FOLDER", str(tmp_path))
        with pytest.raises(UserError, match=rf"no asv.conf.json in {tmp_path}; set BENCHSUITE_NIGHTLY_FOLDER"):
            nightly_of(BENCHMARKS)


@pytest.fixture
def nightly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Nightly]:
    """A nightly sweep of tiny sequences with changes to its base, in a folder of its own."""
    monkeypatch.delenv("BENCHSUITE_STORE", raising=False)

    def made(root: str, **data: Any) -> Nightly:
        settings = {"root": root, "num_workers": 1, "prefetch_factor": 1, "shuffle_buffer": 8, **data}
        base = {"workload": "bert", "variant": "tiny", "batch_size": 2, "data": settings, "measure": {"steps": 4}}
        file = tmp_path / "mine.yaml"
        grid = {"data.format": ["files", "webdataset"], "world_size": [1, 2]}
        file.write_text(yaml.safe_dump({"base": base | {"parallelism": "ddp", "device": "cpu"}, "grid": grid}))
        return Nightly((file,), tmp_path / "home")

    return made


class TestData:
    def test_a_relative_root_is_made_and_then_everything_can_run(self, nightly: Callable[..., Nightly]):
        mine = nightly("sequences")
        assert len(measuring.plan_of(mine, mine.sweep_files[0]).skipped) == 4
        measuring.prepare(mine, mine.sweep_files[0])
        plan = measuring.plan_of(mine, mine.sweep_files[0])
        assert (len(plan.points), plan.skipped) == (4, [])
        made = {path.name: read_manifest(path) for path in (mine.data_folder / "sequences").iterdir()}
        assert {*made} == {"files", "webdataset"}
        assert len({manifest.dataset_id for manifest in made.values()}) == 1, "the same samples in every format"

    def test_what_is_there_is_not_made_again(self, nightly: Callable[..., Nightly]):
        mine = nightly("sequences")
        measuring.prepare(mine, mine.sweep_files[0])
        before = {path: path.stat().st_mtime_ns for path in mine.data_folder.rglob("*")}
        measuring.prepare(mine, mine.sweep_files[0])
        assert {path: path.stat().st_mtime_ns for path in mine.data_folder.rglob("*")} == before

    def test_an_absolute_root_is_the_sites(self, tmp_path: Path, nightly: Callable[..., Nightly]):
        (tmp_path / "site").mkdir()
        measuring.prepare(mine := nightly(str(tmp_path / "site")), mine.sweep_files[0])
        assert [*(tmp_path / "site").iterdir()] == []

    def test_a_missing_absolute_root_is_a_mistake(self, tmp_path: Path, nightly: Callable[..., Nightly]):
        with pytest.raises(UserError, match="gone: no such folder"):
            measuring.covered(nightly(str(tmp_path / "gone")))

    def test_a_sweep_of_which_nothing_runs_fails(self, tmp_path: Path, nightly: Callable[..., Nightly]):
        (tmp_path / "site").mkdir()
        with pytest.raises(UserError, match=r"mine\.yaml: nothing could run"):
            measuring.measure(nightly(str(tmp_path / "site")))

    def test_points_that_cannot_run_are_covered(self, nightly: Callable[..., Nightly]):
        points = [(format, ranks) for format in ("files", "webdataset") for ranks in (1, 2)]
        found = measuring.covered(nightly("nothing-yet"))
        assert [(key.format, key.ranks) for key in found] == points
        assert {(key.suite, key.reader) for key in found} == {("mine__bert__ddp", "stock")}


def test_more_options_of_the_sweeps_are_passed_on(nightly: Callable[..., Nightly], monkeypatch: pytest.MonkeyPatch):
    commands: list[list[str]] = []
    monkeypatch.setattr(measuring, "prepare", lambda *_: None)
    monkeypatch.setattr(measuring, "run_verb", lambda words, folder: commands.append(words) or 0)
    assert measuring.run_sweeps(nightly("sequences"), "2026-11-01", ["--until", "06:30"]) == [0]
    assert commands[0][:1] == ["sweep"] and commands[0][-2:] == ["--until", "06:30"]


SHIPPED = [(name, stored, n) for name in ("resnet50", "bert") for stored in ("files", "webdataset") for n in (1, 2)]


def shortened(keys: Sequence[Key]) -> list[tuple[str, str, int]]:
    return sorted((key.suite.split("__")[1], key.format, key.ranks) for key in keys)


class TestShipped:
    """The sweep that runs where a site names none."""

    def test_every_point_can_run(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
        """Once its data are there, which are made for sequences; images, which take longer, lack nothing else."""
        monkeypatch.delenv("BENCHSUITE_STORE", raising=False)
        file = BENCHMARKS.parent / "sweeps" / "nightly.yaml"
        mine = Nightly((file,), tmp_path)
        assert shortened(measuring.covered(mine)) == sorted(SHIPPED)
        text = file.read_text()
        assert text.count("[resnet50, bert]") == 2
        (tmp_path / "bert.yaml").write_text(text.replace("[resnet50, bert]", "[bert]"))
        measuring.prepare(mine, tmp_path / "bert.yaml")
        plan = measuring.plan_of(mine, file)
        found = [key_of("nightly", point.spec.model_dump()) for point in plan.points]
        assert shortened(found) == sorted(key for key in SHIPPED if key[0] == "bert")
        assert len(plan.skipped) == 4 and all(f"{tmp_path}/.asv/data/resnet50/" in lost.reason for lost in plan.skipped)

    def test_asv_lists_it(self, checkout: Checkout, tmp_path: Path):
        """As `asv check` and the beginning of `asv run` do it."""
        repo = shutil.copytree(checkout.repo, tmp_path / "repo", ignore=shutil.ignore_patterns(".asv"))
        mine = replace(checkout, repo=repo, sweep=repo / "benchsuite/nightly/template/sweeps/nightly.yaml")
        mine.call(sys.executable, "-c", DISCOVER, f"existing:{sys.executable}")
        listed = json.loads((repo / ".asv/results/benchmarks.json").read_text())
        suites = [f"nightly__{workload}__ddp" for workload in ("resnet50", "bert")]
        assert {*listed} == {f"sweeps.{suite}.{metric}" for suite in suites for metric in UNITS} | {"version"}
        for metric, unit in UNITS.items():
            found = listed[f"sweeps.{suites[0]}.{metric}"]
            assert (found["type"], found["unit"], found["param_names"]) == ("track", unit, [*Key._fields[1:]])
            assert (found["params"][0], found["params"][5]) == (["'files'", "'webdataset'"], ["1", "2"])


DISCOVER = """
import sys
from asv.benchmarks import Benchmarks
from asv.config import Config
from asv.environment import get_environments
from asv.repo import get_repo
conf = Config.load("asv.conf.json")
conf.dvcs = "none"
Benchmarks.discover(conf, get_repo(conf), list(get_environments(conf, sys.argv[1:])), [], check=True).save()
"""
