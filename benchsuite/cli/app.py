"""The verbs. Imports no torch, and little else until a verb needs it."""

import errno
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer

from benchsuite.cli import default_store, gate, jobs, plan, predict, scaling
from benchsuite.cli.data import data_app
from benchsuite.cli.probe import probe_app
from benchsuite.cli.results import results_app
from benchsuite.contract import terminal
from benchsuite.contract.exit_codes import (
    CRASH,
    INTERRUPTED,
    NOTHING_RAN,
    OK,
    REQUEUE,
    STORE_VARIABLE,
    USAGE,
    PlainFormat,
    ProfileName,
    SchemaName,
    TableFormat,
)
from benchsuite.contract.terminal import document, echo
from benchsuite.host import signals

app = typer.Typer(
    name="benchsuite",
    help="What holds a training job back: storage, the input pipeline, compute or the interconnect?",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": 110},
)
app.add_typer(data_app, name="data")
app.add_typer(probe_app, name="probe")
app.add_typer(results_app, name="results")
app.command("submit")(jobs.submit)
app.command("status")(jobs.status)
app.command("scaling")(scaling.scaling)
app.command("plan", epilog=plan.EPILOG)(plan.plan)
app.command("predict", epilog=predict.EPILOG)(predict.predict)
app.command("compare")(gate.compare)
app.add_typer(gate.baseline_app, name="baseline")
app.command("check")(gate.check)

Store = Annotated[
    Path,
    typer.Option("--store", envvar="BENCHSUITE_STORE", help="Results store.", show_default=True),
]
DEFAULT_STORE = Path("benchsuite-store")
Overrides = Annotated[list[str] | None, typer.Option("-o", "--override", metavar="KEY=VALUE", help="Set a field.")]
Session = Annotated[str, typer.Option("--session", help="Measuring campaign; a new one measures anew.")]
Profile = Annotated[
    ProfileName | None,
    typer.Option("--profile", help="Also record what readers do with files (strace: no AU then), or torch's profile."),
]
Retry = Annotated[str, typer.Option("--retry", help="Run again what ended so: failed,oom,timeout.")]


@app.command()
def sweep(
    file: Annotated[Path, typer.Argument(help="A sweep file (YAML).")],
    session: Session = "default",
    store: Store = DEFAULT_STORE,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print every trial and what is skipped; run none.")
    ] = False,
    overrides: Overrides = None,
    launcher: Annotated[
        str, typer.Option("--launcher", help="auto, local, torchrun, srun, mpiexec, or an added one.")
    ] = "auto",
    retry: Retry = "",
    profile: Profile = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME", help="Start nothing that would not end by then: 06:30, +2h."),
    ] = None,
    lease: Annotated[
        float, typer.Option("--lease", min=1, help="Seconds without a sign after which another sweep's trial is free.")
    ] = 120.0,
    order_seed: Annotated[
        int | None, typer.Option("--order-seed", metavar="N", help="Shuffle each round of repeats by this seed.")
    ] = None,
    lanes: Annotated[
        int, typer.Option("--lanes", min=1, metavar="N", help="Run N trials at a time, each on its share of the nodes.")
    ] = 1,
    show_config: Annotated[
        bool, typer.Option("--show-config", help="Print every value and the layer it comes from; run none.")
    ] = False,
    format: Annotated[
        PlainFormat | None, typer.Option("--format", help="Of --show-config: table (default) or json.")
    ] = None,
) -> None:
    """Run the grid of a sweep file; what its session has already is not run again."""
    if show_config:
        from benchsuite.cli import show_config as showconfig

        return showconfig.show(file, overrides or [], format or PlainFormat.table)
    if format is not None:
        raise typer.BadParameter("--format goes with --show-config")
    from benchsuite.cli import sweep as runner
    from benchsuite.runner.sweep_options import How

    how = How(launcher, retry, profile, until, lease, order_seed, lanes)
    raise typer.Exit(runner.sweep(file, session, store, dry_run, overrides or [], how))


@app.command()
def demo(
    folder: Annotated[Path, typer.Option("--folder", help="Where the demo's dataset goes.")] = Path("benchsuite-demo"),
    store: Store = DEFAULT_STORE,
    session: Session = "default",
    samples: Annotated[int, typer.Option("--samples", min=256, help="Photographs to make.")] = 1024,
) -> None:
    """Make a small dataset, run a real sweep on it and print the report."""
    from benchsuite.cli import sweep as runner

    raise typer.Exit(runner.demo(folder, store, session, samples))


@app.command()
def trial(
    spec: Annotated[Path, typer.Argument(help="A trial (YAML): what stands under `base` in a sweep.")],
    validate: Annotated[
        bool, typer.Option("--validate", help="Run nothing: say whether it is legal, what a rank holds and sends.")
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
    format: Annotated[PlainFormat, typer.Option("--format", help="json prints the record.")] = PlainFormat.table,
) -> None:
    """Run one trial and print it; one rank runs in this process, so that a debugger can follow it."""
    from benchsuite.cli import sweep as runner

    raise typer.Exit(runner.trial(spec, validate, check_loss, profile, timeline, overrides or [], format, store))


@app.command("list")
def list_(
    what: Annotated[
        str, typer.Argument(help="workloads, formats, loaders, parallelism, launchers, devices, models, ...")
    ] = "",
    format: Annotated[PlainFormat, typer.Option("--format", help="table or json.")] = PlainFormat.table,
    yaml: Annotated[
        str | None, typer.Option("--yaml", metavar="NAME", help="Print this one of the machines or models, to edit.")
    ] = None,
) -> None:
    """What there is to choose from."""
    from benchsuite.cli import inspect

    if yaml is not None:
        from benchsuite.predict.layout import template

        return document(template.text(what, yaml).removesuffix("\n"))
    found = inspect.everything() if not what else {what: inspect.some(what)}
    variants = inspect.variants() if "workloads" in found else {}
    if format is PlainFormat.json:
        document(json.dumps(found | ({"variants": variants} if variants else {}), indent=1))
        return
    for name, values in found.items():
        words = [inspect.marked(name, value) for value in values]
        echo(f"{name}: {', '.join(words) or '-'}")


@app.command()
def doctor(
    paths: Annotated[list[Path] | None, typer.Argument(help="Folders that will hold data or results.")] = None,
    format: Annotated[PlainFormat, typer.Option("--format", help="table or json.")] = PlainFormat.table,
) -> None:
    """Check this machine and paths: what can run here, what cannot, and what to do about it."""
    from benchsuite.host import doctor as examination

    findings = examination.examine(paths or [Path()])
    if format is PlainFormat.json:
        document(json.dumps([vars(finding) for finding in findings], indent=1))
    else:
        for finding in findings:
            echo(f"{finding.level:<5} {finding.text}")
    raise typer.Exit(NOTHING_RAN if any(finding.level == "fail" for finding in findings) else OK)


@app.command()
def schema(
    what: Annotated[SchemaName, typer.Argument(help="trial, sweep, record, manifest, machine, model or table.")],
) -> None:
    """Print a JSON Schema."""
    from benchsuite.cli import inspect

    document(inspect.json_schema(what.value))


@app.command()
def report(
    store: Store = DEFAULT_STORE,
    format: Annotated[TableFormat | None, typer.Option("--format", help="table (default), md, csv or json.")] = None,
    mlperf_storage: Annotated[
        bool, typer.Option("--mlperf-storage", help="Emulated accelerators: the fields of MLPerf Storage's summary.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="OUT.html", help="Write one page with charts; needs no network.")
    ] = None,
    session: Annotated[
        str | None,
        typer.Option("--session", metavar="NAME|latest", help="Only this, or the one measured last; default: all."),
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="OUT.json", help="All that it says, as one object for programs.")
    ] = None,
    svg: Annotated[Path | None, typer.Option("--svg", metavar="DIR", help="Draw each chart as a file in DIR.")] = None,
    pdf: Annotated[Path | None, typer.Option("--pdf", metavar="DIR", help="The same as PDF.")] = None,
) -> None:
    """What the results say: a sentence, a table, and what the numbers rest on."""
    from benchsuite.cli import report as show

    tables = {"--format": format, "--mlperf-storage": mlperf_storage}
    if svg is not None or pdf is not None:
        show.figures(store, {"svg": svg, "pdf": pdf}, tables, session)
    if html is not None:
        show.html(store, html, tables, session)
    if json is not None:
        show.objects(store, json, tables, session)
    if not (html or json or svg or pdf):
        (show.mlperf if mlperf_storage else show.report)(store, format or TableFormat.table, session)


def _version(value: bool) -> None:
    if value:
        from benchsuite import __version__

        echo(f"benchsuite {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """What holds a training job back: storage, the input pipeline, compute or the interconnect?"""
    default_store.use_default_store(context)


UNUSABLE = (errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.EROFS)
"""What the system says of a path that was given: no file can have its name, or this user may not."""
# typer carries click inside and exports of its exceptions only the leaves.
_ClickError: Any = typer.BadParameter.__mro__[2]


def _usage_error(error: Any) -> int:
    """An unknown verb, option or choice in one line, with the nearest match."""
    from benchsuite.contract.errors import nearest

    message = str(error.format_message())
    if type(error).__name__ == "NoArgsIsHelpError":
        document(message)
        return USAGE
    message = message.replace("Value error, ", "").rstrip(".")
    option = getattr(error, "option_name", None)
    if option and error.ctx:
        options = [name for parameter in error.ctx.command.params for name in parameter.opts if name.startswith("-")]
        message += f"{nearest(option, options)}; allowed: {', '.join(options)}"
    verbs = getattr(error.ctx.command, "commands", {}) if error.ctx else {}
    if message.startswith("No such command") and verbs:
        message += f"; allowed: {', '.join(verbs)}"
    given, one_of, choices = message.rpartition(" is not one of ")
    if one_of:
        words = [word.strip("' ") for word in choices.split(",")]
        message = f"{given} is not allowed{nearest(given.rpartition(' ')[2], words)}; allowed: {', '.join(words)}"
    return _fail(USAGE, message)


def _fail(code: int, *mistakes: str) -> int:
    for mistake in mistakes:
        echo(f"error: {' '.join(mistake.split())}", err=True)
    return code


def run_command(arguments: list[str]) -> int:
    """Run the command line and return its exit code; a user's mistakes print a line each."""
    try:
        _refuse_urls(arguments)
        result: Any = app(arguments, standalone_mode=False)
    except _ClickError as error:
        return _usage_error(error)
    except (typer.Abort, KeyboardInterrupt):
        return _fail(INTERRUPTED, "interrupted; what was finished is kept")
    except Exception as error:
        if not (mistakes := _users_mistakes(error)):
            raise
        return _fail(USAGE, *mistakes)
    return result if isinstance(result, int) else OK


def _refuse_urls(arguments: list[str]) -> None:
    """Refuse URLs, which no option or argument takes: as a path, `s3://x` would be a folder named `s3:`.

    Raises:
        UserError: the first one.
    """
    given = [word.partition("=")[2] if word.startswith("--") and "=" in word else word for word in arguments]
    for word in (word for word in [*given, os.environ.get(STORE_VARIABLE, "")] if "://" in word):
        from benchsuite.contract.errors import UserError
        from benchsuite.storage.dataset.local_path import URL, local_path

        try:
            if URL.match(word):  # a query may hold one
                local_path(word)
        except ValueError as error:
            raise UserError(str(error)) from error


def _users_mistakes(error: Exception) -> list[str]:
    """What the user can mend: errors of the packages that say so, and paths that nobody may use; nothing of a crash."""
    from benchsuite.contract.errors import UserError, shown
    from benchsuite.results.store.store import StoreError
    from benchsuite.storage.dataset.manifest import DatasetError
    from benchsuite.workloads import WorkloadError

    if isinstance(error, OSError) and error.errno in UNUSABLE and error.filename is not None:
        return [f"{shown(os.fspath(error.filename))}: {error.strerror}"]
    if isinstance(error, UserError):
        return [*map(str, error.args)]
    return [str(error)] if isinstance(error, StoreError | DatasetError | WorkloadError) else []


def main() -> None:
    """Run the command line; what is said, and the exit code, are as documented whatever befalls the streams."""
    terminal.ready()
    code = _run_to_end(sys.argv[1:])
    if signals.heeded(signal.SIGINT):
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # all is done: from here a traceback would be all it gives
    sys.exit(terminal.finished(code))


def _run_to_end(arguments: list[str]) -> int:
    """The same, ended in good order by signals; a crash of ours is told in full."""
    try:
        if signals.heeded(signal.SIGINT):
            signal.signal(signal.SIGINT, signal.default_int_handler)
        with signals.terminable():
            return run_command(arguments)
    except signals.Terminated:
        echo("stopped early; what was finished is kept", err=True)
        return REQUEUE
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # whoever cannot wait for this line gets it without one
        return _fail(INTERRUPTED, "interrupted; what was finished is kept")
    except Exception:
        echo(*traceback.format_exc().splitlines(), err=True)
        return CRASH
