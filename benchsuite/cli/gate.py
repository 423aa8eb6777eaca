"""The verbs `compare`, `baseline set`, `baseline show` and `check`."""

import json
import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

import typer

from benchsuite.cli.common import DEFAULT_STORE, GROUP, ComparedKind, Store, Tabular, warn_of_damage
from benchsuite.contract.console import console
from benchsuite.contract.exit_codes import NOTHING_RAN, OK, REGRESSION, SOME_FAILED
from benchsuite.contract.terminal import TableFormat, document, echo
from benchsuite.results.compare.compare import compare as compared
from benchsuite.results.compare.metrics import DEFAULT_OF, chosen
from benchsuite.results.compare.sides import apart, opened, records_of
from benchsuite.results.gate import baseline
from benchsuite.results.render.tables import Column, Row, as_csv, as_markdown, inline
from benchsuite.results.render.terminal import fitting_table, say
from benchsuite.results.render.words import counted
from benchsuite.results.report import compare as report
from benchsuite.results.store.store import ResultsStore

baseline_app = typer.Typer(
    help="The sessions that later ones are checked against.",
    **GROUP,
)

KindOption = Annotated[ComparedKind, typer.Option("--kind", help="comm: collectives of `probe comm`.")]
ComparableKind = Literal["trial", "comm", "probe"]
SIDE = "A store, or KEY=VALUE[,KEY=VALUE] over --store: session, commit, date=A..B, any column."


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help=SIDE)],
    b: Annotated[str, typer.Argument(metavar="B", help="The same; what B is to A.")],
    store: Store = DEFAULT_STORE,
    format: Tabular = "table",
    metrics: Annotated[str, typer.Option("--metrics", help="Comma-separated; default: the usual ones.")] = "",
    kind: Annotated[
        ComparableKind,
        typer.Option("--kind", help="comm: collectives of `probe comm`; probe: paths of `probe storage`."),
    ] = "trial",
) -> None:
    """Compare B with A on the points that both have: ratio with its interval, and better, worse, same or can't tell."""
    stores = opened(store, a), opened(store, b)
    one, other = (records_of(of_side, text, kind) for of_side, text in zip(stores, (a, b), strict=True))
    filters = all("=" in text and of_side.path == store for of_side, text in zip(stores, (a, b), strict=True))
    differing = apart(a, b, [*one, *other]) if filters else {}
    names = [name for name in metrics.split(",") if name] or DEFAULT_OF[kind]
    found = compared(one, other, chosen(names), differing, (a, b) if filters else None)
    for one_store in {of_side.path: of_side for of_side in stores}.values():
        warn_of_damage(one_store)
    rows = report.comparison_rows(found)
    if format == "json":
        document(json.dumps(report.comparison_json(found), indent=1, default=str))
    elif format == "csv":
        document(as_csv(rows))
    else:
        _paragraphs(report.comparison_head(found), rows, report.COLUMNS, report.comparison_foot(found), format)


def _paragraphs(
    head: str, rows: Sequence[Row], columns: Sequence[Column], foot: Sequence[str], format: TableFormat
) -> None:
    """Print a sentence, a table, and lines below it."""
    if format == "md":
        notes = "\n".join(f"- {inline(line)}" for line in foot)
        document("\n\n".join([inline(head), as_markdown(rows, columns), notes]))
        return
    out = console()
    say(out, head)
    out.print(fitting_table(rows, columns, out))
    for line in foot:
        say(out, line)


@baseline_app.command("set")
def baseline_set(
    session: Annotated[list[str] | None, typer.Option("--session", help="A session; again for more.")] = None,
    date: Annotated[
        str,
        typer.Option(
            "--date", metavar="FROM[..TO]", help="All sessions that were measured on these days, whatever their names."
        ),
    ] = "",
    store: Store = DEFAULT_STORE,
) -> None:
    """Pin sessions as the reference of `check`; all that are there, unless some are named."""
    opened_store = ResultsStore(store)
    made = baseline.set_baseline(opened_store, session or [], date)
    say(console(), f"baseline of {store}: {_named(opened_store, made['sessions'])}")
    if unsure := baseline.doubtful_points(opened_store, made["sessions"]):
        echo(f"note: doubtful in some of these nights, which then do not count: {'; '.join(unsure)}", err=True)
    warn_of_damage(opened_store)


@baseline_app.command("show")
def baseline_show(store: Store = DEFAULT_STORE, format: Tabular = "table") -> None:
    """Print which sessions are the baseline."""
    opened_store = ResultsStore(store)
    found = baseline.baseline_of(opened_store)
    if format == "json":
        document(json.dumps(found, indent=1))
    elif format == "csv":
        document(as_csv([{"session": name, "set_at": found["set_at"]} for name in found["sessions"]]))
    else:
        say(console(), f"baseline of {store}, set {found.get('set_at')}: {_named(opened_store, found['sessions'])}")


MOST_NAMED = 5
"""Sessions; of more the first and the last are named."""


def _named(store: ResultsStore, sessions: Sequence[str]) -> str:
    """How many sessions, which, and the days on which they were measured where these are not their names."""
    names = ", ".join(sessions) if len(sessions) <= MOST_NAMED else f"{sessions[0]} to {sessions[-1]}"
    days = baseline.days_of(store, sessions)
    told = f"{counted(len(sessions), 'session')} ({names})"
    if not days or days == [*sessions]:
        return told
    return f"{told}, measured on {days[0]}{f' to {days[-1]}' if len(days) > 1 else ''}"


def check(
    store: Store = DEFAULT_STORE,
    format: Tabular = "table",
    kind: KindOption = "trial",
    where: Annotated[
        list[str] | None, typer.Option("--where", metavar="KEY=VALUE", help="Only such trials, as in `compare`; again.")
    ] = None,
    session: Annotated[
        str,
        typer.Option("--session", metavar="NAME|latest", help="Judge this one alone; default: each point's newest."),
    ] = "",
    on_alarm: Annotated[
        str,
        typer.Option(
            "--on-alarm",
            metavar="COMMAND",
            help="Run this, without a shell, where something got worse: the message is its input, BENCHSUITE_CHART a "
            "picture's path.",
        ),
    ] = "",
) -> None:
    """Check each point's newest session against the baseline and the nights since; exit code 10 where one got worse.

    Without a baseline that was set, the first six nights are it. Before there are so many, the newest is compared with
    those there are, which is no alarm.

    From the second night on, a point at half the rate of the nights before or less, in every repeat, is an alarm too.
    The answer counts such points apart and says on how many nights this rests.

    Judged are samples/s, AU, the first batch and staging (comm: the collective's time); memory and energy are for
    `compare`, not judged here.
    """
    opened_store, out = ResultsStore(store), console()
    try:
        found = baseline.check(opened_store, kind, where or [], session)
    except baseline.NothingNewerError as error:
        found = baseline.nothing(str(error))
    warn_of_damage(opened_store)
    if format == "json":
        document(json.dumps(report.check_json(found), indent=1, default=str))
    elif format == "csv":
        document(as_csv(report.regression_rows(found)))
    elif format == "md" and found.alarms:
        head, *lines = report.check_lines(found)
        _paragraphs(head, report.regression_rows(found), report.REGRESSION_COLUMNS, lines, format)
    else:
        for line in report.check_lines(found):
            say(out, line)
    if on_alarm and found.alarms:
        _tell(shlex.split(on_alarm), opened_store, found, kind)
    raise typer.Exit(_exit_code(found))


ALARM_TIMEOUT_S = 120.0


def _tell(command: Sequence[str], store: ResultsStore, found: baseline.Check, kind: ComparedKind) -> None:
    """Hand the message to a command; where that fails, a warning says so."""
    from benchsuite.results.export import alarm

    text, env = alarm.message(store.path, found), {**os.environ}
    with TemporaryDirectory(prefix="benchsuite-alarm-") as folder:
        worst = found.alarms[0]
        try:
            env["BENCHSUITE_CHART"] = str(
                alarm.draw(alarm.history(store, worst, kind), worst, Path(folder) / "nights.png")
            )
        except ImportError:
            echo("warning: no picture: pip install 'benchsuite[figures]'", err=True)
        try:
            done = subprocess.run(command, input=text, text=True, env=env, timeout=ALARM_TIMEOUT_S, check=False)
            trouble = f"exit status {done.returncode}" if done.returncode else ""
        except (OSError, subprocess.TimeoutExpired) as error:
            trouble = getattr(error, "strerror", None) or f"took longer than {ALARM_TIMEOUT_S:g} s"
    if trouble:
        echo(f"warning: --on-alarm {command[0]}: {trouble}: nobody was told", err=True)


def _exit_code(found: baseline.Check) -> int:
    if found.alarms:
        return REGRESSION
    if not found.num_judged and not found.too_young:
        return NOTHING_RAN
    return SOME_FAILED if found.missing else OK
