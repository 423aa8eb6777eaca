"""The verbs that run trials: sweep, demo, trial. What makes tables, which takes pandas, is imported when one is due."""

import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from types import FrameType
from typing import Any

from benchsuite.cli import sweep_words as words
from benchsuite.cli.damage import damage_lines
from benchsuite.contract.errors import UserError, refuse
from benchsuite.contract.exit_codes import (
    INTERRUPTED,
    NOTHING_RAN,
    OK,
    REQUEUE,
    SOME_FAILED,
    USAGE,
    PlainFormat,
    ProfileName,
)
from benchsuite.contract.terminal import document, echo
from benchsuite.contract.trial_spec import SweepSpec, check_session, parse_sweep, parse_trial, trial_id
from benchsuite.contract.yaml_file import parse_yaml, read_yaml
from benchsuite.grid import expand
from benchsuite.grid.emulated_steps import with_step
from benchsuite.grid.expand import plan_trial
from benchsuite.grid.layers import bundled, layered
from benchsuite.grid.point import Plan, Point
from benchsuite.grid.warnings import crowded, fitting_in_memory, small_datasets
from benchsuite.host.lane import this_lane
from benchsuite.host.load import memory_bytes
from benchsuite.host.machine import Machine, this_machine
from benchsuite.host.signals import Terminated, terminable
from benchsuite.launch.agents import AgentLauncher
from benchsuite.launch.allocation import Task
from benchsuite.launch.lanes import check_lanes, planned_nodes, run_lanes, worst
from benchsuite.launch.launcher import CannotStart, Launcher, check_alone, in_words, load_launcher, machine_of
from benchsuite.launch.node import node_name
from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import ResultsStore
from benchsuite.runner import sweep as sweeping
from benchsuite.runner.claims import Claims
from benchsuite.runner.deadline import NO_DEADLINE, Deadline, deadline_of
from benchsuite.runner.plans import keep_plan
from benchsuite.runner.progress import SweepDisplay, finished_line
from benchsuite.runner.sweep_options import How
from benchsuite.storage.dataset.manifest import is_dataset

_AS_USUAL = How()
DEMO_SHARD_SAMPLES = 64


@dataclass(frozen=True)
class _Asked:
    """What the command line asks for."""

    sweep: SweepSpec
    file: Path
    session: str
    store: Path
    overrides: list[str]
    how: How


def sweep(file: Path, session: str, store_path: Path, dry_run: bool, overrides: list[str], how: How = _AS_USUAL) -> int:
    """Run a sweep file; the exit code."""
    check_session(session)
    _retry_statuses(how.retry)
    chosen = load_launcher(how.launcher)
    spec = expand.load_sweep(bundled(file), [*overrides, *_profiled(how.profile)])
    asked = _Asked(spec, file, session, store_path, overrides, how)
    try:
        with _terminable(), closing(chosen) if isinstance(chosen, AgentLauncher) else nullcontext():
            return (_dry_run if dry_run else _planned)(asked, chosen)
    except Terminated:
        echo("stopped early: no trial was begun; the same command goes on", err=True)
        return REQUEUE
    except CannotStart as error:
        return _cannot_start(error)


def _dry_run(asked: _Asked, chosen: Launcher) -> int:
    """Plan for as many of this node as the launcher has, and print that; of several tasks of a job one does."""
    num_nodes, mine = _check_lanes(asked, chosen), _task_of(chosen)
    if mine is not None and mine.rank:
        return OK
    plan = _plan(asked, chosen, replace(this_machine(), nodes=num_nodes))
    return words.print_plan(plan, ResultsStore(asked.store), asked.session, asked.how.order_seed)


def _planned(asked: _Asked, chosen: Launcher) -> int:
    """Plan for the nodes of the launcher, and run that."""
    store, how = ResultsStore(asked.store), asked.how
    num_nodes = _check_lanes(asked, chosen)
    if isinstance(chosen, AgentLauncher):
        chosen.meet_in(asked.store)
    plan = _plan(asked, chosen, replace(this_machine(), nodes=num_nodes) if how.lanes > 1 else machine_of(chosen))
    store.check_writable()
    if how.lanes > 1:
        codes = run_lanes(how.lanes, how.words(asked.file, asked.session, asked.store, asked.overrides), num_nodes)
        _show(plan, store, asked.session)
        return worst(codes)
    clock = deadline_of(how.until, plan.sweep.name, store.latest)
    return _run(plan, store, asked.session, chosen, how, clock=clock)


def _check_lanes(asked: _Asked, chosen: Launcher) -> int:
    """The nodes of the launcher, which the lanes asked for can share."""
    num_nodes: int = getattr(chosen, "num_nodes", 1)
    check_lanes(asked.how.lanes, num_nodes, asked.how.launcher, _task_of(chosen))
    return num_nodes


def _task_of(chosen: Launcher) -> Task | None:
    return chosen.crew.task if isinstance(chosen, AgentLauncher) else None


def _plan(asked: _Asked, chosen: Launcher, machine: Machine) -> Plan:
    """The plan on the nodes that a lane has."""
    spec = expand.with_nodes(asked.sweep, partial(_node_names, chosen))
    nodes = planned_nodes(machine.nodes, asked.how.lanes, this_lane())
    return expand.expand(spec, replace(machine, nodes=nodes), asked.store)


def _terminable() -> AbstractContextManager[None]:
    """Let signals end a sweep in good order while it plans, too; only main threads get signals."""
    main = threading.current_thread() is threading.main_thread()
    return terminable() if main else nullcontext()


def _cannot_start(error: CannotStart) -> int:
    """Say so; the exit code: the same again would help only where ranks could be started before."""
    if error.lasting:
        echo(f"error: {error}", err=True)
        return USAGE
    echo(f"stopped: {error}; what is done is kept, and the same command goes on", err=True)
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
        from benchsuite.trial.strace import check_installed

        check_installed()
    return [f"measure.profile={profile.value}"] if profile else []


def _retry_statuses(text: str) -> frozenset[str]:
    allowed = ("failed", "oom", "timeout")
    statuses = [word.strip() for word in text.split(",") if word.strip()]
    for word in statuses:
        if word not in allowed:
            raise refuse("--retry", word, allowed)
    return frozenset(statuses)


def _run(
    plan: Plan,
    store: ResultsStore,
    session: str,
    chosen: Launcher,
    how: How = _AS_USUAL,
    show: bool = False,
    clock: Deadline = NO_DEADLINE,
) -> int:
    claims = Claims.of(store.path, session, how.lease_s)
    state = sweeping.unclaimed(plan, store, session, _retry_statuses(how.retry), claims, how.order_seed)
    where = in_words(how.launcher, chosen)
    with SweepDisplay() as display:
        display.say(f"{words.summary(plan, state)} · session {session} · store {store.path} · {where}")
        for line in (*damage_lines(store), *(words.skipped_lines(plan) if plan.points else [])):  # else the error tells
            display.say(line)
        warnings = [small_datasets(plan, memory_bytes()[1]), *crowded(plan)] if state.todo else []
        for warning in filter(None, warnings):
            display.say(warning)
        if not plan.points:
            sweeping.record_skipped(plan, store, session)
            display.say(f"error: {sweeping.nothing_runs(plan)}")
            return NOTHING_RAN
        if not state.todo:
            display.say(words.nothing_left(state, session))
            if show:
                _show(plan, store, session)
            return _exit_code([], state)
        keep_plan(store.path, session, plan)
        store.on_vanished = lambda gone: display.say(words.vanished(store.path, gone))
        try:
            with chosen as launcher, _one_interrupt():
                ran = sweeping.run(plan, state.todo, store, launcher, session, display, claims, clock)
        except CannotStart as error:
            return _cannot_start(error)
        except (KeyboardInterrupt, Terminated) as stop:
            display.say("stopped early: the trial in flight was dropped, the rest is kept; the same command goes on")
            return INTERRUPTED if isinstance(stop, KeyboardInterrupt) else REQUEUE
        for line in words.left_lines(ran):
            display.say(line)
    if this_lane() is None:
        _show(plan, store, session)
    if ran.none_fits:
        return NOTHING_RAN
    return REQUEUE if ran.out_of_time else _exit_code(ran.records, state)


def _show(plan: Plan, store: ResultsStore, session: str) -> None:
    """The table of a plan's points, and where everything was written."""
    from benchsuite.cli.report import section_table
    from benchsuite.results.compare import slow_nodes
    from benchsuite.results.render.tables import rows
    from benchsuite.results.report.sections import section_of

    points = [*plan.points, *(skipped.point for skipped in plan.skipped)]
    asked = {
        trial_id(point.point_id, session, repeat) for point in points for repeat in range(point.spec.measure.repeats)
    }
    section = section_of(store, asked, {point.point_id: point.label for point in points})
    if section.trials:
        section_table(section)
    if any(point.spec.node for point in plan.points):
        echo(*slow_nodes.lines(rows(store.frame(where=lambda record: record.trial_id in asked))))
    command = sys.argv[0] if Path(sys.argv[0]).name == "benchsuite" else "benchsuite"
    echo(f"written: {store.path.absolute()} (segments/*.jsonl) · next: {command} report --store {store.path}")


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
    from benchsuite.cli import datasets

    check_session(session)
    check_alone("demo")
    store = ResultsStore(store_path)
    store.check_writable()
    if not is_dataset(folder / "files"):
        datasets.generate(folder / "files", datasets.asked("resnet50", "tiny", "files", None, []), samples, 0, "jpeg")
    if not is_dataset(folder / "webdataset"):
        sharded = datasets.asked("resnet50", "tiny", "webdataset", DEMO_SHARD_SAMPLES, [])
        datasets.convert(folder / "files", folder / "webdataset", sharded, None)
    resource = files("benchsuite") / "sweeps" / "demo.yaml"
    value: dict[str, Any] = parse_yaml(resource.read_text(), "demo.yaml")
    value["base"]["data"]["root"] = str(folder)
    plan = expand.expand(parse_sweep(value), this_machine())
    return _run(plan, store, session, load_launcher("auto"), show=True)


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
    from benchsuite.cli import export_files
    from benchsuite.runner import single_trial

    value = _trial_values(spec, [*overrides, *_profiled(profile)])
    if validate:
        from benchsuite.runner.validate import validate as examine

        return examine(with_step(parse_trial(value), store), format)
    check_alone("trial")
    if check_loss:
        return _check_loss(plan_trial({**value, "data": {"source": "synthetic"}}), format)
    point = plan_trial(value, store)
    alone = single_trial.fits_one_process(point)
    from benchsuite.probe.record import append_repeat

    opened = ResultsStore(store) if store else None
    if opened:
        opened.check_writable()
    if warning := fitting_in_memory([point], this_machine(), memory_bytes()[1]):
        echo(warning, err=True)
    record, samples = single_trial.in_this_process(point) if alone else single_trial.in_processes(point)
    if opened:
        record = append_repeat(opened, record, samples)
    if timeline and samples:
        export_files.write_trace(samples, record.label, timeline)
    if format is PlainFormat.json:
        document(record.model_dump_json(indent=1))
    else:
        from benchsuite.cli.report import fitting_table
        from benchsuite.contract.console import console
        from benchsuite.results.render.tables import COLUMNS, rows
        from benchsuite.results.render.terminal import say
        from benchsuite.results.store.frames import trial_frame

        out = console()
        out.print(fitting_table(rows(trial_frame([record])), COLUMNS, out))
        for detail in record.caveat_details:
            say(out, f"  {detail}")
        echo(finished_line(record), err=True)
        echo(_kept(opened), err=True)
        export_files.print_profile(record)
    return OK if record.status == "ok" else SOME_FAILED


def _kept(store: ResultsStore | None) -> str:
    """Where a trial's record is."""
    if store is None:
        return "nothing is stored: --store DIR keeps the record"
    return f"written: {store.path.absolute()} (segments/*.jsonl)"


def _check_loss(point: Point, format: PlainFormat) -> int:
    from benchsuite.runner import loss_check

    found = loss_check.check_loss(point)
    if format is PlainFormat.json:
        document(json.dumps(found, indent=1))
    else:
        echo(loss_check.in_words(point, found))
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
