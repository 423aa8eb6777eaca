"""The verb `trial`: run one trial and print it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from benchsuite.cli.common import Overrides, print_facts
from benchsuite.cli.sweep import profile_override
from benchsuite.cli.sweep_options import Profile
from benchsuite.contract.errors import UserError
from benchsuite.contract.exit_codes import OK, SOME_FAILED
from benchsuite.contract.terminal import PlainFormat, document, echo
from benchsuite.contract.trial_spec import parse_trial
from benchsuite.contract.yaml_file import read_yaml
from benchsuite.grid.emulated_steps import with_step
from benchsuite.grid.expand import plan_trial
from benchsuite.grid.layers import apply_layers
from benchsuite.grid.point import Point
from benchsuite.grid.warnings import memory_warning
from benchsuite.host.load import memory_bytes
from benchsuite.host.machine import this_machine
from benchsuite.launch.launcher import check_alone
from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import ResultsStore
from benchsuite.runner.progress import finished_line


def trial(
    spec: Annotated[Path, typer.Argument(help="A trial (YAML): the fields that a sweep has under `base`.")],
    validate: Annotated[
        bool,
        typer.Option("--validate", help="Run nothing; print whether it is valid, and what a rank holds and sends."),
    ] = False,
    check_loss: Annotated[
        bool, typer.Option("--check-loss", help="Train a few steps and compare the loss with that of one process.")
    ] = False,
    profile: Profile = None,
    timeline: Annotated[
        Path | None, typer.Option("--timeline", metavar="OUT.json", help="Write the steps as a trace for Perfetto.")
    ] = None,
    overrides: Overrides = None,
    store: Annotated[
        Path | None, typer.Option("--store", help="Store to append the record to; emulated:from-record reads from it.")
    ] = None,
    format: Annotated[PlainFormat, typer.Option("--format", help="json prints the record.")] = "table",
) -> None:
    """Run one trial and print it. A single rank runs in this process, so that a debugger can follow it."""
    from benchsuite.cli.results import write_trace
    from benchsuite.probe.record import appended
    from benchsuite.runner import single_trial

    values = _trial_values(spec, [*(overrides or []), *profile_override(profile)])
    if validate:
        from benchsuite.runner import validate as validation

        raise typer.Exit(validation.validate(with_step(parse_trial(values), store), format))
    check_alone("trial")
    if check_loss:
        raise typer.Exit(_check_loss(plan_trial({**values, "data": {"source": "synthetic"}}), format))
    point = plan_trial(values, store)
    opened = ResultsStore(store) if store else None
    if opened:
        opened.check_writable()
    if warning := memory_warning([point], this_machine(), memory_bytes()[1]):
        echo(warning, err=True)
    if single_trial.fits_one_process(point):
        record, samples = single_trial.run_in_this_process(point, opened)
    else:
        record, samples = single_trial.run_in_processes(point, opened)
    if opened:
        ((stored, _),) = appended([(record, samples)], store)
        assert isinstance(stored, TrialRecord)
        record = stored
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
    written = "nothing is stored: --store DIR keeps the record"
    if store:
        written = f"written: {store.path.absolute()} (segments/*.jsonl)"
    echo(finished_line(record), written, err=True)
    echo(*profile_lines(record))


def _check_loss(point: Point, format: PlainFormat) -> int:
    """Compare a trial's training with that of one process and print the verdict; return the exit code."""
    from benchsuite.runner import loss_check

    comparison = loss_check.check_loss(point)
    print_facts(format, comparison, [loss_check.describe_comparison(point, comparison)])
    return OK if comparison["equal"] else SOME_FAILED


def _trial_values(spec: Path, overrides: list[str]) -> dict[str, Any]:
    """Return the values of a trial's file under the overrides.

    Raises:
        UserError: the file is a sweep's, or an override is a list.
    """
    values = read_yaml(spec)
    if "base" in values:
        raise UserError(f"{spec}: a sweep file; use `benchsuite sweep`, or give the fields under its `base`")
    sweep = apply_layers({"base": values}, str(spec), overrides).sweep
    if sweep["grid"]:
        raise UserError(f"-o {next(iter(sweep['grid']))}: a trial has one value, not a list")
    base: dict[str, Any] = sweep["base"]
    return base
