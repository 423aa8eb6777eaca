"""What `make gpu-accept` compares on several GPUs is legal there: planned for devices that are told, none are here."""

from typing import Any, get_args

import pytest

from benchsuite import workloads
from benchsuite.contract.trial_spec import parse_trial
from benchsuite.grid.expand import resolve
from benchsuite.grid.validity import why_invalid
from benchsuite.host.machine import Machine
from benchsuite.results.report.several_gpus import SEVERAL_NODES
from benchsuite.workloads import engine
from benchsuite.workloads.spec import Schedule
from tests.gpu.cases import MODES, PRECISIONS, case_of, features_of_case, spec_of, two_nodes

EIGHT, TWO_NODES = Machine(cores=64, cuda_devices=8), Machine(cores=64, cuda_devices=8, nodes=2, elsewhere=True)
INSTALLED_APART = ("deepspeed", "horovod")
"""Engines of other packages, which have tests of their own."""


def why_not(spec: dict[str, Any], machine: Machine) -> str | None:
    parsed = parse_trial(spec)
    return why_invalid(resolve(parsed, machine, parsed.ranks, {}), machine)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", MODES)
def test_every_case_is_legal_on_its_devices(name: str, precision: str) -> None:
    assert why_not(case_of(name, precision), EIGHT) is None


@pytest.mark.parametrize("name", two_nodes(8))
def test_every_case_is_legal_on_two_nodes(name: str) -> None:
    assert why_not(spec_of("gpt_neox", **two_nodes(8)[name]), TWO_NODES) is None


def test_every_mode_schedule_and_engine_of_this_package_is_among_them() -> None:
    tested = {what for name in MODES for what in features_of_case(case_of(name, "bf16"))}
    wanted = {*workloads.MODES, *(f"schedule {name}" for name in get_args(Schedule)), *engine.ENGINES}
    assert wanted - {"none", *INSTALLED_APART} <= tested
    across = {what for changes in two_nodes(8).values() for what in features_of_case(spec_of("gpt_neox", **changes), 2)}
    assert {"ddp", "fsdp", "hsdp", "tp", "pp", "cp", "ep", SEVERAL_NODES} <= across
