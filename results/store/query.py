"""Segments and Parquet as one table in DuckDB: the last attempt of every trial, a column per field."""

import difflib
import re
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from benchsuite.results.store.columns import (
    SHOWN,
    SQL_TYPES,
    Batch,
    check_columns,
    contract,
    literal,
    plain,
    quoted,
    selected,
    unified,
)
from benchsuite.results.store.manifest import PARQUET, DamagedPartsError, Part
from benchsuite.results.store.place import StoreError
from benchsuite.results.store.record import Kind, TrialFigures, TrialRecord
from benchsuite.results.store.segments import OFFSET, SEGMENT
from benchsuite.results.store.snapshot import Snapshot

if TYPE_CHECKING:
    import pandas as pd

TAIL, EARLIER, ALL, LAST = "tail_records", "earlier_attempts", "all_records", "last_attempts"
PLACE = f"{SEGMENT}, {OFFSET}"
ATTEMPT = f"kind, trial_id, finished_at, {PLACE}"
WHEN = f"{{'finished_at': finished_at, 'segment': {SEGMENT}, 'line': {OFFSET}}}"
EARLIER_WITH_TAIL = f"""
    SELECT {ATTEMPT} FROM compacted_earlier UNION ALL FROM (
        SELECT {ATTEMPT} FROM (
            SELECT {ATTEMPT} FROM compacted SEMI JOIN {TAIL} USING (kind, trial_id)
                ANTI JOIN compacted_earlier USING ({PLACE})
            UNION ALL SELECT {ATTEMPT} FROM {TAIL})
        QUALIFY row_number() OVER (PARTITION BY trial_id
            ORDER BY finished_at DESC, {SEGMENT} DESC, {OFFSET} DESC) > 1)"""
"""Records that a later attempt replaces; in the parts alone they are known already."""
FIRST_SEEN = f"""
    LEFT JOIN (SELECT trial_id, min({WHEN}) AS first_seen FROM {EARLIER} GROUP BY trial_id) USING (trial_id)
    ORDER BY coalesce(first_seen, {WHEN})"""
"""Trials in the order in which they were first seen, which an earlier attempt may have settled."""
QUERIES = {duckdb.StatementType.SELECT, duckdb.StatementType.MULTI}
"""Statements that change nothing; a PIVOT counts as several."""
INTERRUPTS_APART_S = 0.2
UNKNOWN = re.compile(
    r"Referenced column \"(?P<column>[^\"]+)\" not found"
    r"|(?:Referenced table|does not have a column named) \"(?P<part>[^\"]+)\""
)


OF_THE_QUERY = (
    duckdb.ParserException,
    duckdb.BinderException,
    duckdb.CatalogException,
    duckdb.ConversionException,
    duckdb.OutOfRangeException,
    duckdb.OutOfMemoryException,
    duckdb.InterruptException,
    duckdb.PermissionException,
)
"""Errors that no damage to a part can be behind; after any other the store is read again from its segments alone."""


@dataclass(frozen=True)
class Limits:
    """What a query may take."""

    seconds: float = 60.0
    memory_mb: int = 2000
    """The most that DuckDB says it holds; the process may take twice as much, as for lists, which it does not count."""
    threads: int = 4
    num_rows: int = 100_000


@dataclass(frozen=True)
class Table:
    """The last attempts of one kind, open for queries that can reach nothing else; what each column holds."""

    connection: duckdb.DuckDBPyConnection
    columns: dict[str, str]
    has_earlier: bool
    found: Snapshot

    def frame(self, columns: Sequence[str] | None, where: str | None, session: str | None = None) -> "pd.DataFrame":
        """Chosen columns (default: all) of rows that a condition in SQL holds for, as first seen, of a session or all.

        Raises:
            StoreError: there is no such column, or the condition is not valid.
        """
        check_columns(columns or (), list(self.columns))
        wanted = ", ".join(map(quoted, columns if columns is not None else self.columns)) or "NULL"
        order = FIRST_SEEN if self.has_earlier else f"ORDER BY finished_at, {PLACE}"
        of = "true" if session is None else f"session = {literal(session)}"
        rows = f"(FROM {LAST} WHERE ({where or 'true'}\n) AND {of})"
        return self._awaited(lambda: self._run(f"SELECT {wanted} FROM {rows} {order}", "frame"))

    def sql(self, query: str, limits: Limits | None = None) -> "pd.DataFrame":
        """What a query over `trials` finds.

        Raises:
            StoreError: it is not valid, no query, or takes more than it may.
        """
        try:
            statements = self.connection.extract_statements(query)
        except duckdb.Error as error:
            raise StoreError(f"query: {_first_line(error)}") from error
        if not statements:
            such = "select label, au from trials; columns: --columns"
            raise StoreError(f"query {query!r}: nothing to run; such as: {such}")
        for statement in statements:
            if statement.type not in QUERIES:
                raise StoreError(f"query: {statement.type.name} is disabled; allowed: SELECT, WITH, FROM, DESCRIBE")
        if limits is None:
            return self._awaited(lambda: self._run(query, "query"))
        try:
            with _memory_for(2 * limits.memory_mb * 1_000_000):
                return self._awaited(lambda: self._last_of(statements, limits), limits.seconds)
        except TimeoutError as error:
            raise StoreError(f"query: stopped after {limits.seconds:g} s; ask for less") from error
        except (MemoryError, SystemError, StoreError) as error:  # SystemError: DuckDB's of a MemoryError of NumPy's
            if isinstance(error, StoreError) and not isinstance(error.__cause__, duckdb.OutOfMemoryException):
                raise
            raise StoreError(f"query: takes more than {limits.memory_mb:,} MB of memory; ask for less") from error

    def _last_of(self, statements: Sequence[duckdb.Statement], limits: Limits) -> "pd.DataFrame":
        """What the last of several statements finds."""
        return [self._run(statement.query, "query", limits) for statement in statements][-1]

    def _awaited(self, found: "Callable[[], pd.DataFrame]", timeout_s: float | None = None) -> "pd.DataFrame":
        """What a function finds in a thread of its own, whose queries a signal or the time limit ends.

        In the main thread DuckDB would drop what a signal's handler raises, and raise a RuntimeError of its own.

        Raises:
            TimeoutError: it takes longer.
        """
        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(found)
            try:
                return running.result(timeout_s)
            finally:
                while not running.done():  # again and again: between statements there is nothing to interrupt
                    self.connection.interrupt()
                    wait([running], INTERRUPTS_APART_S)

    def described(self) -> list[dict[str, str]]:
        """Each column: its name, its type in SQL, and what it means where the contract says so."""
        fields = TrialRecord.model_fields | TrialFigures.model_fields
        return [
            {
                "column": name,
                "type": SQL_TYPES[held],
                "meaning": (fields[name].description or "") if name in fields else "",
            }
            for name, held in self.columns.items()
        ]

    def _run(self, query: str, what: str, limits: Limits | None = None) -> "pd.DataFrame":
        """What a query finds.

        Raises:
            DamagedPartsError: a part may be what it fails for.
            StoreError: the query is not valid, or finds more than it may.
        """
        try:
            result = self.connection.execute(query)
            return plain(result.df() if limits is None else _bounded(result, limits), self.columns)
        except StoreError:
            raise
        except (duckdb.Error, ValueError) as error:
            if self.found.manifest.parts and not isinstance(error, OF_THE_QUERY):
                raise DamagedPartsError(self.found.store, error) from error
            if not isinstance(error, duckdb.Error):
                raise
            told = unknown_column(query, str(error), list(self.columns)) or _first_line(error)
            told += "; the only table is trials" * ("Table with name" in told)
            raise StoreError(f"{what}: {told}") from error


def _bounded(result: duckdb.DuckDBPyConnection, limits: Limits) -> "pd.DataFrame":
    """What a statement has found, fetched piece by piece, so that no more is made of it than may be.

    Raises:
        StoreError: it is more.
    """
    import pandas as pd

    pieces, num_rows = list[pd.DataFrame](), 0
    while len(piece := result.fetch_df_chunk()) or not pieces:
        pieces.append(piece)
        num_rows += len(piece)
        if num_rows > limits.num_rows:
            most = f"{limits.num_rows:,}"
            raise StoreError(f"query: more than {most} rows; add a LIMIT, or `results export csv` writes all trials")
    return pd.concat(pieces, ignore_index=True) if len(pieces) > 1 else pieces[0]


@contextmanager
def _memory_for(num_bytes: int) -> Iterator[None]:
    """Let this process take no more than so many bytes beside what it has; nothing is held to it where it cannot be."""
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    with suppress(OSError, ValueError, IndexError):  # without /proc, and on other systems
        pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[5])
        most = pages * resource.getpagesize() + num_bytes
        if limits[0] == resource.RLIM_INFINITY or most < limits[0]:
            resource.setrlimit(resource.RLIMIT_DATA, (most, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, limits)


def unknown_column(query: str, error: str, names: Sequence[str]) -> str | None:
    """What is said where DuckDB does not know a column: the nearest ones, as a query names them; None for other errors.

    A name with a dot that is not quoted is taken for a table's.
    """
    found = UNKNOWN.search(error)
    if found is None:
        return None
    named = found["column"] or found["part"]
    dotted = re.search(rf"\b{re.escape(named)}(\.\w+)+", query)
    if found["part"] and dotted:
        named = dotted[0]
    ends = [name for name in names if name.lower().endswith(f".{named.lower()}")]
    near = [named] if named in names else ends or difflib.get_close_matches(named, names, n=3, cutoff=0.5)
    told = f"; nearest: {', '.join(name if name.isidentifier() else quoted(name) for name in near)}" if near else ""
    quotes = " (names with a dot stand in double quotes)" if any("." in name for name in near) else ""
    return f"no column {named!r} in trials{told}{quotes}; all: results query --columns"


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _columns(kind: Kind, parts: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """What each column of the table holds: those of the contract first, then as first seen."""
    held: dict[str, set[str]] = {}
    always = contract(kind)
    names = {name.lower(): name for name in always}
    for part in parts:
        for name, holds in part.items():
            if name in always or name.startswith(SHOWN):
                held.setdefault(names.setdefault(name.lower(), name), set()).add(holds)
    return {name: always.get(name) or unified(held[name]) for name in names.values()}


def _relations(paths: str, parts: Sequence[Part], wanted: dict[str, str]) -> list[str]:
    """SQL for the rows of the parts, one query for each set of columns."""
    shapes: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for part in parts:
        shapes.setdefault(tuple(sorted(part.columns.items())), []).append(literal(f"{paths}/{part.file}"))
    return [
        f"SELECT {selected(dict(shape), wanted)}, {PLACE} FROM read_parquet([{', '.join(files)}])"
        for shape, files in shapes.items()
    ]


def _views(connection: duckdb.DuckDBPyConnection, found: Snapshot, kind: Kind) -> Table:
    folder = found.store / PARQUET
    parts = [part for part in found.manifest.parts if part.kind == kind]
    batch = Batch(kind)
    for stored in found.tail:
        if stored.record.kind == kind:
            batch.add(stored)
    tail, held = batch.table(with_lines=False)
    connection.register("tail", tail)  # each statement would look through all columns of a frame anew
    connection.execute(f"CREATE TEMP TABLE {TAIL} AS FROM tail")
    connection.unregister("tail")
    del tail
    columns = _columns(kind, [*(part.columns for part in parts), held])
    compacted = _relations(str(folder), parts, columns)
    rest = f"SELECT {selected(held, columns)}, {PLACE} FROM {TAIL}"
    earlier = f"SELECT {ATTEMPT} FROM {TAIL} WHERE false"
    if name := found.manifest.earlier_attempts:
        earlier = f"FROM read_parquet({literal(str(folder / name))}) WHERE kind = {literal(kind)}"
    views = {
        ALL: " UNION ALL ".join([*compacted, rest] if len(batch) else compacted or [rest]),
        "compacted": " UNION ALL ".join(compacted or [f"{rest} WHERE false"]),
        "compacted_earlier": earlier,
    }
    for name, query in views.items():
        connection.execute(f"CREATE VIEW {name} AS {query}")
    connection.execute(
        f"CREATE TEMP TABLE {EARLIER} AS {EARLIER_WITH_TAIL if len(batch) else 'FROM compacted_earlier'}"
    )
    has_earlier = connection.execute(f"FROM {EARLIER} LIMIT 1").fetchone() is not None
    without = f"ANTI JOIN {EARLIER} USING ({PLACE})" if has_earlier else ""
    connection.execute(f"CREATE VIEW {LAST} AS FROM {ALL} {without}")
    connection.execute(f"CREATE VIEW trials AS SELECT {', '.join(map(quoted, columns))} FROM {LAST}")
    return Table(connection, columns, has_earlier, found)


def opened(found: Snapshot, kind: Kind, limits: Limits | None = None) -> Table:
    """The last attempts of one kind, over parts and segments alike; `limits` are those of queries.

    Raises:
        DamagedPartsError: a part is missing or damaged.
        StoreError: the segments cannot be read as a table.
    """
    connection = duckdb.connect(":memory:")
    connection.execute("SET pandas_analyze_sample = 0; SET enable_progress_bar = false")
    try:
        table = _views(connection, found, kind)
    except (duckdb.Error, UnicodeError) as error:
        if found.manifest.parts:
            raise DamagedPartsError(found.store, error) from error
        raise StoreError(f"store {found.store}: cannot be read: {_first_line(error)}") from error
    if limits is not None:
        connection.execute(f"SET memory_limit = '{limits.memory_mb}MB'; SET threads = {limits.threads}")
        connection.execute("SET temp_directory = ''")
    connection.execute(f"SET allowed_paths = [{', '.join(map(literal, found.paths()))}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return table
