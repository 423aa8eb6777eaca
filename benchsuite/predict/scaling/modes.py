"""What a trial's parallelism is called, from its name or its degrees."""

from typing import Any

from benchsuite.results.render.tables import is_missing
from benchsuite.results.scaling.series import Row, Series

SHARDED = {0: "ddp", 1: "zero1", 2: "zero2", 3: "fsdp"}
"""By zero, of data-parallel ranks."""
ONE = ("tp", "pp", "cp", "ep", "dp_replicate")
UNKNOWN, MIXED = "unknown", "mixed"
SPLIT = {"tp": "heads and widths", "pp": "layers"}
"""What of a model a mode needs as many of as ranks, or a multiple."""
MODELLED = ("none", "data_parallel", "ddp", "tp", "zero1", "zero2", "fsdp", "pp")


def mode_of(series: Series) -> str:
    """The parallelism of the largest point: a name, or `mixed`, or `unknown`."""
    found = [_mode(trial) for point in series.points for trial in point.trials]
    named = [name for name in found if name != "none"]
    return named[-1] if named else (found[-1] if found else UNKNOWN)


def _mode(row: Row) -> str:
    named = row.get("spec.parallelism")
    if isinstance(named, str):
        return named
    given = {name.removeprefix("spec.parallelism."): value for name, value in row.items() if _degree(name, value)}
    if not given:
        return UNKNOWN
    if given.get("engine", "torch") != "torch":
        return UNKNOWN
    split = [name for name in ONE if int(given.get(name, 1)) > 1]
    if not split:
        return SHARDED.get(int(given.get("zero", 0)), UNKNOWN)
    whole = split in (["tp"], ["pp"]) and int(given[split[0]]) == int(row["spec.world_size"])
    return split[0] if whole else MIXED


def _degree(name: str, value: Any) -> bool:
    return name.startswith("spec.parallelism.") and not is_missing(value)


def in_words(mode: str) -> list[str]:
    """What is said of a mode without a model of its communication, or that not every number of ranks can have."""
    if mode in SPLIT:
        return [
            f"{mode}: whether {SPLIT[mode]} of the model divide over so many ranks is not checked; `benchsuite trial "
            "SPEC --validate` tells"
        ]
    if mode in MODELLED:
        return []
    why = "several kinds of parallelism at once" if mode == MIXED else f"parallelism {mode}"
    return [f"{why}: no buckets and no probed collectives are modelled; communication is fitted as it grew"]
