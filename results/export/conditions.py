"""Sentences about what trials ran on: machines, software, workload and data."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from results.export.wording import in_bytes, is_emulated, ran_ones, told_of
from results.report.naming import parallelism_of
from results.report.plain import and_, counted
from results.report.tables import Row, is_missing, whole

LIBRARY = "env.libraries."


def hardware(trials: Sequence[Row]) -> list[str]:
    """Machines, and the software on them."""
    ran = ran_ones(trials)
    hosts = {str(row["env.host"]) for row in ran if not is_missing(row.get("env.host"))}
    parts = [f"{counted(len(hosts), 'host')}"] if hosts else []
    facts: Sequence[tuple[str, Callable[[Row], Any]]] = (
        ("{}", lambda row: row.get("env.cpu")),
        ("{} cores", lambda row: whole(row.get("env.cores"))),
        ("{} of memory", lambda row: in_bytes(row.get("env.memory_bytes"))),
        ("accelerators: {}", _devices),
        ("{}", lambda row: row.get("env.os")),
    )
    parts += [text.format(told) for text, value in facts if (told := told_of(ran, value))]
    software = [("Python", "env.python")] + [
        (name.removeprefix(LIBRARY), name)
        for name in dict.fromkeys(key for row in ran for key in row)
        if name.startswith(LIBRARY)
    ]
    versions = [f"{name} {told}" for name, column in software if (told := told_of(ran, column))]
    found = [f"Hardware: {'; '.join(parts)}."] if parts else []
    return found + ([f"Software: {', '.join(versions)}."] if versions else [])


def _devices(row: Row) -> str | None:
    devices = row.get("env.devices")
    if not isinstance(devices, list):
        return None
    counts = Counter(_device(device) for device in devices)
    return and_([f"{count} x {name}" for name, count in counts.items()]) or "none"


def _device(device: Any) -> str:
    if not isinstance(device, Mapping):
        return str(device)
    return f"{device.get('name')} (driver {device.get('driver')})"


def workload(trials: Sequence[Row]) -> list[str]:
    """What was trained, and how it was spread."""
    ran = ran_ones(trials)
    facts: Sequence[tuple[str, str | Callable[[Row], Any]]] = (
        ("{}", lambda row: _joined(row, " ", "spec.workload", "spec.variant")),
        ("device {}", "spec.device"),
        ("precision {}", "spec.precision"),
        ("parallelism {}", parallelism_of),
        ("ranks: {}", lambda row: whole(row.get("spec.world_size"))),
        ("samples per rank and step: {}", lambda row: whole(row.get("spec.batch_size"))),
        ("samples of all ranks per step: {}", lambda row: whole(row.get("spec.global_batch_size"))),
        ("threads per rank: {}", lambda row: whole(row.get("spec.threads_per_rank"))),
    )
    parts = [text.format(told) for text, value in facts if (told := told_of(ran, value))]
    emulated = [row for row in ran if is_emulated(row)]
    found = [f"Workload: {'; '.join(parts)}."] if parts else []
    if emulated:
        found.append(
            f"In {counted(len(emulated), 'trial')} the accelerator was emulated: no model was trained, a rank waited "
            "the accelerator's step time for each batch."
        )
    return found


def _joined(row: Row, between: str, *columns: str) -> str:
    return between.join(str(row[name]) for name in columns if not is_missing(row.get(name)))


def data(trials: Sequence[Row]) -> list[str]:
    """What was read, and by whom."""
    ran = ran_ones(trials)
    stored = [row for row in ran if row.get("spec.data.source") == "storage"]
    facts: Sequence[tuple[str, str | Callable[[Row], Any]]] = (
        ("format {}", "spec.data.format"),
        ("loader {}", "spec.data.loader"),
        ("workers per rank: {}", lambda row: whole(row.get("spec.data.num_workers"))),
        ("batches that each keeps ready: {}", lambda row: whole(row.get("spec.data.prefetch_factor"))),
        ("file system {}", "env.data.file_system"),
        ("staging {}", "spec.data.staging"),
        ("dataset: {}", _dataset),
    )
    parts = [text.format(told) for text, value in facts if (told := told_of(stored, value))]
    found = [f"Samples came from storage in {counted(len(stored), 'trial')}: {'; '.join(parts)}."] if parts else []
    for source, what in (("memory", "one real batch held in memory"), ("synthetic", "made on the device")):
        count = sum(row.get("spec.data.source") == source for row in ran)
        if count:
            found.append(f"In {counted(count, 'trial')} the input was {what}; these say nothing of storage.")
    return found


def _dataset(row: Row) -> str | None:
    if is_missing(row.get("dataset.num_samples")):
        return None
    size = in_bytes(row.get("dataset.stored_bytes"))
    named = row.get("dataset.dataset_id")
    told = [f"{int(row['dataset.num_samples'])} samples", *([size] if size else [])]
    return " of ".join(told) + ("" if is_missing(named) else f" (id {str(named)[:12]})")
