"""Trials on emulated accelerators as MLPerf Storage's summary.json tells of a run (written by DLIO, mlcommons/storage).

A summary is of a point: each repeat stands where a run has an epoch. MB there are 2^20 bytes, and GB 2^30. What
separates the point from a run that could be submitted stands beside it, as `deviations`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

from benchsuite.results.render.tables import ABSENT, Column, Row, is_missing, is_number
from benchsuite.results.render.words import counted, size

MIB, GIB = 1 << 20, 1 << 30
MIN_STEPS, MIN_MEMORIES, MIN_RUNS = 500, 5, 5
"""The dataset must hold as many steps and exceed the hosts' memory as often; a result is a mean of so many runs."""
MAX_SPREAD = 0.05
DISQUALIFYING = ("not_cold", "cache_unverified", "counters_disagree", "not_steady", "emulation_late")
"""Caveats that say that what was timed is not, or may not be, cold reads at a steady rate by an emulation on time."""
MAX_RECORD_DIFFERENCE = 0.10
Published = Callable[[str, str], Mapping[str, Any]]
"""What MLPerf Storage says of a device and a workload: workload, min_au, record_bytes, and whether it has a profile."""
LEGEND = (
    "AU % = computation / elapsed time of all steps but the first, mean of repeats · MiB/s = samples/s x mean stored "
    "sample\nour AU leaves out what a queue that was full at the start adds · --format json: all fields"
)


@dataclass(frozen=True)
class Host:
    """A node that ran ranks of a trial."""

    cores: int
    memory_bytes: float
    assumed: bool
    """Whether its memory is not told, and taken to be that of the node that the harness ran on."""


def hosts(row: Row) -> list[Host]:
    """The nodes of a trial; the one that the harness ran on where no launcher told of any."""
    nodes = row.get("env.nodes")
    known = [node for node in nodes if "cores" in node] if isinstance(nodes, list) else []
    return [_host(node, row["env.memory_bytes"]) for node in known] or [
        Host(row["env.cores"], row["env.memory_bytes"], False)
    ]


def _host(node: Mapping[str, Any], memory_bytes: float) -> Host:
    """A node as a record tells of it: its memory stands with its facts, or is the limit of the moment."""
    told = ((node, "memory_bytes"), (node.get("facts"), "memory_bytes"), (node.get("moment"), "memory_limit_bytes"))
    found = next((place[name] for place, name in told if place and place.get(name)), None)
    return Host(node["cores"], found or memory_bytes, found is None)


NEEDED = (
    "spec.world_size",
    "spec.workload",
    "dataset.stored_bytes",
    "dataset.num_samples",
    "env.cores",
    "env.memory_bytes",
    "samples_per_s",
)
"""Columns without which a trial has no summary."""


def summaries(trials: Sequence[Row], published: Published) -> list[dict[str, Any]]:
    """A summary for each session and point whose trials ran on emulated accelerators."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in trials:
        told = not any(is_missing(row.get(name)) for name in NEEDED) and is_number(_batch(row))
        if told and row["status"] == "ok" and str(row.get("spec.device")).startswith("emulated:"):
            groups.setdefault((row["session"], row["point_id"]), []).append(row)
    return [summary(repeats, published) for repeats in groups.values()]


def summary(repeats: Sequence[Row], published: Published) -> dict[str, Any]:
    """The fields of summary.json for the repeats of one point, with ours below `benchsuite`."""
    first = repeats[0]
    known = published(first["spec.device"], first["spec.workload"])
    ranks, sample_bytes = int(first["spec.world_size"]), first["dataset.stored_bytes"] / first["dataset.num_samples"]
    nodes = hosts(first)
    share_bytes = first["dataset.stored_bytes"] / len(nodes)
    files: Any = first.get("dataset.num_files")
    deviating = deviations(repeats, sample_bytes, known)
    return {
        "start": min(row["started_at"] for row in repeats),
        "end": max(row["finished_at"] for row in repeats),
        "num_accelerators": ranks,
        "num_hosts": len(nodes),
        "hostname": first["env.host"],
        "metric": _metric(repeats, sample_bytes, known["min_au"]),
        "num_files_train": None if is_missing(files) else int(files),
        "num_files_eval": 0,
        "num_samples_per_file": None if is_missing(files) else first["dataset.num_samples"] / files,
        "host_cpu_count": [node.cores for node in nodes],
        "host_memory_GB": [node.memory_bytes / GIB for node in nodes],
        "data_size_per_host_GB": share_bytes / GIB,
        "potential_caching": [int(node.memory_bytes > share_bytes) for node in nodes],
        "epochs": len(repeats),
        "benchsuite": {
            "label": first["label"],
            "session": first["session"],
            "point_id": first["point_id"],
            "workload": known["workload"],
            "device": first["spec.device"],
            "computation_time": first["ceiling_step_s"],
            "batch_size": None if is_missing(first["spec.batch_size"]) else first["spec.batch_size"],
            "record_length_bytes": sample_bytes,
            "au": [row["au"] for row in repeats if not is_missing(row["au"])],
            "au_threshold": known["min_au"],
            "cache": first["spec.data.cache"],
            "host_memory_assumed": any(node.assumed for node in nodes),
            "caveats": sorted({name for row in repeats for name in row["caveats"]}),
            "comparable": not deviating,
            "deviations": deviating,
        },
    }


def _metric(repeats: Sequence[Row], sample_bytes: float, min_au: float | None) -> dict[str, Any]:
    au = [row["au_mlperf"] * 100 for row in repeats if not is_missing(row["au_mlperf"])]
    rates = [row["samples_per_s"] for row in repeats]
    mean_au = fmean(au) if au else None
    judged = None if min_au is None or mean_au is None else "success" if mean_au >= min_au * 100 else "fail"
    return {
        "train_au_percentage": au,
        "train_au_mean_percentage": mean_au,
        "train_au_meet_expectation": judged,
        "train_au_stdev_percentage": pstdev(au) if au else None,
        "train_throughput_samples_per_second": rates,
        "train_throughput_mean_samples_per_second": fmean(rates),
        "train_throughput_stdev_samples_per_second": pstdev(rates),
        "train_io_mean_MB_per_second": fmean(rates) * sample_bytes / MIB,
        "train_io_stdev_MB_per_second": pstdev(rates) * sample_bytes / MIB,
    }


def deviations(repeats: Sequence[Row], sample_bytes: float, known: Mapping[str, Any]) -> list[str]:
    """What separates a point from a run that could be submitted, with the arithmetic."""
    first, found = repeats[0], []
    if not known["profile"]:
        found.append(f"{first['spec.device']} is no published time of {known['workload']}")
    wanted = known["record_bytes"]
    if wanted and abs(sample_bytes / wanted - 1) > MAX_RECORD_DIFFERENCE:
        found.append(f"samples of {sample_bytes:,.0f} bytes, not {wanted:,}")
    batch = float(_batch(first))
    nodes = hosts(first)
    needed = max(MIN_STEPS * batch * sample_bytes, MIN_MEMORIES * sum(node.memory_bytes for node in nodes))
    if first["dataset.stored_bytes"] < needed:
        why = f"{MIN_STEPS} steps and {MIN_MEMORIES} x {_memory(nodes)}"
        found.append(f"{size(first['dataset.stored_bytes'])} of data, not {size(needed)} ({why})")
    if first["spec.data.cache"] != "cold":
        found.append(f"cache {first['spec.data.cache']}, not cold")
    for name in DISQUALIFYING:
        if flagged := sum(name in row["caveats"] for row in repeats):
            found.append(f"{name} in {flagged} of {counted(len(repeats), 'repeat')}")
    if len(repeats) < MIN_RUNS:
        found.append(f"{counted(len(repeats), 'repeat')}, not {MIN_RUNS}")
    rates = [row["samples_per_s"] for row in repeats]
    if max(rates) - min(rates) > MAX_SPREAD * fmean(rates):
        found.append(f"repeats spread by {(max(rates) - min(rates)) / fmean(rates):.0%}, more than {MAX_SPREAD:.0%}")
    return found


def _batch(row: Row) -> Any:
    """The samples of a step, of all ranks; no number where the batch was never found."""
    whole, each = row["spec.global_batch_size"], row["spec.batch_size"]
    return whole if not is_missing(whole) else float(each) * row["spec.world_size"] if is_number(each) else None


def _memory(nodes: Sequence[Host]) -> str:
    """Whose memory counts."""
    if len(nodes) == 1:
        return "memory"
    alike = ", taken to be alike" if any(node.assumed for node in nodes) else ""
    return f"the memory of {len(nodes)} hosts{alike}"


def _ours(name: str) -> Callable[[Row], str]:
    return lambda row: str(row["benchsuite"][name])


def _number(name: str, digits: int) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        value = row["metric"][name]
        return ABSENT if value is None else f"{value:,.{digits}f}"

    return cell


def _result(row: Row) -> str:
    """Whether the AU is as MLPerf Storage asks; and where the run is none that could be submitted, that."""
    told = row["metric"]["train_au_meet_expectation"]
    if told is None:
        return ABSENT
    return told if row["benchsuite"]["comparable"] else f"{told}, not comparable: deviates"


COLUMNS = (
    Column("point", _ours("label"), right=False),
    Column("workload", _ours("workload"), right=False),
    Column("device", _ours("device"), right=False),
    Column("accelerators", lambda row: str(row["num_accelerators"])),
    Column("repeats", lambda row: str(row["epochs"])),
    Column("AU %", _number("train_au_mean_percentage", 1)),
    Column("needed", lambda row: ABSENT if (least := row["benchsuite"]["au_threshold"]) is None else f"{least:.0%}"),
    Column("result", lambda row: _result(row), right=False),
    Column("our AU", lambda row: f"{fmean(row['benchsuite']['au']):.3f}" if row["benchsuite"]["au"] else ABSENT),
    Column("samples/s", _number("train_throughput_mean_samples_per_second", 1)),
    Column("MiB/s", _number("train_io_mean_MB_per_second", 1)),
    Column("caveats", lambda row: ", ".join(row["benchsuite"]["caveats"]) or ABSENT, right=False, footnote=True),
    Column("deviations", lambda row: "; ".join(row["benchsuite"]["deviations"]), right=False, footnote=True),
)
