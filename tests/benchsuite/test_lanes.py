"""The nodes of an allocation dealt to lanes, and what a lane is asked to run."""

import signal
import sys
from pathlib import Path

import pytest

from benchsuite.errors import UserError
from benchsuite.how import How
from benchsuite.launch import lanes
from benchsuite.launch.allocation import Allocation
from benchsuite.launch.lanes import Lane, check_lanes, run_lanes, share_of, this_lane
from benchsuite.options import ProfileName

FIVE = Allocation("slurm", "7", ("a", "b", "c", "d", "e"), 5)


def test_every_node_is_in_one_lane() -> None:
    shares = [share_of(FIVE, Lane(number, 2)) for number in range(2)]
    assert [share.hosts for share in shares] == [("a", "c", "e"), ("b", "d")]
    assert [share.num_nodes for share in shares] == [3, 2]
    assert share_of(FIVE, None) is FIVE


def test_which_lane_this_is() -> None:
    assert this_lane({}) is None and this_lane({"BENCHSUITE_LANE": "x"}) is None
    assert this_lane({"BENCHSUITE_LANE": "1/4"}) == Lane(1, 4)


def test_more_lanes_than_nodes_are_refused() -> None:
    check_lanes(4, 4, "srun")
    with pytest.raises(UserError, match="--lanes 2: launcher local has 1 node; a lane is at least one"):
        check_lanes(2, 1, "local")


def test_a_lane_is_asked_for_the_same_sweep() -> None:
    how = How("srun", "oom", ProfileName.io, "+2h", 60.0, 7, lanes=4)
    assert how.words(Path("mine.yaml"), "s", Path("store"), ["a=1", "b=[1, 2]"]) == [
        *("sweep", "mine.yaml", "--session", "s", "--store", "store", "--launcher", "srun", "--retry", "oom"),
        *("--profile", "io", "--until", "+2h", "--lease", "60.0", "--order-seed", "7", "-o", "a=1", "-o", "b=[1, 2]"),
    ]
    assert How().words(Path("m"), "s", Path("t"), []) == [
        *("sweep", "m", "--session", "s", "--store", "t", "--launcher", "auto", "--lease", "120.0")
    ]


def test_lanes_run_beside_each_other_and_get_signals(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Each waits until the other is there, tells its number and ends with it; the second one is sent a signal."""
    program = (
        "import os, pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))\n"
        "lane = os.environ['BENCHSUITE_LANE']\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "(folder / lane[0]).touch()\n"
        "while len(list(folder.iterdir())) < 2: time.sleep(0.01)\n"
        "print('here', lane, file=sys.stderr, flush=True)\n"
        "if lane == '0/2': os.kill(os.getppid(), signal.SIGUSR1)\n"
        "time.sleep(60)\n"
    )
    monkeypatch.setattr(lanes, "COMMAND", (sys.executable, "-c", program))
    before = signal.getsignal(signal.SIGUSR1)
    assert run_lanes(2, [str(tmp_path)]) == [75, 75]
    assert sorted(capfd.readouterr().err.splitlines()) == ["[lane 1] here 0/2", "[lane 2] here 1/2"]
    assert signal.getsignal(signal.SIGUSR1) is before
