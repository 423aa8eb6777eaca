"""The series in a table of ranks and times."""

from pathlib import Path

import pandas as pd

from benchsuite.contract.errors import UserError
from benchsuite.predict import table
from benchsuite.predict.curve import MIN_SCALES, Curve, Kind, Point
from benchsuite.predict.table import (
    DISAGREE,
    FOLLOWS_RANKS,
    RANKS_PER_NODE,
    SHAPE,
    TIMES,
    data_ranks,
    families,
    plain_words,
    samples_per_step,
    words,
)

SERIES = table.TableKind("series", table.COLUMNS, batch=frozenset({"batch_size", "global_batch_size", "microbatch"}))
RATES = TIMES[2:]


def read(path: Path) -> pd.DataFrame:
    """A table with the columns of TableRow that it has, as numbers, and its other columns as they are; with `step_s`.

    Raises:
        UserError: no such file, no table, no column of ranks or of times, a cell that is missing, no number or out of
            range, two times of a row that disagree, or a table of layouts.
    """
    where, rows = f"table {path}", table.rows_of(path)
    _refuse_layouts(rows, path)
    frame = table.named(rows, where, SERIES)
    frame.attrs["read"] += _assumed(frame)
    return table.as_numbers(frame, where, SERIES)


def _refuse_layouts(rows: pd.DataFrame, path: Path) -> None:
    """A table of layouts is the planner's."""
    names = {SERIES.name_of(str(column)) for column in rows}
    plain = {plain_words(column) for column in rows}
    if {"seq_len", "microbatch"} <= names and all(plain & {*also} for also in SHAPE.values()):
        raise UserError(
            f"table {path}: it tells layouts (hidden_size, num_layers, seq_len, microbatch): `benchsuite plan table "
            f"{path}` of the distribution benchsuite-plan predicts those; leave one of these columns out for a series"
        )


def _assumed(frame: pd.DataFrame) -> str:
    """What is taken for columns that the table does not have."""
    columns = {*frame.columns}
    told = "" if {*SERIES.batch, *RATES} & columns else "; no batch: one sample a rank and step is assumed"
    return told + ("" if {"ranks", "ranks_per_node"} & columns else f"; {RANKS_PER_NODE} ranks a node are assumed")


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
