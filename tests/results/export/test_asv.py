"""A store written into asv's history."""

import importlib
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchsuite.results.export.asv_points import exported_axes
from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import ResultsStore, StoreError
from tests.results.asvtrials import trial

asv_results = pytest.importorskip("asv.results", reason="asv is an extra: pip install 'benchsuite[asv]'")

from benchsuite.results.export.asv import export  # noqa: E402 - it needs asv


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    command = ["git", "-C", str(folder), *identity, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """asv's configuration in a repository with two commits."""
    git(tmp_path, "init", "-q", "-b", "main", "repo")
    repo = tmp_path / "repo"
    settings = {"version": 1, "project": "p", "repo": ".", "branches": ["main"], "results_dir": ".asv/results"}
    (repo / "asv.conf.json").write_text(json.dumps(settings))
    git(repo, "commit", "-q", "--allow-empty", "-m", "one")
    git(repo, "commit", "-q", "--allow-empty", "-m", "two")
    return repo / "asv.conf.json"


@pytest.fixture
def commits(config: Path) -> tuple[str, str]:
    """The hashes of both, older first."""
    return git(config.parent, "rev-parse", "HEAD^"), git(config.parent, "rev-parse", "HEAD")


def stored(tmp_path: Path, *trials: TrialRecord) -> ResultsStore:
    store = ResultsStore(tmp_path / "store")
    for record in trials:
        store.append(record)
    return store


def at(commit: str, **env: Any) -> dict[str, Any]:
    return {"env": {"commit": commit[:12], **env}}


SUITE = "batch_formats__unet3d__ddp"
OTHER = "device=cpu root=/data steps=8 variant=tiny"


def values(path: Path, metric: str = "track_seconds_per_sample") -> dict[tuple[str, str], float | None]:
    """A benchmark's values as asv reads them, by format and ranks; what else points have is the same for all."""
    result = asv_results.Results.load(str(path))
    name = f"sweeps.{SUITE}.{metric}"
    formats, *same, ranks, nodes, other = result.get_result_params(name)
    assert (same, nodes, other) == ([["'tuned'"], ["'torch'"], ["'fp32'"], ["'-'"]], ["1"], [repr(OTHER)])
    keys = [(format.strip("'"), rank) for format in formats for rank in ranks]
    return dict(zip(keys, result.get_result_value(name, result.get_result_params(name)), strict=True))


class TestExport:
    def test_a_commit_its_machine_and_its_dates(self, tmp_path: Path, config: Path, commits: tuple[str, str]):
        store = stored(tmp_path, trial(0, 100.0, **at(commits[0])), trial(1, 160.0, 2, **at(commits[0])))
        (written,) = export(store, config).written
        assert (written.machine, written.commit, len(written.points)) == ("node1", commits[0], 2)
        assert written.path == config.parent / ".asv/results/node1" / f"{commits[0][:8]}-benchsuite.json"
        result = asv_results.Results.load(str(written.path), machine_name="node1")
        assert result.date == 1000 * int(git(config.parent, "show", "-s", "--format=%at", commits[0]))
        assert {*result.started_at.values()} == {1767225600000}, "2026-01-01T00:00 UTC, when the first trial began"
        assert values(written.path) == {("files", "1"): 0.01, ("files", "2"): 1 / 160}
        assert values(written.path, "track_one_minus_efficiency")["files", "2"] == pytest.approx(0.2)
        machine = json.loads((written.path.parent / "machine.json").read_text())
        assert (machine["arch"], machine["num_cpu"], machine["cpu"]) == ("x86_64", "64", "a cpu")

    def test_failed_is_null_and_skipped_is_nan(self, tmp_path: Path, config: Path, commits: tuple[str, str]):
        skipped = trial(1, None, 2, status="skipped", **at(commits[0]))
        (written,) = export(stored(tmp_path, trial(0, None, **at(commits[0])), skipped), config).written
        found = values(written.path)
        assert found["files", "1"] is None
        assert math.isnan(found["files", "2"] or 0)

    def test_the_list_of_benchmarks_gets_it_and_keeps_others(
        self, tmp_path: Path, config: Path, commits: tuple[str, str]
    ):
        listed = config.parent / ".asv/results/benchmarks.json"
        listed.parent.mkdir(parents=True)
        other = {
            "name": "time_other",
            "params": [],
            "param_names": [],
            "version": "x",
            "type": "time",
            "unit": "seconds",
        }
        listed.write_text(json.dumps({"time_other": other, "version": 2}))
        export(stored(tmp_path, trial(0, 100.0, **at(commits[0]))), config)
        found = json.loads(listed.read_text())
        assert found["time_other"] == other and found["version"] == 2
        ours = found[f"sweeps.{SUITE}.track_one_minus_au"]
        assert (ours["version"], ours["unit"]) == ("2", "1 - AU")
        assert ours["param_names"] == ["format", "reader", "loader", "precision", "batch", "ranks", "nodes", "other"]
        assert ours["params"] == [
            ["'files'"],
            ["'tuned'"],
            ["'torch'"],
            ["'fp32'"],
            ["'-'"],
            ["1"],
            ["1"],
            [repr(OTHER)],
        ]
        axes = (("files",), ("tuned",), ("torch",), ("fp32",), ("-",), (1,), (1,), (OTHER,))
        assert exported_axes(listed.parent) == {SUITE: axes}

    def test_a_changed_unit_is_described_anew(self, tmp_path: Path, config: Path, commits: tuple[str, str]):
        """What an earlier version listed keeps its parameters, and nothing else of what is written here."""
        listed = config.parent / ".asv/results/benchmarks.json"
        export(stored(tmp_path, trial(0, 100.0, **at(commits[0]))), config)
        name, told = f"sweeps.{SUITE}.track_peak_memory", json.loads(listed.read_text())
        params = [["'files'", "'hdf5'"], *told[name]["params"][1:]]
        older = told[name] | {"unit": "GB", "version": "1", "code": "as it was", "params": params}
        listed.write_text(json.dumps(told | {name: older}))
        export(ResultsStore(tmp_path / "store"), config)
        assert json.loads(listed.read_text())[name] == told[name] | {"params": params}

    def test_again_changes_nothing(self, tmp_path: Path, config: Path, commits: tuple[str, str]):
        store = stored(tmp_path, trial(0, 100.0, **at(commits[0])), trial(1, None, 2, **at(commits[0])))
        export(store, config)
        folder = config.parent / ".asv"
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        export(store, config)
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
        assert len(before) == 4

    def test_new_parameters_are_not_measured_at_older_commits(
        self, tmp_path: Path, config: Path, commits: tuple[str, str]
    ):
        (older,) = export(stored(tmp_path, trial(0, 100.0, **at(commits[0]))), config).written
        export(stored(tmp_path, trial(1, 50.0, 4, "hdf5", **at(commits[1]))), config)
        found = values(older.path)
        assert found.pop(("files", "1")) == 0.01
        assert {*found} == {("files", "4"), ("hdf5", "1"), ("hdf5", "4")}
        assert all(value is not None and math.isnan(value) for value in found.values()), "null would be failed"

    def test_a_later_export_keeps_what_it_does_not_have(self, tmp_path: Path, config: Path, commits: tuple[str, str]):
        export(stored(tmp_path / "a", trial(0, 100.0, **at(commits[0]))), config)
        (written,) = export(stored(tmp_path / "b", trial(1, 50.0, 2, **at(commits[0]))), config).written
        assert values(written.path) == {("files", "1"): 0.01, ("files", "2"): 0.02}

    def test_the_newest_session_of_a_commit_counts(self, tmp_path: Path, config: Path, commits: tuple[str, str]):
        later = trial(7, 50.0, session="night-2", **at(commits[0]))
        found = export(stored(tmp_path, later, trial(0, 100.0, session="night-1", **at(commits[0]))), config)
        assert values(found.written[0].path) == {("files", "1"): 0.02}
        assert found.left_out == [
            "left out 1 trial: session night-1 of batch-formats: night-2 of the same commit and machine is newer"
        ]

    def test_hosts_are_machines_unless_one_is_named(self, tmp_path: Path, config: Path, commits: tuple[str, str]):
        hosts = [trial(n, 100.0, n + 1, **at(commits[0], host=f"node{n}")) for n in range(2)]
        store = stored(tmp_path, *hosts)
        assert [written.machine for written in export(store, config).written] == ["node0", "node1"]
        (written,) = export(store, config, machine="cluster").written
        assert (written.machine, len(written.points)) == ("cluster", 2)

    def test_a_machine_that_asv_knows_keeps_its_facts(self, tmp_path: Path, config: Path, commits: tuple[str, str]):
        known = {"machine": "node1", "os": "mine", "arch": "a", "cpu": "c", "num_cpu": "1", "ram": "r", "version": 1}
        path = config.parent / ".asv/results/node1/machine.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(known))
        (written,) = export(stored(tmp_path, trial(0, 100.0, **at(commits[0]))), config).written
        assert json.loads(path.read_text()) == known
        assert asv_results.Results.load(str(written.path)).params["os"] == "mine"

    def test_trials_without_a_commit_of_the_repository_are_left_out(
        self, tmp_path: Path, config: Path, commits: tuple[str, str]
    ):
        trials = [
            trial(0, 100.0, **at(commits[0])),
            trial(1, 100.0, 2, env={"commit": f"{commits[0][:12]}-dirty"}),
            trial(2, 100.0, 3, env={"commit": None}),
            trial(3, 100.0, 4, env={"commit": "0123456789ab"}),
        ]
        store = stored(tmp_path, *trials)
        found = export(store, config)
        assert len(found.written[0].points) == 1
        assert found.left_out == [
            f"left out 1 trial: commit {commits[0][:12]}-dirty: a changed work tree, so not the commit's own numbers; "
            "--commit names one that they stand beside",
            "left out 1 trial: no commit is known; --commit names one",
            "left out 1 trial: commit 0123456789ab is not in the repository",
        ]
        named = export(store, config, commit="HEAD")
        assert [(new.commit, len(new.points), new.is_changed) for new in named.written] == [
            (commits[0], 1, False),
            (commits[1], 1, True),
            (commits[1], 1, False),
        ]

    def test_a_changed_work_tree_does_not_pass_for_its_commit(
        self, tmp_path: Path, config: Path, commits: tuple[str, str]
    ):
        """Both of one point: the clean one gave 100 samples/s, that with changes 50, exported for the same commit."""
        changed = trial(1, 50.0, env={"commit": f"{commits[0][:12]}-dirty"})
        store = stored(tmp_path, trial(0, 100.0, **at(commits[0])), changed)
        clean, apart = export(store, config, commit=commits[0]).written
        assert (clean.commit, apart.commit) == (commits[0], commits[0])
        assert (clean.is_changed, apart.is_changed) == (False, True)
        assert (values(clean.path), values(apart.path)) == ({("files", "1"): 0.01}, {("files", "1"): 0.02})
        assert apart.path.name == f"{commits[0][:8]}-benchsuite-dirty.json"
        own, other = (asv_results.Results.load(str(written.path)) for written in (clean, apart))
        assert (own.env_name, other.env_name) == ("benchsuite", "benchsuite-dirty")
        assert "work_tree" not in own.params and other.params["work_tree"] == "changed"

    def test_a_commit_that_is_named_gets_a_changed_work_tree_apart(
        self, tmp_path: Path, config: Path, commits: tuple[str, str]
    ):
        changed = trial(1, 50.0, env={"commit": f"{commits[0][:12]}-dirty"})
        found = export(stored(tmp_path, changed), config, commit="HEAD")
        assert [(new.commit, new.is_changed) for new in found.written] == [(commits[1], True)]
        assert found.left_out == []


class TestMistakes:
    @pytest.fixture
    def store(self, tmp_path: Path, commits: tuple[str, str]) -> ResultsStore:
        return stored(tmp_path, trial(0, 100.0, **at(commits[0])))

    @pytest.mark.parametrize(
        ("asked", "words"),
        [
            ({"machine": "../up"}, ["--asv-machine '../up'", "allowed: letters"]),
            ({"commit": "gone"}, ["--commit 'gone'", "no such commit"]),
        ],
    )
    def test_in_one_line(self, store: ResultsStore, config: Path, asked: dict[str, str], words: list[str]):
        with pytest.raises(StoreError) as caught:
            export(store, config, **asked)
        assert all(word in str(caught.value) for word in words), caught.value
        assert "\n" not in str(caught.value)
        assert not (config.parent / ".asv").exists(), "nothing was written"

    def test_no_configuration(self, store: ResultsStore, tmp_path: Path):
        with pytest.raises(StoreError, match=r"gone.json: no such file; .* --config"):
            export(store, tmp_path / "gone.json")

    def test_a_configuration_that_is_none(self, store: ResultsStore, tmp_path: Path):
        (tmp_path / "asv.conf.json").write_text("{")
        with pytest.raises(StoreError, match="not asv's configuration"):
            export(store, tmp_path / "asv.conf.json")

    def test_nothing_to_export_says_why(self, tmp_path: Path, config: Path):
        with pytest.raises(StoreError, match=r"nothing to export; left out 1 trial: no commit is known"):
            export(stored(tmp_path, trial(0, 100.0)), config)

    def test_from_the_command_line(
        self,
        tmp_path: Path,
        config: Path,
        run_cli: Callable[..., tuple[int, str, str]],
        monkeypatch: pytest.MonkeyPatch,
    ):
        store = stored(tmp_path / "other", trial(0, 100.0))
        monkeypatch.chdir(config.parent)
        asked = ("results", "export", "asv", "--store", store.path)
        code, out, err = run_cli(*asked)
        assert (code, out) == (2, "")
        assert err.startswith("error: store ") and err.count("\n") == 1
        code, out, err = run_cli(*asked, "--commit", "HEAD", "--asv-machine", "cluster")
        head = git(config.parent, "rev-parse", "--short=8", "HEAD")
        path = config.parent / f".asv/results/cluster/{head}-benchsuite.json"
        assert (code, err) == (0, "")
        assert out == f"batch-formats · 1 point · session default · commit {head} · cluster: {path}\n"

    def test_a_damaged_history(self, store: ResultsStore, config: Path):
        listed = config.parent / ".asv/results/benchmarks.json"
        listed.parent.mkdir(parents=True)
        listed.write_text("{")
        with pytest.raises(StoreError, match=r"asv: Error parsing JSON in file .*benchmarks.json"):
            export(store, config)

    def test_a_history_that_cannot_be_written(self, store: ResultsStore, config: Path):
        folder = config.parent / ".asv/results"
        folder.parent.mkdir()
        folder.write_text("a file where the folder should be")
        with pytest.raises(StoreError, match=rf"asv's history: {folder}\S*: (File exists|Not a directory)"):
            export(store, config)

    def test_asv_is_not_installed(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setitem(sys.modules, "asv.util", None)
        monkeypatch.delitem(sys.modules, export.__module__)
        with pytest.raises(StoreError, match=r"pip install 'benchsuite\[asv\]'"):
            importlib.import_module(export.__module__)
