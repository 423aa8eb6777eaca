"""The verbs `sweep`, `search`, `demo` and `advise`. What makes tables, which takes pandas, is imported when due."""

import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import asdict, replace
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
import yaml

from benchsuite import storage
from benchsuite.analysis import au_search
from benchsuite.cli.common import (
    DEFAULT_STORE,
    Overrides,
    Session,
    Store,
    damage_lines,
    tell,
    warn_of_damage,
)
from benchsuite.cli.sweep_options import SweepOptions, retried, takes_sweep_options
from benchsuite.contract.errors import UserError, refuse
from benchsuite.contract.exit_codes import INTERRUPTED, NOTHING_RAN, OK, REQUEUE, SOME_FAILED, USAGE
from benchsuite.contract.packages import require
from benchsuite.contract.terminal import PlainFormat, echo
from benchsuite.contract.trial_spec import ProfileName, SweepSpec, check_session, parse_sweep, trial_id
from benchsuite.contract.yaml_file import parse_yaml
from benchsuite.grid import expand
from benchsuite.grid.layers import bundled
from benchsuite.grid.point import Plan, Point
from benchsuite.grid.warnings import crowd_of, crowded, crowding_skipped, fitting_in_memory
from benchsuite.host.load import memory_bytes
from benchsuite.host.machine import Machine, this_machine
from benchsuite.host.signals import Terminated, terminable
from benchsuite.launch.agents import AgentLauncher
from benchsuite.launch.launcher import CannotStart, Launcher, check_alone, in_words, load_launcher, machine_of
from benchsuite.launch.node import node_name
from benchsuite.results.render.tables import ABSENT
from benchsuite.results.render.words import typed
from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import ResultsStore
from benchsuite.runner import sweep as sweeping
from benchsuite.runner.claims import Claims
from benchsuite.runner.deadline import deadline_of, parse_until
from benchsuite.runner.durations import durations_of
from benchsuite.runner.durations import in_words as time_in_words
from benchsuite.runner.progress import SweepDisplay, left_lines, not_measured, nothing_left, summary, vanished
from benchsuite.runner.search import Search, of_counts
from benchsuite.runner.status import keep_plan
from benchsuite.storage.dataset.manifest import DatasetError, is_dataset, read_manifest

NEEDED = ("torch", "pandas", "scipy")
"""What trials, and the report at the end, are made with: missed before the first trial, not after the last."""


@takes_sweep_options()
def sweep(
    file: Annotated[Path, typer.Argument(help="A sweep file (YAML), or a name of `benchsuite list sweeps`.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print every trial and what is skipped; run none.")
    ] = False,
    show_config: Annotated[
        bool, typer.Option("--show-config", help="Print every value and the layer it comes from; run none.")
    ] = False,
    format: Annotated[
        PlainFormat | None, typer.Option("--format", help="How --show-config prints: table (default) or json.")
    ] = None,
    *,
    options: SweepOptions,
) -> None:
    """Run the grid of a sweep file; what its session has already is not run again."""
    if show_config:
        from benchsuite.cli.inspect import show_settings

        return show_settings(file, options.overrides or [], format or "table")
    if format is not None:
        raise typer.BadParameter("--format goes with --show-config")
    raise typer.Exit(run_file(file, options, dry_run))


@takes_sweep_options(without=("retry", "profile", "until", "lease", "order_seed"))
def search(
    file: Annotated[Path, typer.Argument(help="A sweep file (YAML) of an emulated device; its world_size is sought.")],
    au: Annotated[
        float | None,
        typer.Option(
            "--au", min=0, max=1, help="The utilization to keep; default: the workload's of MLPerf Storage, or 0.9."
        ),
    ] = None,
    most: Annotated[
        int | None, typer.Option("--most", min=1, help="Try no more; default: the file's largest world_size, or 64.")
    ] = None,
    max_repeats: Annotated[
        int, typer.Option("--max-repeats", min=2, help="Of a count, where its interval is not clear of --au.")
    ] = 10,
    format: Annotated[PlainFormat, typer.Option("--format", help="table or json.")] = "table",
    *,
    options: SweepOptions,
) -> None:
    """Find the largest number of emulated accelerators that the data's path keeps above an AU."""
    spec = of_counts(expand.load_sweep(bundled(file), options.overrides or []), most)
    raise typer.Exit(_search(spec, options, au, max_repeats, format))


def _search(sweep: SweepSpec, options: SweepOptions, au: float | None, max_repeats: int, format: PlainFormat) -> int:
    """Find the largest world_size of a sweep that keeps an AU; the exit code."""
    check_session(options.session)
    require("search", *NEEDED)
    check_alone("search")
    chosen, store = load_launcher(options.launcher), ResultsStore(options.store)
    store.check_writable()
    try:
        with closing(chosen) if isinstance(chosen, AgentLauncher) else nullcontext():
            if isinstance(chosen, AgentLauncher):
                chosen.meet_in(options.store)
            plan = expand.expand(sweep, machine_of(chosen), options.store)
            with SweepDisplay() as display, chosen as launcher, terminable(one_interrupt=True):
                found = Search(plan, store, launcher, options.session, display, au, max_repeats)
                display.say(found.heading())
                tried = found.tried()
    except CannotStart as error:
        return _cannot_start(error)
    except (KeyboardInterrupt, Terminated) as stop:
        echo("stopped early: the trial in flight was dropped, the rest is kept; the same command goes on", err=True)
        return INTERRUPTED if isinstance(stop, KeyboardInterrupt) else REQUEUE
    said = au_search.answer(tried, found.threshold, found.counts[1])
    facts = {"answer": said, "threshold": found.threshold, "tried": [*map(asdict, tried)]}
    tell(format, facts, [f"-> {said}", *_lines(tried)])
    if format != "json":
        echo(
            f"written: {store.path} (segments/*.jsonl) · next: {typed('benchsuite', 'report', '--store', store.path)}",
            err=True,
        )
    return OK if any(one.verdict != "cannot run" for one in tried) else NOTHING_RAN


def _lines(tried: Sequence[au_search.Tried]) -> Iterator[str]:
    """Every count that was tried, as a table."""
    yield "accelerators  mean AU  interval        repeats  verdict"
    for one in sorted(tried, key=lambda one: one.accelerators):
        mean = f"{fmean(one.au):.3f}" if one.au else ABSENT
        between = f"{one.low:.3f} .. {one.high:.3f}" if one.low is not None and one.high is not None else ABSENT
        yield f"{one.accelerators:12d}  {mean:>7}  {between:14}  {len(one.au):7d}  {one.verdict}"


def demo(
    store: Store = DEFAULT_STORE,
    session: Session = "default",
    samples: Annotated[int, typer.Option("--samples", min=256, help="Photographs to make.")] = 1024,
) -> None:
    """Make a small dataset, run a real sweep on it and print the report."""
    from benchsuite.cli import data

    check_session(session)
    require("demo", *NEEDED, "simplejpeg", "webdataset")
    check_alone("demo")
    opened, folder = ResultsStore(store), Path("benchsuite-demo")
    opened.check_writable()
    if not is_dataset(folder / "files"):
        data.generate(folder / "files", data.asked("resnet50", "tiny", "files", []), samples, 0, "jpeg")
    if not is_dataset(folder / "webdataset"):
        data.convert(folder / "files", folder / "webdataset", data.asked("resnet50", "tiny", "webdataset", []))
    resource = files("benchsuite") / "sweeps" / "demo.yaml"
    value: dict[str, Any] = parse_yaml(resource.read_text(), "demo.yaml")
    plan = expand.expand(parse_sweep(value), this_machine())
    options = SweepOptions(session, store)
    raise typer.Exit(_run(plan, opened, options, load_launcher(options.launcher), show=True))


WORKLOADS = {"image": "resnet50", "volume": "unet3d", "mlm": "bert", "tokens": "gpt_neox"}
"""Workloads by the kind of samples."""
BATCHES = {"image": 16, "volume": 2, "mlm": 16, "tokens": 8}
MAX_SAMPLES = {"image": 2048, "volume": 64, "mlm": 8192, "tokens": 8192}
"""Samples that are converted at most: enough for cold trials of STEPS steps."""
STEPS, REPEATS = 24, 3
BATCHES_OF_A_TRIAL = 50
"""Batches that one reader takes of them, about, and holds: of few samples batches are smaller."""


def advise(
    path: Annotated[Path, typer.Argument(help="Your data: what `benchsuite data convert` takes, or a dataset.")],
    minutes: Annotated[float, typer.Option("--minutes", min=1, help="How long it may measure.")] = 5,
    out: Annotated[
        Path | None, typer.Option("--out", help="Where converted samples go; default: PATH-advise, beside the data.")
    ] = None,
    workload: Annotated[
        str | None, typer.Option("--workload", help="What the samples are for; default: by what they look like.")
    ] = None,
    store: Store = DEFAULT_STORE,
    overrides: Overrides = None,
) -> None:
    """Find the format and the workers for your data: a sample of it is converted into each, and measured cold."""
    check_alone("advise")
    require("advise", *NEEDED, "simplejpeg", "webdataset", "h5py", "lmdb")
    from benchsuite.storage.sources import suggested_kind

    began_s = time.monotonic()
    ResultsStore(store).check_writable()
    path = Path(os.path.abspath(path.expanduser()))  # without `..`, as paths are to be typed again
    kinds = {name: kind for kind, name in WORKLOADS.items()}
    if workload is not None and workload not in kinds:
        raise refuse("--workload", workload, kinds)
    kind = kinds[workload] if workload else read_manifest(path).kind if is_dataset(path) else suggested_kind(path)
    folder = Path(os.path.abspath(out or path.with_name(f"{path.name}-advise")))
    formats = [name for name in storage.FORMATS if kind in storage.format_of(name).advised_kinds]
    _convert(path, folder, kind, formats, guessed=workload is None)
    file = folder / "advise.yaml"
    batch = max(1, min(BATCHES[kind], read_manifest(folder / formats[0]).num_samples // BATCHES_OF_A_TRIAL))
    file.write_text(yaml.safe_dump(sweep_of(kind, folder, formats, batch, this_machine().cores), sort_keys=False))
    converted_s = time.monotonic() - began_s
    left_s = 60 * minutes - converted_s
    if left_s <= 0:
        raise UserError(f"--minutes {minutes:g}: converting took {converted_s:.0f} s; give it more")
    session = f"advise-{datetime.now():%Y%m%d-%H%M%S}"
    options = SweepOptions(session, store, overrides, until=f"+{left_s:.0f}s")
    code = run_file(file, options)
    words = ["benchsuite", "sweep", str(file), *options.words(without=("until",))]
    for line in too_short(file, options, formats, converted_s, time.monotonic() - began_s - converted_s):
        echo(f"--minutes {minutes:g} {line}")
    echo(f"to go on with what is left, or to repeat it with another --session: {typed(*words)}")
    echo(f"remove the samples: rm -r {typed(folder)}")
    raise typer.Exit(code)


def _convert(path: Path, folder: Path, kind: str, formats: list[str], guessed: bool) -> None:
    """Convert a sample of the data; where that fails, a folder that was made for it and is empty goes again.

    Raises:
        DatasetError: it cannot be converted; with what the data were taken for where that was guessed.
    """
    from benchsuite.cli import data
    from benchsuite.storage.sources import ReadOptions
    from benchsuite.storage.sources.labels import NO_FIELD

    was_there = folder.exists()
    try:
        # Which class an image has changes no time, so unclear labels are no reason to stop.
        read = ReadOptions(label_field=NO_FIELD if kind == "image" and not is_dataset(path) else None)
        data.convert_all(path, folder, WORKLOADS[kind], variant(), formats, read, MAX_SAMPLES[kind])
    except DatasetError as error:
        if guessed and kind == "tokens" and not is_dataset(path):
            looked = f"no images (.jpg, .jpeg, .png) were found in {path}, so it was taken for text"
            raise DatasetError(f"{looked}; {error}") from error
        raise
    finally:
        if not was_there:
            with suppress(OSError):  # it holds something, or was not made
                folder.rmdir()


def too_short(
    file: Path, options: SweepOptions, formats: list[str], converted_s: float, took_s: float
) -> Iterator[str]:
    """A sentence where the time did not suffice for a trial of each format."""
    store = ResultsStore(options.store, options.session)
    trials = store.trials() if store.exists() else []
    measured = {str(trial.spec["data"]["format"]) for trial in trials}
    missing = [name for name in formats if name not in measured]
    if missing and trials:
        plan = expand.expand(expand.load_sweep(file, options.overrides or []), this_machine(), options.store)
        all_s = converted_s + took_s / len(trials) * sum(point.spec.measure.repeats for point in plan.points)
        yield f"was too short: {', '.join(missing)} not measured; about --minutes {math.ceil(all_s / 60)} would do"


def variant() -> str:
    """The reference where there is a GPU to train it; else what a CPU trains in seconds, on samples as large."""
    if this_machine().cuda_devices:
        return "reference"
    return "tiny"


def sweep_of(kind: str, folder: Path, formats: list[str], batch: int, cores: int) -> dict[str, Any]:
    """The sweep: every format with 1, 2, 4 ... workers, as many as there are cores."""
    workers = [1 << power for power in range(5) if 1 << power <= max(2, cores)]
    return {
        "name": "advise",
        "question": "Which format, and how many workers, keep training on these data fed?",
        "base": {
            "workload": WORKLOADS[kind],
            "variant": variant(),
            "batch_size": batch,
            "data": {"root": str(folder), "cache": "cold", "shuffle_buffer": 2 * batch},
            "measure": {"steps": STEPS, "repeats": REPEATS},
        },
        "grid": {"data.format": formats, "data.num_workers": workers},
    }


def run_file(file: Path, options: SweepOptions, dry_run: bool = False) -> int:
    """Run a sweep file; the exit code."""
    _check(options)
    if not dry_run:
        require("sweep", *NEEDED)
    chosen = load_launcher(options.launcher)
    spec = expand.load_sweep(bundled(file), [*(options.overrides or []), *profiled(options.profile)])
    try:
        with terminable(), closing(chosen) if isinstance(chosen, AgentLauncher) else nullcontext():
            task = chosen.agent_config.task if isinstance(chosen, AgentLauncher) else None
            if dry_run and task is not None and task.rank:
                return OK  # of several tasks of a job one prints the plan
            if isinstance(chosen, AgentLauncher) and not dry_run:
                chosen.meet_in(options.store)
            machine = _machine_here(chosen) if dry_run else machine_of(chosen)
            store, plan = ResultsStore(options.store), _plan(options, spec, chosen, machine)
            if dry_run:
                return print_plan(plan, store, options)
            store.check_writable()
            return _run(plan, store, options, chosen)
    except Terminated:
        echo("stopped early: no trial was begun; the same command goes on", err=True)
        return REQUEUE
    except CannotStart as error:
        return _cannot_start(error)


def _check(options: SweepOptions) -> None:
    """Tell mistakes in options before a store is made.

    Raises:
        UserError: a session, `--retry` or `--until` that cannot be.
    """
    check_session(options.session)
    retried(options.retry)
    if options.until is not None:
        parse_until(options.until, datetime.now())


def _machine_here(chosen: Launcher) -> Machine:
    """What nodes like this one have, without asking them."""
    ranks_per_node = chosen.agent_config.ranks_per_node if isinstance(chosen, AgentLauncher) else None
    return replace(this_machine(), nodes=getattr(chosen, "num_nodes", 1), ranks_per_node=ranks_per_node)


def _plan(options: SweepOptions, sweep: SweepSpec, chosen: Launcher, machine: Machine) -> Plan:
    """The plan of a sweep on the nodes that its launcher has."""
    spec = expand.with_nodes(sweep, chosen.node_names if isinstance(chosen, AgentLauncher) else lambda: [node_name()])
    return expand.expand(spec, machine, options.store)


def _cannot_start(error: CannotStart) -> int:
    """Say so; the exit code: the same again would help only where ranks could be started before."""
    if error.lasting:
        echo(f"error: {error}", err=True)
        return USAGE
    echo(f"stopped: {error}; what is done is kept, and the same command goes on", err=True)
    return REQUEUE


def profiled(profile: ProfileName | None) -> list[str]:
    """What asks for a profile, as an override.

    Raises:
        UserError: it needs what is not installed.
    """
    if profile == "strace":
        from benchsuite.trial.strace import check_installed

        check_installed()
    return [f"measure.profile={profile}"] if profile else []


def _run(plan: Plan, store: ResultsStore, options: SweepOptions, chosen: Launcher, show: bool = False) -> int:
    """Run what a session lacks of a plan; the exit code.

    `show`, for the demo: print also what the session has all of, and leave out how long it may take and what a dataset
    as small means.
    """
    session = options.session
    claims = Claims.of(store.path, session, options.lease)
    state = sweeping.unclaimed(plan, store, session, retried(options.retry), claims, options.order_seed)
    clock = deadline_of(options.until, durations_of(store.outcomes().values(), plan))
    heading = [summary(plan, state), f"session {session}", f"store {store.path}", in_words(options.launcher, chosen)]
    told = state.todo and not show
    if told:
        todo = [item.point for item in state.todo]
        heading.append(f"time: {time_in_words(todo, clock.known, left_s=clock.left_s())}")
    with SweepDisplay() as display:
        display.say(" · ".join(heading))
        for line in damage_lines(store):
            display.say(line)
        for skipped in sweeping.skipped_in_words(plan) if plan.points else []:  # else the error tells
            display.say(f"skipped {skipped}")
        if plan.points and (remedy := sweeping.remedy_in_words(plan)):
            display.say(f"note: {remedy}")
        warnings = [fitting_in_memory(plan.points, plan.machine, memory_bytes()[1]), *crowded(plan)] if told else []
        for warning in filter(None, warnings):
            display.say(warning)
        if not plan.points:
            sweeping.record_skipped(plan, store, session)
            display.say(f"error: {sweeping.nothing_runs(plan)}")
            return NOTHING_RAN
        if not state.todo:
            display.say(nothing_left(state, session))
            if show:
                _show(plan, store, session)
            return _exit_code([], state)
        keep_plan(store.path, session, plan)
        store.on_vanished = lambda gone: display.say(vanished(store.path, gone))
        if isinstance(chosen, AgentLauncher):
            chosen.on_lost = display.say
        try:
            with chosen as launcher, terminable(one_interrupt=True):
                ran = sweeping.run(plan, state.todo, store, launcher, session, display, claims, clock)
        except CannotStart as error:
            return _cannot_start(error)
        except (KeyboardInterrupt, Terminated) as stop:
            display.say("stopped early: the trial in flight was dropped, the rest is kept; the same command goes on")
            return INTERRUPTED if isinstance(stop, KeyboardInterrupt) else REQUEUE
        for line in left_lines(ran):
            display.say(line)
    _show(plan, store, session)
    if ran.none_fits:
        return NOTHING_RAN
    return REQUEUE if ran.out_of_time or ran.too_few_nodes else _exit_code(ran.records, state)


def _show(plan: Plan, store: ResultsStore, session: str) -> None:
    """The table of a plan's points, and where everything was written.

    A signal ends it and leaves the exit code alone: whether trials are left is decided by then.
    """
    try:
        _show_points(plan, store, session)
    except Terminated:
        echo("stopped early: the table is not shown; what was measured is in the store")
    command = sys.argv[0] if Path(sys.argv[0]).name == "benchsuite" else "benchsuite"
    points = [*plan.points, *(skipped.point for skipped in plan.skipped)]
    several = len({point.spec.ranks for point in points}) > 1
    again = [typed(command, verb, "--store", store.path) for verb in ("report", *(["scaling"] if several else []))]
    echo(f"written: {store.path.absolute()} (segments/*.jsonl) · next: {' · '.join(again)}")


def _show_points(plan: Plan, store: ResultsStore, session: str) -> None:
    """What was measured of each point, what was not, and which nodes are slow."""
    from benchsuite.cli.report import section_table
    from benchsuite.results.compare import slow_nodes
    from benchsuite.results.report.sections import section_of

    points = [*plan.points, *(skipped.point for skipped in plan.skipped)]
    wanted = {
        trial_id(point.point_id, session, repeat) for point in points for repeat in range(point.spec.measure.repeats)
    }
    section = section_of(store, wanted, {point.point_id: point.label for point in points})
    if section.trials:
        section_table(section)
    if told := not_measured(plan, section.trials):
        echo(told)
    if any(point.spec.node for point in plan.points):
        echo(*slow_nodes.lines(section.trials))


def _exit_code(records: list[TrialRecord], state: sweeping.Status) -> int:
    return SOME_FAILED if state.num_failed or any(record.status != "ok" for record in records) else OK


def print_plan(plan: Plan, store: ResultsStore, options: SweepOptions) -> int:
    """Trials in the order of running, what is done already, what is skipped and why; the exit code.

    Repeats of a point are one line, with the id of the first; those of shuffled rounds are a line each. Trials that
    would run on too few cores say so.
    """
    session, shuffled = options.session, options.order_seed is not None
    state = sweeping.status(plan, store, session)
    waiting = {trial_id(item.point.point_id, session, item.repeat) for item in state.todo}
    alike: dict[tuple[bool, str, int | None], list[tuple[str, Point]]] = {}
    for item in sweeping.rounds(plan, options.order_seed):
        name, apart = trial_id(item.point.point_id, session, item.repeat), item.repeat if shuffled else None
        alike.setdefault((name in waiting, item.point.point_id, apart), []).append((name, item.point))
    for (waits, *_), repeats in alike.items():
        name, point = repeats[0]
        crowd = crowd_of(plan, point)
        times = f"  x {len(repeats)}" if len(repeats) > 1 else ""
        but = f"  (oversubscribed: {crowd})" if crowd else ""
        echo(f"{'run ' if waits else 'done'}  {name}  {point.label}{times}{but}")
    for told in sweeping.skipped_in_words(plan):
        echo(f"skip  {told}")
    for note in filter(None, [sweeping.remedy_in_words(plan), *crowding_skipped(plan)]):
        echo(f"note  {note}")
    known = durations_of(store.outcomes().values(), plan)
    time_left = [f"time: {time_in_words([item.point for item in state.todo], known)}"] if state.todo else []
    echo(" · ".join([summary(plan, state), *time_left]), err=True)
    warn_of_damage(store)
    return OK if plan.points else NOTHING_RAN
