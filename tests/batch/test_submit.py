"""Job scripts: their text, what they do, and what `submit` refuses."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchsuite.batch.job_script import Job, Scheduler, job_name, write
from benchsuite.contract.errors import UserError
from benchsuite.host.site import parse_job
from tests.helpers.madejobs import CASES, PLAIN, SWEEP

Run = Callable[..., tuple[int, str, str]]

GOLDEN = Path(__file__).parent / "submitted"


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("BENCHSUITE_")]:
        monkeypatch.delenv(name)
    for name in ("BENCHSUITE_SITE", "BENCHSUITE_USER_CONFIG"):
        monkeypatch.setenv(name, "")
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(SWEEP))


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins first on PATH: each notes its arguments in NAME.calls; `benchsuite` ends with the code in `code`."""
    folder = tmp_path / "programs"
    folder.mkdir()
    answers = {"sbatch": "echo '4711;cluster'", "qsub": "echo 4711.server", "scontrol": ""}
    answers["benchsuite"] = f"""
    if [ -e {folder}/wait ]; then
      trap 'echo USR1 >> {folder}/signals; exit 75' USR1
      trap 'echo TERM >> {folder}/signals; exit 75' TERM
      touch {folder}/ready
      while :; do sleep 0.02; done
    fi
    env | grep ^BENCHSUITE_ | sort > {folder}/environment
    pwd > {folder}/folder
    exit "$(cat {folder}/code)"
    """
    for name, answer in answers.items():
        path = folder / name
        path.write_text(f'#!/bin/bash\nprintf "%s\\n" "$*" >> {folder}/{name}.calls\n{answer}\n')
        path.chmod(0o755)
    (folder / "code").write_text("0")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def calls(programs: Path, name: str) -> list[str]:
    path = programs / f"{name}.calls"
    return path.read_text().splitlines() if path.exists() else []


def directives(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(("#SBATCH", "#PBS"))]


def command(text: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if re.search(r"\bbenchsuite sweep .* &$", line)]
    return shlex.split(line)[:-1]


class TestScripts:
    @pytest.mark.parametrize("name", CASES)
    def test_is_the_one_kept_here(self, name: str):
        assert write(*CASES[name]) == (GOLDEN / name).read_text()

    @pytest.mark.parametrize("name", CASES)
    def test_bash_can_read_it(self, name: str):
        subprocess.run(["bash", "-n", GOLDEN / name], check=True)

    @pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
    @pytest.mark.parametrize("name", CASES)
    def test_shellcheck_has_no_objection(self, name: str):
        """Other than to a sourced file that is not here."""
        done = subprocess.run(
            ["shellcheck", "-e", "SC1091", GOLDEN / name], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (0, "")

    @pytest.mark.parametrize(
        ("time", "seconds", "walltime"),
        [("02:00:00", 7200, "02:00:00"), ("1-02:03:04", 93784, "26:03:04"), (43200, 43200, "12:00:00")],
    )
    def test_time(self, time: Any, seconds: int, walltime: str):
        spec = parse_job({"time": time})
        assert (spec.time_s, spec.walltime) == (seconds, walltime)

    @pytest.mark.parametrize(
        ("time", "warning_s"), [(None, 120), ("1-00:00:00", 120), ("00:04:00", 120), ("00:02:00", 60), ("00:01:00", 30)]
    )
    def test_slurm_warns_a_short_job_in_its_middle(self, time: str | None, warning_s: int):
        """One that is warned at its start would be queued again and again, and measure nothing."""
        text = write("slurm", PLAIN, parse_job({"time": time} if time else {}))
        assert f"#SBATCH --signal=B:USR1@{warning_s}\n" in text

    def test_names_are_made_harmless(self):
        assert job_name("a b;c", "2026:01$(x)") == "bs-a-b-c-2026-01-x-"
        assert len(job_name("x" * 300)) == 100

    @pytest.mark.parametrize("scheduler", ["slurm", "pbs"])
    @pytest.mark.parametrize(
        "change",
        [
            {"account": "a\n#SBATCH --uid=0"},
            {"partition": "p\r"},
            {"options": {"x": "1\n2"}},
            {"modules": ["a\nrm -rf /"]},
            {"setup": ["a\nb"]},
            {"container": ["a\nb"]},
        ],
    )
    def test_nothing_leaves_its_line(self, scheduler: Scheduler, change: dict[str, Any]):
        with pytest.raises(UserError, match="holds a line break") as caught:
            write(scheduler, PLAIN, parse_job(change))
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("scheduler", ["slurm", "pbs"])
    def test_values_are_words(self, scheduler: Scheduler):
        evil = "$(touch /tmp/x) `id` ' \" # ; &"
        job = Job(**(vars(PLAIN) | {"words": ["benchsuite", "sweep", evil], "store": Path(f"/{evil}")}))
        text = write(scheduler, job, parse_job({"account": evil, "options": {"comment": evil}}))
        assert command(text)[-1] == evil
        assert [shlex.split(line)[-1] for line in text.splitlines() if "BENCHSUITE_STORE" in line] == [
            f"BENCHSUITE_STORE=/{evil}"
        ]
        assert sum(evil in " ".join(shlex.split(line[1:])) for line in directives(text)) == 2
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)


class TestRunning:
    """What a written script does, with stand-ins for the programs that it calls."""

    def script(self, run_cli: Run, scheduler: str, *arguments: str) -> Path:
        code, out, err = run_cli("submit", scheduler, "mine.yaml", "--dry-run", "--out", "jobs", *arguments)
        assert code == 0, err
        return Path(out.removeprefix("written: ").strip())

    def run(self, script: Path, **variables: str) -> int:
        return subprocess.run(["bash", script], env=os.environ | variables, cwd="/", check=False, timeout=60).returncode

    def test_runs_the_sweep_where_it_was_submitted(
        self, run_cli: Run, programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        """With the settings it was submitted with."""
        monkeypatch.setenv("BENCHSUITE_MEASURE__STEPS", "6")
        script = self.script(
            run_cli, "slurm", "--store", "my store", "-o", "precision=bf16", "--session", "s1", "--retry", "oom"
        )
        monkeypatch.delenv("BENCHSUITE_MEASURE__STEPS")
        assert self.run(script) == 0
        asked = f"sweep {tmp_path}/mine.yaml --session s1 --launcher auto -o precision=bf16 --retry oom"
        assert calls(programs, "benchsuite") == [asked]
        assert (programs / "folder").read_text() == f"{tmp_path}\n"
        environment = (programs / "environment").read_text().splitlines()
        assert f"BENCHSUITE_STORE={tmp_path}/my store" in environment
        assert "BENCHSUITE_MEASURE__STEPS=6" in environment

    @pytest.mark.parametrize("code", [0, 3, 4])
    @pytest.mark.parametrize("scheduler", ["slurm", "pbs"])
    def test_other_ends_are_passed_on(self, run_cli: Run, programs: Path, scheduler: str, code: int):
        (programs / "code").write_text(str(code))
        assert self.run(self.script(run_cli, scheduler), SLURM_JOB_ID="7", PBS_JOBID="7.s") == code
        assert len(calls(programs, "benchsuite")) == 1
        assert calls(programs, "scontrol") == calls(programs, "qsub") == []

    def test_75_is_requeued_by_slurm(self, run_cli: Run, programs: Path):
        (programs / "code").write_text("75")
        script = self.script(run_cli, "slurm", "--max-requeues", "2")
        assert self.run(script, SLURM_JOB_ID="7") == 75
        assert self.run(script, SLURM_JOB_ID="7", SLURM_RESTART_COUNT="1") == 75
        assert calls(programs, "scontrol") == ["requeue 7"] * 2
        assert self.run(script, SLURM_JOB_ID="7", SLURM_RESTART_COUNT="2") == 75
        assert len(calls(programs, "scontrol")) == 2, "not for ever"

    def test_75_of_an_array_requeues_the_task(self, run_cli: Run, programs: Path):
        (programs / "code").write_text("75")
        script = self.script(run_cli, "slurm", "--mode", "array")
        self.run(script, SLURM_JOB_ID="7", SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID="4")
        assert calls(programs, "scontrol") == ["requeue 7_4"]

    def test_75_is_submitted_again_to_pbs(self, run_cli: Run, programs: Path):
        (programs / "code").write_text("75")
        script = self.script(run_cli, "pbs", "--max-requeues", "2", "--time", "02:00:00")
        self.run(script, PBS_JOBID="7.server")
        self.run(script, PBS_JOBID="8.server", REQUEUES="1")
        self.run(script, PBS_JOBID="9.server", REQUEUES="2")
        assert calls(programs, "qsub") == [
            f"-v REQUEUES=1 -W depend=afterany:7.server {script}",
            f"-v REQUEUES=2 -W depend=afterany:8.server {script}",
        ]
        assert calls(programs, "benchsuite")[0].endswith(" --until +7080s")

    def test_no_requeues_if_so_asked(self, run_cli: Run, programs: Path):
        (programs / "code").write_text("75")
        assert self.run(self.script(run_cli, "slurm", "--max-requeues", "0"), SLURM_JOB_ID="7") == 75
        assert calls(programs, "scontrol") == []

    @pytest.mark.parametrize("arguments", [["slurm"], ["pbs"], ["pbs", "--time", "02:00:00"]])
    @pytest.mark.parametrize(("name", "num_requeued"), [("USR1", 1), ("TERM", 0)])
    def test_signals_reach_the_sweep(
        self, run_cli: Run, programs: Path, arguments: list[str], name: str, num_requeued: int
    ):
        """The early warning is requeued, a job that was cancelled is not."""
        (programs / "wait").touch()
        script = self.script(run_cli, *arguments)
        environment = os.environ | {"SLURM_JOB_ID": "7", "PBS_JOBID": "7.s"}
        with subprocess.Popen(["bash", script], env=environment) as job:
            deadline = time.monotonic() + 120
            while not (programs / "ready").exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            job.send_signal(getattr(signal, f"SIG{name}"))
            assert job.wait(120) == 75
        assert (programs / "signals").read_text() == f"{name}\n"
        assert len(calls(programs, "scontrol") + calls(programs, "qsub")) == num_requeued
