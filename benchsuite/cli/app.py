"""The verbs, their help and their errors. A verb's module is imported when the verb is used, so help is fast."""

import _thread
import errno
import os
import re
import signal
import sys
import traceback
from collections.abc import Iterable, Mapping
from functools import cache, partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from benchsuite.contract import terminal
from benchsuite.contract.exit_codes import CRASH, INTERRUPTED, OK, REQUEUE, STORE_VARIABLE, USAGE
from benchsuite.contract.terminal import document, echo
from benchsuite.host import signals
from benchsuite.storage.errors import OUTAGES

TAKE_BUCKETS = (("data",), ("probe", "storage"), ("probe", "checkpoint"))
"""Verbs whose arguments may be buckets."""
PATH_OPTIONS = ("--to", "--tokenizer", "--store")
"""Options of these verbs that take paths of this machine."""
TAKE_BYTES = ("data", "list", "schema")
"""Verbs that take names that are not UTF-8: datasets may have such names."""
Command = Any
"""A command of click, whose classes typer does not export."""
GROUPS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Start": {
        "demo": ("sweep:demo", "Make a small dataset, run a real sweep on it."),
        "doctor": ("inspect:doctor", "Check this machine and paths."),
        "advise": ("sweep:advise", "Find the format and the workers for your data."),
    },
    "Measure": {
        "run": ("run:run", "Measure a training command of yours as it is."),
        "data": ("data:data_app", "Make, convert and check datasets."),
        "sweep": ("sweep:sweep", "Run the grid of a sweep file."),
        "search": ("sweep:search", "Find the largest number of emulated accelerators."),
        "trial": ("trial:trial", "Run one trial and print it."),
        "probe": ("probe:probe_app", "Measure what a path, a device or a network gives."),
        "submit": ("jobs:submit", "Run a sweep as batch jobs."),
        "status": ("jobs:status", "Show which trials are done, running and waiting."),
        "nightly": ("jobs:nightly_app", "Measure every night and keep the history (asv)."),
    },
    "Read": {
        "report": ("report:report", "Print the answer, a table and what the numbers rest on."),
        "results": ("results:results_app", "Show, query and export the records of a store."),
    },
    "Compare": {
        "compare": ("gate:compare", "Compare B with A on the points that both have."),
        "baseline": ("gate:baseline_app", "Set or show the sessions that later ones are checked against."),
        "check": ("gate:check", "Check each point's newest session against the baseline."),
    },
    "Forecast": {
        "scaling": ("scaling:scaling", "Print weak and strong scaling efficiency."),
        "predict": ("predict:predict", "Predict steps, rates and utilization at more ranks."),
    },
    "Reference": {
        "list": ("inspect:list_", "List what there is to choose from."),
        "schema": ("inspect:schema", "Print a JSON Schema."),
    },
}
"""Verbs in groups, in the order of use: where each is defined, and its line of help."""
VERBS = {name: verb for group in GROUPS.values() for name, verb in group.items()}
EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "demo": ("benchsuite demo",),
    "doctor": ("benchsuite doctor /scratch",),
    "advise": ("benchsuite advise ~/photos --minutes 5",),
    "sweep": (
        "benchsuite sweep formats -o data.root=/data/imagenet --dry-run",
        "benchsuite sweep mine.yaml --session 2026-11-20 --until +2h",
    ),
    "search": ("benchsuite search accelerators -o data.root=/scratch/unet3d --most 32",),
    "trial": (
        "benchsuite trial spec.yaml -o precision=bf16 --profile io",
        "benchsuite trial spec.yaml -o world_size=512 --validate",
    ),
    "run": (
        "benchsuite run -- python train.py",
        "benchsuite run --session after -- torchrun --nproc-per-node 8 train.py",
    ),
    "data generate": ("benchsuite data generate data/kits/hdf5 --workload unet3d --format hdf5",),
    "data convert": ("benchsuite data convert ~/photos data --format all",),
    "data verify": ("benchsuite data verify data/photos/files data/photos/webdataset",),
    "data stage": ("benchsuite data stage data/kits/hdf5 --to /local/nvme",),
    "probe storage": ("benchsuite probe storage /scratch --store benchsuite-store",),
    "probe device": ("benchsuite probe device --store benchsuite-store",),
    "probe checkpoint": (
        "benchsuite probe checkpoint /scratch --world-size 2 --save async",
        "benchsuite probe checkpoint /scratch --model llama3-70b --ranks 64 --subset 8",
    ),
    "probe nodes": ("benchsuite probe nodes --launcher srun --path /scratch --exclude-list slow.txt",),
    "probe comm": ("benchsuite probe comm --op all_reduce --sizes 64KiB:1MiB --overlap",),
    "submit": (
        "benchsuite submit slurm mine.yaml --time 02:00:00 --dry-run",
        "benchsuite submit kubernetes mine.yaml --directive image=IMAGE --dry-run",
    ),
    "status": ("benchsuite status mine.yaml --session 2026-11-20",),
    "nightly init": ("benchsuite nightly init ~/nights --sweep mine.yaml",),
    "nightly run": ("benchsuite nightly run ~/nights",),
    "report": ("benchsuite report --session latest", "benchsuite report --html report.html"),
    "results show": ("benchsuite results show --by point --format csv",),
    "results query": ("benchsuite results query 'select label, au from trials order by au'",),
    "results compact": ("benchsuite results compact --store /scratch/bs",),
    "results profile": ("benchsuite results profile 0b6a9cbaa9d5.default.0",),
    "results darshan": ("benchsuite results darshan job.darshan --under /data",),
    "results export csv": ("benchsuite results export csv --out trials.csv --by point",),
    "results export parquet": ("benchsuite results export parquet --out trials.parquet",),
    "results export junit": ("benchsuite results export junit --check --out junit.xml",),
    "results export prometheus": ("benchsuite results export prometheus --out /var/lib/node_exporter/textfile",),
    "results export latex": ("benchsuite results export latex --where session=tonight",),
    "results export trace": ("benchsuite results export trace 0b6a9cbaa9d5.default.0 out.json",),
    "results export asv": ("benchsuite results export asv --store batch --asv-machine cluster --commit HEAD",),
    "compare": (
        "benchsuite compare session=monday session=tuesday",
        "benchsuite compare data.format=files data.format=lmdb",
    ),
    "baseline set": ("benchsuite baseline set --date 2026-11-01..2026-11-14",),
    "baseline show": ("benchsuite baseline show",),
    "check": ("benchsuite check --session latest",),
    "scaling": ("benchsuite scaling --where data.format=hdf5 --svg figures",),
    "predict": ("benchsuite predict --ranks 16,64", "benchsuite predict --table steps.csv --ranks 3360"),
    "list": ("benchsuite list formats",),
    "schema": ("benchsuite schema trial",),
}
"""One or two examples for the help of every verb; a group shows the first example of each of its verbs."""
PLANNER = "which is a package of its own: `pip install ./planner` in a checkout of benchsuite"
RETIRED: Mapping[str, str] = {
    "watch": "watch is no verb but a call in your script: `for batch in benchsuite.watch(loader)`",
    "plan": f"plan is the verb of benchsuite-plan, {PLANNER}",
    "plan --no-sequence-parallel": "plan --no-sequence-parallel is retired: norms and dropout are split, as in trials",
    "plan --no-flash-attention": "plan --no-flash-attention is retired: attention stores no scores, as in trials",
    "list --yaml": f"list has no --yaml: `benchsuite plan list --yaml NAME` is of benchsuite-plan, {PLANNER}",
    "predict --rows": f"layouts of a table: `benchsuite plan table FILE --rows FILE` is of benchsuite-plan, {PLANNER}",
    "predict --node-bandwidth": f"layouts of a table: `benchsuite plan table FILE` is of benchsuite-plan, {PLANNER}",
    "predict --scaling": f"layouts of a table: `benchsuite plan table FILE` is of benchsuite-plan, {PLANNER}",
    "demo --folder": "demo --folder is retired: its dataset goes to ./benchsuite-demo; start it elsewhere",
    "sweep --lanes": "sweep --lanes is retired: a sweep runs one trial at a time; to run several, start a sweep of the "
    "same session on each part of the nodes",
    "results export methods": "results export methods is retired; `results export latex` makes tables, "
    "`results export csv` has every fact of the records",
    "results export asv --config": "results export asv --config is retired: start it in the folder of asv.conf.json",
    "results export asv --dirty": "results export asv --dirty is retired: --commit HASH exports trials of a changed "
    "work tree too, beside that commit's",
    **{
        f"predict {option}": f"predict {option} is retired: only ranks vary; measure a series of what else may change"
        for option in ("--network", "--storage", "--shared-bandwidth", "--staging", "--batch-size", "--bucket-cap-mb")
    },
    "predict --nccl-tests": "predict --nccl-tests is retired: predictions rest on a series' steps alone",
    **{
        f"predict {option}": f"predict {option} is retired: tables of layouts are for `benchsuite plan table FILE` of "
        "the distribution benchsuite-plan"
        for option in ("--rows", "--scaling", "--node-bandwidth")
    },
}
"""The error for words that were verbs or options once, or look like them, by the words as they are typed."""
FIRST = ("demo", "advise", "sweep", "report")
"""Verbs whose examples are in the help of `benchsuite` itself."""
HELP = {"help_option_names": ["-h", "--help"]}
ADDED = "benchsuite.verbs"
"""The entry point group by which other packages add verbs."""


@cache
def added_verbs() -> Mapping[str, EntryPoint]:
    """Verbs that installed packages add. None takes the name of a verb of ours, or of one that was found before."""
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=ADDED):
        if entry.name not in VERBS:
            found.setdefault(entry.name, entry)
    return found


def _line_of(entry: EntryPoint) -> str:
    """The line of help of an added verb, which its package's summary is: nothing of it is imported for help."""
    try:
        summary = entry.dist and entry.dist.metadata["Summary"]
    except Exception:  # metadata that are damaged or missing: the verb may run all the same
        summary = None
    return summary or f"A verb of {entry.value}."


class Verbs(TyperGroup):
    """The verbs: each is a line of help until it is used, so that only that verb's module is imported."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, (_, line) in VERBS.items():
            self.add_command(TyperCommand(name=name, help=line))

    def list_commands(self, ctx: Any) -> list[str]:
        """List the verbs in the order of use, then those that other packages add."""
        self._add_others()
        return [*VERBS, *added_verbs()]

    def _add_others(self) -> None:
        for name, entry in added_verbs().items():
            self.commands.setdefault(name, TyperCommand(name=name, help=_line_of(entry)))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each group."""
        for title, group in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, line) for name, (_, line) in group.items()], col_max=12)
        if added_verbs():
            with formatter.section("Of other packages"):
                formatter.write_dl([(name, _line_of(entry)) for name, entry in added_verbs().items()], col_max=12)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        """Import the verb that is used."""
        if args and args[0] not in self.commands:
            self._add_others()
        name, _, rest = super().resolve_command(ctx, args)
        return name, name and load_verb(name), rest


def load_verb(name: str) -> Command:
    """Import a verb and return its command.

    Raises:
        UserError: a verb of another package that cannot be loaded, whatever it raises.
    """
    if name in VERBS:
        return _command(name, f"benchsuite.cli.{VERBS[name][0]}")
    entry = added_verbs()[name]
    try:
        return _command(name, entry.value)
    except (Exception, SystemExit) as error:
        from benchsuite.contract.errors import UserError

        why = f"{type(error).__name__}: {error}"
        raise UserError(f"entry point {name} = {entry.value}: cannot be loaded: {why}") from error


def _command(name: str, target: str) -> Command:
    """Import `module:attribute`, a function or a group of them, as a command of this name."""
    module_name, _, attribute = target.partition(":")
    module = import_module(module_name)
    defined = getattr(module, attribute)
    if not isinstance(defined, typer.Typer):
        verb = typer.Typer(add_completion=False, rich_markup_mode=None)
        settings = getattr(module, "SETTINGS", None)
        verb.command(name, epilog=getattr(module, "EPILOG", None), context_settings=settings)(defined)
        defined = verb
    command = typer.main.get_command(defined)
    command.name = name
    _add_help(command, name)
    return command


def epilog(words: str, more: str | None) -> str:
    """Return the end of a verb's help: its examples, and the verb's own last paragraph."""
    inner_examples = [lines[0] for name, lines in EXAMPLES.items() if name.rpartition(" ")[0] == words]
    lines = EXAMPLES.get(words) or inner_examples
    examples = _examples(lines) if lines else ""
    return "\n\n".join(filter(None, (examples, more)))


def _examples(lines: Iterable[str]) -> str:
    """Return examples as a paragraph; click does not wrap one that begins with a backspace."""
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines)))


def _add_help(command: Command, words: str) -> None:
    """Let a verb, and those below it, take -h and end their help with examples."""
    command.context_settings = {**command.context_settings, **HELP}
    command.epilog = epilog(words, command.epilog) or None
    for name, inner in getattr(command, "commands", {}).items():
        _add_help(inner, f"{words} {name}")


app = typer.Typer(
    cls=Verbs,
    name="benchsuite",
    help="What holds a training job back: storage, the input pipeline, compute or the interconnect?",
    epilog=_examples(EXAMPLES[verb][0] for verb in FIRST),
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": 110, **HELP},
)


def _print_version(value: bool) -> None:
    if value:
        from benchsuite import __version__

        echo(f"benchsuite {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """What holds a training job back: storage, the input pipeline, compute or the interconnect?"""
    if context.invoked_subcommand:
        _use_site(context, context.invoked_subcommand)


def _use_site(context: typer.Context, name: str) -> None:
    """Take the default of `--store` and the access to buckets from the site's or user's file.

    The access to buckets goes into the environment, which all processes of a sweep inherit.
    """
    from benchsuite.host.config_paths import config_paths

    paths = config_paths(os.environ)
    if paths and not os.environ.get(STORE_VARIABLE):
        context.default_map = {name: _store_defaults(load_verb(name))}
    if any(b"buckets" in path.read_bytes() for path in paths):  # parsing takes time that most verbs need not spend
        from benchsuite.host.site import buckets_variable

        os.environ.update(buckets_variable())


def _store_defaults(command: Command) -> dict[str, Any]:
    """Return functions that give the default of `--store`, nested as verbs are; click calls one when it needs it."""
    defaults: dict[str, Any] = {
        name: _store_defaults(inner) for name, inner in getattr(command, "commands", {}).items()
    }
    for option in command.params:
        if option.envvar == STORE_VARIABLE:
            defaults["store"] = partial(_site_store, option.default)
    return defaults


def _site_store(fallback: Path | None) -> Path | None:
    from benchsuite.host.site import default_store

    return default_store() or fallback


UNUSABLE = (errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.EROFS, *OUTAGES)
"""Errors of a path that was given: no file can have its name, this user may not use it, or nothing answers."""
# typer exports only some exceptions of click, and not their base class
_ClickError: Any = typer.BadParameter.__mro__[2]


CLICKS_HINT = re.compile(r"\. Did you mean .*\?$| \(Possible options: .*\)$")
"""What click says of near names; ours names the nearest and all."""


def _usage_error(error: Any) -> int:
    """Print an error of the command line in one line, with the nearest match or what a retired word became."""
    from benchsuite.contract.errors import nearest

    message = str(error.format_message())
    if type(error).__name__ == "NoArgsIsHelpError":
        document(message)
        return USAGE
    message = CLICKS_HINT.sub("", message.replace("Value error, ", "").rstrip("."))
    option = getattr(error, "option_name", None)
    if retired := RETIRED.get(_unknown_words(error, option, message)):
        return _fail(USAGE, retired)
    if option and error.ctx:
        options = [name for parameter in error.ctx.command.params for name in parameter.opts if name.startswith("-")]
        message += f"{nearest(option, options)}; allowed: {', '.join(options)}"
    verbs = getattr(error.ctx.command, "commands", {}) if error.ctx else {}
    if message.startswith("No such command") and verbs:
        hint = nearest(message.split("'")[1], verbs)
        message += f"{hint}; allowed: {', '.join(verbs)}"
    choice, is_not_one_of, choices = message.rpartition(" is not one of ")
    if is_not_one_of:
        words = [word.strip("' ") for word in choices.split(",")]
        message = f"{choice} is not allowed{nearest(choice.rpartition(' ')[2], words)}; allowed: {', '.join(words)}"
    return _fail(USAGE, message)


def _unknown_words(error: Any, option: str | None, message: str) -> str:
    """Return the unknown verb or option after the verbs before it, as it is typed; empty for other mistakes."""
    verbs: list[str] = []
    context = error.ctx
    while context and context.parent:  # the first is the program, which may be several words: python -m benchsuite
        verbs.insert(0, context.info_name)
        context = context.parent
    word = option or (message.split("'")[1] if message.startswith("No such command '") else "")
    return " ".join([*verbs, word]) if word else ""


def _fail(code: int, *mistakes: str) -> int:
    """Print each mistake as one line on standard error; return the exit code."""
    for mistake in mistakes:
        echo(f"error: {' '.join(mistake.split())}", err=True)
    return code


KEPT = "what was finished is kept"
"""What a stopped verb prints, unless the stop has its own message."""


def run_command(arguments: list[str]) -> int:
    """Run the command line and return its exit code; a user's mistakes print a line each."""
    try:
        _refuse_urls(arguments)
        _refuse_bytes(arguments)
        result: Any = app(arguments, standalone_mode=False)
    except _ClickError as error:
        return _usage_error(error)
    except (typer.Abort, KeyboardInterrupt) as stop:
        return _fail(INTERRUPTED, f"interrupted; {str(stop) or KEPT}")
    except Exception as error:
        if not (mistakes := _mistakes_of(error)):
            raise
        return _fail(_code_of(error), *mistakes)
    finally:
        _warn_of_foreign_segments()
    if result == INTERRUPTED and not _can_start_threads():  # OpenBLAS then sends SIGINT to its own process
        from benchsuite.contract.errors import MORE_PROCESSES

        return _fail(USAGE, MORE_PROCESSES)
    return result if isinstance(result, int) else OK


def _warn_of_foreign_segments() -> None:
    """Print which segments this user may not read, where the verb has read a store and not printed it."""
    if "benchsuite.results.store.segments" in sys.modules:
        from benchsuite.cli.common import foreign_segment_lines

        for line in foreign_segment_lines():
            echo(line, err=True)


def _code_of(error: Exception) -> int:
    """Return the exit code of a user's mistake: REQUEUE for a store that is gone, as it may be back later."""
    from benchsuite.results.store.store import StoreVanished

    return REQUEUE if isinstance(error, StoreVanished) else USAGE


def _can_start_threads() -> bool:
    """Return whether the limit of processes and threads lets one more start."""
    try:
        _thread.start_new_thread(int, ())
    except RuntimeError:
        return False
    return True


def _refuse_urls(arguments: list[str]) -> None:
    """Refuse URLs except buckets where verbs take them: as a path, `s3://x` would be a folder named `s3:`.

    Raises:
        UserError: the first one.
    """
    values = [word.partition("=")[2] if word.startswith("--") and "=" in word else word for word in arguments]
    takes_buckets = any(tuple(arguments[: len(verb)]) == verb for verb in TAKE_BUCKETS)
    buckets = {word for before, word in pairwise(arguments) if takes_buckets and before not in PATH_OPTIONS}
    for word in (word for word in [*values, os.environ.get(STORE_VARIABLE, "")] if "://" in word):
        from benchsuite.contract.errors import UserError
        from benchsuite.storage.dataset.local_path import URL, data_root, local_path

        try:
            if URL.match(word):  # `://` may also stand inside an SQL query
                (data_root if word in buckets else local_path)(word)
        except ValueError as error:
            raise UserError(str(error)) from error


def _refuse_bytes(arguments: list[str]) -> None:
    """Refuse names that are not UTF-8, the current folder's too: records, scripts and pages are UTF-8 text.

    Raises:
        UserError: the first one.
    """
    if not arguments or arguments[0] in TAKE_BYTES:
        return
    prints_help = arguments[0].startswith("-") or not {*HELP["help_option_names"]}.isdisjoint(arguments)
    folder = "" if prints_help else _current_folder()
    for word in [*arguments, os.environ.get(STORE_VARIABLE, ""), folder]:
        if not word.isascii() and not _is_utf8(word):
            from benchsuite.contract.errors import UserError

            remedy = "start in another folder" if word is folder else "rename it, or link to it"
            raise UserError(f"{os.fsencode(word)!r}: not UTF-8, but records must be; {remedy}")


def _is_utf8(word: str) -> bool:
    """Return whether the bytes of a name are UTF-8, whatever the locale's encoding is."""
    try:
        os.fsencode(word).decode()
    except UnicodeError:
        return False
    return True


def _current_folder() -> str:
    """Return the current folder; empty where it is gone."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _mistakes_of(error: Exception) -> list[str]:
    """Return the messages of an error that the user can mend; empty for a crash of ours."""
    from benchsuite.contract.errors import MORE_PROCESSES, UserError, lacks_processes, shown
    from benchsuite.contract.packages import remedy
    from benchsuite.results.store.store import StoreError, StoreVanished
    from benchsuite.storage.dataset.manifest import DatasetError
    from benchsuite.workloads import WorkloadError

    if isinstance(error, OSError) and error.errno in UNUSABLE and error.filename is not None:
        return [f"{shown(os.fspath(error.filename))}: {error.strerror}"]
    if isinstance(error, UserError):
        return [*map(str, error.args)]
    if isinstance(error, StoreVanished):
        return [f"{error}; the same command goes on once it is back"]
    if isinstance(error, OSError | RuntimeError) and lacks_processes(str(error)):
        return [MORE_PROCESSES]
    if isinstance(error, ModuleNotFoundError) and (helps := remedy(error.name or "")):
        return [f"this needs {error.name}, which is not installed: {helps}"]
    return [str(error)] if isinstance(error, StoreError | DatasetError | WorkloadError) else []


def main() -> None:
    """Run the command line of this process; output and exit code are as documented even where a stream is closed."""
    terminal.ready()
    code = _run_to_end(sys.argv[1:])
    if signals.heeded(signal.SIGINT):
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # an interrupt from here on would only print a traceback
    sys.exit(terminal.finished(code))


def _run_to_end(arguments: list[str]) -> int:
    """Run the command line and return its exit code; signals end it in order, and a crash prints its traceback."""
    try:
        if signals.heeded(signal.SIGINT):
            signal.signal(signal.SIGINT, signal.default_int_handler)
        with signals.terminable():
            code = run_command(arguments)
            signals.ignore_ending()
            return code
    except signals.Terminated as stop:
        echo(f"stopped early; {str(stop) or KEPT}", err=True)
        return REQUEUE
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C ends the process at once
        return _fail(INTERRUPTED, f"interrupted; {KEPT}")
    except Exception:
        echo(*traceback.format_exc().splitlines(), err=True)
        return CRASH
