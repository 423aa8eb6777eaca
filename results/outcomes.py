"""How the last attempt at each trial ended, of stores with many records: read without keeping them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from results.manifest import MEND, PARQUET, Manifest, load
from results.record import TrialRecord
from results.segments import StoreError, lines, segment_paths, without_collector
from results.snapshot import ROWS_AT_ONCE

PROFILE = "spec.measure.profile"
FIELDS = ("trial_id", "status", "finished_at", "reason", PROFILE)


@dataclass(frozen=True)
class Ended:
    """How an attempt ended."""

    trial_id: str
    status: str
    finished_at: str
    reason: str | None = None
    profile: str | None = None
    """How it was observed."""


@without_collector()
def outcomes(store: Path) -> dict[str, Ended]:
    """The last attempt at each trial, by trial.

    Raises:
        StoreError: it cannot be read.
    """
    manifest = load(store)
    found: dict[str, Ended] = {}
    try:
        for ended in (*_compacted(store, manifest), *_tail(store, manifest)):
            before = found.get(ended.trial_id)
            if before is None or before.finished_at <= ended.finished_at:
                found[ended.trial_id] = ended
    except OSError as error:
        raise StoreError(f"store {store}: cannot be read: {error.strerror}") from error
    return found


def _tail(store: Path, manifest: Manifest) -> Iterator[Ended]:
    """Those of records that only segments hold; a line counts if all of it is a record."""
    for path in segment_paths(store):
        for start, end in manifest.open_ranges(path.name, path.stat().st_size):
            for line in lines(path, start, end):
                try:
                    record = TrialRecord.model_validate_json(line)
                except (ValueError, ValidationError):
                    continue
                profile = (record.spec.get("measure") or {}).get("profile")
                yield Ended(record.trial_id, record.status, record.finished_at, record.reason, profile)


def _compacted(store: Path, manifest: Manifest) -> Iterator[Ended]:
    """Those of compacted records; older parts lack columns that were added later."""
    if not manifest.parts:
        return
    import duckdb

    from results.columns import literal, quoted  # brings pandas, which a plan can do without

    try:
        with duckdb.connect(":memory:") as connection:
            for part in manifest.parts:
                path = literal(str(store / PARQUET / part.file))
                wanted = ", ".join(quoted(name) if name in part.columns else "NULL" for name in FIELDS)
                rows = connection.execute(f"SELECT {wanted} FROM read_parquet({path})")
                while some := rows.fetchmany(ROWS_AT_ONCE):
                    yield from (Ended(*row) for row in some)
    except duckdb.Error as error:
        mend = MEND.format(store / PARQUET)
        raise StoreError(f"store {store}: cannot be read: {str(error).splitlines()[0]}; {mend}") from error
