"""The verbs `list`, `doctor` and `schema`, and `sweep --show-config`."""

import json
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any

import typer
from pydantic import BaseModel, TypeAdapter

from benchsuite import storage, workloads
from benchsuite.cli.common import Plain, print_facts
from benchsuite.contract import emulated_devices
from benchsuite.contract.errors import UserError, refuse
from benchsuite.contract.exit_codes import NOTHING_RAN, OK, SOME_FAILED
from benchsuite.contract.terminal import PlainFormat, document, echo
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.contract.yaml_file import Values, read_yaml
from benchsuite.grid.expand import load_sweep
from benchsuite.grid.layers import BUILT_IN, Layered, apply_layers, entries, find_sweep_file
from benchsuite.host.machine import this_machine
from benchsuite.launch import launcher
from benchsuite.results.report.several_gpus import UNTESTED
from benchsuite.workloads import engine
from benchsuite.workloads.facts import FACTS

PLANNED = ("machine", "machines", "model", "models")
"""What the planner lists and describes."""


def list_(
    what: Annotated[
        str,
        typer.Argument(
            help="What to list: workloads, formats, loaders, parallelism, engines, launchers, devices or sweeps."
        ),
    ] = "",
    format: Plain = "table",
) -> None:
    """List what there is to choose from."""
    from benchsuite.host import doctor as examination

    axes = list_axes()
    if what:
        _check("list", what, axes)
        axes = {what: axes[what]}
    untested = examination.untested(axes)
    lines = [f"{axis}: {', '.join(describe_value(axis, value) for value in axes[axis]) or '-'}" for axis in axes]
    if untested:
        lines.append(f"{UNTESTED}: {', '.join(untested)}")
    more = {"variants": list_variants() if "workloads" in axes else {}, "untested_on_several_gpus": untested}
    print_facts(format, axes | {name: value for name, value in more.items() if value}, lines)


def doctor(
    paths: Annotated[list[Path] | None, typer.Argument(help="Folders for data or results.")] = None,
    device: Annotated[
        bool, typer.Option("--device", help="Measure the figures of this node's GPUs in a second way; takes minutes.")
    ] = False,
    format: Plain = "table",
) -> None:
    """Check this machine and paths: what can run, what cannot, and what to do about it."""
    from benchsuite.host import doctor as examination

    if device:
        raise typer.Exit(_check_devices())
    findings = examination.examine(paths or [Path()])
    lines = [f"{finding.level:<5} {finding.text}" for finding in findings]
    print_facts(format, [vars(finding) for finding in findings], lines)
    raise typer.Exit(NOTHING_RAN if any(finding.level == "fail" for finding in findings) else OK)


def _check_devices() -> int:
    """Check the devices, and print the findings and the file that keeps them; return the exit code."""
    from benchsuite.runner import device_check

    out = Path(f"benchsuite-device-{datetime.now():%Y%m%d-%H%M%S}.json")
    levels = set()
    for finding in device_check.examine(out):
        echo(f"{finding.level:<5} {finding.question:<22} {finding.text}")
        levels.add(finding.level)
    echo(f"written: {out}: records and environment; attach it to a question about these figures", err=True)
    return SOME_FAILED if "fail" in levels else OK


def schema(
    what: Annotated[str, typer.Argument(help="What to describe: trial, sweep, record, manifest or table.")],
) -> None:
    """Print a JSON Schema."""
    _check("schema", what, SCHEMAS)
    document(json_schema(what))


def _check(verb: str, what: str, allowed: Collection[str]) -> None:
    """Refuse what there is none of; of what moved to the planner say so.

    Raises:
        UserError: it is not allowed.
    """
    if what in PLANNED:
        from benchsuite.cli.app import PLANNER

        raise UserError(f"{verb} {what}: `benchsuite plan {verb} {what}` is of benchsuite-plan, {PLANNER}")
    if what not in allowed:
        raise refuse(verb, what, allowed)


SCHEMAS: Mapping[str, str] = {
    "trial": "benchsuite.contract.trial_spec:TrialSpec",
    "sweep": "benchsuite.contract.trial_spec:SweepSpec",
    "record": "benchsuite.results.store.record:AnyRecord",
    "manifest": "benchsuite.storage.dataset.manifest:Manifest",
    "table": "benchsuite.predict.table:Table",
}
"""Where each model is defined. They are names, because the model of tables imports pandas."""


def list_axes() -> dict[str, list[str]]:
    """Return every axis with its values: only those that a test runs and checks."""
    from importlib.resources import files

    sweeps = files("benchsuite") / "sweeps"
    return {
        "workloads": workloads.names(workloads.WORKLOADS, "benchsuite.workloads"),
        "formats": storage.names(storage.FORMATS, "benchsuite.formats"),
        "loaders": storage.names(storage.LOADERS, "benchsuite.loaders"),
        "parallelism": list(workloads.MODES),
        "engines": engine.names(),
        "launchers": list(launcher.known()),
        "devices": [
            "cpu",
            *(f"cuda:{number}" for number in range(this_machine().cuda_devices)),
            *emulated_devices.names(),
            "emulated:TIME",
            "emulated:from-record ID",
        ],
        "sweeps": sorted(entry.name for entry in sweeps.iterdir() if entry.name.endswith(".yaml")),
    }


def list_variants() -> dict[str, list[str]]:
    """Return the variants of each workload of this package, except those for tests.

    Workloads of other packages are left out, because they would have to be imported.
    """
    return {
        name: [variant for variant in facts.variants if not variant.startswith("nano")] for name, facts in FACTS.items()
    }


def describe_value(axis: str, value: str) -> str:
    """Return a value as `list` prints it: with its variants, or with what must be installed for it."""
    if axis == "loaders" and value in storage.missing_loaders():
        return f"{value} (not installed: {storage.LOADERS[value][1]})"
    variants = list_variants().get(value) if axis == "workloads" else None
    return f"{value} ({', '.join(variants)})" if variants else value


def json_schema(what: str) -> str:
    """Return a JSON Schema with sorted keys."""
    return json.dumps(TypeAdapter(resolve_name(SCHEMAS[what])).json_schema(), indent=1, sort_keys=True)


def show_settings(file: Path, overrides: list[str], format: PlainFormat) -> None:
    """Print the settings of a sweep file; run nothing.

    Raises:
        UserError: the sweep file has mistakes.
    """
    path = find_sweep_file(file)
    load_sweep(path, overrides)  # raises for mistakes that the layers alone do not show
    fields = settings(apply_layers(read_yaml(path), str(path), overrides))
    if format == "json":
        document(json.dumps(fields, indent=1))
    else:
        _print_settings(fields)


def settings(layered: Layered) -> list[Values]:
    """Return every field of a trial in the order of the schema, and then axes that vary a part of a field.

    Where the field is an axis, `value` has its values and `varies` is grid or zip.
    """
    defaults, base_values = dict(_defaults(TrialSpec)), entries(layered.sweep["base"])
    parts = [key for part in ("grid", "zip") for key in layered.sweep[part] if key not in defaults]
    defaults |= dict.fromkeys(parts)
    fields = []
    for key, default in defaults.items():
        set_keys = [name for name in layered.origins if name == key or name.startswith(f"{key}.")]
        origin = layered.origins[set_keys[-1]] if set_keys else BUILT_IN
        varies = next((part for part in ("grid", "zip") if key in layered.sweep[part]), None)
        value = layered.sweep[varies][key] if varies else base_values.get(key, default)
        fields.append({"key": key, "value": value, "varies": varies, "origin": origin})
    return fields


def _defaults(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys with their built-in values; the degrees of parallelism are one value."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _defaults(inner, f"{prefix}{name}.")
        else:
            yield prefix + name, None if field.is_required() else field.default


def _print_settings(fields: list[Values]) -> None:
    from rich.table import Table
    from rich.text import Text

    from benchsuite.contract.console import console

    table = Table("field", "value", "from", box=None, pad_edge=False)
    for field in fields:
        value = field["value"] if isinstance(field["value"], str) else json.dumps(field["value"], default=str)
        if field["varies"]:
            value = f"{field['varies']}: {value}"
        table.add_row(field["key"], Text(value), Text(field["origin"]))
    console().print(table)
