"""Users' own tables of configurations and times, CSV or JSON, in the place of a store."""

import csv
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchsuite.errors import UserError, nearest
from benchsuite.predict.model import Configurations

NAMES: Mapping[str, tuple[str, ...]] = {
    "ranks": ("ranks", "gpus", "numgpus", "ngpus", "worldsize", "devices", "numdevices", "accelerators", "nacc"),
    "step_s": ("steps", "steptimes", "iterationtimes", "iterations", "seconds", "stepsmean", "secondsperstep"),
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
RATES = ("samples_per_s", "tokens_per_s")
TIMES = ("step_s", "step_ms", *RATES)
ROUND_SAMPLES = 2
"""Decimals of samples per step that rates and times, as printed, leave."""
SHAPE = ("hidden_size", "num_layers", "seq_len", "microbatch")
"""What a table of layouts has at least, besides ranks and a time."""
DEFAULTS: Mapping[str, float] = {
    "vocab_size": 50257,
    "tensor": 1,
    "pipeline": 1,
    "zero": 0,
    "recompute": 0,
    "flash": 0,
    "ranks_per_node": 8,
}
FOLLOWS_RANKS = frozenset({"ranks", "data", "global_batch_size", "num_microbatches", *TIMES})
"""What may differ between rows of one layout at several scales."""


def read(path: Path) -> pd.DataFrame:
    """A table with the columns of NAMES that it has, as numbers, and its other columns as they are; with `step_s`.

    CSV with a header; JSON: a list of objects, or an object with `columns` and `rows`.

    Raises:
        UserError: no such file, no table, no column of ranks or of times, or a cell that is no number.
    """
    if not path.is_file():
        raise UserError(f"table {path}: no such file; give a CSV or JSON file of configurations and times")
    found = _json_rows(path) if path.suffix.lower() == ".json" else _csv_rows(path)
    if not found:
        raise UserError(f"table {path}: no rows")
    frame = named(pd.DataFrame(found), str(path))
    for name in frame.columns.intersection([*NAMES]):
        frame[name] = _numbers(frame[name], f"table {path}", name)
    frame["step_s"] = step_s(frame, str(path))
    return frame


def _csv_rows(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        return [dict(row) for row in csv.DictReader(file)]


def _json_rows(path: Path) -> list[dict[str, Any]]:
    try:
        found = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise UserError(f"table {path}: not JSON: {error}") from None
    if isinstance(found, dict) and isinstance(found.get("columns"), list) and isinstance(found.get("rows"), list):
        return [dict(zip(found["columns"], row, strict=False)) for row in found["rows"]]
    if isinstance(found, list) and all(isinstance(row, dict) for row in found):
        return found
    raise UserError(f"table {path}: allowed: a list of objects, or an object with `columns` and `rows`")


def named(frame: pd.DataFrame, where: str) -> pd.DataFrame:
    """The frame with its columns under the names used here; the first of two that mean the same."""
    of = {alias: name for name, aliases in NAMES.items() for alias in aliases}
    names: dict[str, str] = {}
    for column in map(str, frame.columns):
        name = of.get(re.sub(r"[^a-z0-9]", "", column.lower()), column)
        names[column] = name if name not in names.values() else column
    frame = frame.rename(columns=names)
    if "batch" in frame and not {"batch_size", "global_batch_size"} & {*frame.columns}:
        raise UserError(f"table {where}: column 'batch': name it batch_size (of a rank) or global_batch_size (of all)")
    frame.attrs["read"] = _as_read(names)
    for needed in (("ranks",), TIMES):
        if not {*needed} & {*frame.columns}:
            close = nearest(needed[0], [str(column) for column in frame.columns])
            raise UserError(f"table {where}: no column of {' or '.join(needed)}; it has {', '.join(names)}{close}")
    return frame


def _as_read(names: Mapping[str, str]) -> str:
    """Which columns were understood, and what the others are taken for."""
    known = [name if column == name else f"{name} ({column})" for column, name in names.items() if name in NAMES]
    others = [column for column, name in names.items() if name not in NAMES]
    told = f"; rows that differ in {', '.join(others)} are series of their own" if others else ""
    batch = {"batch_size", "global_batch_size", "microbatch", *RATES} & {*names.values()}
    return f"read: {', '.join(known)}{told}" + ("" if batch else "; one sample a rank and step is assumed")


def _numbers(column: "pd.Series[Any]", where: str, name: str) -> "pd.Series[float]":
    """As float; words of logic as 1 and 0; empty cells as missing."""
    words = {"true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0, "full": 1.0, "none": 0.0, "": np.nan}
    values = column.map(lambda value: words.get(str(value).strip().lower(), value))
    numbers = pd.to_numeric(values, errors="coerce").astype("float64")
    wrong = numbers.isna() & values.notna()
    if wrong.any():
        line = int(np.flatnonzero(wrong)[0])
        raise UserError(f"{where}: {name} {column.iloc[line]!r} in row {line + 1} is not a number")
    return numbers


def step_s(frame: pd.DataFrame, where: str) -> "pd.Series[float]":
    """Seconds of a step: as given, or the samples of a step over samples per second."""
    if "step_s" in frame:
        return frame["step_s"]
    if "step_ms" in frame:
        return frame["step_ms"] / 1e3
    samples = samples_per_step(frame)
    if "samples_per_s" in frame:
        return samples / frame["samples_per_s"]
    if "seq_len" not in frame:
        raise UserError(f"table {where}: tokens_per_s without a column of seq_len: a step's tokens are not known")
    return samples * frame["seq_len"] / frame["tokens_per_s"]


def samples_per_step(frame: pd.DataFrame) -> "pd.Series[float]":
    """The global batch: as given, from that of a rank, from microbatches, or samples per second times a step's.

    One sample a rank where nothing tells.
    """
    if "global_batch_size" in frame:
        return frame["global_batch_size"]
    data = data_ranks(frame)
    if "batch_size" in frame:
        return frame["batch_size"] * data
    if "microbatch" in frame:
        return frame["microbatch"] * frame.get("num_microbatches", 1.0) * data
    seconds = frame["step_ms"] / 1e3 if "step_ms" in frame else frame.get("step_s")
    if "samples_per_s" in frame and seconds is not None:
        return (frame["samples_per_s"] * seconds).round(ROUND_SAMPLES)
    return frame["ranks"]


def data_ranks(frame: pd.DataFrame) -> "pd.Series[float]":
    """Data-parallel ranks: as given, or ranks over the other degrees."""
    if "data" in frame:
        return frame["data"]
    return frame["ranks"] / frame.get("tensor", 1.0) / frame.get("pipeline", 1.0)


def has_layouts(frame: pd.DataFrame) -> bool:
    """Whether a table tells the model's shape and the layout, so that the model of layouts can be fitted."""
    return {*SHAPE} <= {*frame.columns}


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


def families(frame: pd.DataFrame) -> "pd.Series[int]":
    """A number for each layout: rows of one differ only in data-parallel ranks, the batch that follows, and times."""
    kept = [str(name) for name in frame.columns if name not in FOLLOWS_RANKS and frame[name].map(_plain).all()]
    if not kept:
        return pd.Series(0, frame.index)
    return frame.groupby(kept, dropna=False, sort=False).ngroup()


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool | np.generic)


def words(frame: pd.DataFrame, row: int, among: Sequence[int]) -> str:
    """What tells a row's layout from others: columns that vary over `among`."""
    named_so = [str(name) for name in frame.columns if name not in FOLLOWS_RANKS]
    varying = [name for name in named_so if frame[name].iloc[[*among]].nunique(dropna=False) > 1]
    cells = {name: frame[name].iloc[row] for name in varying}
    return " ".join(f"{name} {value:g}" if isinstance(value, float) else f"{value}" for name, value in cells.items())
