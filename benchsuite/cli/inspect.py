"""The verbs `list`, `doctor` and `schema`, and `sweep --show-config`: what there is to choose, and what was chosen."""

import json
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any

import typer
from pydantic import BaseModel, TypeAdapter

from benchsuite import storage, workloads
from benchsuite.cli.common import Plain, tell
from benchsuite.contract import emulated_devices
from benchsuite.contract.errors import UserError, refuse
from benchsuite.contract.exit_codes import NOTHING_RAN, OK, SOME_FAILED
from benchsuite.contract.terminal import PlainFormat, document, echo
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.contract.yaml_file import Values, read_yaml
from benchsuite.grid.expand import load_sweep
from benchsuite.grid.layers import BUILT_IN, Layered, bundled, entries, layered
from benchsuite.host.machine import this_machine
from benchsuite.launch import launcher
from benchsuite.results.report.several_gpus import UNTESTED
from benchsuite.workloads import engine
from benchsuite.workloads.facts import FACTS

PLANNED = ("machine", "machines", "model", "models")
"""What the planner lists and describes."""


def list_(
    what: Annotated[
        str, typer.Argument(help="workloads, formats, loaders, parallelism, engines, launchers, devices or sweeps.")
    ] = "",
    format: Plain = "table",
) -> None:
    """What there is to choose from."""
    from benchsuite.host import doctor as examination

    found = everything()
    if what:
        _check("list", what, found)
    found = {what: found[what]} if what else found
    of_workloads = variants() if "workloads" in found else {}
    untested = examination.untested(found)
    lines = [f"{name}: {', '.join(marked(name, value) for value in found[name]) or '-'}" for name in found]
    lines += [f"{UNTESTED}: {', '.join(untested)}"] if untested else []
    more = {"variants": of_workloads, "untested_on_several_gpus": untested}
    tell(format, found | {name: value for name, value in more.items() if value}, lines)


def doctor(
    paths: Annotated[list[Path] | None, typer.Argument(help="Folders that will hold data or results.")] = None,
    device: Annotated[
        bool, typer.Option("--device", help="Compare the figures of this node's GPUs with other ways to them: minutes.")
    ] = False,
    format: Plain = "table",
) -> None:
    """Check this machine and paths: what can run here, what cannot, and what to do about it."""
    from benchsuite.host import doctor as examination

    if device:
        raise typer.Exit(_examined_devices())
    findings = examination.examine(paths or [Path()])
    tell(format, [vars(finding) for finding in findings], (f"{each.level:<5} {each.text}" for each in findings))
    raise typer.Exit(NOTHING_RAN if any(finding.level == "fail" for finding in findings) else OK)


def _examined_devices() -> int:
    """Print what was found of the devices, and where all of it is kept."""
    from benchsuite.runner import device_check

    out = Path(f"benchsuite-device-{datetime.now():%Y%m%d-%H%M%S}.json")
    levels = set()
    for finding in device_check.examine(out):
        echo(f"{finding.level:<5} {finding.question:<22} {finding.text}")
        levels.add(finding.level)
    echo(f"written: {out}: records and environment; send it along with a question about these figures", err=True)
    return SOME_FAILED if "fail" in levels else OK


def schema(
    what: Annotated[str, typer.Argument(help="trial, sweep, record, manifest or table.")],
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
"""Where each model is: that of tables takes pandas."""


def everything() -> dict[str, list[str]]:
    """Every axis with its values; only what a test runs and checks stands here."""
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


def variants() -> dict[str, list[str]]:
    """The variants of each workload of this package, those for tests left out; others' would have to be imported."""
    return {name: [each for each in facts.variants if not each.startswith("nano")] for name, facts in FACTS.items()}


def marked(what: str, value: str) -> str:
    """A value as `list` prints it: with its variants, or with what has to be installed for it."""
    if what == "loaders" and value in storage.missing_loaders():
        return f"{value} (not installed: {storage.LOADERS[value][1]})"
    of = variants().get(value) if what == "workloads" else None
    return f"{value} ({', '.join(of)})" if of else value


def json_schema(what: str) -> str:
    """A JSON Schema, with sorted keys."""
    return json.dumps(TypeAdapter(resolve_name(SCHEMAS[what])).json_schema(), indent=1, sort_keys=True)


def show_settings(file: Path, overrides: list[str], format: PlainFormat) -> None:
    """Print the settings of a sweep file; run nothing.

    Raises:
        UserError: one line about the first problem.
    """
    path = bundled(file)
    load_sweep(path, overrides)  # for all mistakes in it
    found = settings(layered(read_yaml(path), str(path), overrides))
    if format == "json":
        document(json.dumps(found, indent=1))
    else:
        _print_settings(found)


def settings(found: Layered) -> list[Values]:
    """Every field of a trial, in the order of the schema, and the axes that vary a part of one.

    `value` are the values of an axis where the field is one; `varies` says grid or zip then.
    """
    fields, given = dict(_defaults(TrialSpec)), entries(found.sweep["base"])
    fields |= dict.fromkeys(key for part in ("grid", "zip") for key in found.sweep[part] if key not in fields)
    rows = []
    for key, default in fields.items():
        below = [name for name in found.origins if name == key or name.startswith(f"{key}.")]
        origin = found.origins[below[-1]] if below else BUILT_IN
        varies = next((part for part in ("grid", "zip") if key in found.sweep[part]), None)
        value = found.sweep[varies][key] if varies else given.get(key, default)
        rows.append({"key": key, "value": value, "varies": varies, "origin": origin})
    return rows


def _defaults(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys with their built-in values; degrees of parallelism are one value."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _defaults(inner, f"{prefix}{name}.")
        else:
            yield prefix + name, None if field.is_required() else field.default


def _print_settings(found: list[Values]) -> None:
    from rich.table import Table
    from rich.text import Text

    from benchsuite.contract.console import console

    table = Table("field", "value", "from", box=None, pad_edge=False)
    for row in found:
        words = row["value"] if isinstance(row["value"], str) else json.dumps(row["value"], default=str)
        value = f"{row['varies']}: {words}" if row["varies"] else words
        table.add_row(row["key"], Text(value), Text(row["origin"]))
    console().print(table)
