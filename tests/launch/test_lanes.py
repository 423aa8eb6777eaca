"""The nodes of an allocation dealt to lanes, and what a lane is asked to run."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import yaml

from benchsuite.cli import sweep as runner
from benchsuite.contract.errors import UserError
from benchsuite.contract.trial_spec import SweepSpec, parse_sweep
from benchsuite.grid import expand as grid
from benchsuite.grid.point import Plan
from benchsuite.host.lane import Lane, this_lane
from benchsuite.host.machine import Machine
from benchsuite.launch import lanes
from benchsuite.launch.agents import AgentLauncher
from benchsuite.launch.allocation import Allocation, Task
from benchsuite.launch.lanes import check_lanes, planned_nodes, run_lanes, share_of, worst
from tests.runner.test_sweep import Rehearsal

FIVE = Allocation("slurm", "7", ("a", "b", "c", "d", "e"), 5)


def test_every_node_is_in_one_lane() -> None:
    shares = [share_of(FIVE, Lane(number, 2)) for number in range(2)]
    assert [share.hosts for share in shares] == [("a", "c", "e"), ("b", "d")]
    assert [share.num_nodes for share in shares] == [3, 2]
    assert share_of(FIVE, None) is FIVE


def test_which_lane_this_is() -> None:
    assert this_lane({}) is None and this_lane({"BENCHSUITE_LANE": "x"}) is None
    assert this_lane({"BENCHSUITE_LANE": "1/4/x"}) is None and this_lane({"BENCHSUITE_LANE": "1"}) is None
    assert this_lane({"BENCHSUITE_LANE": "1/4"}) == Lane(1, 4)
    assert this_lane({"BENCHSUITE_LANE": "1/4/2"}) == Lane(1, 4, 2)
    assert str(Lane(1, 4, 2)) == "1/4"


def test_more_lanes_than_nodes_are_refused() -> None:
    check_lanes(4, 4, "srun")
    with pytest.raises(UserError, match="--lanes 2: launcher local has 1 node; a lane is at least one"):
        check_lanes(2, 1, "local")


def test_lanes_of_each_of_a_jobs_tasks_are_refused(
    run_cli: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def meet_in(*_: object) -> None:
        pytest.fail("it became an agent")

    monkeypatch.setattr(AgentLauncher, "meet_in", meet_in)
    task = Task("srun", 1, 2, 0, 1, "srun-7-0")
    check_lanes(1, 2, "auto", task)
    file = tmp_path / "s.yaml"
    base = {"workload": "resnet50", "variant": "tiny", "data": {"source": "synthetic"}, "batch_size": 1}
    file.write_text(yaml.safe_dump({"name": "s", "base": base}))
    tasks = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "7", "SLURM_LOCALID": "0"}
    for name, value in tasks.items():
        monkeypatch.setenv(name, value)
    code, out, err = run_cli("sweep", file, "--lanes", 2, "--store", tmp_path / "store")
    assert (code, out) == (2, "")
    assert err == (
        "error: --lanes 2: this process is task 1 of 2, which srun has started; "
        "allowed: one process in the allocation, which starts the lanes\n"
    )
    assert not (tmp_path / "store").exists()


def test_all_lanes_plan_the_same_trials_though_one_has_a_node_more() -> None:
    """Three nodes, two lanes: planned for two nodes, a rank would be given eight cores, for one node four."""
    ids = []
    base = {"workload": "resnet50", "variant": "tiny", "data": {"source": "synthetic"}, "batch_size": 1}
    asked = parse_sweep({"name": "s", "base": base | {"parallelism": "ddp"}, "grid": {"world_size": [1, 2]}})
    three = Allocation("slurm", "7", ("a", "b", "c"), 3)
    for number in range(2):
        lane = Lane(number, 2, planned_nodes(3, 2))
        nodes = planned_nodes(share_of(three, lane).num_nodes, 1, lane)
        assert nodes == 1
        points = grid.expand(asked, Machine(8, 0, nodes)).points
        assert {point.spec.threads_per_rank for point in points} == {4}
        ids.append([point.point_id for point in points])
    assert ids[0] == ids[1]
    assert planned_nodes(5, 1) == 5 and planned_nodes(5, 2) == 2 and planned_nodes(3, 1, Lane(0, 2)) == 3


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ([0, 0], 0),
        ([0, 4], 0),
        ([4, 4], 4),
        ([4, 2, 0], 2),
        ([0, 2], 2),
        ([4, 3, 0], 3),
        ([3, 75, 4], 75),
        ([130, 75], 130),
        ([1, 130, 75, 3, 4, 2, 0], 1),
        ([75, 127], 1),
    ],
)
def test_the_worst_of_the_lanes_exit_codes(codes: list[int], code: int) -> None:
    assert worst(codes) == worst(codes[::-1]) == code


@pytest.mark.parametrize("lane", ["", "0/2/1"])
def test_lanes_run_the_same_command_and_know_themselves(
    lane: str, run_cli: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each is started with all that was asked for, `--lanes` too, which means nothing in a lane."""
    asked: list[tuple[int, Sequence[str]]] = []
    monkeypatch.setattr(runner, "run_lanes", lambda count, words, nodes: asked.append((count, words)) or [0])
    monkeypatch.setattr(runner, "load_launcher", lambda name: TwoNodes())
    monkeypatch.setenv("BENCHSUITE_LANE", lane)
    file = tmp_path / "s.yaml"
    base = {"workload": "resnet50", "variant": "tiny", "data": {"source": "synthetic"}, "batch_size": 1}
    file.write_text(yaml.safe_dump({"name": "s", "base": base | {"measure": {"repeats": 1}}}))
    if lane:
        (tmp_path / "store" / "segments").mkdir(parents=True)  # which the sweep that starts the lanes has made
    words = [
        "sweep",
        str(file),
        "--lanes",
        "2",
        "--store",
        str(tmp_path / "store"),
        "--until",
        "+2h",
        "-o",
        "measure.steps=4",
    ]
    assert run_cli(*words)[0] == 0
    assert asked == ([] if lane else [(2, tuple(words))])


def test_lanes_run_beside_each_other_and_get_signals(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Each tells its number and waits until the other has; then the first one sends the signal that ends both."""
    program = (
        "import os, pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))\n"
        "lane = os.environ['BENCHSUITE_LANE']\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "print('here', lane, file=sys.stderr, flush=True)\n"
        "(folder / lane[0]).touch()\n"
        "while len(list(folder.iterdir())) < 2: time.sleep(0.01)\n"
        "if lane[0] == '0': os.kill(os.getppid(), signal.SIGUSR1)\n"
        "time.sleep(60)\n"
    )
    monkeypatch.setattr(lanes, "COMMAND", (sys.executable, "-c", program))
    before = signal.getsignal(signal.SIGUSR1)
    assert run_lanes(2, [str(tmp_path)], 5) == [75, 75]
    assert sorted(capfd.readouterr().err.splitlines()) == ["[lane 1] here 0/2/2", "[lane 2] here 1/2/2"]
    assert signal.getsignal(signal.SIGUSR1) is before


def test_a_lane_that_was_killed_has_crashed(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import os, signal; os.environ['BENCHSUITE_LANE'][0] == '1' and os.kill(os.getpid(), signal.SIGKILL)"
    monkeypatch.setattr(lanes, "COMMAND", (sys.executable, "-c", program))
    assert run_lanes(2, [], 2) == [0, 1]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_signal_while_lanes_are_being_started_reaches_them_and_starts_no_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """It comes between the start of the first one and its being noted; that one dies of it, and the rest never live."""
    start, started = lanes._started, []

    def interrupted_start(lane: Lane, words: Sequence[str]) -> "subprocess.Popen[str]":
        started.append(start(lane, words))
        os.kill(os.getpid(), number)
        return started[-1]

    monkeypatch.setattr(lanes, "COMMAND", ("sleep", "60"))
    monkeypatch.setattr(lanes, "_started", interrupted_start)
    assert run_lanes(3, [], 3) == [code] * 3
    assert len(started) == 1 and started[0].returncode == -number


def test_a_lane_finds_the_package_where_this_process_did(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    program = "import os, sys; print(os.environ['PYTHONPATH'].split(os.pathsep)[-1], file=sys.stderr)"
    monkeypatch.setattr(lanes, "COMMAND", (sys.executable, "-c", program))
    assert run_lanes(1, [], 1) == [0]
    root = capfd.readouterr().err.removeprefix("[lane 1] ").strip()
    assert (Path(root) / "benchsuite" / "__main__.py").is_file() and not (Path(root) / "__main__.py").exists()


class TwoNodes(Rehearsal):
    """A launcher of a lane that has a node more than others."""

    num_nodes = 2
    machine = Machine(8, 0, 2)


@pytest.mark.parametrize(("lane", "nodes"), [("0/2/1", 1), (None, 2)])
def test_a_lane_plans_for_the_nodes_that_all_lanes_have(
    lane: str | None,
    nodes: int,
    run_cli: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    planned: list[int] = []

    def expand(sweep: SweepSpec, machine: Machine, store: Path) -> Plan:
        planned.append(machine.nodes)
        return Plan(sweep, [], [], 0)

    file = tmp_path / "s.yaml"
    base = {"workload": "resnet50", "variant": "tiny", "data": {"source": "synthetic"}, "batch_size": 1}
    file.write_text(yaml.safe_dump({"name": "s", "base": base}))
    monkeypatch.setenv("BENCHSUITE_LANE", lane or "")
    monkeypatch.setattr(runner, "load_launcher", lambda name: TwoNodes())
    monkeypatch.setattr(grid, "expand", expand)
    run_cli("sweep", file, "--store", tmp_path / "store", "--dry-run")
    assert planned == [nodes]
