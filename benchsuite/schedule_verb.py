"""Draw any pipeline schedule: `plan --schedule`."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from benchsuite.errors import UserError
from benchsuite.options import PlainFormat
from benchsuite.pipelines import slots
from benchsuite.predict.orders import SPLIT
from benchsuite.predict.schedules import bubbles, canonical, idle_fractions, makespan, peak_in_flight, schedule
from benchsuite.terminal import document, echo
from results.export.schedule import svg, text
from results.replacing import write_whole


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
    """Print a schedule at F = B = W, with its bubble and what each stage holds; also as SVG where asked.

    Raises:
        UserError: a number is missing, the schedule cannot take them, or the file cannot be written.
    """
    if stages is None or microbatches is None:
        missing = "--pipeline-parallel" if stages is None else "--microbatches"
        raise UserError(f"--schedule {name}: {missing} is missing, such as --pipeline-parallel 4 --microbatches 8")
    timeline = schedule(name, stages, microbatches, interleave or 1)
    chunks = f", {interleave} chunks each" if interleave and interleave > 1 else ""
    title = f"{canonical(name)}: {stages} stages{chunks}, {microbatches} microbatches"
    found = slots(timeline)
    idle, held = idle_fractions(timeline), peak_in_flight(timeline)
    if out is not None:
        _write(out, svg(found, title))
    if format is PlainFormat.json:
        work = [asdict(slot) for slot in found]
        told = {"schedule": canonical(name), "slots": work, "idle_fractions": idle, "peak_in_flight": held}
        document(json.dumps(told, indent=1))
        return
    total = makespan(timeline)
    free = f", {max(bubbles(timeline)) / total:.1%} with no barrier at its end" if canonical(name) in SPLIT else ""
    echo(f"{title}; F = B = W: a step of {total:g}, {max(idle):.1%} of it bubble{free}", "")
    echo(*text(found, shutil.get_terminal_size().columns).split("\n"))
    echo("", f"microbatches held at most, by stage: {', '.join(f'{most:g}' for most in held)}")
    echo("F forward, B backward, W gradients of weights; lower case: a later chunk; -- goes on; . bubble", err=True)


def _write(out: Path, figure: str) -> None:
    write_whole(out, figure)
    echo(f"figure: {out}", err=True)
