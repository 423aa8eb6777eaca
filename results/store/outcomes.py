"""How the last attempt at each trial ended, of stores with many records: read without keeping them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from benchsuite.results.store.manifest import PARQUET, DamagedPartsError, Manifest
from benchsuite.results.store.segments import Passed, Stored
from benchsuite.results.store.snapshot import ROWS_AT_ONCE, all_lines, read_whole, recorded

PROFILE = "spec.measure.profile"
ALIKE = ("workload", "variant", "device", "world_size", "measure.epochs")
"""Settings in which trials must be alike for one's time to stand for another's."""
FIELDS = ("trial_id", "status", "finished_at", "reason", PROFILE, "kind", "sweep", "wall_s")
FAILED = frozenset({"failed", "oom", "timeout"})
"""Trials that ended so may be run again in their session, where `retry` asks for it."""
FINISHED = FAILED | {"ok"}
"""Trials that ended so are not run again otherwise."""


@dataclass(frozen=True)
class Ended:
    """How an attempt ended."""

    trial_id: str
    status: str
    finished_at: str
    reason: str | None = None
    profile: str | None = None
    """How it was observed."""
    kind: str = "trial"
    sweep: str = ""
    wall_s: float | None = None
    alike: tuple[str, ...] = ()
    """The trial's values of ALIKE."""


def outcomes(store: Path) -> tuple[dict[str, Ended], Sequence[Passed], str | None]:
    """The last attempt at each trial, by trial; with what `snapshot.read_whole` tells besides."""

    def by_trial(manifest: Manifest, passed: list[Passed]) -> dict[str, Ended]:
        found: dict[str, Ended] = {}
        of_lines = map(_ended, recorded(all_lines(store, manifest), passed))
        for ended in chain(_compacted(store, manifest.checked()), of_lines):
            before = found.get(ended.trial_id)
            if before is None or before.finished_at <= ended.finished_at:
                found[ended.trial_id] = ended
        return found

    return read_whole(store, by_trial)


def _ended(line: Stored) -> Ended:
    """How an attempt ended, of a record that stands in a line."""
    record = line.record
    profile = (record.spec.get("measure") or {}).get("profile")
    ended = record.trial_id, record.status, record.finished_at, record.reason, profile
    return Ended(*ended, record.kind, record.sweep, record.wall_s, alike_of(record.spec))


def alike_of(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """A spec's values of ALIKE."""
    return tuple(str(_at(spec, name)) for name in ALIKE)


def _at(spec: Mapping[str, Any], name: str) -> Any:
    """A setting by its dotted name; None where a record lacks it."""
    head, _, rest = name.partition(".")
    return _at(spec.get(head) or {}, rest) if rest else spec.get(head)


def _compacted(store: Path, manifest: Manifest) -> Iterator[Ended]:
    """Outcomes of compacted records; parts lack columns that hold nothing in them, or were added later."""
    if not manifest.parts:
        return
    import duckdb

    from benchsuite.results.store.columns import literal, quoted  # brings pandas, which a plan can do without

    try:
        with duckdb.connect(":memory:") as connection:
            for part in manifest.parts:
                path = literal(str(store / PARQUET / part.file))
                wanted = ", ".join(
                    quoted(name) if part.columns.get(name, "null") != "null" else "NULL"
                    for name in (*FIELDS, *(f"spec.{name}" for name in ALIKE))
                )
                rows = connection.execute(f"SELECT {wanted} FROM read_parquet({path})")
                while some := rows.fetchmany(ROWS_AT_ONCE):
                    yield from (Ended(*(*row[: -len(ALIKE)], tuple(map(str, row[-len(ALIKE) :])))) for row in some)
    except (duckdb.Error, UnicodeError) as error:
        raise DamagedPartsError(store, error) from error
