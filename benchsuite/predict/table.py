"""Tables of measured steps that users bring, CSV or JSON: their columns by many names, as numbers.

`table_series` reads series of ranks with it; the planner reads layouts.
"""

import csv
import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, RootModel

from benchsuite.contract.errors import UserError

TIMES = ("step_s", "step_ms", "samples_per_s", "tokens_per_s", "tps_per_gpu")


def also(names: str, default: Any = None) -> Any:
    """A column that has other names too, without signs and in small letters; in the schema as `also`."""
    return Field(default, json_schema_extra={"also": [*names.split()]})


class TableRow(BaseModel):
    """One measurement: a row of a CSV with a header, or an object of a JSON list.

    `also`: other names that a column may have, whatever its capitals and signs: GPUs, ms/step, TP. Columns of text
    beside these tell series apart; other numbers are not used. A series is strong scaling where the batch of all ranks
    stays, weak scaling where that of a rank does.
    """

    model_config = ConfigDict(
        extra="allow",
        use_attribute_docstrings=True,
        json_schema_extra={
            "anyOf": [{"required": [name]} for name in TIMES],
            "allOf": [{"anyOf": [{"required": [name]} for name in ("ranks", "nodes")]}],
        },
    )

    ranks: PositiveInt | None = also("ranks gpus numgpus ngpus worldsize devices numdevices accelerators nacc")
    """Devices in all; without it nodes x ranks_per_node."""
    nodes: PositiveInt | None = also("nodes numnodes nnodes hosts")
    """Nodes, in place of ranks."""
    step_s: PositiveFloat | None = also("steptimes iterationtimes seconds stepsmean secondsperstep sstep")
    """Seconds of a step."""
    step_ms: PositiveFloat | None = also("stepms steptimems iterationtimems iterationms msperstep msstep")
    """Milliseconds of a step."""
    samples_per_s: PositiveFloat | None = also(
        "samplespers samplespersec samplespersecond sampless throughput imagespers imagess"
    )
    """Samples a second of all ranks; with a batch it tells the step."""
    tokens_per_s: PositiveFloat | None = also("tokenspers tokenspersec tokenspersecond tokenss throughputtokens")
    """Tokens a second of all ranks; needs seq_len."""
    tps_per_gpu: PositiveFloat | None = also("tpspergpu tpsgpu tokenspersgpu tokenspersecondpergpu tokenssgpu")
    """Tokens a second of one device; needs seq_len."""
    global_batch_size: PositiveInt | None = also("globalbatch globalbatchsize totalbatch")
    """Samples a step of all ranks."""
    batch_size: PositiveFloat | None = also("batchsize batchperrank localbatch")
    """Samples a step of one data-parallel rank."""
    microbatch: PositiveInt | None = also("microbatch microbatchsize mbs")
    """Samples; times num_microbatches the batch of a data-parallel rank, where no other column tells that."""
    num_microbatches: PositiveInt | None = also("nummicrobatches microbatches gradaccum gradientaccumulation")
    """Microbatches a step, of a data-parallel rank; default: 1."""
    seq_len: PositiveInt | None = also("seqlen seq sequencelength contextlength")
    """Tokens a sample."""
    tensor: PositiveInt | None = also("tensor tp tensorparallel tensorparallelism")
    """Tensor-parallel ranks; default: 1."""
    pipeline: PositiveInt | None = also("pipeline pp pipelineparallel pipelineparallelism")
    """Pipeline stages; default: 1."""
    data: PositiveInt | None = also("data dp dataparallel dataparallelism")
    """Data-parallel ranks; default: ranks / tensor / pipeline."""
    ranks_per_node: PositiveInt | None = also("rankspernode gpuspernode devicespernode")
    """Devices of a node; default: 8."""


class TableColumns(BaseModel):
    """The rows of a table as a header and lists of cells, one a column."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)

    columns: list[str]
    """Names of columns, those of TableRow or what they may also be called."""
    rows: list[list[float | bool | str | None]]


class Table(RootModel[list[TableRow] | TableColumns]):
    """A table of ranks and times for `benchsuite predict --table`, as JSON; a CSV has the same columns."""


@dataclass(frozen=True)
class Column:
    """What a column may be called and hold."""

    also: Sequence[str]
    is_whole: bool
    most: float | None
    """With it the column holds 0 to this, and words of LOGIC; None: anything above 0."""

    @property
    def allowed(self) -> str:
        """What cells may be, in words."""
        if self.most is None:
            return "a whole number, 1 or above" if self.is_whole else "a finite number above 0"
        return f"from 0 to {self.most:g}{', whole' if self.is_whole else ''}"

    def is_allowed(self, numbers: "pd.Series[float]") -> "pd.Series[bool]":
        """Whether each cell is allowed; a missing one is not."""
        within = numbers > 0 if self.most is None else (numbers >= 0) & (numbers <= self.most)
        if self.is_whole:
            within &= numbers % 1 == 0
        return within & np.isfinite(numbers)


def columns_of(row: type[TableRow]) -> Mapping[str, Column]:
    """The columns that such rows may have, by their JSON Schema."""
    found = {}
    for name, told in row.model_json_schema()["properties"].items():
        bounds = told["anyOf"][0]
        found[name] = Column(told["also"], bounds["type"] == "integer", bounds.get("maximum"))
    return found


COLUMNS = columns_of(TableRow)


@dataclass(frozen=True)
class TableKind:
    """What the rows of a table tell of, and by which columns."""

    of: str
    """What rows that differ in more than ranks are of: series, or layouts."""
    columns: Mapping[str, Column]
    batch: frozenset[str]
    """Each of these columns tells how many samples a step has."""
    defaulted: frozenset[str] = frozenset()
    """Columns whose cells may be empty."""

    def name_of(self, column: str) -> str:
        """The name used here, or the column's own. `steps` and `steps/s` are no seconds, `step (s)` is."""
        if re.sub(r"[^a-z0-9]+", "_", column.lower()).strip("_") in SECONDS:
            return column if "/" in column else "step_s"
        names = {other: name for name, known in self.columns.items() for other in known.also}
        return names.get(plain_words(column), column)


SECONDS = ("step_s", "iteration_s")
"""Names of columns of seconds, with a `_` for signs: without it they could be counts of steps."""
SHAPE = {"hidden_size": ("hiddensize", "hidden", "dmodel"), "num_layers": ("numlayers", "layers")}
"""Columns of a model's shape, and what they may also be called."""
LABELS = {
    *("model", "name", "config", "configuration", "layout", "machine", "version"),
    *("heads", "numheads", "attentionheads", "vocab", "vocabsize", "vocabulary", "zero", "zerostage"),
    *("flash", "flashattention", "recompute", "actckpt", "activationcheckpointing"),
    *(name for names in SHAPE.values() for name in names),
}
"""Columns that tell rows apart though numbers stand in them, in small letters without signs."""
LOGIC = {"true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0, "full": 1.0, "none": 0.0}
DISAGREE = 0.05
"""Two times of one row differ by more than rounding from this share on."""
ROUND_SAMPLES = 2
"""Decimals of samples per step that rates and times, as printed, leave."""
RANKS_PER_NODE = 8
FOLLOWS_RANKS = frozenset({"ranks", "nodes", "data", "global_batch_size", "num_microbatches", *TIMES})
"""What may differ between rows of one series or layout at several scales."""


def rows_of(path: Path) -> pd.DataFrame:
    """The rows of a file as they stand.

    CSV with a header, commas, semicolons or tabs between; JSON: a list of objects, or an object with `columns` and
    `rows`; JSONL: an object a line.

    Raises:
        UserError: no such file, no table, or no rows.
    """
    if not path.is_file():
        raise UserError(f"table {path}: no such file; give a CSV or JSON file of ranks and times")
    found = _json_rows(path) if path.suffix.lower() in (".json", ".jsonl") else _csv_rows(path)
    if not found:
        raise UserError(f"table {path}: no rows")
    return pd.DataFrame(found)


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


def named(rows: pd.DataFrame, where: str, kind: TableKind, timed: bool = True) -> pd.DataFrame:
    """The rows with their columns under the names used here; the first of two that mean the same.

    Not `timed`: rows to be predicted, which need no times; those they have are left out.

    Raises:
        UserError: no column of ranks or of times, or a batch of whom nothing says.
    """
    columns = [str(column) for column in rows.columns]
    names: dict[str, str] = {}
    for column in sorted(columns, key=lambda column: column not in kind.columns):
        name = kind.name_of(column)
        names[column] = name if name not in names.values() else column
    names = {column: names[column] for column in columns}
    frame = rows.rename(columns=names)
    if "batch" in frame and not {"batch_size", "global_batch_size"} & {*frame.columns}:
        raise UserError(f"{where}: column 'batch': name it batch_size (of a rank) or global_batch_size (of all)")
    frame.attrs["read"] = _as_read(names, frame, kind)
    for needed in (("ranks", "nodes"), *([TIMES] if timed else [])):
        if not {*needed} & {*frame.columns}:
            close = _to_rename(needed, columns)
            raise UserError(f"{where}: no column of {' or '.join(needed)}; it has {', '.join(names)}{close}")
    return frame if timed else frame.drop(columns=frame.columns.intersection([*TIMES]))


def _to_rename(needed: Sequence[str], columns: Sequence[str]) -> str:
    """A hint naming the column that may be one of those needed."""
    close = difflib.get_close_matches(needed[0], columns, n=1, cutoff=0.5)
    to = "step_s where it holds seconds, to step_ms where milliseconds" if needed == TIMES else needed[0]
    return f"; rename {close[0]} to {to}" if close else ""


def plain_words(column: object) -> str:
    """A column's name in small letters, without signs."""
    return re.sub(r"[^a-z0-9]+", "", str(column).lower())


def _as_read(names: Mapping[str, str], frame: pd.DataFrame, kind: TableKind) -> str:
    """Which columns were understood, and what the others are taken for."""
    known = [name if column == name else f"{name} ({column})" for column, name in names.items() if name in kind.columns]
    others = [column for column, name in names.items() if name not in kind.columns]
    apart = [column for column in others if _tells_apart(frame, column)]
    unused = [column for column in others if column not in apart]
    told = f"; rows that differ in {', '.join(apart)} are {kind.of} of their own" if apart else ""
    told += f"; not used: {', '.join(unused)}" if unused else ""
    return f"read: {', '.join(known)}{told}"


def as_numbers(frame: pd.DataFrame, where: str, kind: TableKind) -> pd.DataFrame:
    """The rows of `named` with known columns as numbers, with `ranks`, and with `step_s` where they have times.

    Raises:
        UserError: a cell that is missing, no number or out of range, or two times of a row that disagree.
    """
    for name in frame.columns.intersection([*kind.columns]):
        frame[name] = _numbers(frame[name], where, name, kind.columns[name])
    if "ranks" not in frame:
        frame["ranks"] = frame["nodes"] * frame.get("ranks_per_node", float(RANKS_PER_NODE))
    _check_filled(frame, where, kind)
    if {*TIMES} & {*frame.columns}:
        frame["step_s"] = _seconds(frame, where, kind)
    return frame


def _numbers(cells: "pd.Series[Any]", where: str, name: str, column: Column) -> "pd.Series[float]":
    """The cells as float, empty ones as missing; refuses what the column cannot hold."""
    words = {"": np.nan} | (LOGIC if column.most is not None else {})

    def value(cell: Any) -> Any:
        if cell is None or isinstance(cell, list | dict):
            return np.nan
        return words.get(str(cell).strip().lower(), cell)

    values = cells.map(value)
    numbers = pd.to_numeric(values, errors="coerce").astype("float64")
    wrong = numbers.isna() & (values.notna() | cells.map(lambda cell: isinstance(cell, list | dict)))
    if wrong.any():
        place = _first(wrong)
        given = cells.iloc[place]
        looks = re.fullmatch(r"-?\d[\d.,' ]*", str(given).strip())
        hint = "; write 1234.5 for 1,234.5 and 0.5 for 0,5" if looks else ""
        raise UserError(f"{where}: {name} {given!r} in row {place + 1} is not a number{hint}")
    wrong = numbers.notna() & ~column.is_allowed(numbers)
    if wrong.any():
        given, row = numbers.iloc[_first(wrong)], _first(wrong) + 1
        raise UserError(f"{where}: {name} {given:g} in row {row} is not allowed; allowed: {column.allowed}")
    return numbers


def _first(wrong: "pd.Series[bool]") -> int:
    """The place of the first row of which something holds."""
    return int(np.flatnonzero(wrong)[0])


def _check_filled(frame: pd.DataFrame, where: str, kind: TableKind) -> None:
    """Refuse empty cells of known columns where no default stands in for them."""
    for name in [name for name in kind.columns if name in frame and name not in kind.defaulted]:
        if frame[name].isna().any():
            row = _first(frame[name].isna()) + 1
            raise UserError(f"{where}: row {row} has no {name}; every row needs one, or leave the column out")


def _seconds(frame: pd.DataFrame, where: str, kind: TableKind) -> "pd.Series[float]":
    """Seconds of a step by the first of TIMES that tells them: as given, or a step's samples over their rate.

    Raises:
        UserError: nothing tells them, or another of TIMES tells another step; rates do where the batch is known.
    """
    told = {name: frame[name] / unit for name, unit in (("step_s", 1.0), ("step_ms", 1e3)) if name in frame}
    batch_known = kind.batch & {*frame.columns}
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
            place = _first(wrong)
            raise UserError(
                f"{where}: row {place + 1}: {name} {frame[name].iloc[place]:g} tells a step of {other.iloc[place]:.4g} "
                f"s, another column {seconds.iloc[place]:.4g} s; leave out the one that is not of these steps"
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


def families(frame: pd.DataFrame) -> "pd.Series[int]":
    """A number for each series or layout: its rows differ only in data-parallel ranks, the batch that follows, results.

    What tells them apart: known columns that do not follow the ranks, and columns of text.
    """
    return grouped_by(frame, apart(frame))


def grouped_by(frame: pd.DataFrame, columns: Sequence[str]) -> "pd.Series[int]":
    """A number for each set of rows that are alike in these columns."""
    if not columns:
        return pd.Series(0, frame.index)
    return frame.groupby([*columns], dropna=False, sort=False).ngroup()


def apart(frame: pd.DataFrame) -> list[str]:
    """The columns that tell series or layouts apart; other columns of numbers are results."""
    return [str(name) for name in frame.columns if name not in FOLLOWS_RANKS and _tells_apart(frame, str(name))]


def _tells_apart(frame: pd.DataFrame, name: str) -> bool:
    """Whether a column is one of COLUMNS or LABELS, or has a word, or true and false, in it."""
    column = frame[name]
    if name in COLUMNS or not column.map(_plain).all():
        return name in COLUMNS
    words = [value for value in column if isinstance(value, str) and value.strip()]
    numbers = pd.to_numeric(pd.Series(words, dtype=object), errors="coerce")
    return (
        plain_words(name) in LABELS or bool(numbers.isna().any()) or any(isinstance(v, bool | np.bool_) for v in column)
    )


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool | np.generic)


def words(frame: pd.DataFrame, row: int, among: Sequence[int]) -> str:
    """What tells a row's series or layout from others: columns that vary over `among`."""
    varying = [name for name in apart(frame) if frame[name].iloc[[*among]].nunique(dropna=False) > 1]
    cells = {name: frame[name].iloc[row] for name in varying}
    return " ".join(f"{name} {value:g}" if isinstance(value, float) else f"{value}" for name, value in cells.items())
