"""The verb `trial`: one trial, run and printed."""

from pathlib import Path
from typing import Annotated, Any

import typer

from benchsuite.cli.common import Overrides, Profile, tell
from benchsuite.cli.sweep import profiled
from benchsuite.contract.errors import UserError
from benchsuite.contract.exit_codes import OK, SOME_FAILED
from benchsuite.contract.terminal import PlainFormat, document, echo
from benchsuite.contract.trial_spec import parse_trial
from benchsuite.contract.yaml_file import read_yaml
from benchsuite.grid.emulated_steps import with_step
from benchsuite.grid.expand import plan_trial
from benchsuite.grid.layers import layered
from benchsuite.grid.point import Point
from benchsuite.grid.warnings import fitting_in_memory
from benchsuite.host.load import memory_bytes
from benchsuite.host.machine import this_machine
from benchsuite.launch.launcher import check_alone
from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import ResultsStore
from benchsuite.runner.progress import finished_line


def trial(
    spec: Annotated[Path, typer.Argument(help="A trial (YAML): what stands under `base` in a sweep.")],
    validate: Annotated[
        bool, typer.Option("--validate", help="Run nothing: say whether it is valid, what a rank holds and sends.")
    ] = False,
    check_loss: Annotated[
        bool, typer.Option("--check-loss", help="Train a few steps, and compare with one process.")
    ] = False,
    profile: Profile = None,
    timeline: Annotated[
        Path | None, typer.Option("--timeline", metavar="OUT.json", help="Write the steps as a trace for Perfetto.")
    ] = None,
    overrides: Overrides = None,
    store: Annotated[
        Path | None, typer.Option("--store", help="Also keep the record there; emulated:from-record reads from it.")
    ] = None,
    format: Annotated[PlainFormat, typer.Option("--format", help="json prints the record.")] = "table",
) -> None:
    """Run one trial and print it; one rank runs in this process, so that a debugger can follow it."""
    from benchsuite.cli.results import write_trace
    from benchsuite.probe.record import appended
    from benchsuite.runner import single_trial

    value = _trial_values(spec, [*(overrides or []), *profiled(profile)])
    if validate:
        from benchsuite.runner.validate import validate as examine

        raise typer.Exit(examine(with_step(parse_trial(value), store), format))
    check_alone("trial")
    if check_loss:
        raise typer.Exit(_check_loss(plan_trial({**value, "data": {"source": "synthetic"}}), format))
    point = plan_trial(value, store)
    opened = ResultsStore(store) if store else None
    if opened:
        opened.check_writable()
    if warning := fitting_in_memory([point], this_machine(), memory_bytes()[1]):
        echo(warning, err=True)
    alone = single_trial.fits_one_process(point)
    record, samples = (single_trial.run_in_this_process if alone else single_trial.run_in_processes)(point, opened)
    if opened:
        ((kept, _),) = appended([(record, samples)], store)
        assert isinstance(kept, TrialRecord)
        record = kept
    if timeline and samples:
        write_trace(samples, record.label, timeline)
    if format == "json":
        document(record.model_dump_json(indent=1))
    else:
        _print(record, opened)
    raise typer.Exit(OK if record.status == "ok" else SOME_FAILED)


def _print(record: TrialRecord, store: ResultsStore | None) -> None:
    """Print a trial's figures, and where its record is kept."""

    from benchsuite.cli.results import profile_lines
    from benchsuite.contract.console import console
    from benchsuite.results.render.tables import COLUMNS, rows
    from benchsuite.results.render.terminal import fitting_table, say
    from benchsuite.results.store.frames import record_frame

    out = console()
    out.print(fitting_table(rows(record_frame([record])), COLUMNS, out))
    for detail in record.caveat_details:
        say(out, f"  {detail}")
    kept = (
        f"written: {store.path.absolute()} (segments/*.jsonl)"
        if store
        else "nothing is stored: --store DIR keeps the record"
    )
    echo(finished_line(record), kept, err=True)
    echo(*profile_lines(record))


def _check_loss(point: Point, format: PlainFormat) -> int:
    from benchsuite.runner import loss_check

    found = loss_check.check_loss(point)
    tell(format, found, [loss_check.describe_comparison(point, found)])
    return OK if found["equal"] else SOME_FAILED


def _trial_values(spec: Path, overrides: list[str]) -> dict[str, Any]:
    """What a trial's file and the overrides say.

    Raises:
        UserError: a sweep's file, or an override that is a list.
    """
    given = read_yaml(spec)
    if "base" in given:
        raise UserError(f"{spec}: a sweep file; use `benchsuite sweep`, or give what stands under `base`")
    value = layered({"base": given}, str(spec), overrides).sweep
    if value["grid"]:
        raise UserError(f"-o {next(iter(value['grid']))}: a trial has one value, not a list")
    base: dict[str, Any] = value["base"]
    return base
