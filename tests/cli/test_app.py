"""The command line: help, exit codes, one-line errors, and what each verb prints."""

import csv
import errno
import io
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml

import benchsuite
from benchsuite import storage, workloads
from benchsuite.cli import app
from benchsuite.cli.app import RETIRED, added_verbs
from benchsuite.contract.exit_codes import INTERRUPTED, USAGE
from benchsuite.contract.version import VERSION
from benchsuite.host.doctor import untested
from benchsuite.host.machine import Machine
from benchsuite.results.report.several_gpus import Accepted, keep
from benchsuite.results.store.store import ResultsStore
from benchsuite.runner import single_trial
from tests.helpers.snapshots import compare_messages
from tests.results.made import made_record

Run = Callable[..., tuple[int, str, str]]

VERBS = [
    "run",
    "sweep",
    "search",
    "status",
    "advise",
    "demo",
    "trial",
    "list",
    "doctor",
    "schema",
    "report",
    "results",
    "results show",
    "results query",
    "results compact",
    "results profile",
    "results darshan",
    "results export",
    "data",
    "data generate",
    "data convert",
    "data verify",
    "data stage",
    "probe",
    "probe storage",
    "probe comm",
    "probe checkpoint",
    "probe device",
    "probe nodes",
    "submit",
    "nightly",
    "nightly init",
    "nightly run",
    "scaling",
    "predict",
    "compare",
    "baseline",
    "baseline set",
    "baseline show",
    "check",
]
SWEEP: dict[str, Any] = {
    "base": {"workload": "resnet50", "variant": "tiny", "batch_size": 4, "data": {"source": "synthetic"}},
    "grid": {"world_size": [1, 2]},
}


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BENCHSUITE_STORE", raising=False)


@pytest.fixture
def sweep_file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(SWEEP))
    return path


def error_line(run_cli: Run, *arguments: object) -> str:
    """The one line that a usage error prints."""
    code, out, err = run_cli(*arguments)
    assert code == 2, err
    assert out == ""
    assert err.endswith("\n") and err.count("\n") == 1, err
    assert err.startswith("error: ")
    return err


class TestHelp:
    @pytest.mark.parametrize("verb", VERBS)
    def test_every_verb_has_help(self, run_cli: Run, verb: str):
        code, out, err = run_cli(*verb.split(), "--help")
        assert (code, err) == (0, "")
        assert out.startswith("Usage: ") and f" {verb} " in out.splitlines()[0]
        description = out.split("\n\n")[1].strip()
        assert len(description) > 10, "a sentence on what it does"
        options = [line.split() for line in out.splitlines() if line.startswith("  -")]
        assert all(len(words) > 1 for words in options), "every option is explained"

    def test_the_verbs_are_those_tested_here(self, run_cli: Run):
        for parent in ("", "baseline", "data", "probe", "results"):
            _, out, _ = run_cli(*parent.split(), "--help")
            listed = {
                line.split()[0]
                for line in out.split("--help" if parent else "Start:")[-1].splitlines()
                if re.match("  [a-z]", line)
            }
            assert {f"{parent} {name}".strip() for name in listed if name.isalpha()} <= {*VERBS, *added_verbs()}

    def test_version(self, run_cli: Run):
        assert run_cli("--version") == (0, f"benchsuite {benchsuite.__version__}\n", "")

    @pytest.mark.parametrize("arguments", [(), ("data",), ("results",)])
    def test_nothing_asked_is_help(self, run_cli: Run, arguments: tuple[str, ...]):
        code, out, err = run_cli(*arguments)
        assert (code, err) == (2, "")
        assert out.startswith("Usage: ") and ("Commands:" in out or "Start:" in out)

    @pytest.mark.parametrize("arguments", [("data",), ("results",)])
    def test_nothing_asked_is_the_same_help(self, run_cli: Run, arguments: tuple[str, ...]):
        assert run_cli(*arguments)[1] == run_cli(*arguments, "--help")[1]


class TestUsageErrors:
    def test_one_line_and_exit_code_2(self, run_cli: Run, sweep_file: Path) -> None:
        cases = [
            ["swep"],
            ["results", "shw"],
            ["sweep"],
            ["sweep", "mine.yaml", "--dryrun"],
            ["sweep", "mine.yaml", "more"],
            ["sweep", "gone.yaml"],
            ["sweep", "dmeo.yaml"],
            ["sweep", "mine.yaml", "--session", "a/b"],
            ["sweep", "mine.yaml", "--session", ""],
            ["sweep", "mine.yaml", "--retry", "foo"],
            ["sweep", "mine.yaml", "--until", "noon"],
            ["sweep", "mine.yaml", "--retry", "failed,time-out"],
            ["sweep", "mine.yaml", "--launcher", "srun"],
            ["sweep", "mine.yaml", "--launcher", "locl"],
            ["sweep", "mine.yaml", "-o", "batchsize=3"],
            ["sweep", "mine.yaml", "-o", "batch_size"],
            ["sweep", "mine.yaml", "-o", "precision=fp4"],
            ["sweep", "mine.yaml", "-o", "data.source=memory"],
            ["trial", "mine.yaml"],
            ["trial", "gone.yaml"],
            ["list", "formts"],
            ["schema", "trail"],
            ["report"],
            ["report", "--format", "xml"],
            ["results", "show"],
            ["results", "show", "--store", "gone"],
            ["data", "generate", "new", "--format", "hdf"],
            ["data", "generate", "new", "--format", "fils"],
            ["data", "generate", "new", "--workload", "bertt"],
            ["data", "generate", "new", "--format", "tokens"],
            ["data", "generate", "new", "--format", "hdf5", "-o", "file_sample=2"],
            ["data", "generate", "new", "--format", "hdf5", "-o", "file_samples=x"],
            ["data", "generate", "new", "--format", "hdf5", "-o", "compression=zip"],
            ["data", "generate", "new", "--format", "hdf5", "-o", "compression"],
            ["data", "generate", "new", "--format", "lmdb", "-o", "shard_samples=2"],
            ["data", "generate", "new", "--workload", "bert", "--encoding", "png"],
            ["data", "generate", "new", "--variant", "tinny"],
            ["data", "generate", "new", "--samples", "0"],
            ["data", "generate", "new", "--samples", "many"],
            ["data", "convert", "gone", "new"],
            ["data", "verify", "gone"],
            ["demo", "--samples", "3"],
        ]

        def message(arguments: list[str]) -> str:
            line = error_line(run_cli, *arguments)
            assert list(sweep_file.parent.iterdir()) == [sweep_file], "nothing was written"
            return line

        compare_messages("command_lines", cases, message)

    @pytest.mark.parametrize("text", ["{", "- 1"])
    @pytest.mark.parametrize("verb", ["sweep", "trial"])
    def test_files_that_are_no_mapping(self, run_cli: Run, tmp_path: Path, verb: str, text: str):
        (tmp_path / "bad.yaml").write_text(text)
        assert "bad.yaml" in error_line(run_cli, verb, "bad.yaml")

    def test_a_store_that_cannot_be_written(self, run_cli: Run, tmp_path: Path, sweep_file: Path):
        (tmp_path / "file").write_text("in the way")
        line = error_line(run_cli, "sweep", sweep_file, "--store", tmp_path / "file" / "store")
        assert "Not a directory" in line

    def test_a_query_that_is_no_sql(self, run_cli: Run, store: ResultsStore):
        assert "query" in error_line(run_cli, "results", "query", "selec 1", "--store", store.path)

    def test_an_unknown_way_to_group(self, run_cli: Run, store: ResultsStore):
        line = error_line(run_cli, "results", "show", "--by", "points", "--store", store.path)
        assert "'--by': 'points'" in line and "nearest: point" in line

    def test_an_unknown_verb_names_the_allowed_ones(self, run_cli: Run):
        assert "sweep" in error_line(run_cli, "xyzzy")

    @pytest.mark.parametrize("words", [words for words in RETIRED if words not in added_verbs()])
    def test_a_retired_word_says_what_became_of_it(self, run_cli: Run, words: str):
        assert run_cli(*words.split(), "2") == (2, "", f"error: {RETIRED[words]}\n")

    def test_a_crash_of_ours_is_no_usage_error(self, run_cli: Run, monkeypatch: pytest.MonkeyPatch):
        def broken(_name: str) -> str:
            raise RuntimeError("a bug")

        monkeypatch.setattr("benchsuite.cli.inspect.json_schema", broken)
        with pytest.raises(RuntimeError, match="a bug"):
            run_cli("schema", "trial")


class TestListing:
    def test_everything(self, run_cli: Run):
        code, out, err = run_cli("list", "--format", "json")
        assert (code, err) == (0, "")
        found = json.loads(out)
        assert found["formats"] == sorted(storage.FORMATS)
        assert found["workloads"] == sorted(workloads.WORKLOADS)
        assert found["parallelism"] == list(workloads.MODES)
        assert "demo.yaml" in found["sweeps"]
        assert "cpu" in found["devices"]

    def test_one_axis(self, run_cli: Run):
        assert run_cli("list", "formats") == (
            0,
            "formats: files, hdf5, lmdb, mds, parquet, tfrecord, tokens, webdataset\n",
            "",
        )

    def test_workloads_come_with_their_variants(self, run_cli: Run, sweep_file: Path):
        code, out, err = run_cli("list", "workloads")
        assert (code, err) == (0, "") and out.startswith("workloads: bert (tiny, base, reference), gpt_neox (tiny, ")
        assert "resnet50 (tiny, resnet18, resnet101, reference), unet3d (tiny, reference)\n" in out
        assert f"\n{out}" in f"\n{run_cli('list')[1]}", "the same among all"
        found = json.loads(run_cli("list", "workloads", "--format", "json")[1])
        assert found["workloads"] == sorted(found["variants"])
        for name, variants in found["variants"].items():
            for variant in variants:
                asked = ("-o", f"workload={name}", "-o", f"variant={variant}", "-o", "world_size=1")
                code, _, err = run_cli("sweep", sweep_file, "--dry-run", *asked)
                assert code in (0, 4) and "unknown" not in err, err

    def test_everything_listed_can_be_asked_for(self, run_cli: Run, sweep_file: Path):
        """What `list` shows, a sweep accepts, or skips with its reason."""
        found = json.loads(run_cli("list", "--format", "json")[1])
        for key, axis in (("workload", "workloads"), ("data.format", "formats"), ("parallelism", "parallelism")):
            for name in found[axis]:
                code, _, err = run_cli("sweep", sweep_file, "--dry-run", "-o", f"{key}={name}", "-o", "world_size=1")
                assert code in (0, 4) and "unknown" not in err, err

    def test_list_as_csv(self, run_cli: Run):
        code, out, _ = run_cli("list", "formats", "--format", "csv")
        assert code == 2 or "files" in [cell for row in csv.reader(io.StringIO(out)) for cell in row]


class TestDoctor:
    def test_examines_a_folder(self, run_cli: Run, tmp_path: Path):
        code, out, err = run_cli("doctor", tmp_path)
        assert (code, err) == (0, "")
        assert {line.split()[0] for line in out.splitlines()} <= {"ok", "warn"}
        assert "torch 2." in out and str(tmp_path) in out and "cores" in out

    def test_as_json(self, run_cli: Run, tmp_path: Path):
        code, out, _ = run_cli("doctor", tmp_path, "--format", "json")
        assert code == 0
        assert {finding["level"] for finding in json.loads(out)} <= {"ok", "warn"}

    def test_a_loader_that_is_not_installed_cannot_run(self, run_cli: Run, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setitem(storage.LOADERS, "dali", storage.LOADERS["dali"]._replace(module="no_such_module.dali"))
        lines = run_cli("doctor")[1].splitlines()
        (able,) = [line for line in lines if "can run: " in line]
        assert "; loaders threads torch; " in able
        assert (
            "warn  loader dali needs no_such_module.dali, which is not installed -> pip install 'benchsuite[dali]'"
            in lines
        )
        _, out, _ = run_cli("list", "loaders")
        assert out == "loaders: dali (not installed: pip install 'benchsuite[dali]'), threads, torch\n"
        assert json.loads(run_cli("list", "loaders", "--format", "json")[1]) == {
            "loaders": ["dali", "threads", "torch"]
        }

    def test_a_missing_folder_fails_with_its_remedy(self, run_cli: Run):
        code, out, _ = run_cli("doctor", "nowhere")
        assert code == 4
        (line,) = [line for line in out.splitlines() if line.startswith("fail")]
        assert "nowhere" in line and "mkdir" in line


class TestDryRun:
    def test_prints_every_trial_and_every_skip_and_runs_nothing(self, run_cli: Run, tmp_path: Path, sweep_file: Path):
        code, out, err = run_cli("sweep", sweep_file, "--dry-run", "--session", "tonight")
        assert code == 0
        lines = out.splitlines()
        (trials,) = [line for line in lines if line.startswith("run ")]
        assert trials.split()[1].endswith(".tonight.0") and trials.endswith("  x 3")
        (skip,) = [line for line in lines if line.startswith("skip")]
        assert "2 ranks" in skip and "parallelism none has 1 rank, world_size is 2" in skip
        assert len(lines) == 2
        assert "0 of 3 trials done" in err and "1 point skipped" in err
        assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.yaml"], "no store was made"

    def test_knows_what_is_done(self, run_cli: Run, tmp_path: Path, sweep_file: Path):
        first = run_cli("sweep", sweep_file, "--dry-run")[1].splitlines()[0].split()[1]
        store = ResultsStore(tmp_path / "store")
        store.append(made_record(0, trial_id=first))
        _, out, err = run_cli("sweep", sweep_file, "--dry-run", "--store", store.path)
        assert [line.split()[0] for line in out.splitlines()] == ["done", "run", "skip"]
        assert "1 of 3 trials done" in err

    def test_another_session_measures_anew(self, run_cli: Run, tmp_path: Path, sweep_file: Path):
        first = run_cli("sweep", sweep_file, "--dry-run")[1].splitlines()[0].split()[1]
        store = ResultsStore(tmp_path / "store")
        store.append(made_record(0, trial_id=first))
        _, out, _ = run_cli("sweep", sweep_file, "--dry-run", "--store", store.path, "--session", "new")
        assert [line.split()[0] for line in out.splitlines()] == ["run", "skip"]

    def test_takes_the_store_from_the_environment(
        self, run_cli: Run, tmp_path: Path, sweep_file: Path, monkeypatch: pytest.MonkeyPatch
    ):
        first = run_cli("sweep", sweep_file, "--dry-run")[1].splitlines()[0].split()[1]
        ResultsStore(tmp_path / "elsewhere").append(made_record(0, trial_id=first))
        monkeypatch.setenv("BENCHSUITE_STORE", str(tmp_path / "elsewhere"))
        assert run_cli("sweep", sweep_file, "--dry-run")[1].startswith("done")

    def test_overrides(self, run_cli: Run, sweep_file: Path):
        options = ("-o", "world_size=1", "-o", "measure.repeats=1", "-o", "batch_size=[1, 2]")
        _, out, _ = run_cli("sweep", sweep_file, "--dry-run", *options)
        assert [line.split()[0] for line in out.splitlines()] == ["run", "run"]

    def test_nothing_that_can_run_is_exit_code_4(self, run_cli: Run, sweep_file: Path):
        code, out, _ = run_cli("sweep", sweep_file, "--dry-run", "-o", "world_size=2")
        assert code == 4
        assert out.startswith("skip")

    def test_a_real_sweep_that_cannot_run_says_why(self, run_cli: Run, tmp_path: Path, sweep_file: Path):
        code, _, err = run_cli("sweep", sweep_file, "-o", "world_size=2", "--store", tmp_path / "store")
        assert code == 4
        assert "parallelism none has 1 rank, world_size is 2" in err
        assert [record.status for record in ResultsStore(tmp_path / "store").records()] == ["skipped"]


class TestTrial:
    def trial_file(self, tmp_path: Path, **changes: Any) -> Path:
        path = tmp_path / "trial.yaml"
        path.write_text(yaml.safe_dump(SWEEP["base"] | changes))
        return path

    def test_validate(self, run_cli: Run, tmp_path: Path):
        code, out, err = run_cli("trial", self.trial_file(tmp_path), "--validate")
        assert (code, err) == (0, "")
        assert out.startswith("ok: ") and "resnet50 tiny, none, 1 ranks" in out and "a rank holds" in out

    def test_validate_on_a_dataset(self, run_cli: Run, tmp_path: Path, dataset_root: Path):
        path = self.trial_file(tmp_path, data={"root": str(dataset_root)}, measure={"steps": 6})
        assert run_cli("trial", path, "--validate")[0] == 0
        assert "48" in error_line(run_cli, "trial", path, "--validate", "-o", "measure.steps=60")

    def test_validate_says_why_it_cannot_run(self, run_cli: Run, tmp_path: Path):
        line = error_line(run_cli, "trial", self.trial_file(tmp_path, world_size=2), "--validate")
        assert "parallelism none has 1 rank, world_size is 2" in line

    def test_its_record_is_kept_where_it_is_told(self, run_cli: Run, tmp_path: Path):
        path = self.trial_file(tmp_path, measure={"steps": 2, "warmup_steps": 1})
        for _ in range(2):
            code, _, err = run_cli("trial", path, "--store", tmp_path / "kept")
            assert code == 0 and f"written: {tmp_path / 'kept'} (segments/*.jsonl)" in err
        records = ResultsStore(tmp_path / "kept").latest()
        assert [(record.repeat, record.status) for record in records] == [(0, "ok"), (1, "ok")]

    def test_caveats_come_with_their_arithmetic_and_what_is_not_kept_is_said(
        self, run_cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        detail = "foreign_load: other processes kept 1.5 of 2 cores busy"
        record = made_record(0, caveats=["foreign_load"], caveat_details=[detail])
        monkeypatch.setattr(single_trial, "run_in_this_process", lambda point, store: (record, None))
        code, out, err = run_cli("trial", self.trial_file(tmp_path))
        assert code == 0 and "nothing is stored: --store DIR keeps the record" in err
        assert out.splitlines()[-1] == f"  {detail}"

    def test_a_missing_file_is_one_line_when_the_cache_is_warmed(
        self, run_cli: Run, tmp_path: Path, dataset_root: Path
    ):
        folder = shutil.copytree(dataset_root / "files", tmp_path / "set" / "files")
        gone = next(folder.rglob("*.jpg"))
        gone.unlink()
        data = {"root": str(tmp_path / "set"), "cache": "warm", "num_workers": 0}
        code, out, err = run_cli("trial", self.trial_file(tmp_path, data=data, measure={"steps": 60}))
        assert code == 3 and "Traceback" not in out + err
        assert f"in phase warm: {gone}: No such file or directory" in " ".join((out + err).split())

    def test_a_trial_has_one_value(self, run_cli: Run, tmp_path: Path):
        line = error_line(run_cli, "trial", self.trial_file(tmp_path), "--validate", "-o", "batch_size=[1, 2]")
        assert "batch_size" in line and "not a list" in line


class TestSeveralGpus:
    """What has not run on several GPUs is marked; devices are told, as none are here."""

    @pytest.fixture(autouse=True)
    def own_state(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def test_list_marks_modes_schedules_nodes_and_engines(self, run_cli: Run):
        (line,) = [line for line in run_cli("list")[1].splitlines() if line.startswith("untested on several GPUs: ")]
        names = line.partition(": ")[2].split(", ")
        assert {"ddp", "cp", "schedule zero_bubble", "several nodes", "deepspeed"} <= {*names}
        assert not {"none", "torch"} & {*names}
        assert "untested" not in run_cli("list", "formats")[1]
        found = json.loads(run_cli("list", "engines", "--format", "json")[1])
        assert found["untested_on_several_gpus"] == [name for name in found["engines"] if name != "torch"]

    def test_doctor_warns_where_there_are_several(self, run_cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        for count, level in ((0, "ok"), (8, "warn")):
            machine = Machine(cores=64, cuda_devices=count)
            monkeypatch.setattr("benchsuite.host.doctor.this_machine", lambda machine=machine: machine)
            (line,) = [line for line in run_cli("doctor", tmp_path)[1].splitlines() if "untested on several" in line]
            assert line.split()[0] == level and ("make gpu-accept" in line) == (count > 1)

    def test_what_this_machine_has_passed_is_marked_nowhere(self, run_cli: Run, tmp_path: Path):
        keep(Accepted(VERSION, ("NVIDIA H100",), "2026-12-01", tuple(untested())))
        assert "untested" not in run_cli("list")[1] + run_cli("doctor", tmp_path)[1]


@pytest.mark.parametrize(
    "error",
    [RuntimeError("can't start new thread"), BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))],
)
def test_too_few_processes_are_one_line_that_names_the_limit(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stub in place of a limit, which root does not have."""
    told: list[str] = []
    monkeypatch.setattr(app, "app", Mock(side_effect=error))
    monkeypatch.setattr(app, "echo", lambda *lines, **_: told.extend(lines))
    assert app.run_command(["report"]) == USAGE
    assert len(told) == 1 and "raise `ulimit -u`" in told[0]


def test_what_openblas_does_without_threads_is_told_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """It sends SIGINT to its own process, which typer makes exit code 130."""
    told: list[str] = []
    monkeypatch.setattr(app, "app", Mock(return_value=INTERRUPTED))
    monkeypatch.setattr(app, "echo", lambda *lines, **_: told.extend(lines))
    assert app.run_command(["report"]) == INTERRUPTED and not told
    monkeypatch.setattr(app._thread, "start_new_thread", Mock(side_effect=RuntimeError("can't start new thread")))
    assert app.run_command(["report"]) == USAGE
    assert "raise `ulimit -u`" in told[0]
