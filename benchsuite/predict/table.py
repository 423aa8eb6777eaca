"""Tables of ranks and times that users bring, CSV or JSON, and the series in them."""

import csv
import difflib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, RootModel

from benchsuite.contract.errors import UserError
from benchsuite.predict.curve import MIN_SCALES, Curve, Kind, Point

TIMES = ("step_s", "step_ms", "samples_per_s", "tokens_per_s", "tps_per_gpu")


def _also(names: str, default: Any = None) -> Any:
    """A column that has other names too, without signs and in small letters; in the schema as `also`."""
    return Field(default, json_schema_extra={"also": [*names.split()]})


class TableRow(BaseModel):
    """One measurement: a row of a CSV with a header, or an object of a JSON list.

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
    """Samples; times num_microbatches the batch of a data-parallel rank, where no other column tells that."""
    num_microbatches: PositiveInt | None = _also("nummicrobatches microbatches gradaccum gradientaccumulation")
    """Microbatches a step, of a data-parallel rank; default: 1."""
    seq_len: PositiveInt | None = _also("seqlen seq sequencelength contextlength")
    """Tokens a sample."""
    tensor: PositiveInt | None = _also("tensor tp tensorparallel tensorparallelism")
    """Tensor-parallel ranks; default: 1."""
    pipeline: PositiveInt | None = _also("pipeline pp pipelineparallel pipelineparallelism")
    """Pipeline stages; default: 1."""
    data: PositiveInt | None = _also("data dp dataparallel dataparallelism")
    """Data-parallel ranks; default: ranks / tensor / pipeline."""
    ranks_per_node: PositiveInt | None = _also("rankspernode gpuspernode devicespernode")
    """Default: 8, where nodes stand in place of ranks."""


NAMES: Mapping[str, Sequence[str]] = {
    name: column["also"] for name, column in TableRow.model_json_schema()["properties"].items()
}
"""Columns and what they may also be called."""
COUNTS = frozenset({*NAMES} - {*TIMES, "batch_size"})
"""Columns of whole numbers."""
RATES = ("samples_per_s", "tokens_per_s", "tps_per_gpu")


class TableColumns(BaseModel):
    """The rows of a table as a header and lists of cells, one a column."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)

    columns: list[str]
    """Names of columns, those of TableRow or what they may also be called."""
    rows: list[list[float | bool | str | None]]


class Table(RootModel[list[TableRow] | TableColumns]):
    """A table of ranks and times for `benchsuite predict --table`, as JSON; a CSV has the same columns."""


SECONDS = ("step_s", "iteration_s")
"""Names of columns of seconds, with a `_` for signs: without it they could be counts of steps."""
SHAPE = {"hidden_size": ("hiddensize", "hidden", "dmodel"), "num_layers": ("numlayers", "layers")}
"""Columns of a model's shape, and what they may also be called."""
LABELS = {
    *(
        "model",
        "name",
        "config",
        "configuration",
        "layout",
        "machine",
        "version",
        "heads",
        "numheads",
        "attentionheads",
    ),
    *("vocab", "vocabsize", "zero", "zerostage", "recompute", "actckpt", "activationcheckpointing", "flash"),
    *("flashattention", *SHAPE["hidden_size"], *SHAPE["num_layers"]),
}
"""Columns that tell series apart though numbers stand in them, in small letters without signs."""
DISAGREE = 0.05
"""Two times of one row differ by more than rounding from this share on."""
ROUND_SAMPLES = 2
"""Decimals of samples per step that rates and times, as printed, leave."""
RANKS_PER_NODE = 8.0
FOLLOWS_RANKS = frozenset({"ranks", "nodes", "data", "global_batch_size", "num_microbatches", *TIMES})
"""What may differ between rows of one series at several scales."""


def read(path: Path) -> pd.DataFrame:
    """A table with the columns of NAMES that it has, as numbers, and its other columns as they are; with `step_s`.

    CSV with a header, commas, semicolons or tabs between; JSON: a list of objects, or an object with `columns` and
    `rows`; JSONL: an object a line. `TableRow` says what columns hold.

    Raises:
        UserError: no such file, no table, no column of ranks or of times, a cell that is missing, no number or out of
            range, two times of a row that disagree, or a table of layouts.
    """
    if not path.is_file():
        raise UserError(f"table {path}: no such file; give a CSV or JSON file of ranks and times")
    found = _json_rows(path) if path.suffix.lower() in (".json", ".jsonl") else _csv_rows(path)
    if not found:
        raise UserError(f"table {path}: no rows")
    frame = named(pd.DataFrame(found), str(path))
    for name in frame.columns.intersection([*NAMES]):
        frame[name] = _numbers(frame[name], f"table {path}", name)
        _check_column(frame[name], f"table {path}", name)
    if "ranks" not in frame:
        frame["ranks"] = frame["nodes"] * frame.get("ranks_per_node", RANKS_PER_NODE)
    _check_filled(frame, f"table {path}")
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


def named(frame: pd.DataFrame, where: str) -> pd.DataFrame:
    """The frame with its columns under the names used here; the first of two that mean the same."""
    columns = [str(column) for column in frame.columns]
    names: dict[str, str] = {}
    for column in sorted(columns, key=lambda column: column not in NAMES):
        name = _name_of(column)
        names[column] = name if name not in names.values() else column
    names = {column: names[column] for column in columns}
    frame = frame.rename(columns=names)
    _refuse_layouts(frame, where)
    if "batch" in frame and not {"batch_size", "global_batch_size"} & {*frame.columns}:
        raise UserError(f"table {where}: column 'batch': name it batch_size (of a rank) or global_batch_size (of all)")
    frame.attrs["read"] = _as_read(names, frame)
    for needed in (("ranks", "nodes"), TIMES):
        if not {*needed} & {*frame.columns}:
            close = _to_rename(needed, columns)
            raise UserError(f"table {where}: no column of {' or '.join(needed)}; it has {', '.join(names)}{close}")
    return frame


def _refuse_layouts(frame: pd.DataFrame, where: str) -> None:
    """A table of layouts is the planner's."""
    words = {_plain_words(column) for column in frame}
    if {"seq_len", "microbatch"} <= {*frame.columns} and all(words & {*also} for also in SHAPE.values()):
        raise UserError(
            f"table {where}: it tells layouts (hidden_size, num_layers, seq_len, microbatch): `benchsuite plan table "
            f"{where}` of the distribution benchsuite-plan predicts those; leave one of these columns out for a series"
        )


def _to_rename(needed: Sequence[str], columns: Sequence[str]) -> str:
    """A hint naming the column that may be one of those needed."""
    close = difflib.get_close_matches(needed[0], columns, n=1, cutoff=0.5)
    to = "step_s where it holds seconds, to step_ms where milliseconds" if needed == TIMES else needed[0]
    return f"; rename {close[0]} to {to}" if close else ""


def _name_of(column: str) -> str:
    """The name used here, or the column's own. `steps` and `steps/s` are no seconds, `step (s)` is."""
    of = {alias: name for name, aliases in NAMES.items() for alias in aliases}
    if re.sub(r"[^a-z0-9]+", "_", column.lower()).strip("_") in SECONDS:
        return column if "/" in column else "step_s"
    return of.get(_plain_words(column), column)


def _plain_words(column: object) -> str:
    """A column's name in small letters, without signs."""
    return re.sub(r"[^a-z0-9]+", "", str(column).lower())


def _as_read(names: Mapping[str, str], frame: pd.DataFrame) -> str:
    """Which columns were understood, and what the others are taken for."""
    known = [name if column == name else f"{name} ({column})" for column, name in names.items() if name in NAMES]
    others = [column for column, name in names.items() if name not in NAMES]
    apart = [column for column in others if _tells_apart(frame, column)]
    unused = [column for column in others if column not in apart]
    told = f"; rows that differ in {', '.join(apart)} are series of their own" if apart else ""
    told += f"; not used: {', '.join(unused)}" if unused else ""
    batch = {"batch_size", "global_batch_size", "microbatch", *RATES} & {*names.values()}
    told += "" if batch else "; no batch: one sample a rank and step is assumed"
    told += "" if {"ranks", "ranks_per_node"} & {*names.values()} else f"; {RANKS_PER_NODE:g} ranks a node are assumed"
    return f"read: {', '.join(known)}{told}"


def _numbers(column: "pd.Series[Any]", where: str, name: str) -> "pd.Series[float]":
    """The cells as float; empty cells as missing."""

    def cell(value: Any) -> Any:
        return np.nan if value is None or isinstance(value, list | dict) or not str(value).strip() else value

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
    if name in COUNTS:
        valid, allowed = (column >= 1) & (column % 1 == 0), "a whole number, 1 or above"
    else:
        valid, allowed = column > 0, "a finite number above 0"
    wrong = column.notna() & ~(valid & np.isfinite(column))
    if wrong.any():
        line = int(np.flatnonzero(wrong)[0])
        raise UserError(f"{where}: {name} {column.iloc[line]:g} in row {line + 1} is not allowed; allowed: {allowed}")


def _check_filled(frame: pd.DataFrame, where: str) -> None:
    """Refuse empty cells of known columns."""
    for name in [name for name in NAMES if name in frame]:
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
    batch_known = {"batch_size", "global_batch_size", "microbatch"} & columns
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


def families(frame: pd.DataFrame) -> "pd.Series[int]":
    """A number for each set of rows that differ only in data-parallel ranks, the batch that follows, and results.

    What tells them apart: the columns of NAMES that do not follow the ranks, and columns of text.
    """
    kept = apart(frame)
    if not kept:
        return pd.Series(0, frame.index)
    return frame.groupby(kept, dropna=False, sort=False).ngroup()


def apart(frame: pd.DataFrame) -> list[str]:
    """The columns that tell series apart; other columns of numbers are results."""
    return [str(name) for name in frame.columns if name not in FOLLOWS_RANKS and _tells_apart(frame, str(name))]


def _tells_apart(frame: pd.DataFrame, name: str) -> bool:
    """Whether a column is one of NAMES or LABELS, or has a word, or true and false, in it."""
    column = frame[name]
    if name in NAMES or not column.map(_plain).all():
        return name in NAMES
    words = [value for value in column if isinstance(value, str) and value.strip()]
    numbers = pd.to_numeric(pd.Series(words, dtype=object), errors="coerce")
    return (
        _plain_words(name) in LABELS
        or bool(numbers.isna().any())
        or any(isinstance(v, bool | np.bool_) for v in column)
    )


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool | np.generic)


def words(frame: pd.DataFrame, row: int, among: Sequence[int]) -> str:
    """What tells a row's series from others: columns that vary over `among`."""
    varying = [name for name in apart(frame) if frame[name].iloc[[*among]].nunique(dropna=False) > 1]
    cells = {name: frame[name].iloc[row] for name in varying}
    return " ".join(f"{name} {value:g}" if isinstance(value, float) else f"{value}" for name, value in cells.items())


def curves(frame: pd.DataFrame, name: str) -> list[Curve]:
    """A curve for each set of rows that differ in ranks and the batch that follows; strong where that of all stays."""
    kept = frame.assign(samples=samples_per_step(frame), data_ranks=data_ranks(frame)).reset_index(drop=True)
    alike = [kept.loc[rows.index] for _, rows in kept.groupby(families(frame).to_numpy())]
    return [_curve(kept, *part, name) for rows in alike for part in _of_one_batch(rows)]


def _of_one_batch(rows: pd.DataFrame) -> list[tuple[pd.DataFrame, str]]:
    """Rows by their batch, of all ranks or of each, which is told where some differ.

    Those with neither like another scale's are alone: they predict nothing.
    """
    per_rank = rows["samples"] / rows["data_ranks"]
    if rows["samples"].nunique() == 1 or per_rank.max() <= (1 + DISAGREE) * per_rank.min():
        return [(rows, "")]
    batches = {"in all": rows["samples"], "per rank": per_rank}
    found = [
        (part, f"· {batch:g} {of}")
        for of, by in batches.items()
        for batch, part in rows.groupby(by)
        if part["ranks"].nunique() >= MIN_SCALES
    ]
    alone = rows.drop(index=[place for part, _ in found for place in part.index], errors="ignore")
    return [*found, *((part, f"· {batch:g} in all") for batch, part in alone.groupby("samples"))]


def _curve(frame: pd.DataFrame, rows: pd.DataFrame, batch: str, name: str) -> Curve:
    told = frame.drop(columns=["samples", "data_ranks"])
    strong = rows["ranks"].nunique() > 1 and rows["samples"].nunique() == 1
    by_ranks = rows.groupby(rows["ranks"].astype(int))["step_s"].agg(tuple)
    points = tuple(Point(ranks, seconds) for ranks, seconds in zip(by_ranks.index.tolist(), by_ranks, strict=True))
    share = float((rows["data_ranks"] / rows["ranks"]).iloc[-1])
    per_rank = float((rows["samples"] / rows["data_ranks"]).iloc[0])
    others = [column for column in told if column not in FOLLOWS_RANKS]
    title = words(told, int(rows.index[0]), range(len(told))) if others else ""
    kind: Kind = "strong" if strong else "weak"
    whole = " ".join(filter(None, (name, title, batch)))
    return Curve(whole, kind, float(rows["samples"].iloc[0]) if strong else per_rank, points, share)
