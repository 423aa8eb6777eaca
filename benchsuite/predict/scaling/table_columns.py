"""Columns of users' tables: what they are called and hold, also as a JSON Schema. No pandas."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, RootModel

NAMES: Mapping[str, tuple[str, ...]] = {
    "ranks": ("ranks", "gpus", "numgpus", "ngpus", "worldsize", "devices", "numdevices", "accelerators", "nacc"),
    "step_s": ("steptimes", "iterationtimes", "seconds", "stepsmean", "secondsperstep", "sstep"),
    "step_ms": ("stepms", "steptimems", "iterationtimems", "iterationms", "msperstep", "msstep"),
    "samples_per_s": (
        "samplespers",
        "samplespersec",
        "samplespersecond",
        "sampless",
        "throughput",
        "imagespers",
        "imagess",
    ),
    "tokens_per_s": ("tokenspers", "tokenspersec", "tokenspersecond", "tokenss", "throughputtokens"),
    "global_batch_size": ("globalbatch", "globalbatchsize", "totalbatch"),
    "batch_size": ("batchsize", "batchperrank", "localbatch"),
    "microbatch": ("microbatch", "microbatchsize", "mbs"),
    "num_microbatches": ("nummicrobatches", "microbatches", "gradaccum", "gradientaccumulation"),
    "seq_len": ("seqlen", "seq", "sequencelength", "contextlength"),
    "num_layers": ("numlayers", "layers"),
    "hidden_size": ("hiddensize", "hidden", "dmodel"),
    "num_heads": ("numheads", "heads", "attentionheads"),
    "vocab_size": ("vocabsize", "vocab", "vocabulary"),
    "tensor": ("tensor", "tp", "tensorparallel", "tensorparallelism"),
    "pipeline": ("pipeline", "pp", "pipelineparallel", "pipelineparallelism"),
    "data": ("data", "dp", "dataparallel", "dataparallelism"),
    "zero": ("zero", "zerostage"),
    "recompute": ("recompute", "actckpt", "activationcheckpointing"),
    "flash": ("flash", "flashattention"),
    "ranks_per_node": ("rankspernode", "gpuspernode", "devicespernode"),
}
"""Columns and what they may be called, without signs and in small letters."""
FLAGS = ("zero", "recompute", "flash")
COUNTS = frozenset({*NAMES} - {"step_s", "step_ms", "samples_per_s", "tokens_per_s", "batch_size", *FLAGS})
"""Columns of whole numbers."""
RATES = ("samples_per_s", "tokens_per_s")
TIMES = ("step_s", "step_ms", *RATES)


def _told(schema: dict[str, Any]) -> None:
    """Other names of columns, and that one of TIMES is needed."""
    for name, column in schema["properties"].items():
        column["also"] = list(NAMES[name])
    schema["anyOf"] = [{"required": [name]} for name in TIMES]


class TableRow(BaseModel):
    """One measured configuration: a row of a CSV with a header, or an object of a JSON list.

    `also`: other names that a column may have, whatever its capitals and signs: GPUs, ms/step, TP. Columns of text
    beside these tell series apart; other numbers are not used.
    """

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True, json_schema_extra=_told)

    ranks: PositiveInt
    """Devices in all."""
    step_s: PositiveFloat | None = None
    """Seconds of a step."""
    step_ms: PositiveFloat | None = None
    """The same in milliseconds."""
    samples_per_s: PositiveFloat | None = None
    """Of all ranks; with a batch it tells the step."""
    tokens_per_s: PositiveFloat | None = None
    """The same in tokens; needs seq_len."""
    global_batch_size: PositiveInt | None = None
    """Samples a step of all ranks; such series are strong scaling."""
    batch_size: PositiveFloat | None = None
    """Samples a step of one data-parallel rank; such series are weak scaling."""
    microbatch: PositiveInt | None = None
    """Samples; with hidden_size, num_layers and seq_len one model of layouts is fitted to all rows."""
    num_microbatches: PositiveInt | None = None
    """Microbatches a step, of a data-parallel rank."""
    seq_len: PositiveInt | None = None
    """Tokens a sample."""
    num_layers: PositiveInt | None = None
    """Transformer layers."""
    hidden_size: PositiveInt | None = None
    """Elements of a token between layers."""
    num_heads: PositiveInt | None = None
    """Attention heads; default: of 64 elements."""
    vocab_size: PositiveInt | None = None
    """Default: 50257."""
    tensor: PositiveInt | None = None
    """Tensor-parallel ranks; default: 1."""
    pipeline: PositiveInt | None = None
    """Pipeline stages; default: 1."""
    data: PositiveInt | None = None
    """Data-parallel ranks; default: ranks / tensor / pipeline."""
    zero: Annotated[int, Field(ge=0, le=3)] | None = None
    """ZeRO stage; default: 0."""
    recompute: Annotated[float, Field(ge=0, le=1)] | bool | None = None
    """Share of layers whose activations are computed again; true is 1; default: 0."""
    flash: Annotated[float, Field(ge=0, le=1)] | bool | None = None
    """Whether attention never stores its scores; default: 0."""
    ranks_per_node: PositiveInt | None = None
    """Default: 8."""


class TableColumns(BaseModel):
    """The same as a header and lists of cells, one a column."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)

    columns: list[str]
    """Names of columns, those of TableRow or what they may also be called."""
    rows: list[list[float | bool | str | None]]


class Table(RootModel[list[TableRow] | TableColumns]):
    """A table of configurations and times for `benchsuite predict --table`, as JSON; a CSV has the same columns."""
