"""The verb `report`: the answer, the table and the evidence of a store, or of one session."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from benchsuite.cli.common import DEFAULT_STORE, Pdf, Store, Svg, drawn_by, take_in_lost_runs, warn_of_damage
from benchsuite.contract import emulated_devices
from benchsuite.contract.console import console
from benchsuite.contract.errors import UserError, refuse
from benchsuite.contract.terminal import TableFormat, document, echo
from benchsuite.results.render import operators
from benchsuite.results.render.device_columns import every_column
from benchsuite.results.render.device_columns import legend as device_legend
from benchsuite.results.render.tables import (
    COLUMNS,
    TRIAL_COLUMNS,
    Column,
    Row,
    as_csv,
    as_json,
    as_markdown,
    rows,
    troubles,
)
from benchsuite.results.render.terminal import fitting_table, say
from benchsuite.results.render.words import size, typed
from benchsuite.results.report import several_gpus
from benchsuite.results.report.markdown import report as markdown
from benchsuite.results.report.sections import Section, sections
from benchsuite.results.report.summary import LEGEND, remedies, trust
from benchsuite.results.store.replacing import write_whole
from benchsuite.results.store.segments import without_collector
from benchsuite.results.store.store import ResultsStore, StoreError


def report(
    store: Store = DEFAULT_STORE,
    format: Annotated[TableFormat | None, typer.Option("--format", help="table (default), md, csv or json.")] = None,
    mlperf_storage: Annotated[
        bool,
        typer.Option("--mlperf-storage", help="Print the fields of MLPerf Storage's summary (emulated accelerators)."),
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="OUT.html", help="Write one page with charts, which needs no network."),
    ] = None,
    session: Annotated[
        str | None,
        typer.Option(
            "--session", metavar="NAME|latest", help="Report one session, or the one measured last; default: all."
        ),
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="OUT.json", help="Write the whole report as one JSON object.")
    ] = None,
    svg: Svg = None,
    pdf: Pdf = None,
    why: Annotated[
        bool,
        typer.Option(
            "--why", help="Also print the evidence of verdicts, the arithmetic of caveats, and what columns mean."
        ),
    ] = False,
    table: Annotated[
        bool, typer.Option("--table", help="Print every figure that was measured, energy and memory too, in columns.")
    ] = False,
    redact: Annotated[
        bool,
        typer.Option("--redact", help="Replace the names of hosts, users and paths, so that the report can be shared."),
    ] = False,
) -> None:
    """Print the answer, a table and what the numbers rest on."""
    others = {"--format": format, "--mlperf-storage": mlperf_storage}
    files = {"--svg": svg, "--pdf": pdf, "--html": html, "--json": json}
    for option, out in files.items():
        _refuse_beside(option, out, others)
    if why:
        _refuse_why({"--svg": svg, "--pdf": pdf, "--mlperf-storage": mlperf_storage})
    if table:
        _refuse_table(
            {**files, "--mlperf-storage": mlperf_storage, f"--format {format}": format not in (None, "table")}
        )
    take_in_lost_runs(store)
    opened = open_session(store, session)
    with without_collector(), _redacted_copy(opened) if redact else nullcontext(opened) as shown:
        if any(files.values()):
            _write_files(shown, files, ["--session", session] if session else [])
            if not shown.trials():
                echo(_describe_no_trials(opened), err=True)
        elif mlperf_storage:
            _print_mlperf(shown, format or "table", store)
        else:
            _print_report(shown, format or "table", why, opened, table)
    warn_of_damage(opened)


@contextmanager
def _redacted_copy(store: ResultsStore) -> Iterator[ResultsStore]:
    """Yield a temporary copy of a store without names of hosts, users and paths."""
    from benchsuite.results.store.redact import redacted

    with TemporaryDirectory(prefix="benchsuite-") as folder:
        yield redacted(store, Path(folder) / "store").still() if store.exists() else store


def _refuse_beside(option: str, out: Path | None, others: Mapping[str, object]) -> None:
    """Refuse options that say how to print where a file is written."""
    conflicts = [f"{name} {value}" if isinstance(value, str) else name for name, value in others.items() if value]
    if out is not None and conflicts:
        raise UserError(f"report: {option} {out} with {conflicts[0]}; allowed: one of {option}, {', '.join(others)}")


def _refuse_why(without: Mapping[str, object]) -> None:
    """Refuse `--why` with options whose output holds no evidence."""
    for option in (name for name, value in without.items() if value):
        raise UserError(f"report: --why with {option}, which holds no evidence; --html and --format md always do")


def _refuse_table(without: Mapping[str, object]) -> None:
    """Refuse `--table` with options that print no table."""
    for option in (name for name, value in without.items() if value):
        raise UserError(f"report: --table with {option}; allowed: --table alone; --format csv holds every figure, too")


def _write_files(store: ResultsStore, files: Mapping[str, Path | None], session_words: Sequence[str]) -> None:
    """Write the report, and what models predict beside it, into the files of the options that name one."""
    from benchsuite.cli.modelled import modelled
    from benchsuite.results.charts import page
    from benchsuite.results.export.charts import draw_report
    from benchsuite.results.report import objects

    predictions = modelled(store)
    for kind in ("svg", "pdf"):
        if folder := files[f"--{kind}"]:
            origin = drawn_by("report", "--store", store.path.name, *session_words, f"--{kind}", "DIR")
            for path in draw_report(store, folder, kind, predictions, origin):
                echo(f"figure: {path}", err=True)
    if out := files["--html"]:
        num_bytes = page.write(store, out, predictions)
        echo(f"written: {out} ({size(num_bytes)}; open it in a browser, it needs no network)", err=True)
    if out := files["--json"]:
        write_whole(out, json.dumps(objects.report(store, predictions), indent=1, default=str))
        echo(f"written: {out}", err=True)


def print_rows(table_rows: Sequence[Row], columns: Sequence[Column], format: TableFormat) -> None:
    """Print rows in a format; `columns` are those of a table or Markdown, the others have every field."""
    if format == "json":
        document(as_json(table_rows))
    elif format == "csv":
        document(as_csv(table_rows))
    elif format == "md":
        document(as_markdown(table_rows, columns))
    else:
        out = console()
        out.print(fitting_table(table_rows, columns, out))


def _describe_no_trials(store: ResultsStore) -> str:
    """Return the line for a store without trials, with the commands that show its other records."""
    kinds = sorted({record.kind for record in store.records()} - {"trial"}) if store.exists() else []
    if not kinds:
        return f"no trials in {store.path} yet"
    commands = [typed("benchsuite", "results", "show", "--kind", kind, "--store", str(store.path)) for kind in kinds]
    return f"no trials in {store.path} yet; it has other records: {', '.join(f'`{command}`' for command in commands)}"


def _print_report(
    store: ResultsStore, format: TableFormat, why: bool, opened: ResultsStore, all_columns: bool = False
) -> None:
    """Print the report on a store. Where it has no trials, print what else the store has as it was opened."""
    if format == "md":
        from benchsuite.cli.modelled import modelled

        document(markdown(store, modelled(store)))
    elif format in ("json", "csv"):
        print_rows(rows(store.frame()), TRIAL_COLUMNS, format)
    else:
        report_sections = sections(store)
        for number, section in enumerate(report_sections):
            if number:
                echo("")
            print_section(section, why, all_columns)
        if not report_sections:
            echo(_describe_no_trials(opened))
            return
        points = [row for section in report_sections for row in section.points]
        legend = [*LEGEND.split("\n"), *(device_legend(points) if all_columns else [])]
        for line in legend if why else [MORE]:
            say(console(), line, "dim")


def _print_mlperf(store: ResultsStore, format: TableFormat, path: Path) -> None:
    """Print emulated trials in the terms of MLPerf Storage, a summary per point. `path` is the store as it was typed.

    Raises:
        StoreError: the store has no trial on an emulated accelerator.
    """
    from benchsuite.results.report import mlperf

    summaries = mlperf.summaries(rows(store.frame()), emulated_devices.published)
    if not summaries:
        raise StoreError(f"store {path}: no trial on an emulated accelerator, such as device: emulated:h100")
    print_rows(summaries, mlperf.COLUMNS, format)
    if format not in ("json", "csv"):
        echo(mlperf.LEGEND, err=True)


MORE = "--why shows the evidence and what columns mean · --table every figure · --html OUT.html draws charts"


def print_section(section: Section, why: bool = False, all_columns: bool = False) -> None:
    """Print a question, its answer, its points, and what the numbers rest on.

    `why` adds the evidence. `all_columns` prints every column, also where the terminal is narrow.
    """
    out = console()
    out.print(section.title, style="bold", markup=False)
    for text in section.answer:
        say(out, f"-> {text}")
    if all_columns:
        out.print(fitting_table(section.points, every_column(section.points), out, dropped_first=()))
    else:
        out.print(fitting_table(section.points, COLUMNS, out))
    if operator_rows := operators.counted(section.points):
        out.print(fitting_table(operator_rows, operators.COLUMNS, out))
        for line in operators.sources(operator_rows):
            out.print(line, markup=False)
        say(out, operators.LEGEND, "dim")
    for line in (*section.beside, *troubles(section.trials), trust(section.trials)):
        say(out, line)
    for line in remedies(section.points):
        say(out, f"  {line}")
    for line in several_gpus.remark(section.points):
        say(out, line)
    for line in section.why if why else ():
        say(out, f"why: {line}")


LATEST = "latest"
"""The word for the session that was measured last."""
MAX_NAMED = 5


def sessions_of(store: ResultsStore) -> list[str]:
    """Return the sessions of a store's trials, the one that was measured last at the end."""
    frame = store.frame(columns=["session", "finished_at"])
    last_finished: dict[str, str] = {}
    for session, finished_at in zip(frame["session"], frame["finished_at"], strict=True):
        last_finished[session] = max(last_finished.get(session, ""), finished_at)
    return sorted(last_finished, key=lambda session: last_finished[session])


def open_session(path: Path, session: str | None) -> ResultsStore:
    """Return a store as it is now, or one session of it; a line says where all of several sessions are shown.

    Raises:
        UserError: it has no such session.
    """
    store = ResultsStore(path, session)
    if not store.exists():
        return store
    store = ResultsStore(path).still()
    names = sessions_of(store)
    if session is None and len(names) > 1:
        echo(_describe_sessions(path, names), err=True)
    elif session is not None and (not names or session not in (LATEST, *names)):
        raise refuse("--session", session, [LATEST, *names])
    store.session = names[-1] if session == LATEST else session
    return store


def _describe_sessions(path: Path, names: Sequence[str]) -> str:
    """Return the note that all sessions of a store are shown; it names the last ones."""
    named = ", ".join([*(["..."] if len(names) > MAX_NAMED else []), *names[-MAX_NAMED:]])
    return f"note: all {len(names)} sessions of {path} are shown ({named}); --session latest, or a name, shows one"
