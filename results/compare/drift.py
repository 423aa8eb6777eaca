"""How the environment drifted between the trials of a sweep: what else used the host, its clocks, memory and users."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from benchsuite.results.render.tables import Row, is_number

MOMENT = "env.moment."


@dataclass(frozen=True)
class Quantity:
    """A fact of the moment that is a number."""

    column: str
    """The quantity's name in a frame's row."""
    words: str
    """What is said of it; its lowest and highest value stand at the two braces."""
    is_large: Callable[[float, float, Row], bool]
    """Whether figures may differ for it: its lowest and highest value, and any row."""
    unit: float = 1.0
    digits: int = 1

    def told(self, low: float, high: float) -> str:
        """The range in words."""
        return self.words.format(*(f"{value / self.unit:.{self.digits}f}" for value in (low, high)))


MAX_OTHERS_SHARE = 0.15
"""The share of the cores that drifts far: as much as flags a single trial."""
MAX_CLOCK_CHANGE = 0.1
MAX_MEMORY_SHARE = 0.25


def _always(low: float, high: float, row: Row) -> bool:
    return high > low


def _of_cores(low: float, high: float, row: Row) -> bool:
    return high - low > MAX_OTHERS_SHARE * float(row.get("env.cores") or 1)


def _of_clock(low: float, high: float, row: Row) -> bool:
    return low < (1 - MAX_CLOCK_CHANGE) * high


def _of_memory(low: float, high: float, row: Row) -> bool:
    limit = row.get(f"{MOMENT}memory_limit_bytes")
    return limit is not None and is_number(limit) and high - low > MAX_MEMORY_SHARE * limit


QUANTITIES = (
    Quantity("foreign_cpu_cores", "others kept {} to {} cores busy", _of_cores),
    Quantity(f"{MOMENT}cpu_mhz", "CPU at {} to {} GHz", _of_clock, 1e3),
    Quantity(f"{MOMENT}cpu_limit_mhz", "CPU's limit {} to {} GHz", _of_clock, 1e3),
    Quantity(f"{MOMENT}cpu_throttled_meanwhile", "CPU held back for heat {} to {} times a trial", _always, digits=0),
    Quantity(f"{MOMENT}memory_available_bytes", "{} to {} GB of memory available", _of_memory, 1e9),
)
"""What is said when it drifts far. The load average is not: it counts a sweep's own ranks."""
TOLD = (Quantity("env.load_average", "{} to {}", _always), *QUANTITIES)


def drifted(rows: Sequence[Row]) -> list[str]:
    """What drifted on a host so far that repeats may differ for it; empty where nothing did, or one trial tells."""
    hosts: dict[str, list[Row]] = {}
    for row in rows:
        if row.get("status") == "ok":
            hosts.setdefault(str(row.get("env.host")), []).append(row)
    return [
        text if len(hosts) == 1 else f"{host}: {text}" for host, trials in hosts.items() for text in _drifted(trials)
    ]


def _drifted(measured: Sequence[Row]) -> list[str]:
    found = [
        quantity.told(*span)
        for quantity in QUANTITIES
        if (span := _span(measured, quantity.column)) and quantity.is_large(*span, measured[0])
    ]
    users = {frozenset(row[f"{MOMENT}users"]) for row in measured if isinstance(row.get(f"{MOMENT}users"), list)}
    if len(users) > 1:
        found.append(f"users came or went: {', '.join(sorted(frozenset().union(*users)))}")
    return found


def ranges(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Each fact of the moment that was told, with its range over all trials."""
    return [
        (quantity.column.removeprefix("env.").removeprefix("moment."), quantity.told(*span))
        for quantity in TOLD
        if (span := _span(rows, quantity.column))
    ]


def _span(rows: Iterable[Row], column: str) -> tuple[float, float] | None:
    values = [float(row[column]) for row in rows if is_number(row.get(column))]
    return (min(values), max(values)) if len(values) > 1 else None
