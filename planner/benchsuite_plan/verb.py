"""The verb `plan`: the best layouts of a model on a machine, or one pipeline schedule drawn."""

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console

from benchsuite.cli.common import Plain, drawn_by
from benchsuite.contract.console import console
from benchsuite.contract.errors import UserError, refuse
from benchsuite.contract.terminal import PlainFormat, document, echo
from benchsuite.contract.trial_spec import MAX_NAME_LENGTH
from benchsuite.predict.theory.schedules import (
    SPLIT,
    bubbles,
    canonical,
    idle_fractions,
    makespan,
    peak_in_flight,
    schedule,
)
from benchsuite.results.charts.modelled import MAX_SLOTS, pipelines
from benchsuite.results.export import charts
from benchsuite.results.render.tables import Column
from benchsuite.results.render.terminal import fitting_table
from benchsuite.results.render.words import counted
from benchsuite.results.report.modelled import PipelineStep, Slot, schedule_text
from benchsuite.results.store.store import ResultsStore
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
    typer.Option("--model", metavar="NAME|FILE", help="What to train: see `benchsuite list models`; or a config.json."),
]
MachineOption = Annotated[
    str | None, typer.Option("--machine", metavar="NAME|FILE", help="Where: see `benchsuite list machines`.")
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
SequenceParallel = Annotated[bool, typer.Option(help="Tensor-parallel ranks also split norms and dropout.")]
FlashAttention = Annotated[bool, typer.Option(help="Attention never stores its scores.")]
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
    sequence_parallel: SequenceParallel = True,
    flash_attention: FlashAttention = True,
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
    format: Plain = "table",
) -> None:
    """The best layouts of a model on a machine: time, memory, bubble, exchange, input, days and energy."""
    needed = {"--model": model, "--machine": machine, "--devices": devices, "--batch": batch}
    planning = needed | {"--write-sweep": write_sweep, "--measured": measured, "--recipe": recipe}
    check_alone(schedule, {"--microbatches": microbatches, "--svg": svg}, planning)
    if schedule is not None:
        return draw(schedule, pipeline_parallel, microbatches, interleave, svg, format)
    if missing := [name for name, value in needed.items() if value is None]:
        raise UserError(f"plan needs {', '.join(missing)}; see `benchsuite list models` and `list machines`")
    of = _model(str(model), seq_len)
    ways = {"sequence_parallel": sequence_parallel, "flash_attention": flash_attention, "staged": staging}
    job = _job(of, machines.load(str(machine)), devices or 1, batch or 1, precision, measured, recipe, **ways)
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


def _job(
    of: Model,
    where: Machine,
    devices: int,
    batch: int,
    precision: str | None,
    measured: Path | None,
    recipe: str | None,
    **ways: bool,
) -> Job:
    """What is planned, at a precision that the machine has, with what probes of a store measured."""
    chosen = checked_precision(where, precision)
    if recipe not in (None, *RECIPES):
        raise refuse("--recipe", recipe, RECIPES)
    who: Recipe = recipe or ("megatron" if trained(of).lacking else "trial")
    told = {} if measured is None else of_store(ResultsStore(measured), where, chosen)
    return Job(of, where, devices, batch, chosen, recipe=who, measured=told, **ways)


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


def check_alone(name: str | None, drawing: Mapping[str, object], planning: Mapping[str, object]) -> None:
    """Options of drawing need --schedule; those of planning have no meaning beside it.

    Raises:
        UserError: such an option is given.
    """
    wrong = [option for option, value in (drawing if name is None else planning).items() if value is not None]
    if wrong and name is None:
        raise UserError(f"plan: {wrong[0]} without --schedule; allowed: with --schedule NAME")
    if wrong:
        allowed = "--pipeline-parallel, --interleave, --format, " + ", ".join(drawing)
        raise UserError(f"plan: --schedule {name} with {wrong[0]}; allowed: {allowed}")


def draw(
    name: str,
    stages: int | None,
    microbatches: int | None,
    interleave: int | None,
    out: Path | None,
    format: PlainFormat,
) -> None:
    """Print a schedule at F = B = W, with its bubble and what each stage holds; also as a figure where asked.

    Raises:
        UserError: a number is missing, the schedule cannot take them, or the file cannot be written.
    """
    if stages is None or microbatches is None:
        missing = "--pipeline-parallel" if stages is None else "--microbatches"
        raise UserError(f"--schedule {name}: {missing} is missing, such as --pipeline-parallel 4 --microbatches 8")
    timeline = schedule(name, stages, microbatches, interleave or 1)
    chunks = f", {interleave} chunks each" if interleave and interleave > 1 else ""
    title = f"{canonical(name)}: {stages} stages{chunks}, {microbatches} microbatches"
    found = [*chain.from_iterable(timeline)]
    idle, held = idle_fractions(timeline), peak_in_flight(timeline)
    if out is not None:
        chosen = ["--interleave", str(interleave)] if interleave else []
        asked = ["--pipeline-parallel", str(stages), "--microbatches", str(microbatches), *chosen]
        _draw(found, title, out, drawn_by("plan", "--schedule", name, *asked, "--svg", "DIR"))
    if format == "json":
        work = [asdict(slot) for slot in found]
        told = {"schedule": canonical(name), "slots": work, "idle_fractions": idle, "peak_in_flight": held}
        document(json.dumps(told, indent=1))
        return
    total = makespan(timeline)
    free = f", {max(bubbles(timeline)) / total:.1%} with no barrier at its end" if canonical(name) in SPLIT else ""
    echo(f"{title}; F = B = W: a step of {total:g}, {max(idle):.1%} of it bubble{free}", "")
    echo(*schedule_text(found, shutil.get_terminal_size().columns).split("\n"))
    echo("", f"microbatches held at most, by stage: {', '.join(f'{most:g}' for most in held)}")
    echo("F forward, B backward, W gradients of weights; lower case: a later chunk; -- goes on; . bubble", err=True)


def _draw(found: Sequence[Slot], title: str, folder: Path, origin: str) -> None:
    num_stages = 1 + max(slot.stage for slot in found)
    if len(found) > MAX_SLOTS or num_stages > charts.MAX_BARS:
        allowed = f"allowed: {charts.MAX_BARS} stages, and {MAX_SLOTS:,} pieces of work in all"
        raise UserError(f"--svg: {num_stages} stages and {len(found):,} pieces of work; {allowed}")
    (chart,) = pipelines([PipelineStep(title, found, timed=False)], {})
    (drawn,) = charts.draw_into(folder, "svg", [("schedule", chart)], origin=origin)
    echo(f"figure: {drawn}", err=True)
