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
    help="Set or show the sessions that later ones are checked against.",
    **GROUP,
)

KindOption = Annotated[ComparedKind, typer.Option("--kind", help="Kind of records; comm: collectives of `probe comm`.")]
ComparableKind = Literal["trial", "comm", "probe"]
SIDE_HELP = "A store, or KEY=VALUE[,KEY=VALUE] over --store: session, commit, date=A..B, any column."


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help=SIDE_HELP)],
    b: Annotated[str, typer.Argument(metavar="B", help="A store or conditions, as for A; B is judged against A.")],
    store: Store = DEFAULT_STORE,
    format: Tabular = "table",
    metrics: Annotated[
        str, typer.Option("--metrics", help="Metrics to compare, comma-separated; default: the usual ones.")
    ] = "",
    kind: Annotated[
        ComparableKind,
        typer.Option(
            "--kind", help="Kind of records; comm: collectives of `probe comm`; probe: paths of `probe storage`."
        ),
    ] = "trial",
) -> None:
    """Compare B with A on the points that both have: ratio with its interval, and better, worse, same or can't tell."""
    store_a, store_b = opened(store, a), opened(store, b)
    records_a, records_b = records_of(store_a, a, kind), records_of(store_b, b, kind)
    # conditions on one store: the axes that they name differ by intent, and do not keep points apart
    same_store = "=" in a and "=" in b and store_a.path == store_b.path == store
    differing = apart(a, b, [*records_a, *records_b]) if same_store else {}
    names = [name for name in metrics.split(",") if name] or DEFAULT_OF[kind]
    comparison = compared(records_a, records_b, chosen(names), differing, (a, b) if same_store else None)
    for side_store in {side.path: side for side in (store_a, store_b)}.values():
        warn_of_damage(side_store)
    rows = report.comparison_rows(comparison)
    if format == "json":
        document(json.dumps(report.comparison_json(comparison), indent=1, default=str))
    elif format == "csv":
        document(as_csv(rows))
    else:
        head, foot = report.comparison_head(comparison), report.comparison_foot(comparison)
        _print_table(head, rows, report.COLUMNS, foot, format)


def _print_table(
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
    session: Annotated[list[str] | None, typer.Option("--session", help="A session. May be repeated.")] = None,
    date: Annotated[
        str,
        typer.Option(
            "--date", metavar="FROM[..TO]", help="All sessions that were measured on these days, whatever their names."
        ),
    ] = "",
    store: Store = DEFAULT_STORE,
) -> None:
    """Make sessions the reference of `check`: all of the store, unless some are named."""
    opened_store = ResultsStore(store)
    sessions = baseline.set_baseline(opened_store, session or [], date)["sessions"]
    say(console(), f"baseline of {store}: {_describe_sessions(opened_store, sessions)}")
    if doubtful := baseline.doubtful_points(opened_store, sessions):
        echo(f"note: doubtful in some of these nights, which then do not count: {'; '.join(doubtful)}", err=True)
    warn_of_damage(opened_store)


@baseline_app.command("show")
def baseline_show(store: Store = DEFAULT_STORE, format: Tabular = "table") -> None:
    """Print which sessions are the baseline."""
    opened_store = ResultsStore(store)
    current = baseline.baseline_of(opened_store)
    set_at, sessions = current.get("set_at"), current["sessions"]
    if format == "json":
        document(json.dumps(current, indent=1))
    elif format == "csv":
        document(as_csv([{"session": name, "set_at": current["set_at"]} for name in sessions]))
    else:
        say(console(), f"baseline of {store}, set {set_at}: {_describe_sessions(opened_store, sessions)}")


MAX_NAMED = 5
"""The most sessions that are named one by one; of more the first and the last are named."""


def _describe_sessions(store: ResultsStore, sessions: Sequence[str]) -> str:
    """Return how many sessions there are and which, and the days of measuring where their names are not the days."""
    names = ", ".join(sessions) if len(sessions) <= MAX_NAMED else f"{sessions[0]} to {sessions[-1]}"
    days = baseline.days_of(store, sessions)
    sentence = f"{counted(len(sessions), 'session')} ({names})"
    if not days or days == [*sessions]:
        return sentence
    return f"{sentence}, measured on {days[0]}{f' to {days[-1]}' if len(days) > 1 else ''}"


def check(
    store: Store = DEFAULT_STORE,
    format: Tabular = "table",
    kind: KindOption = "trial",
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where", metavar="KEY=VALUE", help="Keep trials with KEY=VALUE, as in `compare`. May be repeated."
        ),
    ] = None,
    session: Annotated[
        str,
        typer.Option("--session", metavar="NAME|latest", help="Judge one session; default: each point's newest."),
    ] = "",
    on_alarm: Annotated[
        str,
        typer.Option(
            "--on-alarm",
            metavar="COMMAND",
            help="Run COMMAND, without a shell, where something got worse. The message is its standard input, "
            "BENCHSUITE_CHART the path of a picture.",
        ),
    ] = "",
) -> None:
    """Check each point's newest session against the baseline and the nights since; exit code 10 where one got worse.

    Where no baseline was set, the first six nights are the baseline. While there are fewer, the newest is compared with
    those before it, which raises no alarm.

    From the second night on, a point at half the rate of the nights before or less, in every repeat, is an alarm too.
    The answer counts such points apart and says on how many nights this rests.

    It judges samples/s, AU, the first batch and staging (comm: the collective's time); `compare` has memory and energy.
    """
    opened_store, out = ResultsStore(store), console()
    try:
        result = baseline.check(opened_store, kind, where or [], session)
    except baseline.NothingNewerError as error:
        result = baseline.nothing(str(error))
    warn_of_damage(opened_store)
    if format == "json":
        document(json.dumps(report.check_json(result), indent=1, default=str))
    elif format == "csv":
        document(as_csv(report.regression_rows(result)))
    elif format == "md" and result.alarms:
        head, *lines = report.check_lines(result)
        _print_table(head, report.regression_rows(result), report.REGRESSION_COLUMNS, lines, format)
    else:
        for line in report.check_lines(result):
            say(out, line)
    if on_alarm and result.alarms:
        _run_alarm_command(shlex.split(on_alarm), opened_store, result, kind)
    raise typer.Exit(_exit_code(result))


ALARM_TIMEOUT_S = 120.0


def _run_alarm_command(command: Sequence[str], store: ResultsStore, result: baseline.Check, kind: ComparedKind) -> None:
    """Run a command with the message as its input; where it fails, print a warning."""
    from benchsuite.results.export import alarm

    text, env = alarm.message(store.path, result), {**os.environ}
    with TemporaryDirectory(prefix="benchsuite-alarm-") as folder:
        worst = result.alarms[0]
        try:
            chart = alarm.draw(alarm.history(store, worst, kind), worst, Path(folder) / "nights.png")
            env["BENCHSUITE_CHART"] = str(chart)
        except ImportError:
            echo("warning: no picture: pip install 'benchsuite[figures]'", err=True)
        try:
            process = subprocess.run(command, input=text, text=True, env=env, timeout=ALARM_TIMEOUT_S, check=False)
            failure = f"exit status {process.returncode}" if process.returncode else ""
        except (OSError, subprocess.TimeoutExpired) as error:
            failure = getattr(error, "strerror", None) or f"took longer than {ALARM_TIMEOUT_S:g} s"
    if failure:
        echo(f"warning: --on-alarm {command[0]}: {failure}: nobody got the message", err=True)


def _exit_code(result: baseline.Check) -> int:
    if result.alarms:
        return REGRESSION
    if not result.num_judged and not result.too_young:
        return NOTHING_RAN
    return SOME_FAILED if result.missing else OK
