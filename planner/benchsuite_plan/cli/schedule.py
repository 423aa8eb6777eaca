"""One pipeline schedule drawn: `plan --schedule`."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path

from benchsuite.contract.errors import UserError
from benchsuite.contract.terminal import PlainFormat, document, echo
from benchsuite.contract.version import VERSION
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
from benchsuite.results.render.words import typed
from benchsuite.results.report.modelled import PipelineStep, Slot, schedule_text


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
        _draw(found, title, out, _origin("--schedule", name, *asked, "--svg", "DIR"))
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


def _origin(*options: str) -> str:
    """What a figure's metadata tell: the product's version and the command that draws it again."""
    return f"drawn by benchsuite {VERSION}: {typed('benchsuite', 'plan', *options)}"
