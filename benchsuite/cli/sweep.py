"""The verbs `sweep`, `search`, `demo` and `advise`. Tables need pandas, which is imported only when one is printed."""

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
    print_facts,
    warn_of_damage,
)
from benchsuite.cli.sweep_options import SweepOptions, parse_retry, takes_sweep_options
from benchsuite.contract.errors import UserError, refuse
from benchsuite.contract.exit_codes import INTERRUPTED, NOTHING_RAN, OK, REQUEUE, SOME_FAILED, USAGE
from benchsuite.contract.packages import require
from benchsuite.contract.session import check_session
from benchsuite.contract.terminal import PlainFormat, echo
from benchsuite.contract.trial_spec import ProfileName, SweepSpec, parse_sweep, trial_id
from benchsuite.contract.yaml_file import parse_yaml
from benchsuite.grid import expand
from benchsuite.grid.layers import find_sweep_file
from benchsuite.grid.point import Plan, Point
from benchsuite.grid.warnings import crowding_warnings, describe_crowding, memory_warning, skipped_crowding_notes
from benchsuite.host.load import memory_bytes
from benchsuite.host.machine import Machine, this_machine
from benchsuite.host.signals import Terminated, terminable
from benchsuite.launch.agents import AgentLauncher
from benchsuite.launch.launcher import CannotStart, Launcher, check_alone, describe_launcher, load_launcher, machine_of
from benchsuite.launch.node import node_name
from benchsuite.results.render.tables import ABSENT
from benchsuite.results.render.words import typed
from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import ResultsStore
from benchsuite.runner import sweep as sweeping
from benchsuite.runner.claims import Claims
from benchsuite.runner.deadline import Deadline, deadline_of, parse_until
from benchsuite.runner.durations import describe_cost, durations_of
from benchsuite.runner.progress import (
    SweepDisplay,
    describe_nothing_left,
    describe_unmeasured,
    describe_vanished,
    left_lines,
    summary,
)
from benchsuite.runner.search import Search, with_every_count
from benchsuite.runner.status import keep_plan
from benchsuite.storage.dataset.manifest import DatasetError, is_dataset, read_manifest

NEEDED = ("torch", "pandas", "scipy")
"""Packages of trials and of the report at the end: one that is missing is an error before the first trial."""


@takes_sweep_options()
def sweep(
    file: Annotated[Path, typer.Argument(help="A sweep file (YAML), or a name of `benchsuite list sweeps`.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print every trial and every skipped point; run nothing.")
    ] = False,
    show_config: Annotated[
        bool, typer.Option("--show-config", help="Print every value and the layer it comes from; run nothing.")
    ] = False,
    format: Annotated[
        PlainFormat | None, typer.Option("--format", help="How --show-config prints: table (default) or json.")
    ] = None,
    *,
    options: SweepOptions,
) -> None:
    """Run the grid of a sweep file. Trials that its session has already are not run again."""
    if show_config:
        from benchsuite.cli.inspect import show_settings

        return show_settings(file, options.overrides or [], format or "table")
    if format is not None:
        raise typer.BadParameter("--format goes with --show-config")
    raise typer.Exit(run_file(file, options, dry_run))


@takes_sweep_options(only=("session", "store", "overrides", "launcher"))
def search(
    file: Annotated[
        Path, typer.Argument(help="A sweep file (YAML) of an emulated device, whose world_size is searched.")
    ],
    au: Annotated[
        float | None,
        typer.Option(
            "--au", min=0, max=1, help="The utilization to keep; default: the workload's of MLPerf Storage, or 0.9."
        ),
    ] = None,
    most: Annotated[
        int | None,
        typer.Option("--most", min=1, help="Largest count to try; default: the file's largest world_size, or 64."),
    ] = None,
    max_repeats: Annotated[
        int, typer.Option("--max-repeats", min=2, help="Most repeats of a count whose interval contains --au.")
    ] = 10,
    format: Annotated[PlainFormat, typer.Option("--format", help="table or json.")] = "table",
    *,
    options: SweepOptions,
) -> None:
    """Find the largest number of emulated accelerators that the storage keeps above an AU."""
    spec = with_every_count(expand.load_sweep(find_sweep_file(file), options.overrides or []), most)
    raise typer.Exit(_search(spec, options, au, max_repeats, format))


def _search(sweep: SweepSpec, options: SweepOptions, au: float | None, max_repeats: int, format: PlainFormat) -> int:
    """Find the largest world_size of a sweep that keeps an AU and print it; return the exit code."""
    check_session(options.session)
    require("search", *NEEDED)
    check_alone("search")
    selected, store = load_launcher(options.launcher), ResultsStore(options.store)
    store.check_writable()
    try:
        with closing(selected) if isinstance(selected, AgentLauncher) else nullcontext():
            if isinstance(selected, AgentLauncher):
                selected.meet_in(options.store)
            plan = expand.expand(sweep, machine_of(selected), options.store)
            with SweepDisplay() as display, selected as launcher, terminable(one_interrupt=True):
                search = Search(plan, store, launcher, options.session, display, au, max_repeats)
                display.say(search.heading())
                counts = search.try_counts()
    except CannotStart as error:
        return _fail_to_start(error)
    except (KeyboardInterrupt, Terminated) as stop:
        echo("stopped early: the trial in flight was dropped, the rest is kept; the same command goes on", err=True)
        return INTERRUPTED if isinstance(stop, KeyboardInterrupt) else REQUEUE
    answer = au_search.answer(counts, search.threshold, search.counts[1])
    facts = {"answer": answer, "threshold": search.threshold, "tried": [*map(asdict, counts)]}
    print_facts(format, facts, [f"-> {answer}", *_count_lines(counts)])
    if format != "json":
        echo(
            f"written: {store.path} (segments/*.jsonl) · next: {typed('benchsuite', 'report', '--store', store.path)}",
            err=True,
        )
    return OK if any(count.verdict != "cannot run" for count in counts) else NOTHING_RAN


def _count_lines(counts: Sequence[au_search.Tried]) -> Iterator[str]:
    """Yield every count that was tried, as the lines of a table."""
    yield "accelerators  mean AU  interval        repeats  verdict"
    for count in sorted(counts, key=lambda count: count.accelerators):
        mean, interval = ABSENT, ABSENT
        if count.au:
            mean = f"{fmean(count.au):.3f}"
        if count.low is not None and count.high is not None:
            interval = f"{count.low:.3f} .. {count.high:.3f}"
        yield f"{count.accelerators:12d}  {mean:>7}  {interval:14}  {len(count.au):7d}  {count.verdict}"


def demo(
    store: Store = DEFAULT_STORE,
    session: Session = "default",
    samples: Annotated[int, typer.Option("--samples", min=256, help="Number of photographs to make.")] = 1024,
) -> None:
    """Make a small dataset, run a real sweep on it and print the report."""
    from benchsuite.cli import data

    check_session(session)
    require("demo", *NEEDED, "simplejpeg", "webdataset")
    check_alone("demo")
    opened, folder = ResultsStore(store), Path("benchsuite-demo")
    opened.check_writable()
    if not is_dataset(folder / "files"):
        data.generate(folder / "files", data.dataset_request("resnet50", "tiny", "files", []), samples, 0, "jpeg")
    if not is_dataset(folder / "webdataset"):
        data.convert(
            folder / "files", folder / "webdataset", data.dataset_request("resnet50", "tiny", "webdataset", [])
        )
    resource = files("benchsuite") / "sweeps" / "demo.yaml"
    sweep_values: dict[str, Any] = parse_yaml(resource.read_text(), "demo.yaml")
    plan = expand.expand(parse_sweep(sweep_values), this_machine())
    options = SweepOptions(session, store)
    raise typer.Exit(_run(plan, opened, options, load_launcher(options.launcher), is_demo=True))


WORKLOADS = {"image": "resnet50", "volume": "unet3d", "mlm": "bert", "tokens": "gpt_neox"}
"""The workload that trains on each kind of samples."""
BATCHES = {"image": 16, "volume": 2, "mlm": 16, "tokens": 8}
MAX_SAMPLES = {"image": 2048, "volume": 64, "mlm": 8192, "tokens": 8192}
"""The most samples that are converted: enough for cold trials of STEPS steps."""
STEPS, REPEATS = 30, 3
BATCHES_OF_A_TRIAL = 50
"""About the number of batches that a trial reads and holds; few samples make smaller batches."""


def advise(
    path: Annotated[Path, typer.Argument(help="Your data: what `benchsuite data convert` takes, or a dataset.")],
    minutes: Annotated[float, typer.Option("--minutes", min=1, help="Time to convert and measure.")] = 5,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for converted samples; default: PATH-advise, beside the data.")
    ] = None,
    workload: Annotated[
        str | None, typer.Option("--workload", help="Workload to train; default: one for this kind of samples.")
    ] = None,
    store: Store = DEFAULT_STORE,
    overrides: Overrides = None,
) -> None:
    """Find the format and the workers for your data: convert a sample of it into each format, and measure it cold."""
    check_alone("advise")
    require("advise", *NEEDED, "simplejpeg", "webdataset", "h5py", "lmdb")
    from benchsuite.storage.sources import suggested_kind

    began_s = time.monotonic()
    ResultsStore(store).check_writable()
    path = Path(os.path.abspath(path.expanduser()))  # without `..`: the command to go on is printed with these paths
    kinds = {name: kind for kind, name in WORKLOADS.items()}
    if workload is not None and workload not in kinds:
        raise refuse("--workload", workload, kinds)
    kind = kinds[workload] if workload else read_manifest(path).kind if is_dataset(path) else suggested_kind(path)
    folder = Path(os.path.abspath(out or path.with_name(f"{path.name}-advise")))
    formats = [name for name in storage.FORMATS if kind in storage.format_of(name).advised_kinds]
    _convert(path, folder, kind, formats, guessed=workload is None)
    file = folder / "advise.yaml"
    batch = max(1, min(BATCHES[kind], read_manifest(folder / formats[0]).num_samples // BATCHES_OF_A_TRIAL))
    file.write_text(yaml.safe_dump(advise_sweep(kind, folder, formats, batch, this_machine().cores), sort_keys=False))
    converted_s = time.monotonic() - began_s
    left_s = 60 * minutes - converted_s
    if left_s <= 0:
        raise UserError(f"--minutes {minutes:g}: converting took {converted_s:.0f} s; give more time")
    session = f"advise-{datetime.now():%Y%m%d-%H%M%S}"
    options = SweepOptions(session, store, overrides, until=f"+{left_s:.0f}s")
    code = run_file(file, options)
    command = ["benchsuite", "sweep", str(file), *options.words(without=("until",))]
    measuring_s = time.monotonic() - began_s - converted_s
    if sentence := describe_missing_formats(file, options, formats, converted_s, measuring_s):
        echo(f"--minutes {minutes:g} {sentence}")
    echo(f"to go on with what is left, or to repeat it with another --session: {typed(*command)}")
    echo(f"remove the samples: rm -r {typed(folder)}")
    raise typer.Exit(code)


def _convert(path: Path, folder: Path, kind: str, formats: list[str], guessed: bool) -> None:
    """Convert a sample of the data; an empty folder that was made for it is removed again.

    Raises:
        DatasetError: the data cannot be converted. Where the kind was guessed, the message says so.
    """
    from benchsuite.cli import data
    from benchsuite.storage.sources import ReadOptions
    from benchsuite.storage.sources.labels import NO_FIELD

    was_there = folder.exists()
    try:
        # the class of an image changes no time, so unclear labels are no reason to stop
        read = ReadOptions(label_field=NO_FIELD if kind == "image" and not is_dataset(path) else None)
        data.convert_all(path, folder, WORKLOADS[kind], _variant(), formats, read, MAX_SAMPLES[kind])
    except DatasetError as error:
        if guessed and kind == "tokens" and not is_dataset(path):
            guess = f"no images (.jpg, .jpeg, .png) were found in {path}, so it was taken for text"
            raise DatasetError(f"{guess}; {error}") from error
        raise
    finally:
        if not was_there:
            with suppress(OSError):  # it is not empty, or was not made
                folder.rmdir()


def describe_missing_formats(
    file: Path, options: SweepOptions, formats: list[str], converted_s: float, measuring_s: float
) -> str:
    """Return which formats have no trial, and the time that all would take; empty where all have one, or none has."""
    store = ResultsStore(options.store, options.session)
    trials = store.trials() if store.exists() else []
    measured = {str(trial.spec["data"]["format"]) for trial in trials}
    missing = [name for name in formats if name not in measured]
    if not missing or not trials:
        return ""
    plan = expand.expand(expand.load_sweep(file, options.overrides or []), this_machine(), options.store)
    all_s = converted_s + measuring_s / len(trials) * sum(point.spec.measure.repeats for point in plan.points)
    return f"was too short: {', '.join(missing)} not measured; about --minutes {math.ceil(all_s / 60)} would do"


def _variant() -> str:
    """Return `reference` where a GPU can train it, else `tiny`, which a CPU trains in seconds on samples as large."""
    if this_machine().cuda_devices:
        return "reference"
    return "tiny"


def advise_sweep(kind: str, folder: Path, formats: list[str], batch_size: int, cores: int) -> dict[str, Any]:
    """Return the sweep of `advise`: every format with 1, 2, 4 ... workers, up to the number of cores."""
    workers = [1 << power for power in range(5) if 1 << power <= max(2, cores)]
    return {
        "name": "advise",
        "question": "Which format, and how many workers, keep training on these data fed?",
        "base": {
            "workload": WORKLOADS[kind],
            "variant": _variant(),
            "batch_size": batch_size,
            "data": {"root": str(folder), "cache": "cold", "shuffle_buffer": 2 * batch_size},
            "measure": {"steps": STEPS, "repeats": REPEATS},
        },
        "grid": {"data.format": formats, "data.num_workers": workers},
    }


def run_file(file: Path, options: SweepOptions, dry_run: bool = False) -> int:
    """Run a sweep file, or print its plan; return the exit code."""
    _check_options(options)
    if not dry_run:
        require("sweep", *NEEDED)
    launcher = load_launcher(options.launcher)
    sweep = expand.load_sweep(find_sweep_file(file), [*(options.overrides or []), *profile_override(options.profile)])
    try:
        with terminable(), closing(launcher) if isinstance(launcher, AgentLauncher) else nullcontext():
            task = launcher.agent_config.task if isinstance(launcher, AgentLauncher) else None
            if dry_run and task is not None and task.rank:
                return OK  # only the first task of a job prints the plan
            if isinstance(launcher, AgentLauncher) and not dry_run:
                launcher.meet_in(options.store)
            machine = _assumed_machine(launcher) if dry_run else machine_of(launcher)
            store, plan = ResultsStore(options.store), _plan(options, sweep, launcher, machine)
            if dry_run:
                return print_plan(plan, store, options)
            store.check_writable()
            return _run(plan, store, options, launcher)
    except Terminated:
        echo("stopped early: no trial was begun; the same command goes on", err=True)
        return REQUEUE
    except CannotStart as error:
        return _fail_to_start(error)


def _check_options(options: SweepOptions) -> None:
    """Refuse mistakes in options before a store is made.

    Raises:
        UserError: no such session, `--retry` or `--until` can be.
    """
    check_session(options.session)
    parse_retry(options.retry)
    if options.until is not None:
        parse_until(options.until, datetime.now())


def _assumed_machine(launcher: Launcher) -> Machine:
    """Return the machine of a launcher whose nodes are taken to be like this one, without asking them."""
    ranks_per_node = launcher.agent_config.ranks_per_node if isinstance(launcher, AgentLauncher) else None
    return replace(this_machine(), nodes=getattr(launcher, "num_nodes", 1), ranks_per_node=ranks_per_node)


def _plan(options: SweepOptions, sweep: SweepSpec, launcher: Launcher, machine: Machine) -> Plan:
    """Return the plan of a sweep on the nodes that its launcher has."""
    names = launcher.node_names if isinstance(launcher, AgentLauncher) else lambda: [node_name()]
    return expand.expand(expand.with_nodes(sweep, names), machine, options.store)


def _fail_to_start(error: CannotStart) -> int:
    """Print why no ranks start; return the exit code, which asks to requeue where ranks could start before."""
    if error.lasting:
        echo(f"error: {error}", err=True)
        return USAGE
    echo(f"stopped: {error}; what is done is kept, and the same command goes on", err=True)
    return REQUEUE


def profile_override(profile: ProfileName | None) -> list[str]:
    """Return `--profile` as an override of the sweep; empty without a profile.

    Raises:
        UserError: strace is not installed.
    """
    if profile == "strace":
        from benchsuite.trial.strace import check_installed

        check_installed()
    return [f"measure.profile={profile}"] if profile else []


def _run(plan: Plan, store: ResultsStore, options: SweepOptions, selected: Launcher, is_demo: bool = False) -> int:
    """Run the trials of a plan that its session lacks, and print the table; return the exit code.

    The demo prints the table also where nothing is left to run. It omits the expected time, and warnings about a
    dataset so small.
    """
    session = options.session
    claims = Claims.of(store.path, session, options.lease)
    state = sweeping.shared_status(plan, store, session, parse_retry(options.retry), claims, options.order_seed)
    deadline = deadline_of(options.until, durations_of(store.outcomes().values(), plan))
    with SweepDisplay() as display:
        _say_heading(display, plan, state, store, options, selected, None if is_demo else deadline)
        if not plan.points:
            sweeping.record_skipped(plan, store, session)
            display.say(f"error: {sweeping.nothing_runs_error(plan)}")
            return NOTHING_RAN
        if not state.todo:
            display.say(describe_nothing_left(state, session))
            if is_demo:
                _show(plan, store, session)
            return _exit_code([], state)
        keep_plan(store.path, session, plan)
        store.on_vanished = lambda file: display.say(describe_vanished(store.path, file))
        if isinstance(selected, AgentLauncher):
            selected.on_lost = display.say
        try:
            with selected as launcher, terminable(one_interrupt=True):
                result = sweeping.run(plan, state.todo, store, launcher, session, display, claims, deadline)
        except CannotStart as error:
            return _fail_to_start(error)
        except (KeyboardInterrupt, Terminated) as stop:
            display.say("stopped early: the trial in flight was dropped, the rest is kept; the same command goes on")
            return INTERRUPTED if isinstance(stop, KeyboardInterrupt) else REQUEUE
        for line in left_lines(result):
            display.say(line)
    _show(plan, store, session)
    if result.no_time_reason:
        return NOTHING_RAN
    return REQUEUE if result.out_of_time or result.too_few_nodes else _exit_code(result.records, state)


def _say_heading(
    display: SweepDisplay,
    plan: Plan,
    state: sweeping.Status,
    store: ResultsStore,
    options: SweepOptions,
    launcher: Launcher,
    deadline: Deadline | None,
) -> None:
    """Print what a sweep will run, what it skips and why, and warnings.

    Without a deadline the expected time and warnings about the trials to run are omitted.
    """
    heading = [summary(plan, state), f"session {options.session}", f"store {store.path}"]
    heading.append(describe_launcher(options.launcher, launcher))
    warnings = []
    if state.todo and deadline is not None:
        points = [item.point for item in state.todo]
        heading.append(f"time: {describe_cost(points, deadline.durations, left_s=deadline.left_s())}")
        warnings = [memory_warning(plan.points, plan.machine, memory_bytes()[1]), *crowding_warnings(plan)]
    display.say(" · ".join(heading))
    for line in damage_lines(store):
        display.say(line)
    if plan.points:  # else the error names what is skipped, and the remedy
        for skipped in sweeping.describe_skipped(plan):
            display.say(f"skipped {skipped}")
        if remedy := sweeping.describe_remedy(plan):
            display.say(f"note: {remedy}")
    for warning in filter(None, warnings):
        display.say(warning)


def _show(plan: Plan, store: ResultsStore, session: str) -> None:
    """Print the table of a plan's points, and where everything was written.

    A signal ends the table and does not change the exit code, because whether trials are left is decided by then.
    """
    try:
        _show_points(plan, store, session)
    except Terminated:
        echo("stopped early: the table is not shown; what was measured is in the store")
    command = sys.argv[0] if Path(sys.argv[0]).name == "benchsuite" else "benchsuite"
    points = [*plan.points, *(skipped.point for skipped in plan.skipped)]
    verbs = ["report", "scaling"] if len({point.spec.ranks for point in points}) > 1 else ["report"]
    commands = [typed(command, verb, "--store", store.path) for verb in verbs]
    echo(f"written: {store.path.absolute()} (segments/*.jsonl) · next: {' · '.join(commands)}")


def _show_points(plan: Plan, store: ResultsStore, session: str) -> None:
    """Print the points that were measured, those that were not, and which nodes are slow."""
    from benchsuite.cli.report import print_section
    from benchsuite.results.compare import slow_nodes
    from benchsuite.results.report.sections import section_of

    points = [*plan.points, *(skipped.point for skipped in plan.skipped)]
    trials = {
        trial_id(point.point_id, session, repeat) for point in points for repeat in range(point.spec.measure.repeats)
    }
    section = section_of(store, trials, {point.point_id: point.label for point in points})
    if section.trials:
        print_section(section)
    if unmeasured := describe_unmeasured(plan, section.trials):
        echo(unmeasured)
    if any(point.spec.node for point in plan.points):
        echo(*slow_nodes.lines(section.trials))


def _exit_code(records: list[TrialRecord], state: sweeping.Status) -> int:
    return SOME_FAILED if state.num_failed or any(record.status != "ok" for record in records) else OK


def print_plan(plan: Plan, store: ResultsStore, options: SweepOptions) -> int:
    """Print trials in the order of running, which are done, and what is skipped and why; return the exit code.

    Repeats of a point are one line, with the id of the first; in shuffled rounds each repeat is a line. The line says
    where a trial would have too few cores.
    """
    session, shuffled = options.session, options.order_seed is not None
    state = sweeping.session_status(plan, store, session)
    waiting = {trial_id(item.point.point_id, session, item.repeat) for item in state.todo}
    lines: dict[tuple[bool, str, int | None], list[tuple[str, Point]]] = {}
    for item in sweeping.interleave_repeats(plan, options.order_seed):
        trial, round_number = trial_id(item.point.point_id, session, item.repeat), item.repeat if shuffled else None
        lines.setdefault((trial in waiting, item.point.point_id, round_number), []).append((trial, item.point))
    for (waits, *_), repeats in lines.items():
        trial, point = repeats[0]
        crowding = describe_crowding(plan, point)
        times = f"  x {len(repeats)}" if len(repeats) > 1 else ""
        note = f"  (oversubscribed: {crowding})" if crowding else ""
        echo(f"{'run ' if waits else 'done'}  {trial}  {point.label}{times}{note}")
    for skipped in sweeping.describe_skipped(plan):
        echo(f"skip  {skipped}")
    for note in filter(None, [sweeping.describe_remedy(plan), *skipped_crowding_notes(plan)]):
        echo(f"note  {note}")
    summaries = [summary(plan, state)]
    if state.todo:
        durations = durations_of(store.outcomes().values(), plan)
        summaries.append(f"time: {describe_cost([item.point for item in state.todo], durations)}")
    echo(" · ".join(summaries), err=True)
    warn_of_damage(store)
    return OK if plan.points else NOTHING_RAN
