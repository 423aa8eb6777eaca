"""The verb `report`: all that a store holds, or one session."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from benchsuite.cli.common import DEFAULT_STORE, Store, drawn_by, warn_of_damage
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
from benchsuite.results.report import readers, several_gpus
from benchsuite.results.report.markdown import report as markdown
from benchsuite.results.report.sections import Section, sections
from benchsuite.results.report.summary import LEGEND, remedies, trust
from benchsuite.results.scaling.staging import lines as staging_lines
from benchsuite.results.store.replacing import write_whole
from benchsuite.results.store.store import ResultsStore, StoreError


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
    why: Annotated[
        bool, typer.Option("--why", help="Also the evidence of verdicts, the arithmetic of caveats, what columns mean.")
    ] = False,
    table: Annotated[
        bool, typer.Option("--table", help="Every figure that was measured, in columns; energy and memory among them.")
    ] = False,
    redact: Annotated[
        bool, typer.Option("--redact", help="Give hosts, users and paths other names, so that it can be shown.")
    ] = False,
) -> None:
    """What the results say: a sentence, a table, and what the numbers rest on."""
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
    opened = chosen(store, session)
    with _redacted(opened) if redact else nullcontext(opened) as shown:
        if any(files.values()):
            _write_files(shown, files, ["--session", session] if session else [])
            if not shown.trials():
                echo(_without_trials(opened), err=True)
        elif mlperf_storage:
            _print_mlperf(shown, format or "table", store)
        else:
            _print_report(shown, format or "table", why, opened, table)
    warn_of_damage(opened)


@contextmanager
def _redacted(store: ResultsStore) -> Iterator[ResultsStore]:
    """A copy of a store without names of hosts, users and paths, for as long as it is used."""
    from benchsuite.results.store.redact import redacted

    with TemporaryDirectory(prefix="benchsuite-") as folder:
        yield redacted(store, Path(folder) / "store").still() if store.exists() else store


def _refuse_beside(option: str, out: Path | None, others: Mapping[str, object]) -> None:
    """Refuse options that say how to print where a file is written."""
    given = [f"{name} {value}" if isinstance(value, str) else name for name, value in others.items() if value]
    if out is not None and given:
        raise UserError(f"report: {option} {out} with {given[0]}; allowed: one of {option}, {', '.join(others)}")


def _refuse_why(without: Mapping[str, object]) -> None:
    """Refuse `--why` beside what has no room for words."""
    for option in (name for name, given in without.items() if given):
        raise UserError(f"report: --why with {option}, which holds no evidence; --html and --format md always do")


def _refuse_table(without: Mapping[str, object]) -> None:
    """Refuse `--table` beside what prints no table here."""
    for option in (name for name, given in without.items() if given):
        raise UserError(f"report: --table with {option}; allowed: --table alone; --format csv holds every figure, too")


def _write_files(store: ResultsStore, files: Mapping[str, Path | None], asked: Sequence[str]) -> None:
    """Write all that the report says, and what models say beside it, into the files that were asked for, by option."""
    from benchsuite.cli.modelled import modelled
    from benchsuite.results.charts import page
    from benchsuite.results.export.charts import draw_report
    from benchsuite.results.report import objects

    said = modelled(store)
    for kind in ("svg", "pdf"):
        if folder := files[f"--{kind}"]:
            origin = drawn_by("report", "--store", store.path.name, *asked, f"--{kind}", "DIR")
            for path in draw_report(store, folder, kind, said, origin):
                echo(f"figure: {path}", err=True)
    if out := files["--html"]:
        num_bytes = page.write(store, out, said)
        echo(f"written: {out} ({size(num_bytes)}; open it in a browser, it needs no network)", err=True)
    if out := files["--json"]:
        write_whole(out, json.dumps(objects.report(store, said), indent=1, default=str))
        echo(f"written: {out}", err=True)


def print_rows(found: Sequence[Row], columns: Sequence[Column], format: TableFormat) -> None:
    if format == "json":
        document(as_json(found))
    elif format == "csv":
        document(as_csv(found))
    elif format == "md":
        document(as_markdown(found, columns))
    else:
        out = console()
        out.print(fitting_table(found, columns, out))


def _without_trials(store: ResultsStore) -> str:
    """What to say of a store without trials: how to see its other records, where it has some."""
    kinds = sorted({record.kind for record in store.records()} - {"trial"}) if store.exists() else []
    words = [("benchsuite", "results", "show", "--kind", kind, "--store", str(store.path)) for kind in kinds]
    others = f"; it has other records: {', '.join(f'`{typed(*one)}`' for one in words)}" if words else ""
    return f"no trials in {store.path} yet{others}"


def _print_report(
    store: ResultsStore, format: TableFormat, why: bool, opened: ResultsStore, every: bool = False
) -> None:
    """Print the report on a store; where it has no trials, what else is in it as it was opened."""
    if format == "md":
        from benchsuite.cli.modelled import modelled

        document(markdown(store, modelled(store)))
    elif format in ("json", "csv"):
        print_rows(rows(store.frame()), TRIAL_COLUMNS, format)
    else:
        found = sections(store)
        for number, section in enumerate(found):
            echo(*[""] * bool(number))
            section_table(section, why, every)
        if found:
            of_devices = device_legend([row for section in found for row in section.points]) if every else []
            for line in (*LEGEND.split("\n"), *of_devices) if why else (WHY,):
                say(console(), line, "dim")
        if not found:
            echo(_without_trials(opened))


def _print_mlperf(store: ResultsStore, format: TableFormat, path: Path) -> None:
    """Print emulated trials as MLPerf Storage tells of them, a summary per point; `path`: of the store as given."""
    from benchsuite.results.report import mlperf as summaries

    found = summaries.summaries(rows(store.frame()), emulated_devices.published)
    if not found:
        such = "device: emulated:h100"
        raise StoreError(f"store {path}: no trial on an accelerator that is not here; such as: {such}")
    print_rows(found, summaries.COLUMNS, format)
    if format not in ("json", "csv"):
        echo(summaries.LEGEND, err=True)


WHY = "--why shows the evidence and what columns mean · --table every figure · --html OUT.html draws charts"


def section_table(section: Section, why: bool = False, every: bool = False) -> None:
    """A question, its answer, its points, and what the numbers rest on.

    `why`: also the evidence. `every`: in all columns, none of which is left out where a terminal is narrow.
    """
    out = console()
    out.print(section.title, style="bold", markup=False)
    for text in section.answer:
        say(out, f"-> {text}")
    if every:
        out.print(fitting_table(section.points, every_column(section.points), out, dropped_first=()))
    else:
        out.print(fitting_table(section.points, COLUMNS, out))
    if found := operators.counted(section.points):
        out.print(fitting_table(found, operators.COLUMNS, out))
        for line in operators.sources(found):
            out.print(line, markup=False)
        say(out, operators.LEGEND, "dim")
    of_points = (*readers.lines(section.points), *staging_lines(section.points))
    for line in (*of_points, *troubles(section.trials), trust(section.trials)):
        say(out, line)
    for line in remedies(section.points):
        say(out, f"  {line}")
    for line in several_gpus.remark(section.points):
        say(out, line)
    for line in section.why if why else ():
        say(out, f"why: {line}")


LATEST = "latest"
"""What stands for the session that was measured last."""
MAX_TOLD = 5


def sessions_of(store: ResultsStore) -> list[str]:
    """The sessions of a store's trials, the one that was measured last at the end."""
    found = store.frame(columns=["session", "finished_at"])
    last: dict[str, str] = {}
    for session, finished_at in zip(found["session"], found["finished_at"], strict=True):
        last[session] = max(last.get(session, ""), finished_at)
    return sorted(last, key=lambda session: last[session])


def chosen(path: Path, session: str | None) -> ResultsStore:
    """A store as it is now, or one session of it; who names none of several hears that all are shown.

    Raises:
        UserError: it has no such session.
    """
    store = ResultsStore(path, session)
    if not store.exists():
        return store
    store = ResultsStore(path).still()
    names = sessions_of(store)
    if session is None and len(names) > 1:
        echo(_all_shown(path, names), err=True)
    elif session is not None and (not names or session not in (LATEST, *names)):
        raise refuse("--session", session, [LATEST, *names])
    store.session = names[-1] if session == LATEST else session
    return store


def _all_shown(path: Path, names: Sequence[str]) -> str:
    told = ", ".join([*(["..."] if len(names) > MAX_TOLD else []), *names[-MAX_TOLD:]])
    return f"note: all {len(names)} sessions of {path} are shown ({told}); --session latest, or a name, shows one"
