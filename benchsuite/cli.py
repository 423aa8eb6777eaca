"""The verbs. Imports no torch, and little else until a verb needs it."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from benchsuite.options import (
    INTERRUPTED,
    NOTHING_RAN,
    OK,
    USAGE,
    ImageEncoding,
    PlainFormat,
    SchemaName,
    TableFormat,
)

app = typer.Typer(
    name="benchsuite",
    help="What holds a training job back: storage, the input pipeline, compute or the interconnect?",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": 110},
)
data_app = typer.Typer(help="Make, convert and check datasets.", no_args_is_help=True, rich_markup_mode=None)
results_app = typer.Typer(help="Look into a results store.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data_app, name="data")
app.add_typer(results_app, name="results")

Store = Annotated[
    Path,
    typer.Option("--store", envvar="BENCHSUITE_STORE", help="Results store.", show_default=True),
]
DEFAULT_STORE = Path("benchsuite-store")
Format = Annotated[TableFormat, typer.Option("--format", help="table, json, csv or md.")]
Overrides = Annotated[list[str] | None, typer.Option("-o", "--override", metavar="KEY=VALUE", help="Set a field.")]
Session = Annotated[str, typer.Option("--session", help="Measuring campaign; a new one measures anew.")]
Retry = Annotated[str, typer.Option("--retry", help="Run again what ended so: failed,oom,timeout.")]
DataFormat = Annotated[str, typer.Option("--format", help="How samples are stored: `benchsuite list formats`.")]
Workload = Annotated[str, typer.Option("--workload", help="Workload the samples are for.")]
Variant = Annotated[str, typer.Option("--variant", help="Variant of the workload.")]
ShardSamples = Annotated[int | None, typer.Option("--shard-samples", min=1, help="Samples per shard.")]
FormatOptions = Annotated[
    list[str] | None,
    typer.Option(
        "-o",
        "--option",
        metavar="NAME=VALUE",
        help="How the format stores: files: array=npy|npz; webdataset, tfrecord: shard_samples=N; "
        "hdf5: file_samples=N, chunk_bytes=N, compression=none|gzip|lzf.",
    ),
]


@app.command()
def sweep(
    file: Annotated[Path, typer.Argument(help="A sweep file (YAML).")],
    session: Session = "default",
    store: Store = DEFAULT_STORE,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print every trial and what is skipped; run none.")
    ] = False,
    overrides: Overrides = None,
    launcher: Annotated[str, typer.Option("--launcher", help="auto or local.")] = "auto",
    retry: Retry = "",
) -> None:
    """Run the grid of a sweep file; what its session has already is not run again."""
    from benchsuite import runner

    raise typer.Exit(runner.sweep(file, session, store, dry_run, overrides or [], launcher, retry))


@app.command()
def demo(
    folder: Annotated[Path, typer.Option("--folder", help="Where the demo's dataset goes.")] = Path("benchsuite-demo"),
    store: Store = DEFAULT_STORE,
    session: Session = "default",
    samples: Annotated[int, typer.Option("--samples", min=256, help="Photographs to make.")] = 1024,
) -> None:
    """Make a small dataset, run a real sweep on it and print the report."""
    from benchsuite import runner

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
    overrides: Overrides = None,
    format: Annotated[PlainFormat, typer.Option("--format", help="json prints the record.")] = PlainFormat.table,
) -> None:
    """Run one trial and print it; one rank runs in this process, so that a debugger can follow it."""
    from benchsuite import runner

    raise typer.Exit(runner.trial(spec, validate, check_loss, overrides or [], format))


@app.command("list")
def list_(
    what: Annotated[
        str, typer.Argument(help="workloads, formats, loaders, parallelism, launchers, devices, sweeps.")
    ] = "",
    format: Annotated[PlainFormat, typer.Option("--format", help="table or json.")] = PlainFormat.table,
) -> None:
    """What there is to choose from."""
    from benchsuite import inventory

    found = inventory.everything() if not what else {what: inventory.some(what)}
    if format is PlainFormat.json:
        typer.echo(json.dumps(found, indent=1))
        return
    for name, values in found.items():
        typer.echo(f"{name}: {', '.join(values) or '-'}")


@app.command()
def doctor(
    paths: Annotated[list[Path] | None, typer.Argument(help="Folders that will hold data or results.")] = None,
    format: Annotated[PlainFormat, typer.Option("--format", help="table or json.")] = PlainFormat.table,
) -> None:
    """Check this machine and paths: what can run here, what cannot, and what to do about it."""
    from benchsuite import doctor as examination

    findings = examination.examine(paths or [Path()])
    if format is PlainFormat.json:
        typer.echo(json.dumps([vars(finding) for finding in findings], indent=1))
    else:
        for finding in findings:
            typer.echo(f"{finding.level:<5} {finding.text}")
    raise typer.Exit(NOTHING_RAN if any(finding.level == "fail" for finding in findings) else OK)


@app.command()
def schema(what: Annotated[SchemaName, typer.Argument(help="trial, sweep, record or manifest.")]) -> None:
    """Print a JSON Schema."""
    from benchsuite import inventory

    typer.echo(inventory.json_schema(what.value))


@app.command()
def report(
    store: Store = DEFAULT_STORE,
    format: Annotated[TableFormat, typer.Option("--format", help="table, md, csv or json.")] = TableFormat.table,
) -> None:
    """What the results say: a sentence, a table, and what the numbers rest on."""
    from benchsuite import show

    show.report(store, format)


@results_app.command("show")
def results_show(
    store: Store = DEFAULT_STORE,
    format: Format = TableFormat.table,
    by: Annotated[str, typer.Option("--by", help="trial, or point (median over repeats).")] = "trial",
) -> None:
    """One row per trial."""
    from benchsuite import show

    show.results(store, format, by)


@results_app.command("query")
def results_query(
    query: Annotated[str, typer.Argument(help="SQL over the table `trials`.")],
    store: Store = DEFAULT_STORE,
    format: Format = TableFormat.table,
) -> None:
    """Run SQL (DuckDB) over the trials."""
    from benchsuite import show

    show.query(store, query, format)


@data_app.command("generate")
def data_generate(
    target: Annotated[Path, typer.Argument(help="The new dataset's folder.")],
    workload: Workload = "resnet50",
    variant: Variant = "reference",
    format: DataFormat = "files",
    samples: Annotated[int, typer.Option("--samples", min=1, help="How many.")] = 1024,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same samples for the same seed.")] = 0,
    shard_samples: ShardSamples = None,
    options: FormatOptions = None,
    encoding: Annotated[ImageEncoding, typer.Option("--encoding", help="Of images: jpeg or png.")] = ImageEncoding.jpeg,
) -> None:
    """Make samples that cost what real ones cost: photographs, CT volumes, BERT sequences, token streams."""
    from benchsuite import datasets

    asked = datasets.asked(workload, variant, format, shard_samples, options or [])
    datasets.generate(target, asked, samples, seed, encoding)


@data_app.command("convert")
def data_convert(
    source: Annotated[
        Path,
        typer.Argument(
            help="A dataset, or what you have: images flat or in a folder per class, tars, .npy pairs, NIfTI, "
            "HDF5, LMDB, TFRecord, .bin/.idx, text."
        ),
    ],
    target: Annotated[Path, typer.Argument(help="The new dataset's folder.")],
    workload: Workload = "resnet50",
    variant: Variant = "reference",
    format: DataFormat = "files",
    shard_samples: ShardSamples = None,
    options: FormatOptions = None,
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", help="A tokenizer.json for text; default: its bytes.")
    ] = None,
) -> None:
    """Convert into a format; the samples' content is stored as it came."""
    from benchsuite import datasets

    asked = datasets.asked(workload, variant, format, shard_samples, options or [])
    datasets.convert(source, target, asked, tokenizer)


@data_app.command("verify")
def data_verify(
    first: Annotated[Path, typer.Argument(help="A dataset.")],
    second: Annotated[Path | None, typer.Argument(help="Another that should hold the same samples.")] = None,
) -> None:
    """Check a dataset against its manifest, byte by byte; or that two hold the same samples."""
    from benchsuite import datasets

    datasets.verify(first, second)


def _version(value: bool) -> None:
    if value:
        from benchsuite import __version__

        typer.echo(f"benchsuite {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """What holds a training job back: storage, the input pipeline, compute or the interconnect?"""


# typer carries click inside and exports of its exceptions only the leaves.
_ClickError: Any = typer.BadParameter.__mro__[2]


def _usage_error(error: Any) -> int:
    """An unknown verb, option or choice in one line, with the nearest match."""
    from benchsuite.errors import nearest

    message = str(error.format_message())
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(message)
        return USAGE
    message = message.replace("Value error, ", "").rstrip(".")
    option = getattr(error, "option_name", None)
    if option and error.ctx:
        options = [name for parameter in error.ctx.command.params for name in parameter.opts if name.startswith("-")]
        message += f"; allowed: {', '.join(options)}{nearest(option, options)}"
    verbs = getattr(error.ctx.command, "commands", {}) if error.ctx else {}
    if message.startswith("No such command") and verbs:
        message += f"; allowed: {', '.join(verbs)}"
    given, one_of, choices = message.rpartition(" is not one of ")
    if one_of:
        words = [word.strip("' ") for word in choices.split(",")]
        message = f"{given} is not allowed; allowed: {', '.join(words)}{nearest(given.rpartition(' ')[2], words)}"
    return _fail(message, USAGE)


def _fail(message: str, code: int) -> int:
    typer.echo(f"error: {' '.join(message.split())}", err=True)
    return code


def run_command(arguments: list[str]) -> int:
    """Run the command line and return its exit code; a user's mistake prints one line."""
    try:
        result: Any = app(arguments, standalone_mode=False)
    except _ClickError as error:
        return _usage_error(error)
    except (typer.Abort, KeyboardInterrupt):
        return _fail("interrupted; what was finished is kept", INTERRUPTED)
    except Exception as error:
        if not _is_users_mistake(error):
            raise
        return _fail(str(error), USAGE)
    return result if isinstance(result, int) else OK


def _is_users_mistake(error: Exception) -> bool:
    """The user-facing error classes of the packages; anything else is a crash of ours."""
    from benchsuite.errors import UserError
    from results.store import StoreError
    from storage.format import DatasetError
    from workloads import WorkloadError

    return isinstance(error, UserError | StoreError | DatasetError | WorkloadError)


def main() -> None:
    """Entry point of the `benchsuite` command."""
    sys.exit(run_command(sys.argv[1:]))
