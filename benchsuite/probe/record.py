"""What the probes have in common: lists among their options, records and their repeats, caveats, and the ends of ranks.

Imports no torch.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchsuite.analysis.failure import failure
from benchsuite.contract.errors import UserError
from benchsuite.contract.outcome import Outcome
from benchsuite.contract.rank_samples import read_result
from benchsuite.contract.terminal import PlainFormat, document, echo
from benchsuite.contract.trial_spec import trial_id
from benchsuite.contract.units import parse_bytes
from benchsuite.host.environment import environment, file_system
from benchsuite.results.render.words import typed
from benchsuite.results.store.record import Record, Status
from benchsuite.results.store.store import ResultsStore
from benchsuite.storage.observe import file_systems

MAX_RESIDENT = 0.01
"""Share of a file in the page cache up to which it is cold."""
Measured = tuple[Record, dict[str, Any] | None]
"""A record, and its raw samples where it has some."""


def parse_sizes(text: str, option: str) -> tuple[int, ...]:
    """Sizes such as 1KiB:64MiB, in powers of two, or a list of sizes.

    Raises:
        UserError: it is neither.
    """
    first, colon, last = text.partition(":")
    if not colon:
        found = sorted({parse_bytes(one, option) for one in text.split(",")})
        if found[0] < 1:
            raise UserError(f"{option} {text!r}: allowed: 1 byte and above")
        return tuple(found)
    low, high = parse_bytes(first, option), parse_bytes(last, option)
    if not 1 <= low <= high:
        raise UserError(f"{option} {text!r}: allowed: FIRST:LAST with 1 <= FIRST <= LAST, such as 1KiB:64MiB")
    return tuple(low << power for power in range((high // low).bit_length()))


def parse_counts(text: str, option: str, least: int) -> tuple[int, ...]:
    """Whole numbers with commas between.

    Raises:
        UserError: one is not, or less than the least.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) >= least for word in words):
        raise UserError(f"{option} {text!r}: allowed: whole numbers from {least} on, such as {least} or {least},4,16")
    return tuple(sorted({*map(int, words)}))


def facts_of(path: Path) -> dict[str, Any]:
    """The environment, and the file system that holds the path."""
    return {**environment(), "data": file_system(path)}


def farthest(values: Sequence[float]) -> float:
    """How far the farthest lies from their median."""
    middle = median(values)
    return max(abs(value - middle) for value in values)


def around(values: Sequence[float], digits: int) -> str:
    """Their median, and how far the farthest lies from it; one value alone."""
    if len(values) == 1:
        return f"{values[0]:,.{digits}f}"
    return f"{median(values):,.{digits}f} ±{farthest(values):,.{digits}f}"


def cache_caveats(kind: str | None, resident: Sequence[float | None], in_memory: bool) -> list[str]:
    """Why what was read may not have come from storage; `resident` are shares of files in the page cache before."""
    known = [share for share in resident if share is not None]
    if in_memory:
        return [f"not_cold: {kind} is memory: nothing was read from storage"]
    if len(known) < len(resident) or not file_systems.file_system_of(kind).client_visible:
        return [f"cache_unverified: the cache of {kind} cannot be seen from here"]
    if max(known) > MAX_RESIDENT:
        return [f"not_cold: up to {max(known):.0%} of what was read was in the page cache before"]
    return []


def appended(found: Iterable[Measured], store: Path | None) -> Iterator[Measured]:
    """The records as stored; those of points that the session has already are repeats."""
    if store is None:
        yield from found
        return
    opened = ResultsStore(store)
    seen = Counter((record.point_id, record.session) for record in (opened.records() if opened.exists() else ()))
    for record, samples in found:
        repeat = seen[record.point_id, record.session]
        seen[record.point_id, record.session] += 1
        again = {"repeat": repeat, "trial_id": trial_id(record.point_id, record.session, repeat)}
        yield opened.append(record.model_copy(update=again), samples), samples


def report(kept: Measured | list[Measured], store: Path | None, format: PlainFormat, say: Callable[[], None]) -> None:
    """Print a record or several with their raw samples, or what `say` prints and where they are kept."""
    several = kept if isinstance(kept, list) else [kept]
    if format == "json":
        found = [record.model_dump(mode="json") | {"samples": samples} for record, samples in several]
        document(json.dumps(found if isinstance(kept, list) else found[0], indent=1))
        return
    say()
    if store:
        again = typed("benchsuite", "results", "show", "--kind", several[0][0].kind, "--store", store)
        echo(f"written: {store} · next: {again}", err=True)


def why_failed(outcome: Outcome, num_ranks: int, folder: Path) -> tuple[Status, str] | None:
    """Status and reason where not all ranks came to their end; None where they did."""
    results = [read_result(folder / f"rank-{rank}.json") for rank in range(num_ranks)]
    if outcome.is_clean(num_ranks) and all(result is not None and result.status == "ok" for result in results):
        return None
    return failure(outcome, results, folder)
