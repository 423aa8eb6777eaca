"""What a reading of a store passed over, told by every verb that reads one (imports little)."""

from collections.abc import Iterator

from benchsuite.contract.terminal import echo
from benchsuite.results.store.store import ResultsStore


def damage_lines(store: ResultsStore) -> Iterator[str]:
    """What the last reading passed over, and why."""
    newer = [line for line in store.passed if line.newer]
    bad = [line for line in store.passed if not line.newer]
    if bad:
        first = f"{bad[0].segment}, byte {bad[0].offset}: {bad[0].reason}"
        yield f"warning: {_counted(len(bad), 'line')} of {store.path} could not be read; the first: {first}"
    if newer:
        yield f"warning: {_counted(len(newer), 'record')} of {store.path} of a newer schema: upgrade benchsuite"
    if store.damage:
        yield f"warning: {store.damage}"


def warn_of_damage(store: ResultsStore) -> None:
    """Say so on standard error."""
    for line in damage_lines(store):
        echo(line, err=True)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
