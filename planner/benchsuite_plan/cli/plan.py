"""The best layouts of a model on a machine."""

import json
import re
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console

from benchsuite.contract.console import console
from benchsuite.contract.errors import UserError, refuse
from benchsuite.contract.session import MAX_NAME_LENGTH
from benchsuite.contract.terminal import PlainFormat, document, echo
from benchsuite.results.render.tables import Column
from benchsuite.results.render.terminal import fitting_table
from benchsuite.results.render.words import counted
from benchsuite.results.store.store import ResultsStore
from benchsuite_plan.cli.schedule import check_alone, draw
from benchsuite_plan.layout import machines, models
from benchsuite_plan.layout.candidates import RECIPES, RECOMPUTE, Choices, Job, Recipe, checked_precision, samples_of
from benchsuite_plan.layout.layout_search import Plan, Planned, parse_changes
from benchsuite_plan.layout.layout_search import plan as make_plan
from benchsuite_plan.layout.layout_search import what_if as make_what_if
from benchsuite_plan.layout.machines import Machine
from benchsuite_plan.layout.measured import of_store
from benchsuite_plan.layout.models import Model
from benchsuite_plan.layout.plan_report import (
    HEADINGS,
    as_object,
    basis,
    explained,
    notes,
    reasons,
    title,
    why,
    words,
)
from benchsuite_plan.layout.plan_report import cells as cells_of
from benchsuite_plan.layout.runnable import IN_SWEEP, sweep_of, trained
from benchsuite_plan.layout.staged import in_words

MOST = 10**9
"""The largest count; far above any machine or model, far below what overflows or never ends."""
MOST_TRAINED = 1e18
"""Tokens and samples of a whole training, as in model files."""


def _at_least_1(name: str, help: str, most: float = MOST) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(name, min=1, max=most, help=help)
    return option


ModelOption = Annotated[
    str | None,
    typer.Option("--model", metavar="NAME|FILE", help="See `benchsuite plan list models`; or a config.json."),
]
MachineOption = Annotated[
    str | None, typer.Option("--machine", metavar="NAME|FILE", help="Where: see `benchsuite plan list machines`.")
]
Devices = Annotated[int | None, _at_least_1("--devices", "Accelerators in all.")]
Batch = Annotated[int | None, _at_least_1("--batch", "Samples a step, all devices together.")]
SeqLen = Annotated[int | None, _at_least_1("--seq-len", "Tokens a sample; default: the model's.")]
Precision = Annotated[
    str | None, typer.Option("--precision", help="bf16, pure_bf16, fp16, tf32, fp32, fp8; default: 16 bits.")
]
Tokens = Annotated[
    float | None, _at_least_1("--tokens", "To train on, such as 300e9; default: as published.", MOST_TRAINED)
]
Samples = Annotated[float | None, _at_least_1("--samples", "The same in samples.", MOST_TRAINED)]
Zero = Annotated[int | None, typer.Option("--zero", min=0, max=3, help="Only this ZeRO stage.")]
Recompute = Annotated[str | None, typer.Option("--recompute", help="Only none, selective or full.")]
Microbatch = Annotated[int | None, _at_least_1("--microbatch", "Only so many samples.")]
Interleave = Annotated[int | None, _at_least_1("--interleave", "Only so many chunks a stage.")]
ContextParallel = Annotated[int | None, _at_least_1("--context-parallel", "Only so many ranks that share a sequence.")]
ExpertParallel = Annotated[int | None, _at_least_1("--expert-parallel", "Only so many ranks that share experts.")]
Explain = Annotated[bool, typer.Option("--explain", help="Also what the columns are, and what is assumed.")]
TensorParallel = Annotated[int | None, _at_least_1("--tensor-parallel", "Only this degree.")]
PipelineParallel = Annotated[int | None, _at_least_1("--pipeline-parallel", "Only this degree.")]
WhatIf = Annotated[
    str | None,
    typer.Option(
        "--what-if",
        metavar="network=2,...",
        help="Also with network, storage, device, data times as much; or staging: input staged on each node.",
    ),
]
Staging = Annotated[
    bool, typer.Option("--staging", help="The dataset is copied to each node's own drives once, and read from there.")
]
Measured = Annotated[
    Path | None,
    typer.Option("--measured", metavar="STORE", help="Take what `probe device` and `probe comm` measured there."),
]
RecipeOption = Annotated[
    str | None,
    typer.Option("--recipe", metavar="NAME", help=f"Who trains: {', '.join(RECIPES)}; default: trial where it can."),
]
Schedule = Annotated[
    str | None,
    typer.Option("--schedule", metavar="NAME", help="Draw this pipeline schedule instead: 1f1b, zb-h1, zbv, ..."),
]
Microbatches = Annotated[int | None, _at_least_1("--microbatches", "Of the schedule that is drawn, in a step.")]
WriteSweep = Annotated[
    Path | None,
    typer.Option("--write-sweep", metavar="FILE.yaml", help=f"Write the best {IN_SWEEP} that run as a sweep."),
]
Top = Annotated[int, _at_least_1("--top", "How many layouts to print, and as many that trials refuse.")]
Svg = Annotated[Path | None, typer.Option("--svg", metavar="DIR", help="Draw the schedule as a file in DIR.")]


def plan(
    context: typer.Context,
    model: ModelOption = None,
    machine: MachineOption = None,
    devices: Devices = None,
    batch: Batch = None,
    seq_len: SeqLen = None,
    precision: Precision = None,
    tokens: Tokens = None,
    samples: Samples = None,
    zero: Zero = None,
    recompute: Recompute = None,
    microbatch: Microbatch = None,
    interleave: Interleave = None,
    tensor_parallel: TensorParallel = None,
    pipeline_parallel: PipelineParallel = None,
    context_parallel: ContextParallel = None,
    expert_parallel: ExpertParallel = None,
    what_if: WhatIf = None,
    staging: Staging = False,
    measured: Measured = None,
    recipe: RecipeOption = None,
    schedule: Schedule = None,
    microbatches: Microbatches = None,
    svg: Svg = None,
    write_sweep: WriteSweep = None,
    top: Top = 10,
    explain: Explain = False,
    format: Annotated[PlainFormat, typer.Option("--format", help="table or json.")] = "table",
) -> None:
    """The best layouts of a model on a machine: time, memory, bubble, exchange, input, days and energy."""
    if context.invoked_subcommand is not None:
        return _refuse_options(context)
    needed = {"--model": model, "--machine": machine, "--devices": devices, "--batch": batch}
    planning = needed | {"--write-sweep": write_sweep, "--measured": measured, "--recipe": recipe}
    check_alone(schedule, {"--microbatches": microbatches, "--svg": svg}, planning)
    if schedule is not None:
        return draw(schedule, pipeline_parallel, microbatches, interleave, svg, format)
    if missing := [name for name, value in needed.items() if value is None]:
        raise UserError(f"plan needs {', '.join(missing)}; see `benchsuite plan list`")
    of = _model(str(model), seq_len)
    where = machines.load(str(machine))
    job = _job(of, where, devices or 1, batch or 1, precision, measured, recipe, staging)
    fixed = choices(
        zero=zero,
        recompute=recompute,
        microbatch=microbatch,
        interleave=interleave,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        context_parallel=context_parallel,
        expert_parallel=expert_parallel,
    )
    num_samples = samples_of(of, tokens, samples)
    plan_layouts(job, fixed, num_samples, parse_changes(what_if), top, format, write_sweep, explain)


def _refuse_options(context: typer.Context) -> None:
    """Refuse options before a verb below `plan`, whose own they are not."""
    given = [name for name in context.params if str(context.get_parameter_source(name)).endswith("COMMANDLINE")]
    if given:
        option = "--" + given[0].replace("_", "-")
        raise UserError(f"plan {context.invoked_subcommand} with {option} before it: options come after the verb")


def _job(
    of: Model,
    where: Machine,
    devices: int,
    batch: int,
    precision: str | None,
    measured: Path | None,
    recipe: str | None,
    staged: bool,
) -> Job:
    """What is planned, at a precision that the machine has, with what probes of a store measured."""
    chosen = checked_precision(where, precision)
    if recipe not in (None, *RECIPES):
        raise refuse("--recipe", recipe, RECIPES)
    who: Recipe = recipe or ("megatron" if trained(of).lacking else "trial")
    told = {} if measured is None else of_store(ResultsStore(measured), where, chosen)
    return Job(of, where, devices, batch, chosen, staged=staged, recipe=who, measured=told)


def _model(name: str, seq_len: int | None) -> Model:
    """The model by its name, from one's own YAML file or Hugging Face's config.json; of other sequences if asked."""
    model = models.from_config(Path(name)) if name.endswith(".json") else models.load(name)
    return model if seq_len is None else model.with_seq_len(seq_len)


def choices(recompute: str | None, zero: int | None, **fixed: int | None) -> Choices:
    """What the search may choose from; an option that is given fixes its axis."""
    if recompute is not None and recompute not in RECOMPUTE:
        raise refuse("--recompute", recompute, RECOMPUTE)
    own: dict[str, Any] = {name: None if value is None else (value,) for name, value in fixed.items()}
    return Choices(
        zero=Choices().zero if zero is None else (zero,),
        recompute=RECOMPUTE if recompute is None else (recompute,),
        **own,
    )


def plan_layouts(
    job: Job,
    fixed: Choices,
    samples: float | None,
    changes: Mapping[str, float],
    top: int,
    format: PlainFormat,
    write_sweep: Path | None,
    explain: bool = False,
) -> None:
    """Search, and print the best layouts and what changes would bring; the best that run also as a sweep's file.

    Raises:
        UserError: nothing is valid, nothing fits, or, where a sweep is to be written, nothing runs.
    """
    found = make_plan(job, fixed, samples, max(top, 2 if write_sweep is None else IN_SWEEP))  # the second is told of
    if write_sweep is not None:
        _write_sweep(job, found, write_sweep)
    under = make_what_if(job, fixed, changes, samples) if changes else {}
    if format == "json":
        document(json.dumps(as_object(job, found, under, samples, top), indent=1))
    else:
        _print(job, found, under, samples, top, explain)


def _write_sweep(job: Job, found: Plan, file: Path) -> None:
    if not found.best:
        raise UserError(f"--write-sweep {file}: {why(found)}")
    trials = [each.trial for each in found.best if each.trial is not None]
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", file.stem).lstrip("_.-")[:MAX_NAME_LENGTH] or "plan"
    text = yaml.safe_dump(sweep_of(job, name, trials), sort_keys=False, default_flow_style=None, width=120)
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--write-sweep {file}: {error.strerror}") from error
    echo(f"sweep of {counted(len(trials[:IN_SWEEP]), 'layout')}: {file}", err=True)


def _print(job: Job, found: Plan, under: Mapping[str, Planned], samples: float | None, top: int, explain: bool) -> None:
    out, machine = console(), job.machine
    for line in title(job, samples):
        out.print(line, markup=False)
    fitting = f"{found.num_fitting} fit in memory, {found.num_runnable} of them run as trials"
    out.print(f"{found.num_valid} valid layouts, {fitting}", markup=False)
    if found.best:
        _print_table([(str(each.rank), each) for each in found.best[:top]], "#", machine.device.memory_bytes, out)
    for line in words(found, job):
        out.print(line, markup=False)
    if found.refused:
        out.print()
        rows = [(str(each.rank), each) for each in found.refused[:top]]
        _print_table(rows, "not runnable", machine.device.memory_bytes, out)
        for reason, ranks in reasons(found.refused[:top]).items():
            out.print(f"not runnable: {reason} ({ranks})", markup=False)
    if under:
        out.print()
        named = {name + ("" if each.runnable else " (not runnable)"): each for name, each in under.items()}
        _print_table([*named.items()], "what if", machine.device.memory_bytes, out)
    if found.staging is not None:
        out.print(in_words(found.staging, job), style="dim", markup=False)
    out.print(f"warning: {basis(job)}", markup=False)
    for line in (*notes(job, found), explained()) if explain else ():
        out.print(line, style="dim", markup=False)


DROPPED_FIRST = ("v", "kWh", "device-h", "TFLOP/s", "input", "MFU", "bubble", "comm", "recompute", "days")
"""Columns that a narrow terminal does without, in this order."""
TEXTS = ("what if", "not runnable", "recompute")
"""Columns of words; those of numbers are flush right."""


def _print_table(rows: Sequence[tuple[str, Planned]], first: str, memory_bytes: float, out: Console) -> None:
    """Print a layout a row; `first`: heading of the names."""
    shown = [name for name in HEADINGS if name not in ("cp", "ep") or any(getattr(each, name) > 1 for _, each in rows)]
    columns = [Column(heading, itemgetter(heading), heading not in TEXTS) for heading in (first, *shown)]
    found = [{first: name, **dict(zip(HEADINGS, cells_of(each, memory_bytes), strict=True))} for name, each in rows]
    out.print(fitting_table(found, columns, out, DROPPED_FIRST))
