"""The verbs that run trials: sweep, demo, trial. What makes tables, which takes pandas, is imported when one is due."""

import json
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import typer

from benchsuite import grid, showconfig
from benchsuite import sweep as sweeping
from benchsuite.advice import small_datasets
from benchsuite.claims import Claims
from benchsuite.deadline import NO_DEADLINE, Deadline, deadline_of
from benchsuite.errors import UserError, refuse
from benchsuite.how import How
from benchsuite.launch import CannotStart, Launcher, in_words, load_launcher, machine_of
from benchsuite.launch.agents import AgentLauncher
from benchsuite.launch.lanes import check_lanes, planned_nodes, run_lanes, this_lane, worst
from benchsuite.launch.node import node_name
from benchsuite.layers import layered
from benchsuite.machine import this_machine
from benchsuite.options import (
    INTERRUPTED,
    NOTHING_RAN,
    OK,
    REQUEUE,
    SOME_FAILED,
    USAGE,
    PlainFormat,
    ProfileName,
)
from benchsuite.plans import keep_plan
from benchsuite.profiles import with_step
from benchsuite.progress import SweepDisplay, finished_line
from benchsuite.spec import SweepSpec, check_session, parse_sweep, parse_trial, trial_id
from results.record import TrialRecord
from results.store import ResultsStore
from storage.format import is_dataset

_AS_USUAL = How()
DEMO_SHARD_SAMPLES = 64


def sweep(file: Path, session: str, store_path: Path, dry_run: bool, overrides: list[str], how: How = _AS_USUAL) -> int:
    """Run a sweep file; the exit code."""
    check_session(session)
    statuses = _retry_statuses(how.retry)
    chosen = load_launcher(how.launcher)
    asked = grid.load_sweep(showconfig.bundled(file), [*overrides, *_profiled(how.profile)])
    try:
        with _terminable(), closing(chosen) if isinstance(chosen, AgentLauncher) else nullcontext():
            return _planned(asked, file, session, store_path, dry_run, overrides, how, chosen, statuses)
    except sweeping.Terminated:
        typer.echo("stopped early: no trial was begun; the same command goes on", err=True)
        return REQUEUE
    except CannotStart as error:
        return _cannot_start(error)


def _planned(
    asked: SweepSpec,
    file: Path,
    session: str,
    store_path: Path,
    dry_run: bool,
    overrides: list[str],
    how: How,
    chosen: Launcher,
    statuses: frozenset[str],
) -> int:
    """Plan for the nodes of the launcher, and run that; a dry run plans for as many of this one."""
    store = ResultsStore(store_path)
    num_nodes = getattr(chosen, "num_nodes", 1)
    of_a_job = chosen.crew.task if isinstance(chosen, AgentLauncher) else None
    check_lanes(how.lanes, num_nodes, how.launcher, of_a_job)
    if isinstance(chosen, AgentLauncher) and not dry_run:
        chosen.meet_in(store_path)
    machine = replace(this_machine(), nodes=num_nodes) if dry_run or how.lanes > 1 else machine_of(chosen)
    asked = grid.with_nodes(asked, partial(_node_names, chosen))
    nodes = planned_nodes(machine.nodes, how.lanes, this_lane())
    plan = grid.expand(asked, replace(machine, nodes=nodes), store_path)
    if dry_run:
        return _print_plan(plan, store, session, how.order_seed)
    store.check_writable()
    if how.lanes > 1:
        codes = run_lanes(how.lanes, how.words(file, session, store_path, overrides), num_nodes)
        _show(plan, store, session)
        return worst(codes)
    clock = deadline_of(how.until, plan.sweep.name, store.latest)
    return _run(plan, store, session, statuses, chosen, how, clock=clock)


def _terminable() -> AbstractContextManager[None]:
    """Let SIGTERM and SIGUSR1 end a sweep in good order while it plans, too; only main threads get signals."""
    main = threading.current_thread() is threading.main_thread()
    return sweeping.terminable() if main else nullcontext()


def _cannot_start(error: CannotStart) -> int:
    """Say so; the exit code: the same again would help only where ranks could be started before."""
    if error.lasting:
        typer.echo(f"error: {error}", err=True)
        return USAGE
    typer.echo(f"stopped: {error}; what is done is kept, and the same command goes on", err=True)
    return REQUEUE


def _node_names(launcher: Launcher) -> list[str]:
    """The nodes of a launcher; this one where it does not tell."""
    return launcher.node_names() if isinstance(launcher, AgentLauncher) else [node_name()]


def _profiled(profile: ProfileName | None) -> list[str]:
    """What asks for a profile, as an override.

    Raises:
        UserError: it needs what is not installed.
    """
    if profile is ProfileName.strace:
        from benchsuite.strace import check_installed

        check_installed()
    return [f"measure.profile={profile.value}"] if profile else []


def _retry_statuses(text: str) -> frozenset[str]:
    allowed = ("failed", "oom", "timeout")
    statuses = [word.strip() for word in text.split(",") if word.strip()]
    for word in statuses:
        if word not in allowed:
            raise refuse("--retry", word, allowed)
    return frozenset(statuses)


def _print_plan(plan: grid.Plan, store: ResultsStore, session: str, order_seed: int | None) -> int:
    """Every trial with its id in the order of running, what is done already, what is skipped and why."""
    state = sweeping.status(plan, store, session)
    waiting = {trial_id(item.point.point_id, session, item.repeat) for item in state.todo}
    for item in sweeping.rounds(plan, order_seed):
        name = trial_id(item.point.point_id, session, item.repeat)
        typer.echo(f"{'run ' if name in waiting else 'done'}  {name}  {item.point.label}")
    for skipped in plan.skipped:
        typer.echo(f"skip  {skipped.point.point_id}  {skipped.point.label}: {skipped.reason}")
    typer.echo(_summary(plan, state), err=True)
    return OK if plan.points else NOTHING_RAN


def _summary(plan: grid.Plan, state: sweeping.Status) -> str:
    done = sum(state.finished.values())
    parts = [f"{plan.sweep.name} · {len(plan.points)} points · {done} of {done + len(state.todo)} trials done"]
    if plan.skipped:
        parts.append(f"{len(plan.skipped)} points skipped")
    if plan.duplicates:
        parts.append(f"{plan.duplicates} duplicate points merged")
    return " · ".join(parts)


def _skipped_lines(plan: grid.Plan) -> list[str]:
    """A line for each reason to skip, with the points it struck."""
    if not plan.skipped:
        return []
    from results.report.tables import points_in_words

    reasons: dict[str, list[str]] = {}
    for skipped in plan.skipped:
        reasons.setdefault(skipped.reason, []).append(skipped.point.label)
    return [f"skipped {points_in_words(labels)}: {reason}" for reason, labels in reasons.items()]


def _run(
    plan: grid.Plan,
    store: ResultsStore,
    session: str,
    retry: frozenset[str],
    chosen: Launcher,
    how: How = _AS_USUAL,
    show: bool = False,
    clock: Deadline = NO_DEADLINE,
) -> int:
    claims = Claims.of(store.path, session, how.lease_s)
    state = sweeping.unclaimed(plan, store, session, retry, claims, how.order_seed)
    where = in_words(how.launcher, chosen)
    with SweepDisplay() as display:
        display.say(f"{_summary(plan, state)} · session {session} · store {store.path} · {where}")
        for line in _skipped_lines(plan):
            display.say(line)
        small = small_datasets(plan, psutil.virtual_memory().total) if state.todo else None
        if small:
            display.say(small)
        if not plan.points:
            sweeping.record_skipped(plan, store, session)
            display.say(f"error: {sweeping.nothing_runs(plan)}")
            return NOTHING_RAN
        if not state.todo:
            display.say(_nothing_left(state, session))
            if show:
                _show(plan, store, session)
            return _exit_code([], state)
        keep_plan(store.path, session, plan)
        try:
            with chosen as launcher, _one_interrupt():
                ran = sweeping.run(plan, state.todo, store, launcher, session, display, claims, clock)
        except CannotStart as error:
            return _cannot_start(error)
        except (KeyboardInterrupt, sweeping.Terminated) as stop:
            display.say("stopped early: the trial in flight was dropped, the rest is kept; the same command goes on")
            return INTERRUPTED if isinstance(stop, KeyboardInterrupt) else REQUEUE
        for line in _left_lines(ran):
            display.say(line)
    if this_lane() is None:
        _show(plan, store, session)
    if ran.none_fits:
        return NOTHING_RAN
    return REQUEUE if ran.out_of_time else _exit_code(ran.records, state)


def _left_lines(ran: sweeping.Ran) -> Iterator[str]:
    """What was not measured here, and why."""
    if ran.none_fits:
        yield f"error: {ran.none_fits}"
    elif ran.out_of_time:
        yield f"{ran.out_of_time} trials left: they could not have ended in time; the same command goes on"
    holders = Counter(str(held.claim.holder) for held in ran.held if held.claim)
    for holder, count in holders.items():
        yield f"{count} trials are left to another sweep, which is at them: {holder}"


def _show(plan: grid.Plan, store: ResultsStore, session: str) -> None:
    """The table of a plan's points, and where everything was written."""
    from benchsuite.show import section_table
    from results import screen
    from results.report.sections import section_of
    from results.report.tables import rows

    points = [*plan.points, *(skipped.point for skipped in plan.skipped)]
    asked = {
        trial_id(point.point_id, session, repeat) for point in points for repeat in range(point.spec.measure.repeats)
    }
    section = section_of(store, asked, {point.point_id: point.label for point in points})
    if section.trials:
        section_table(section)
    if any(point.spec.node for point in plan.points):
        typer.echo("\n".join(screen.lines(rows(store.frame(where=lambda record: record.trial_id in asked)))))
    command = sys.argv[0] if Path(sys.argv[0]).name == "benchsuite" else "benchsuite"
    typer.echo(f"written: {store.path.absolute()} (segments/*.jsonl) · next: {command} report --store {store.path}")


def _nothing_left(state: sweeping.Status, session: str) -> str:
    text = f"nothing left to do: all {sum(state.finished.values())} trials of session {session!r} are in the store"
    if state.num_failed:
        text += f", {state.num_failed} of them failed (--retry failed,oom,timeout runs those again)"
    return f"{text}; --session NAME measures anew, `benchsuite report` shows them"


def _exit_code(records: list[TrialRecord], state: sweeping.Status) -> int:
    return SOME_FAILED if state.num_failed or any(record.status != "ok" for record in records) else OK


@contextmanager
def _one_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt once: further Ctrl-C while the trial is being ended would lose its cleaning up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def demo(folder: Path, store_path: Path, session: str, samples: int) -> int:
    """Make the demo's datasets where they are missing, and run its sweep."""
    from benchsuite import datasets

    check_session(session)
    store = ResultsStore(store_path)
    store.check_writable()
    if not is_dataset(folder / "files"):
        datasets.generate(folder / "files", datasets.asked("resnet50", "tiny", "files", None, []), samples, 0, "jpeg")
    if not is_dataset(folder / "webdataset"):
        sharded = datasets.asked("resnet50", "tiny", "webdataset", DEMO_SHARD_SAMPLES, [])
        datasets.convert(folder / "files", folder / "webdataset", sharded, None)
    resource = files("benchsuite") / "sweeps" / "demo.yaml"
    value: dict[str, Any] = grid.parse_yaml(resource.read_text(), "demo.yaml")
    value["base"]["data"]["root"] = str(folder)
    plan = grid.expand(parse_sweep(value), this_machine())
    return _run(plan, store, session, frozenset(), load_launcher("auto"), show=True)


def trial(
    spec: Path,
    validate: bool,
    check_loss: bool,
    profile: ProfileName | None,
    timeline: Path | None,
    overrides: list[str],
    format: PlainFormat,
    store: Path | None = None,
) -> int:
    """Run one trial; several ranks are forked, one runs in this process.

    Its record is kept in `store`, where one is given; a device `emulated:from-record` is one of that store.
    """
    from benchsuite import exporting, inprocess

    value = _trial_values(spec, [*overrides, *_profiled(profile)])
    if validate:
        from benchsuite.validate import validate as examine

        return examine(with_step(parse_trial(value), store), format)
    if check_loss:
        return _check_loss(inprocess.plan_trial({**value, "data": {"source": "synthetic"}}), format)
    point = inprocess.plan_trial(value, store)
    alone = inprocess.fits_one_process(point)
    from benchsuite.probing import append_repeat

    opened = ResultsStore(store) if store else None
    if opened:
        opened.check_writable()
    record, samples = inprocess.in_this_process(point) if alone else inprocess.in_processes(point)
    if opened:
        record = append_repeat(opened, record, samples)
    if timeline and samples:
        exporting.write_trace(samples, record.label, timeline)
    if format is PlainFormat.json:
        typer.echo(record.model_dump_json(indent=1))
    else:
        from benchsuite.show import console
        from results.frames import trial_frame
        from results.report.tables import COLUMNS, as_table, rows

        console().print(as_table(rows(trial_frame([record])), COLUMNS))
        typer.echo(finished_line(record), err=True)
        exporting.print_profile(record)
    return OK if record.status == "ok" else SOME_FAILED


def _check_loss(point: grid.Point, format: PlainFormat) -> int:
    from benchsuite import losscheck

    found = losscheck.check_loss(point)
    typer.echo(json.dumps(found, indent=1) if format is PlainFormat.json else losscheck.in_words(point, found))
    return OK if found["equal"] else SOME_FAILED


def _trial_values(spec: Path, overrides: list[str]) -> dict[str, Any]:
    """What a trial's file and the overrides say.

    Raises:
        UserError: a sweep's file, or an override that is a list.
    """
    given = grid.read_yaml(spec)
    if "base" in given:
        raise UserError(f"{spec}: a sweep file; use `benchsuite sweep`, or give what stands under `base`")
    value = layered({"base": given}, str(spec), overrides).sweep
    if value["grid"]:
        raise UserError(f"-o {next(iter(value['grid']))}: a trial has one value, not a list")
    base: dict[str, Any] = value["base"]
    return base
