"""Two nodes: modes train as one process does, and a trial's ranks, devices and network are those of both."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchsuite.analysis.record_builder import new_attempt
from benchsuite.contract.scratch import scratch
from benchsuite.contract.trial_spec import parse_trial
from benchsuite.grid.expand import resolve
from benchsuite.grid.point import Point
from benchsuite.grid.validity import why_invalid
from benchsuite.host.interference import Guard
from benchsuite.host.machine import this_machine
from benchsuite.launch.agents import TRIAL, AgentLauncher
from benchsuite.launch.allocation import allocation
from benchsuite.launch.launcher import load_launcher
from benchsuite.runner.attempt import measure
from benchsuite.runner.loss_check import check_loss
from tests.gpu.accept import SEVERAL_GPUS
from tests.gpu.cases import WORKLOAD, features_of_case, spec_of, two_nodes


@pytest.fixture(scope="module")
def nodes() -> Iterator[AgentLauncher]:
    """Agents on the nodes of this job, of which there are two or more."""
    given = allocation()
    if given is None or given.num_nodes < 2:
        here = given.words if given else "no scheduler's job"
        pytest.skip(f"needs a Slurm or PBS job of two nodes, here is {here}")
    with load_launcher("auto") as found:
        assert isinstance(found, AgentLauncher)
        yield found


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that both nodes see, as they see the checkout that the tests are run in."""
    with scratch(Path.cwd()) as folder:
        yield folder


def planned(nodes: AgentLauncher, changes: dict[str, Any]) -> Point:
    """A trial on all devices of two nodes."""
    devices = nodes.machine.cuda_devices
    parsed = parse_trial(spec_of(WORKLOAD, optimizer="momentum", nodes=2, **changes))
    point = resolve(parsed, nodes.machine, parsed.ranks, {})
    reason = why_invalid(point, nodes.machine)
    if reason:
        pytest.skip(f"with {devices} devices a node: {reason}")
    return point


@pytest.mark.parametrize("name", two_nodes(this_machine().cuda_devices or 8))
def test_a_mode_trains_as_one_process_does(
    nodes: AgentLauncher, shared: Path, record_property: Callable[[str, object], None], name: str
) -> None:
    changes = two_nodes(nodes.machine.cuda_devices)[name]
    point = planned(nodes, changes)
    record_property(SEVERAL_GPUS, features_of_case(spec_of(WORKLOAD, **changes), nodes=2))
    found = check_loss(point, nodes, shared)
    assert found["equal"], found


def test_a_record_tells_of_both_nodes(
    nodes: AgentLauncher, shared: Path, record_property: Callable[[str, object], None]
) -> None:
    nodes.task = TRIAL
    point = planned(nodes, two_nodes(nodes.machine.cuda_devices)["ddp"])
    record, samples = measure(new_attempt(point, "default", 0, "trial", None), nodes, shared, guard=Guard())
    assert record.status == "ok" and samples is not None, record.reason
    assert len(record.env["nodes"]) == 2
    record_property("nodes", record.env["nodes"])
    uuids = {rank["device_uuid"] for rank in samples["ranks"]}
    assert len(uuids) == point.spec.ranks and None not in uuids
    assert {device["device_uuid"] for device in samples["devices"]} == uuids, "read by the agents of both"
    assert record.figures.communication_s is not None and record.figures.communication_s > 0
    assert record.figures.energy_j is not None and record.figures.gpu_busy_fraction is not None


def test_collectives_between_nodes(
    nodes: AgentLauncher, shared: Path, run_cli: Callable[..., tuple[int, str, str]]
) -> None:
    asked = ("--op", "all_reduce,all_to_all", "--sizes", "4KiB:64MiB", "--world-size", 2 * nodes.machine.cuda_devices)
    code, _, err = run_cli("probe", "comm", *asked, "--seconds", 0, "--store", shared / "store")
    assert code == 0, err
