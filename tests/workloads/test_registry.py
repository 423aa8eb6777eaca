"""The registries of workloads and modes, and what asking for a workload costs."""

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from benchsuite import workloads
from benchsuite.workloads import WORKLOADS, load, names
from benchsuite.workloads.workload import Workload


def test_every_name_loads() -> None:
    for name in WORKLOADS:
        workload = load(WORKLOADS, name)
        assert isinstance(workload, Workload) and workload.name == name
        assert {"tiny", "reference"} <= set(workload.variants)


def test_an_unknown_name_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="resnet51"):
        load(WORKLOADS, "resnet51")
    with pytest.raises(KeyError, match="resnet51"):
        load(WORKLOADS, "resnet51", "benchsuite.workloads")


def test_third_parties_add_through_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("mine", "benchsuite.workloads.resnet50:WORKLOAD", "benchsuite.workloads")
    monkeypatch.setattr(workloads, "entry_points", lambda group: [entry] if group == "benchsuite.workloads" else [])
    assert names(WORKLOADS, "benchsuite.workloads") == sorted(["mine", *WORKLOADS])
    assert load(WORKLOADS, "mine", "benchsuite.workloads").name == "resnet50"
    assert names(WORKLOADS) == sorted(WORKLOADS)


def test_planning_imports_no_torch() -> None:
    code = "import sys, workloads, benchsuite.workloads.spec; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
