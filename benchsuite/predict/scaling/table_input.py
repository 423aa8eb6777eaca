"""Users' own tables of configurations and times, CSV or JSON, in the place of a store."""

import csv
import difflib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, RootModel

from benchsuite.contract.errors import UserError

TIMES = ("step_s", "step_ms", "samples_per_s", "tokens_per_s", "tps_per_gpu")


def _also(names: str, default: Any = None) -> Any:
    """A column that has other names too, without signs and in small letters; in the schema as `also`."""
    return Field(default, json_schema_extra={"also": [*names.split()]})


class TableRow(BaseModel):
    """One measured configuration: a row of a CSV with a header, or an object of a JSON list.

    `also`: other names that a column may have, whatever its capitals and signs: GPUs, ms/step, TP. Columns of text
    beside these tell series apart; other numbers are not used.
    """

    model_config = ConfigDict(
        extra="allow",
        use_attribute_docstrings=True,
        json_schema_extra={
            "anyOf": [{"required": [name]} for name in TIMES],
            "allOf": [{"anyOf": [{"required": [name]} for name in ("ranks", "nodes")]}],
        },
    )

    ranks: PositiveInt | None = _also("ranks gpus numgpus ngpus worldsize devices numdevices accelerators nacc")
    """Devices in all; without it nodes x ranks_per_node."""
    nodes: PositiveInt | None = _also("nodes numnodes nnodes hosts")
    """Nodes, in place of ranks."""
    step_s: PositiveFloat | None = _also("steptimes iterationtimes seconds stepsmean secondsperstep sstep")
    """Seconds of a step."""
    step_ms: PositiveFloat | None = _also("stepms steptimems iterationtimems iterationms msperstep msstep")
    """Milliseconds of a step."""
    samples_per_s: PositiveFloat | None = _also(
        "samplespers samplespersec samplespersecond sampless throughput imagespers imagess"
    )
    """Samples a second of all ranks; with a batch it tells the step."""
    tokens_per_s: PositiveFloat | None = _also("tokenspers tokenspersec tokenspersecond tokenss throughputtokens")
    """Tokens a second of all ranks; needs seq_len."""
    tps_per_gpu: PositiveFloat | None = _also("tpspergpu tpsgpu tokenspersgpu tokenspersecondpergpu tokenssgpu")
    """Tokens a second of one device; needs seq_len."""
    global_batch_size: PositiveInt | None = _also("globalbatch globalbatchsize totalbatch")
    """Samples a step of all ranks; such series are strong scaling."""
    batch_size: PositiveFloat | None = _also("batchsize batchperrank localbatch")
    """Samples a step of one data-parallel rank; such series are weak scaling."""
    microbatch: PositiveInt | None = _also("microbatch microbatchsize mbs")
    """Samples; with hidden_size, num_layers and seq_len one model of layouts is fitted to all rows."""
    num_microbatches: PositiveInt | None = _also("nummicrobatches microbatches gradaccum gradientaccumulation")
    """Microbatches a step, of a data-parallel rank."""
    seq_len: PositiveInt | None = _also("seqlen seq sequencelength contextlength")
    """Tokens a sample."""
    num_layers: PositiveInt | None = _also("numlayers layers")
    """Transformer layers."""
    hidden_size: PositiveInt | None = _also("hiddensize hidden dmodel")
    """Elements of a token between layers."""
    num_heads: PositiveInt | None = _also("numheads heads attentionheads")
    """Attention heads; default: of 64 elements."""
    vocab_size: PositiveInt | None = _also("vocabsize vocab vocabulary")
    """Default: 50257."""
    tensor: PositiveInt | None = _also("tensor tp tensorparallel tensorparallelism")
    """Tensor-parallel ranks; default: 1."""
    pipeline: PositiveInt | None = _also("pipeline pp pipelineparallel pipelineparallelism")
    """Pipeline stages; default: 1."""
    data: PositiveInt | None = _also("data dp dataparallel dataparallelism")
    """Data-parallel ranks; default: ranks / tensor / pipeline."""
    zero: Annotated[int, Field(ge=0, le=3)] | None = _also("zero zerostage")
    """ZeRO stage; default: 0."""
    recompute: Annotated[float, Field(ge=0, le=1)] | bool | None = _also("recompute actckpt activationcheckpointing")
    """Share of layers whose activations are computed again; true is 1; default: 0."""
    flash: Annotated[float, Field(ge=0, le=1)] | bool | None = _also("flash flashattention")
    """Whether attention never stores its scores; default: 0."""
    ranks_per_node: PositiveInt | None = _also("rankspernode gpuspernode devicespernode")
    """Default: 8."""


NAMES: Mapping[str, Sequence[str]] = {
    name: column["also"] for name, column in TableRow.model_json_schema()["properties"].items()
}
"""Columns and what they may also be called."""
FLAGS = ("zero", "recompute", "flash")
COUNTS = frozenset({*NAMES} - {*TIMES, "batch_size", *FLAGS})
"""Columns of whole numbers."""
RATES = ("samples_per_s", "tokens_per_s", "tps_per_gpu")


class TableColumns(BaseModel):
    """The rows of a table as a header and lists of cells, one a column."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)

    columns: list[str]
    """Names of columns, those of TableRow or what they may also be called."""
    rows: list[list[float | bool | str | None]]


class Table(RootModel[list[TableRow] | TableColumns]):
    """A table of configurations and times for `benchsuite predict --table`, as JSON; a CSV has the same columns."""


SECONDS = ("step_s", "iteration_s")
"""Names of columns of seconds, with a `_` for signs: without it they could be counts of steps."""
LABELS = frozenset({"model", "name", "config", "configuration", "layout", "machine", "version"})
"""Columns that tell series apart though numbers stand in them."""
DISAGREE = 0.05
"""Two times of one row differ by more than rounding from this share on."""
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
FOLLOWS_RANKS = frozenset({"ranks", "nodes", "data", "global_batch_size", "num_microbatches", *TIMES})
"""What may differ between rows of one layout at several scales."""


def read(path: Path, timed: bool = True) -> pd.DataFrame:
    """A table with the columns of NAMES that it has, as numbers, and its other columns as they are; with `step_s`.

    Not `timed`: rows to be predicted, which need no times; those they have are not read.

    CSV with a header, commas, semicolons or tabs between; JSON: a list of objects, or an object with `columns` and
    `rows`; JSONL: an object a line. `tablecolumns.TableRow` says what columns hold.

    Raises:
        UserError: no such file, no table, no column of ranks or of times, a cell that is missing, no number or out of
            range, or two times of a row that disagree.
    """
    if not path.is_file():
        raise UserError(f"table {path}: no such file; give a CSV or JSON file of configurations and times")
    found = _json_rows(path) if path.suffix.lower() in (".json", ".jsonl") else _csv_rows(path)
    if not found:
        raise UserError(f"table {path}: no rows")
    frame = named(pd.DataFrame(found), str(path), timed)
    if not timed:
        frame = frame.drop(columns=frame.columns.intersection([*TIMES]))
    for name in frame.columns.intersection([*NAMES]):
        frame[name] = _numbers(frame[name], f"table {path}", name)
        _check_column(frame[name], f"table {path}", name)
    if "ranks" not in frame:
        frame["ranks"] = frame["nodes"] * frame.get("ranks_per_node", DEFAULTS["ranks_per_node"])
    _check_filled(frame, f"table {path}")
    if timed:
        frame["step_s"] = _seconds(frame, f"table {path}")
    return frame


def _csv_rows(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            delimiter = max(",;\t", key=file.readline().count)
            file.seek(0)
            found = [dict(row) for row in csv.DictReader(file, delimiter=delimiter)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise _unreadable(path, "CSV", error) from None
    for number, row in enumerate(found, 1):
        if None in row:
            names = [name for name in row if name is not None]
            raise UserError(f"table {path}: row {number} has more cells than the header's {len(names)} columns")
    return found


def _unreadable(path: Path, kind: str, error: Exception) -> UserError:
    """A file in another encoding, or damaged."""
    allowed = f"allowed: {kind} in UTF-8" if isinstance(error, UnicodeDecodeError) else f"not {kind}"
    return UserError(f"table {path}: {allowed}: {' '.join(str(error).split())}")


def _json_rows(path: Path) -> list[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix.lower() == ".jsonl":
            text = f"[{','.join(line for line in text.splitlines() if line.strip())}]"
        found = json.loads(text, parse_int=float)
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, "JSON", error) from None
    if isinstance(found, dict) and isinstance(found.get("columns"), list) and isinstance(found.get("rows"), list):
        columns = [str(column) for column in found["columns"]]
        for number, row in enumerate(found["rows"], 1):
            if not isinstance(row, list) or len(row) != len(columns):
                raise UserError(f"table {path}: row {number} is not a list of {len(columns)} cells, one a column")
        return [dict(zip(columns, row, strict=True)) for row in found["rows"]]
    if isinstance(found, list) and all(isinstance(row, dict) for row in found):
        return found
    raise UserError(f"table {path}: allowed: a list of objects, or an object with `columns` and `rows`")


def named(frame: pd.DataFrame, where: str, timed: bool = True) -> pd.DataFrame:
    """The frame with its columns under the names used here; the first of two that mean the same."""
    columns = [str(column) for column in frame.columns]
    names: dict[str, str] = {}
    for column in sorted(columns, key=lambda column: column not in NAMES):
        name = _name_of(column)
        names[column] = name if name not in names.values() else column
    names = {column: names[column] for column in columns}
    frame = frame.rename(columns=names)
    if "batch" in frame and not {"batch_size", "global_batch_size"} & {*frame.columns}:
        raise UserError(f"table {where}: column 'batch': name it batch_size (of a rank) or global_batch_size (of all)")
    frame.attrs["read"] = _as_read(names, frame)
    for needed in (("ranks", "nodes"), *([TIMES] if timed else [])):
        if not {*needed} & {*frame.columns}:
            close = _to_rename(needed, columns)
            raise UserError(f"table {where}: no column of {' or '.join(needed)}; it has {', '.join(names)}{close}")
    return frame


def _to_rename(needed: Sequence[str], columns: Sequence[str]) -> str:
    """A hint naming the column that may be one of those needed."""
    close = difflib.get_close_matches(needed[0], columns, n=1, cutoff=0.5)
    to = "step_s where it holds seconds, to step_ms where milliseconds" if needed == TIMES else needed[0]
    return f"; rename {close[0]} to {to}" if close else ""


def _name_of(column: str) -> str:
    """The name used here, or the column's own. `steps` and `steps/s` are no seconds, `step (s)` is."""
    of = {alias: name for name, aliases in NAMES.items() for alias in aliases}
    words = re.sub(r"[^a-z0-9]+", "_", column.lower()).strip("_")
    if words in SECONDS:
        return column if "/" in column else "step_s"
    return of.get(words.replace("_", ""), column)


def _as_read(names: Mapping[str, str], frame: pd.DataFrame) -> str:
    """Which columns were understood, and what the others are taken for."""
    known = [name if column == name else f"{name} ({column})" for column, name in names.items() if name in NAMES]
    others = [column for column, name in names.items() if name not in NAMES]
    apart = [column for column in others if _tells_apart(frame, column)]
    unused = [column for column in others if column not in apart]
    told = f"; rows that differ in {', '.join(apart)} are series of their own" if apart else ""
    told += f"; not used: {', '.join(unused)}" if unused else ""
    batch = {"batch_size", "global_batch_size", "microbatch", *RATES} & {*names.values()}
    return f"read: {', '.join(known)}{told}" + ("" if batch else "; no batch: one sample a rank and step is assumed")


def _numbers(column: "pd.Series[Any]", where: str, name: str) -> "pd.Series[float]":
    """The cells as float; empty cells as missing; in columns of flags words of logic as 1 and 0."""
    logic = {"true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0, "full": 1.0, "none": 0.0}
    words = {"": np.nan} | (logic if name in FLAGS else {})

    def cell(value: Any) -> Any:
        if value is None or isinstance(value, list | dict):
            return np.nan
        return words.get(str(value).strip().lower(), value)

    values = column.map(cell)
    numbers = pd.to_numeric(values, errors="coerce").astype("float64")
    wrong = numbers.isna() & (values.notna() | column.map(lambda value: isinstance(value, list | dict)))
    if wrong.any():
        line = int(np.flatnonzero(wrong)[0])
        given = column.iloc[line]
        looks = re.fullmatch(r"-?\d[\d.,' ]*", str(given).strip())
        hint = "; write 1234.5 for 1,234.5 and 0.5 for 0,5" if looks else ""
        raise UserError(f"{where}: {name} {given!r} in row {line + 1} is not a number{hint}")
    return numbers


def _check_column(column: "pd.Series[float]", where: str, name: str) -> None:
    """Refuse what a column cannot hold; missing cells pass."""
    if name in FLAGS:
        most = 3 if name == "zero" else 1
        valid, allowed = (column >= 0) & (column <= most), f"from 0 to {most}"
        if name == "zero":
            valid, allowed = valid & (column % 1 == 0), f"{allowed}, whole"
    elif name in COUNTS:
        valid, allowed = (column >= 1) & (column % 1 == 0), "a whole number, 1 or above"
    else:
        valid, allowed = column > 0, "a finite number above 0"
    wrong = column.notna() & ~(valid & np.isfinite(column))
    if wrong.any():
        line = int(np.flatnonzero(wrong)[0])
        raise UserError(f"{where}: {name} {column.iloc[line]:g} in row {line + 1} is not allowed; allowed: {allowed}")


def _check_filled(frame: pd.DataFrame, where: str) -> None:
    """Refuse empty cells where no default stands in for them, and where they are counted with."""
    shape = {*SHAPE, "num_heads"} - {"microbatch"}
    unused = ({*DEFAULTS} if has_layouts(frame) else {*DEFAULTS, *shape}) - {"tensor", "pipeline"}
    told = {*TIMES} & {*frame.columns}
    if told and told <= {"tokens_per_s", "tps_per_gpu"}:
        unused -= {"seq_len"}
    for name in [name for name in NAMES if name in frame and name not in unused]:
        if frame[name].isna().any():
            line = int(np.flatnonzero(frame[name].isna())[0])
            raise UserError(f"{where}: row {line + 1} has no {name}; every row needs one, or leave the column out")


def _seconds(frame: pd.DataFrame, where: str) -> "pd.Series[float]":
    """Seconds of a step by the first of TIMES that tells them: as given, or a step's samples over their rate.

    Raises:
        UserError: nothing tells them, or another of TIMES tells another step; rates do where the batch is known.
    """
    told = {name: frame[name] / unit for name, unit in (("step_s", 1.0), ("step_ms", 1e3)) if name in frame}
    columns = {*frame.columns}
    batch_known = {"batch_size", "global_batch_size"} & columns or {"microbatch", "num_microbatches"} <= columns
    tokens, ranks = frame.get("seq_len"), frame["ranks"]
    for name, of_sample in (("samples_per_s", 1.0), ("tokens_per_s", tokens), ("tps_per_gpu", tokens)):
        if name in frame and of_sample is not None and (batch_known or not told):
            rate = frame[name] * (ranks if name == "tps_per_gpu" else 1.0)
            told[name] = samples_per_step(frame) * of_sample / rate
    if not told:
        raise UserError(
            f"{where}: tokens_per_s or tps_per_gpu without a column of seq_len: a step's tokens are not known"
        )
    seconds = next(iter(told.values()))
    for name, other in told.items():
        wrong = (other / seconds - 1).abs() > DISAGREE
        if wrong.any():
            line = int(np.flatnonzero(wrong)[0])
            raise UserError(
                f"{where}: row {line + 1}: {name} {frame[name].iloc[line]:g} tells a step of {other.iloc[line]:.4g} s, "
                f"another column {seconds.iloc[line]:.4g} s; leave out the one that is not of these steps"
            )
    return seconds


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


def families(frame: pd.DataFrame) -> "pd.Series[int]":
    """A number for each layout: rows of one differ only in data-parallel ranks, the batch that follows, and results.

    What tells layouts apart: the columns of NAMES that do not follow the ranks, and columns of text.
    """
    kept = apart(frame)
    if not kept:
        return pd.Series(0, frame.index)
    return frame.groupby(kept, dropna=False, sort=False).ngroup()


def apart(frame: pd.DataFrame) -> list[str]:
    """The columns that tell layouts apart; other columns of numbers are results."""
    return [str(name) for name in frame.columns if name not in FOLLOWS_RANKS and _tells_apart(frame, str(name))]


def _tells_apart(frame: pd.DataFrame, name: str) -> bool:
    """Whether a column is one of NAMES or LABELS, or has a word, or true and false, in it."""
    column = frame[name]
    if name in NAMES or not column.map(_plain).all():
        return name in NAMES
    words = [value for value in column if isinstance(value, str) and value.strip()]
    numbers = pd.to_numeric(pd.Series(words, dtype=object), errors="coerce")
    return name.lower() in LABELS or bool(numbers.isna().any()) or any(isinstance(v, bool | np.bool_) for v in column)


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool | np.generic)


def words(frame: pd.DataFrame, row: int, among: Sequence[int]) -> str:
    """What tells a row's layout from others: columns that vary over `among`."""
    varying = [name for name in apart(frame) if frame[name].iloc[[*among]].nunique(dropna=False) > 1]
    cells = {name: frame[name].iloc[row] for name in varying}
    return " ".join(f"{name} {value:g}" if isinstance(value, float) else f"{value}" for name, value in cells.items())
