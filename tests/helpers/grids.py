"""Plans of small sweeps, and what is refused of them."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from benchsuite.contract.errors import UserError
from benchsuite.contract.trial_spec import parse_sweep
from benchsuite.grid.expand import expand, load_sweep
from benchsuite.grid.point import Plan
from benchsuite.host.machine import Machine

TWO_CORES = Machine(cores=2, cuda_devices=0)
SYNTHETIC: dict[str, Any] = {
    "workload": "resnet50",
    "variant": "tiny",
    "batch_size": 4,
    "data": {"source": "synthetic"},
}


def plan(base: dict[str, Any] | None = None, machine: Machine = TWO_CORES, **sweep: Any) -> Plan:
    """The plan of a sweep over a base that reads nothing, unless another is given."""
    return expand(parse_sweep({"name": "s", "base": SYNTHETIC if base is None else base, **sweep}), machine)


def storage_base(root: Path, **data: Any) -> dict[str, Any]:
    """A base that reads the small dataset: 2 workers, 2 batches each, 8 steps."""
    settings = {"root": str(root), "num_workers": 2, "prefetch_factor": 2} | data
    return {"workload": "resnet50", "variant": "tiny", "batch_size": 4, "data": settings, "measure": {"steps": 8}}


def labels(found: Plan) -> list[str]:
    return [point.label for point in found.points]


def reasons(found: Plan) -> list[str]:
    return [skipped.reason for skipped in found.skipped]


def refused(*overrides: str, machine: Machine = TWO_CORES, **sweep: Any) -> str:
    """The one line that refuses a sweep file with these contents."""
    with pytest.raises(UserError) as caught:
        expand(load(*overrides, **sweep), machine)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load(*overrides: str, **sweep: Any) -> Any:
    """A sweep that went through a file."""
    path = Path("made.yaml")
    path.write_text(yaml.safe_dump({"base": SYNTHETIC, **sweep}))
    return load_sweep(path, list(overrides))
