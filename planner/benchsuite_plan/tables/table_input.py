"""Users' own tables of measured layouts: what they have besides the columns of `benchsuite.predict.table`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
from pydantic import Field, PositiveInt, RootModel

from benchsuite.contract.errors import UserError
from benchsuite.predict import table
from benchsuite.predict.table import RANKS_PER_NODE, TableColumns, also, apart, data_ranks, samples_per_step
from benchsuite_plan.tables.configurations import Configurations


class TableRow(table.TableRow):
    """One measured configuration: a row of a CSV with a header, or an object of a JSON list.

    `also`: other names that a column may have, whatever its capitals and signs: GPUs, ms/step, TP. Columns of text
    beside these tell layouts apart; other numbers are not used. Every table has hidden_size, num_layers, seq_len and
    microbatch.
    """

    num_layers: PositiveInt | None = also("numlayers layers")
    """Transformer layers."""
    hidden_size: PositiveInt | None = also("hiddensize hidden dmodel")
    """Elements of a token between layers."""
    num_heads: PositiveInt | None = also("numheads heads attentionheads")
    """Attention heads; default: of 64 elements."""
    vocab_size: PositiveInt | None = also("vocabsize vocab vocabulary")
    """Default: 50257."""
    zero: Annotated[int, Field(ge=0, le=3)] | None = also("zero zerostage")
    """ZeRO stage; default: 0."""
    recompute: Annotated[float, Field(ge=0, le=1)] | bool | None = also("recompute actckpt activationcheckpointing")
    """Share of layers whose activations are computed again; true is 1; default: 0."""
    flash: Annotated[float, Field(ge=0, le=1)] | bool | None = also("flash flashattention")
    """Whether attention never stores its scores; default: 0."""


class Table(RootModel[list[TableRow] | TableColumns]):
    """A table of layouts and times for `benchsuite plan table`, as JSON; a CSV has the same columns."""


SHAPE = ("hidden_size", "num_layers", "seq_len", "microbatch")
"""What a table of layouts has at least, besides ranks and a time."""
MODEL = ("hidden_size", "num_layers", "num_heads", "vocab_size")
"""Columns of the model itself."""
DEFAULTS: Mapping[str, float] = {
    "vocab_size": 50257,
    "tensor": 1,
    "pipeline": 1,
    "zero": 0,
    "recompute": 0,
    "flash": 0,
    "ranks_per_node": RANKS_PER_NODE,
}
LAYOUTS = table.TableKind(
    "layouts",
    table.columns_of(TableRow),
    batch=frozenset({"batch_size", "global_batch_size", "num_microbatches"}),
    defaulted=frozenset({*DEFAULTS} - {"tensor", "pipeline"}),
)
"""Degrees have defaults, but are counted with: a table that has them has them in every row."""


def read(path: Path, timed: bool = True) -> pd.DataFrame:
    """A table with the columns of TableRow that it has, as numbers, and its other columns as they are; with `step_s`.

    Not `timed`: rows to be predicted, which need no times; those they have are not read.

    Raises:
        UserError: no such file, no table, no column of ranks, of times or of SHAPE, a cell that is missing, no number
            or out of range, or two times of a row that disagree.
    """
    where, rows = f"table {path}", table.rows_of(path)
    frame = table.named(rows, where, LAYOUTS, timed)
    if lacking := [name for name in SHAPE if name not in frame]:
        as_series = "; without layouts `benchsuite predict --table` predicts it" if timed else ""
        raise UserError(f"{where}: no column of {', '.join(lacking)}; it has {', '.join(map(str, rows))}{as_series}")
    return table.as_numbers(frame, where, LAYOUTS)


def configurations(frame: pd.DataFrame) -> tuple[Configurations, list[str]]:
    """A table's rows as configurations, and what was assumed where it tells nothing.

    Raises:
        UserError: a number of microbatches that is not whole, or ranks that are not the product of the degrees.
    """
    told = frame.assign(data=data_ranks(frame))
    assumed = [f"{name} {value:g}: not in the table" for name, value in DEFAULTS.items() if name not in told]
    for name, value in DEFAULTS.items():
        told[name] = told.get(name, pd.Series(value, told.index)).fillna(value)
    if "num_heads" not in told:
        told["num_heads"] = np.maximum(np.round(told["hidden_size"] / 64), 1)
        assumed.append("heads of 64: their number is not in the table")
    if not LAYOUTS.batch & {*told.columns}:
        assumed.append("one microbatch a step: neither their number nor the batch is in the table")
    told["num_microbatches"] = samples_per_step(frame) / told["data"] / told["microbatch"]
    _check(told)
    columns = {name: told[name].to_numpy(dtype=np.float64) for name in Configurations.__dataclass_fields__}
    return Configurations(**columns), assumed


def _check(told: pd.DataFrame) -> None:
    for number, row in enumerate(told.to_dict(orient="records"), 1):
        product = row["tensor"] * row["pipeline"] * row["data"]
        if product != row["ranks"]:
            degrees = f"tp {row['tensor']:g} x pp {row['pipeline']:g} x dp {row['data']:g} = {product:g}"
            raise UserError(f"row {number}: {degrees}, but {row['ranks']:g} ranks")
        if row["num_microbatches"] < 1 or abs(row["num_microbatches"] % 1) > 1e-9:
            raise UserError(
                f"row {number}: {row['num_microbatches']:g} microbatches of {row['microbatch']:g} per rank; they must "
                "be whole: global batch / (dp x microbatch)"
            )


def sources(frame: pd.DataFrame) -> "pd.Series[int]":
    """A number for each source of rows: another model, or another word in a column of text."""
    of_sources = [name for name in apart(frame) if name not in LAYOUTS.columns or name in MODEL]
    return table.grouped_by(frame, of_sources)
