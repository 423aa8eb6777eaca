"""What there is to choose from, and the JSON Schemas of what users write and read."""

import json
from collections.abc import Mapping

from pydantic import BaseModel

from benchsuite import storage, workloads
from benchsuite.contract import emulated_devices
from benchsuite.contract.errors import refuse
from benchsuite.contract.trial_spec import SweepSpec, TrialSpec
from benchsuite.host.machine import this_machine
from benchsuite.launch.launcher import LAUNCHERS
from benchsuite.predict.layout import machines, models
from benchsuite.predict.layout.machines import Machine
from benchsuite.predict.layout.models import Model
from benchsuite.predict.scaling.table_columns import Table
from benchsuite.results.store.record import TrialRecord
from benchsuite.storage.dataset.manifest import Manifest
from benchsuite.workloads.facts import FACTS

SCHEMAS: Mapping[str, type[BaseModel]] = {
    "trial": TrialSpec,
    "sweep": SweepSpec,
    "record": TrialRecord,
    "manifest": Manifest,
    "machine": Machine,
    "model": Model,
    "table": Table,
}


def everything() -> dict[str, list[str]]:
    """Every axis with its values; only what a test runs and checks stands here."""
    from importlib.resources import files

    sweeps = files("benchsuite") / "sweeps"
    return {
        "workloads": workloads.names(workloads.WORKLOADS, "benchsuite.workloads"),
        "formats": storage.names(storage.FORMATS, "benchsuite.formats"),
        "loaders": storage.names(storage.LOADERS),
        "parallelism": list(workloads.MODES),
        "launchers": list(LAUNCHERS),
        "devices": [
            "cpu",
            *(f"cuda:{number}" for number in range(this_machine().cuda_devices)),
            *emulated_devices.names(),
            "emulated:TIME",
            "emulated:from-record ID",
        ],
        "models": models.names(),
        "machines": machines.names(),
        "sweeps": sorted(entry.name for entry in sweeps.iterdir() if entry.name.endswith(".yaml")),
    }


def variants() -> dict[str, list[str]]:
    """The variants of each workload of this package, those for tests left out; others' would have to be imported."""
    return {name: [each for each in facts.variants if not each.startswith("nano")] for name, facts in FACTS.items()}


def marked(what: str, value: str) -> str:
    """A value as `list` prints it: with its variants, or with what has to be installed for it."""
    if what == "loaders" and value in storage.missing_loaders():
        return f"{value} (not installed: {storage.LOADERS[value][1]})"
    of = variants().get(value) if what == "workloads" else None
    return f"{value} ({', '.join(of)})" if of else value


def some(what: str) -> list[str]:
    """One axis's values.

    Raises:
        UserError: no such axis.
    """
    found = everything()
    if what not in found:
        raise refuse("list", what, found)
    return found[what]


def json_schema(what: str) -> str:
    """A JSON Schema, with sorted keys."""
    return json.dumps(SCHEMAS[what].model_json_schema(), indent=1, sort_keys=True)
