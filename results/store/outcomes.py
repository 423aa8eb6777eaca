"""How the last attempt at each trial ended, of stores with many records: read without keeping them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from benchsuite.results.store.manifest import PARQUET, DamagedPartsError, Manifest, load
from benchsuite.results.store.segments import Passed, Stored, StoreError, without_collector
from benchsuite.results.store.snapshot import ROWS_AT_ONCE, all_lines

PROFILE = "spec.measure.profile"
MAY_LACK = ("reason", PROFILE)
FIELDS = ("trial_id", "status", "finished_at", *MAY_LACK)


@dataclass(frozen=True)
class Ended:
    """How an attempt ended."""

    trial_id: str
    status: str
    finished_at: str
    reason: str | None = None
    profile: str | None = None
    """How it was observed."""


@dataclass(frozen=True)
class Outcomes:
    """How the trials of a store ended."""

    by_trial: dict[str, Ended]
    passed: Sequence[Passed]
    """Lines that are no records, or none that this version knows."""
    damage: str | None
    """Why the parts were not used; None where they were."""


@without_collector()
def outcomes(store: Path, damage: str | None = None) -> Outcomes:
    """The last attempt at each trial, by trial; where parts are damaged, from segments alone.

    Raises:
        StoreError: it cannot be read.
    """
    found: dict[str, Ended] = {}
    passed: list[Passed] = []
    try:
        manifest = load(store) if damage is None else Manifest()
        for ended in chain(_compacted(store, manifest.checked()), _of_lines(all_lines(store, manifest), passed)):
            before = found.get(ended.trial_id)
            if before is None or before.finished_at <= ended.finished_at:
                found[ended.trial_id] = ended
    except DamagedPartsError as error:
        return outcomes(store, str(error))
    except OSError as error:
        raise StoreError(f"store {store}: cannot be read: {error.strerror}") from error
    return Outcomes(found, passed, damage)


def _of_lines(found: Iterable[Stored | Passed], passed: list[Passed]) -> Iterator[Ended]:
    """Those of records that stand in lines; others are noted in `passed`."""
    for line in found:
        if isinstance(line, Passed):
            passed.append(line)
            continue
        record = line.record
        profile = (record.spec.get("measure") or {}).get("profile")
        yield Ended(record.trial_id, record.status, record.finished_at, record.reason, profile)


def _compacted(store: Path, manifest: Manifest) -> Iterator[Ended]:
    """Those of compacted records; parts lack columns that hold nothing in them, or were added later."""
    if not manifest.parts:
        return
    import duckdb

    from benchsuite.results.store.columns import literal, quoted  # brings pandas, which a plan can do without

    try:
        with duckdb.connect(":memory:") as connection:
            for part in manifest.parts:
                path = literal(str(store / PARQUET / part.file))
                wanted = ", ".join(
                    quoted(name) if part.columns.get(name, "null") != "null" else "NULL" for name in FIELDS
                )
                rows = connection.execute(f"SELECT {wanted} FROM read_parquet({path})")
                while some := rows.fetchmany(ROWS_AT_ONCE):
                    yield from (Ended(*row) for row in some)
    except (duckdb.Error, UnicodeError) as error:
        raise DamagedPartsError(store, error) from error
