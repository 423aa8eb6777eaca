"""The verb `plan`. Imports little until it is used."""

from pathlib import Path
from typing import Annotated

import typer

from benchsuite.cli.plan_columns import explained
from benchsuite.contract.exit_codes import PlainFormat

EPILOG = f"Columns: {explained()}"


MOST = 10**9
"""Of what is counted; far above any machine or model, far below what overflows or never ends."""
MOST_TRAINED = 1e18
"""Tokens and samples of a whole training, as in model files."""


def _at_least_1(name: str, help: str, most: float = MOST) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(name, min=1, max=most, help=help)
    return option


Model = Annotated[
    str | None, typer.Option("--model", metavar="NAME|FILE", help="What to train: see `benchsuite list models`.")
]
Machine = Annotated[
    str | None, typer.Option("--machine", metavar="NAME|FILE", help="Where: see `benchsuite list machines`.")
]
Devices = Annotated[int | None, _at_least_1("--devices", "Accelerators in all.")]
Batch = Annotated[int | None, _at_least_1("--batch", "Samples a step, all devices together.")]
SeqLen = Annotated[int | None, _at_least_1("--seq-len", "Tokens a sample; default: the model's.")]
Precision = Annotated[str | None, typer.Option("--precision", help="bf16, fp16, tf32, fp32, fp8; default: 16 bits.")]
Tokens = Annotated[
    float | None, _at_least_1("--tokens", "To train on, such as 300e9; default: as published.", MOST_TRAINED)
]
Samples = Annotated[float | None, _at_least_1("--samples", "The same in samples.", MOST_TRAINED)]
Zero = Annotated[int | None, typer.Option("--zero", min=0, max=3, help="Only this ZeRO stage.")]
Recompute = Annotated[str | None, typer.Option("--recompute", help="Only none, selective or full.")]
Microbatch = Annotated[int | None, _at_least_1("--microbatch", "Only so many samples.")]
Interleave = Annotated[int | None, _at_least_1("--interleave", "Only so many chunks a stage.")]
TensorParallel = Annotated[int | None, _at_least_1("--tensor-parallel", "Only this degree.")]
PipelineParallel = Annotated[int | None, _at_least_1("--pipeline-parallel", "Only this degree.")]
MaxTensorParallel = Annotated[int | None, _at_least_1("--max-tensor-parallel", "At most this degree.")]
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
Schedule = Annotated[
    str | None,
    typer.Option("--schedule", metavar="NAME", help="Draw this pipeline schedule instead: 1f1b, zb-h1, zbv, ..."),
]
Microbatches = Annotated[int | None, _at_least_1("--microbatches", "Of the schedule that is drawn, in a step.")]
Svg = Annotated[Path | None, typer.Option("--svg", metavar="OUT.svg", help="Write the drawn schedule as a figure.")]


def plan(
    model: Model = None,
    machine: Machine = None,
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
    max_tensor_parallel: MaxTensorParallel = None,
    sequence_parallel: SequenceParallel = True,
    flash_attention: FlashAttention = True,
    what_if: WhatIf = None,
    staging: Staging = False,
    schedule: Schedule = None,
    microbatches: Microbatches = None,
    svg: Svg = None,
    top: Annotated[int, _at_least_1("--top", "How many layouts to print, and as many that trials refuse.")] = 10,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the draws that the intervals come from.")] = 0,
    format: Annotated[PlainFormat, typer.Option("--format", help="table or json.")] = PlainFormat.table,
) -> None:
    """The best layouts of a model on a machine: time, memory, bubble, exchange, input, days and energy."""
    from benchsuite.cli import plan_tables

    asked_of_plan = {"--model": model, "--machine": machine, "--devices": devices, "--batch": batch}
    plan_tables.check_alone(schedule, {"--microbatches": microbatches, "--svg": svg}, asked_of_plan)
    if schedule is not None:
        return plan_tables.draw(schedule, pipeline_parallel, microbatches, interleave, svg, format)
    asked = plan_tables.Asked(
        model,
        machine,
        devices,
        batch,
        seq_len,
        precision,
        tokens,
        samples,
        sequence_parallel,
        flash_attention,
        staging,
    )
    fixed = plan_tables.choices(
        zero=zero,
        recompute=recompute,
        microbatch=microbatch,
        interleave=interleave,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        max_tensor_parallel=max_tensor_parallel,
    )
    plan_tables.plan(asked, fixed, what_if, top, seed, format)
