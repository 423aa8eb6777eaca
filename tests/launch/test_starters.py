"""What starts agents, as argument lists, and what a user is told where they cannot be started."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchsuite.contract.errors import UserError
from benchsuite.launch.agents import AgentConfig, AgentLauncher
from benchsuite.launch.allocation import RANKS_VARIABLE, Allocation
from benchsuite.launch.launcher import load_launcher
from benchsuite.launch.starters import LocalLauncher, mpiexec_command, srun_command
from tests.helpers.launchers import spec

SLURM = Allocation("slurm", "7", (), 3, None, 64)
PBS = Allocation("pbs", "7", ("x1", "x2"), 2)


def test_srun_takes_all_cores_of_every_node_and_leaves_room_for_other_steps() -> None:
    command = srun_command(SLURM)
    assert command[:4] == ("srun", "--nodes=3", "--ntasks=3", "--ntasks-per-node=1")
    assert {"--cpus-per-task=64", "--overlap", "--export=ALL", "--mem=0", "--cpu-bind=none"} <= {*command}
    assert {"--no-kill", "--kill-on-bad-exit=0"} <= {*command}, "the death of one is not that of all"
    with_devices = srun_command(replace(SLURM, gpus_per_node=4))
    assert "--gpus-per-node=4" in with_devices and "--gpu-bind=none" in with_devices, "an agent deals a node's devices"


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("mpiexec (OpenRTE) 4.1.4", ["-n 2", "--host x1,x2", "--map-by ppr:1:node", "--bind-to none", "-x BENCHSUITE"]),
        ("prterun (Open MPI) 5.0.3", ["-n 2", "--host x1,x2"]),
        ("PALS 1.4.0", ["-n 2", "--ppn 1", "--hosts x1,x2", "--cpu-bind none"]),
        ("HYDRA build details:\n    Version: 4.1", ["-n 2", "-ppn 1", "-hosts x1,x2"]),
    ],
)
def test_mpiexec_of_each_maker(version: str, words: list[str]) -> None:
    command = " ".join(mpiexec_command(version, PBS))
    assert command.startswith("mpiexec ")
    for text in words:
        assert text in command
    assert "x1" not in " ".join(mpiexec_command(version, None))


def test_an_mpiexec_that_nobody_knows() -> None:
    with pytest.raises(UserError, match=r"mpiexec --version says \['LAM 7'\]: allowed: Open MPI, MPICH"):
        mpiexec_command("LAM 7\nmore", None)


def test_srun_outside_of_a_job_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(UserError, match="--launcher srun: SLURM_JOB_ID is not set; start it within sbatch or salloc"):
        load_launcher("srun")


TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_PORT": "29500"}
STEP = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "0"}
MODEL = "{workload: resnet50, variant: nano, batch_size: 2, data: {source: synthetic}}"


class TestTasksOfAJob:
    """Processes that torchrun or srun has started: each would run the whole sweep."""

    @pytest.mark.parametrize("name", ["local", "srun", "mpiexec"])
    def test_another_launcher_is_refused(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        for variable, value in TORCHRUN.items():
            monkeypatch.setenv(variable, value)
        told = rf"--launcher {name}: this process is task 1 of 4 \(RANK=1, WORLD_SIZE=4\), and each would run it all; "
        with pytest.raises(UserError, match=told + "allowed: sweep --launcher auto, or one process"):
            load_launcher(name)

    def test_the_first_task_is_refused_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for variable, value in STEP.items():
            monkeypatch.setenv(variable, value)
        with pytest.raises(UserError, match=r"task 0 of 2 \(SLURM_PROCID=0, SLURM_STEP_NUM_TASKS=2\)"):
            load_launcher("local")

    @pytest.mark.parametrize(("environment", "starter"), [(TORCHRUN, "torchrun"), (STEP, "srun")])
    def test_auto_takes_the_tasks_for_agents(
        self, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], starter: str
    ) -> None:
        for variable, value in environment.items():
            monkeypatch.setenv(variable, value)
        for name in ("auto", starter):
            launcher = load_launcher(name)
            assert isinstance(launcher, AgentLauncher)
            assert launcher.agent_config.name == starter and launcher.agent_config.task is not None

    def test_a_jobs_script_says_how_many_ranks_the_node_of_one_task_takes(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for variable, value in (STEP | {RANKS_VARIABLE: "4"}).items():
            monkeypatch.setenv(variable, value)
        launcher = load_launcher("auto")
        assert isinstance(launcher, AgentLauncher) and launcher.agent_config.ranks_per_node == 4

    def test_one_task_is_a_process_as_any(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for variable, value in (STEP | {"SLURM_STEP_NUM_TASKS": "1"}).items():
            monkeypatch.setenv(variable, value)
        assert isinstance(load_launcher("local"), LocalLauncher)

    @pytest.mark.parametrize("rank", ["0", "1"])
    def test_a_dry_run_is_printed_once(
        self, run_cli: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: str
    ) -> None:
        (tmp_path / "s.yaml").write_text(f"base: {MODEL}")
        for variable, value in (TORCHRUN | {"RANK": rank}).items():
            monkeypatch.setenv(variable, value)
        code, out, err = run_cli("sweep", tmp_path / "s.yaml", "--dry-run", "--store", tmp_path / "store")
        assert code == 0 and (out.count("run "), "3 trials" in err) == ((1, True) if rank == "0" else (0, False))

    @pytest.mark.parametrize("verb", ["trial", "demo", "probe"])
    def test_verbs_without_launchers(
        self, run_cli: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "t.yaml").write_text(MODEL)
        for variable, value in TORCHRUN.items():
            monkeypatch.setenv(variable, value)
        words = {"trial": ("trial", "t.yaml"), "demo": ("demo",), "probe": ("probe", "checkpoint", ".")}[verb]
        code, out, err = run_cli(*words)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert f"error: {' '.join(words[:2] if verb == 'probe' else words[:1])}: this process is task 1 of 4" in err
        assert [path.name for path in tmp_path.iterdir()] == ["t.yaml"], "nothing was made"


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    for name in ("srun", "mpiexec"):
        with pytest.raises(UserError, match=f"--launcher {name}: {name} is not installed or not in PATH"):
            load_launcher(name)


def test_a_starter_that_fails_says_why(tmp_path: Path) -> None:
    program = tmp_path / "starter"
    program.write_text("#!/bin/sh\necho 'error: node n2 is drained' >&2\nexit 3\n")
    program.chmod(0o755)
    with (
        AgentLauncher(AgentConfig("srun", 2, (str(program),), num_nodes=2)) as launcher,
        pytest.raises(UserError, match=r"ranks cannot be started: error: node n2 is drained \(exit status 3\)"),
    ):
        launcher.run(spec(1), None, tmp_path, lambda progress: None)


def test_a_node_with_other_code_is_refused(tmp_path: Path) -> None:
    """A second installation, with one line more, starts the agent."""
    copy = tmp_path / "other"
    root = Path(__file__).parents[2]
    shutil.copytree(root / "benchsuite", copy / "benchsuite", ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / "benchsuite" / "trial" / "clock.py").open("a") as file:
        file.write("# changed\n")
    program = tmp_path / "starter"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={copy} exec "$@"\n')
    program.chmod(0o755)
    agent_config = AgentConfig("srun", 1, (str(program),))
    with (
        AgentLauncher(agent_config) as launcher,
        pytest.raises(UserError, match=rf"node .* from {copy}/benchsuite, this process .*: install one of them"),
    ):
        launcher.run(spec(1), None, tmp_path, lambda progress: None)
