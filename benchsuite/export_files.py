"""Results written for other programs: chosen, converted, and put where they are asked for."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from benchsuite.damage import warn_of_damage
from benchsuite.errors import UserError, refuse
from benchsuite.options import ComparedKind, RecordKind
from benchsuite.scaling_verb import matches as matches
from benchsuite.terminal import document, echo
from results import baseline
from results.export import junit as junit_xml
from results.export import latex as latex_tables
from results.export import methods as paragraph
from results.export import prometheus as textfile
from results.export import tables
from results.frames import by_point
from results.record import Figures
from results.replacing import write_whole
from results.report.tables import rows
from results.store import ResultsStore


def csv(store: Path, out: Path | None, where: Sequence[str], by: str, kind: RecordKind) -> None:
    """Every column as CSV."""
    _write(tables.csv_text(_grouped(store, where, by, kind)), out)


def parquet(store: Path, out: Path, where: Sequence[str], by: str, kind: RecordKind) -> None:
    """Every column as Parquet."""
    tables.write_parquet(_grouped(store, where, by, kind), out)
    _told(out)


def junit(store: Path, out: Path | None, where: Sequence[str], check: bool, kind: RecordKind) -> None:
    """Trials, or records of another kind, and what the gate finds where that is asked for, as JUnit XML."""
    if check and kind.value not in list(ComparedKind):
        raise UserError(f"--check --kind {kind.value}: allowed with --check: {', '.join(ComparedKind)}")
    trials = rows(_chosen(store, where, kind))
    _write(junit_xml.junit(trials, _checked(store, kind) if check else None), out)


def _checked(store: Path, kind: RecordKind) -> baseline.Check:
    """What the gate finds; where it has nothing to judge, that and why."""
    try:
        return baseline.check(ResultsStore(store), kind.value)
    except baseline.NothingToCheckError as error:
        return baseline.nothing(str(error))


def prometheus(store: Path, out: Path | None, where: Sequence[str]) -> None:
    """The newest session of every point as Prometheus text."""
    text = textfile.prometheus(rows(_chosen(store, where)))
    if out is None:
        document(text.removesuffix("\n"))
    else:
        _told(textfile.write_textfile(text, out))


def latex(store: Path, out: Path | None, where: Sequence[str]) -> None:
    """Tables of points as LaTeX."""
    _write(latex_tables.point_tables(_chosen(store, where)) + "\n", out)


def methods(store: Path, out: Path | None, where: Sequence[str], latex: bool) -> None:
    """The methods paragraph."""
    trials = rows(_chosen(store, where))
    _write((paragraph.methods_latex if latex else paragraph.methods)(trials) + "\n", out)


def _chosen(store: Path, where: Sequence[str], kind: RecordKind = RecordKind.trial) -> pd.DataFrame:
    """The records of a kind that all filters let through.

    Raises:
        UserError: a filter is wrong, or there are none.
    """
    opened = ResultsStore(store)
    found = opened.frame(kind=kind.value)
    if found.empty:
        kinds = ", ".join(RecordKind)
        raise UserError(f"store {store}: no record of kind {kind.value} to export; allowed: {kinds}")
    for text in where:
        found = found[matches(found, text)]
    warn_of_damage(opened)
    return found


def _grouped(store: Path, where: Sequence[str], by: str, kind: RecordKind) -> pd.DataFrame:
    if by not in ("trial", "point"):
        raise refuse("--by", by, ("trial", "point"))
    found = _chosen(store, where, kind)
    return found if by == "trial" else by_point(found, list(Figures.model_fields))


def _write(text: str, out: Path | None) -> None:
    """To a file, or to standard output."""
    if out is None:
        document(text.removesuffix("\n"))
        return
    write_whole(out, text)
    _told(out)


def _told(out: Path) -> None:
    echo(f"exported: {out}", err=True)
