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

from benchsuite.errors import UserError
from benchsuite.jobscript import Job, job_name, write
from benchsuite.options import Scheduler
from benchsuite.site import parse_job
from tests.benchsuite.madejobs import CASES, PLAIN, SWEEP

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
        text = write(Scheduler.slurm, PLAIN, parse_job({"time": time} if time else {}))
        assert f"#SBATCH --signal=B:USR1@{warning_s}\n" in text

    def test_names_are_made_harmless(self):
        assert job_name("a b;c", "2026:01$(x)") == "bs-a-b-c-2026-01-x-"
        assert len(job_name("x" * 300)) == 100

    @pytest.mark.parametrize("scheduler", Scheduler)
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

    @pytest.mark.parametrize("scheduler", Scheduler)
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
        script = self.script(run_cli, "slurm", "--store", "my store", "-o", "precision=bf16", "--session", "s1")
        monkeypatch.delenv("BENCHSUITE_MEASURE__STEPS")
        assert self.run(script) == 0
        asked = f"sweep {tmp_path}/mine.yaml --session s1 --launcher auto -o precision=bf16"
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
            deadline = time.monotonic() + 30
            while not (programs / "ready").exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            job.send_signal(getattr(signal, f"SIG{name}"))
            assert job.wait(30) == 75
        assert (programs / "signals").read_text() == f"{name}\n"
        assert len(calls(programs, "scontrol") + calls(programs, "qsub")) == num_requeued


class TestVerb:
    def dry_run(self, run_cli: Run, *arguments: str) -> list[str]:
        """The scripts' texts."""
        code, out, err = run_cli("submit", arguments[0], "mine.yaml", "--dry-run", *arguments[1:])
        assert code == 0 and "error" not in err, err
        lines = out.splitlines()
        assert all(line.startswith("written: ") for line in lines)
        return [Path(line.removeprefix("written: ")).read_text() for line in lines]

    def test_nodes_are_what_the_largest_world_size_needs(self, run_cli: Run):
        (text,) = self.dry_run(run_cli, "slurm", "--ranks-per-node", "4")
        assert "#SBATCH --nodes=2" in directives(text) and "#SBATCH --ntasks-per-node=4" in directives(text)
        (text,) = self.dry_run(run_cli, "slurm", "--ranks-per-node", "4", "--nodes", "3")
        assert "#SBATCH --nodes=3" in directives(text)
        (text,) = self.dry_run(run_cli, "pbs", "--ranks-per-node", "4", "--cpus-per-rank", "6")
        assert "#PBS -l select=2:ncpus=24:mpiprocs=4" in directives(text)

    def test_scripts_lie_in_the_store_unless_told(self, run_cli: Run, tmp_path: Path):
        self.dry_run(run_cli, "slurm", "--store", "kept", "--session", "tonight")
        assert [path.name for path in (tmp_path / "kept" / "jobs").iterdir()] == ["bs-mine-tonight.slurm.sh"]
        assert not (tmp_path / "kept" / "segments").exists()

    def test_a_job_per_world_size(self, run_cli: Run):
        texts = self.dry_run(
            run_cli, "slurm", "--mode", "per-world-size", "--ranks-per-node", "4", "--cpus-per-rank", "3"
        )
        shapes = [re.findall(r"--(?:nodes|ntasks-per-node)=(\d+)", text) for text in texts]
        assert shapes == [["1", "1"], ["1", "2"], ["2", "4"]]
        for text, size in zip(texts, (1, 2, 8), strict=True):
            assert command(text)[-4:] == ["-o", f"world_size={size}", "-o", "threads_per_rank=3"]
            assert f"#SBATCH --job-name=bs-mine-default-{size}ranks" in directives(text)

    def test_jobs_per_world_size_measure_what_the_sweep_would(self, run_cli: Run, tmp_path: Path):
        """Threads are fixed over the series, as in one sweep on one node."""
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(SWEEP | {"scaling": "weak"}))
        whole = run_cli("sweep", "mine.yaml", "--dry-run")[1].splitlines()
        parts = []
        for text in self.dry_run(run_cli, "slurm", "--mode", "per-world-size", "--ranks-per-node", "8"):
            parts += run_cli(*command(text)[1:], "--dry-run")[1].splitlines()
        ids = [[line.split()[1] for line in lines if line.startswith("run")] for lines in (whole, parts)]
        assert ids[0] == ids[1] and len(ids[0]) == 3

    @pytest.mark.parametrize(
        "change",
        [
            {"include": [{"world_size": 4}]},
            {"grid": {}, "zip": {"world_size": [1, 2], "batch_size": [8, 4]}},
        ],
    )
    def test_world_sizes_that_cannot_be_taken_apart(self, run_cli: Run, tmp_path: Path, change: dict[str, Any]):
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(SWEEP | change))
        code, _, err = run_cli("submit", "slurm", "mine.yaml", "--dry-run", "--mode", "per-world-size")
        assert code == 2 and "selects" in err and "--mode sweep" in err

    def test_defaults_of_the_site_and_the_user(self, run_cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        site = {"account": "proj", "partition": "all", "modules": ["cuda"], "options": {"licenses": "x"}}
        for variable, value in (
            ("BENCHSUITE_SITE", {"submit": site, "store": str(tmp_path / "scratch")}),
            ("BENCHSUITE_USER_CONFIG", {"submit": {"partition": "mine", "time": 43200}}),
        ):
            path = tmp_path / f"{variable}.yaml"
            path.write_text(yaml.safe_dump(value))
            monkeypatch.setenv(variable, str(path))
        (text,) = self.dry_run(run_cli, "slurm", "--account", "other", "--option", "exclusive")
        found = directives(text)
        for line in ("account=other", "partition=mine", "time=12:00:00", "licenses=x", "exclusive"):
            assert f"#SBATCH --{line}" in found
        assert "module load cuda" in text.splitlines()
        assert f"export BENCHSUITE_STORE={tmp_path}/scratch" in text.splitlines()
        assert f"export BENCHSUITE_SITE={tmp_path}/BENCHSUITE_SITE.yaml" in text.splitlines()

    def test_points_that_only_the_nodes_can_run(self, run_cli: Run):
        """This host may lack the devices."""
        (text,) = self.dry_run(run_cli, "slurm", "-o", "device=cuda", "--gres", "gpu:1")
        assert "#SBATCH --nodes=8" in directives(text)
        assert len(self.dry_run(run_cli, "slurm", "-o", "device=cuda")) == 1

    def test_scripts_of_every_kind_lie_side_by_side(self, run_cli: Run, tmp_path: Path):
        for scheduler in ("slurm", "pbs"):
            for mode in ("sweep", "array", "per-world-size"):
                _, _, err = run_cli("submit", scheduler, "mine.yaml", "--dry-run", "--out", "jobs", "--mode", mode)
                assert "replaced" not in err
        sizes = [f"bs-mine-default-{size}ranks.{kind}.sh" for size in (1, 2, 8) for kind in ("pbs", "slurm")]
        kinds = [f"bs-mine-default.{kind}.sh" for kind in ("pbs", "pbs-array", "slurm", "slurm-array")]
        assert sorted(path.name for path in (tmp_path / "jobs").iterdir()) == sorted([*sizes, *kinds])

    def test_another_script_of_the_kind_is_replaced_with_a_word(self, run_cli: Run, tmp_path: Path):
        words = ("submit", "slurm", "mine.yaml", "--dry-run", "--out", "jobs", "--time")
        script = tmp_path / "jobs" / "bs-mine-default.slurm.sh"
        for limit, said in (("01:00:00", False), ("01:00:00", False), ("02:00:00", True)):
            _, _, err = run_cli(*words, limit)
            assert (f"note: {script} was there with other content: replaced\n" in err) == said
        assert "#SBATCH --time=02:00:00" in script.read_text()

    @pytest.mark.parametrize("scheduler", ["slurm", "pbs"])
    def test_a_job_without_a_limit_is_warned_of(self, run_cli: Run, tmp_path: Path, scheduler: str):
        words = ("submit", scheduler, "mine.yaml", "--dry-run")
        said = "warning: no --time: the cluster's default ends the job"
        assert run_cli(*words, "--mode", "per-world-size")[2].count(said) == 1
        assert said not in run_cli(*words, "--time", "01:00:00")[2]

    @pytest.mark.parametrize(
        ("arguments", "nodes", "ranks", "why"),
        [
            (["slurm"], 8, 1, "more by --ranks-per-node, --nodes or --gres"),
            (["slurm", "--gres", "gpu:4"], 2, 4, "one a GPU, of 4 on a node"),
            (["slurm", "--gres", "gpu:a100:4,nvme:1"], 2, 4, "one a GPU, of 4 on a node"),
            (["slurm", "--gres", "gpu:16"], 1, 8, "one a GPU, of 16 on a node"),
            (["slurm", "--option", "gpus-per-node=h100:2"], 4, 2, "one a GPU, of 2 on a node"),
            (["pbs", "--gres", "ngpus=4:mem=64gb"], 2, 4, "one a GPU, of 4 on a node"),
            (["slurm", "--nodes", "3"], 3, 3, "the largest trial's 8 over 3"),
            (["slurm", "--nodes", "3", "--gres", "gpu:4"], 3, 4, "one a GPU, of 4 on a node"),
            (["slurm", "--gres", "gpu:4", "--ranks-per-node", "2"], 4, 2, "as asked for"),
            (["slurm", "--gres", "gpu:4", "-o", "ranks_per_node=1"], 8, 1, "as the sweep says"),
        ],
    )
    def test_ranks_are_spread_over_the_devices_that_are_known(
        self, run_cli: Run, tmp_path: Path, arguments: list[str], nodes: int, ranks: int, why: str
    ):
        scheduler, *more = arguments
        code, out, err = run_cli("submit", scheduler, "mine.yaml", "--dry-run", *more)
        shape = f"{nodes} node{'s' if nodes > 1 else ''} x {ranks} rank{'s' if ranks > 1 else ''}"
        assert code == 0 and f"bs-mine-default: {shape} ({why})\n" in err, err
        text = Path(out.removeprefix("written: ").strip()).read_text()
        asked = [f"--nodes={nodes}", f"--ntasks-per-node={ranks}"] if scheduler == "slurm" else [f"mpiprocs={ranks}"]
        assert all(word in text for word in asked)

    def test_submitting(self, run_cli: Run, programs: Path, tmp_path: Path):
        code, out, err = run_cli("submit", "slurm", "mine.yaml", "--out", "jobs", "--time", "01:00:00")
        script = tmp_path / "jobs" / "bs-mine-default.slurm.sh"
        assert (code, out) == (0, f"submitted: 4711 · {script}\n")
        shape = "bs-mine-default: 8 nodes x 1 rank (more by --ranks-per-node, --nodes or --gres)\n"
        assert err == shape, "what was decided, and no warning"
        assert calls(programs, "sbatch") == [f"--parsable {script}"]
        assert os.access(script, os.X_OK)
        code, out, _ = run_cli("submit", "pbs", "mine.yaml", "--out", "jobs", "--mode", "array", "--array-tasks", "3")
        array = tmp_path / "jobs" / "bs-mine-default.pbs-array.sh"
        assert (code, out) == (0, f"submitted: 4711.server · {array}\n")
        assert calls(programs, "qsub") == [f"-J 1-3 {array}"]
        assert run_cli("submit", "slurm", "mine.yaml", "--mode", "per-world-size")[1].count("submitted: 4711") == 3

    def test_what_the_scheduler_refuses(self, run_cli: Run, programs: Path):
        (programs / "sbatch").write_text("#!/bin/bash\necho 'sbatch: error: Invalid account' >&2; exit 1\n")
        code, out, err = run_cli("submit", "slurm", "mine.yaml")
        assert (code, out) == (2, "")
        last = err.splitlines()[-1]
        assert last.startswith("error: sbatch ") and last.endswith(": sbatch: error: Invalid account")

    @pytest.mark.parametrize(("scheduler", "program"), [("slurm", "sbatch"), ("pbs", "qsub")])
    def test_no_scheduler_here(
        self, run_cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheduler: str, program: str
    ):
        monkeypatch.setenv("PATH", str(tmp_path))
        code, out, err = run_cli("submit", scheduler, "mine.yaml")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"{program} is not on PATH" in err and "--dry-run" in err
        assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"], "nothing was written"

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["slrm", "mine.yaml"], ["'slrm'", "slurm, pbs", "nearest: slurm"]),
            (["slurm", "gone.yaml"], ["gone.yaml"]),
            (["slurm", "mine.yaml", "--session", "a/b"], ["session 'a/b'"]),
            (["slurm", "mine.yaml", "--mode", "arry"], ["'arry'", "nearest: array"]),
            (["slurm", "mine.yaml", "--time", "2h"], ["time '2h'", "02:00:00"]),
            (["slurm", "mine.yaml", "--time", "90"], ["time '90'"]),
            (["slurm", "mine.yaml", "--nodes", "0"], ["--nodes"]),
            (["slurm", "mine.yaml", "--account", "a\nb"], ["--account", "line break"]),
            (["slurm", "mine.yaml", "--option", "nodes=3"], ["--option nodes", "--nodes"]),
            (["slurm", "mine.yaml", "--option", "a b=3"], ["--option 'a b'", "KEY=VALUE"]),
            (["pbs", "mine.yaml", "--option", "walltime=3"], ["--option walltime", "--time"]),
            (["pbs", "mine.yaml", "--qos", "high"], ["--qos 'high'", "--partition"]),
            (["pbs", "mine.yaml", "--gres", "gpu:4"], ["--gres 'gpu:4'", "ngpus=4"]),
            (["slurm", "mine.yaml", "--array-tasks", "3"], ["--array-tasks 3", "--mode array"]),
            (["slurm", "mine.yaml", "--mode", "per-world-size", "--nodes", "3"], ["--nodes 3", "--ranks-per-node"]),
            (["slurm", "mine.yaml", "--launcher", "locl"], ["--launcher 'locl'", "nearest: local"]),
            (["slurm", "mine.yaml", "-o", "batchsize=3"], ["unknown key 'batchsize'", "nearest: batch_size"]),
            (["slurm", "mine.yaml", "-o", "data.source=memory"], ["data.root is missing"]),
        ],
    )
    def test_mistakes_are_one_line_and_write_nothing(
        self, run_cli: Run, tmp_path: Path, arguments: list[str], words: list[str]
    ):
        code, out, err = run_cli("submit", *arguments, "--dry-run")
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert all(word in err for word in words), err
        assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]

    def test_nothing_can_run(self, run_cli: Run, tmp_path: Path):
        code, out, err = run_cli(
            "submit", "slurm", "mine.yaml", "--dry-run", "-o", "parallelism=none", "-o", "world_size=2"
        )
        assert (code, out) == (4, "")
        assert "nothing can run" in err and "parallelism none has 1 rank, world_size is 2" in err
        assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]
