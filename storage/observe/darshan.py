"""Darshan's logs, read by PyDarshan (extra `darshan`): the POSIX counters of a run in the form of an I/O profile."""

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchsuite.storage.errors import DatasetError

COUNTS = {"open": "POSIX_OPENS", "stat": "POSIX_STATS", "read": "POSIX_READS", "write": "POSIX_WRITES"}
COUNTS |= {"seek": "POSIX_SEEKS", "mmap": "POSIX_MMAPS"}
SIZES = re.compile(r"POSIX_SIZE_READ_(\w+)_(\w+|PLUS)")
Table = Any
"""A pandas DataFrame of PyDarshan's, a row per file and a column per counter by Darshan's names."""


def profile_of_log(log: Path, under: Path = Path("/")) -> dict[str, Any]:
    """Return the profile of the files below a folder, all processes of the log together.

    Darshan keeps sums and not single durations: percentiles are null, and metadata has one time for all its operations.

    Raises:
        DatasetError: no such log, no PyDarshan, or a log without POSIX counters.
    """
    if not log.is_file():
        raise DatasetError(f"{log}: no such file")
    try:
        library = importlib.import_module("darshan")
    except ImportError:
        raise DatasetError(f"{log}: Darshan's logs need PyDarshan: pip install 'benchsuite[darshan]'") from None
    try:
        report = library.DarshanReport(str(log), read_all=False)
        files = _counters(report)
        job = report.metadata["job"]
    except (RuntimeError, OSError, KeyError, ValueError) as error:
        raise DatasetError(f"{log}: PyDarshan cannot read it: {error}") from error
    seconds = float(job.get("run_time") or job["end_time_sec"] - job["start_time_sec"])
    if files is None:
        raise DatasetError(f"{log}: it has no POSIX counters")
    within = files[[Path(name).is_relative_to(under.absolute()) for name in files.index]]
    if within.empty:
        raise DatasetError(f"{log}: no POSIX counters of files below {under}; {len(files)} files in all")
    return _profile(within, int(job["nprocs"]), seconds)


def _counters(report: Any) -> Table | None:
    """Return the POSIX counters by file."""
    if "POSIX" not in report.modules:
        return None
    report.mod_read_all_records("POSIX")
    tables = report.records["POSIX"].to_df()
    counters, times = (tables[name].set_index(["id", "rank"]) for name in ("counters", "fcounters"))
    found = counters.join(times).clip(lower=0)  # -1 says that Darshan did not keep it
    found = found.groupby("id").agg(_together(found))
    return found.rename(index=lambda number: report.name_records.get(number, str(number)))


def _together(table: Table) -> dict[str, str]:
    """How counters of several processes or files become one."""
    return {name: "max" if "_MAX_" in name else "sum" for name in table.columns}


def _profile(files: Table, processes: int, seconds: float) -> dict[str, Any]:
    total: dict[str, float] = files.agg(_together(files)).to_dict()
    reads, read_s, meta_s = int(total["POSIX_READS"]), total["POSIX_F_READ_TIME"], total["POSIX_F_META_TIME"]
    io_s = read_s + meta_s + total["POSIX_F_WRITE_TIME"]
    onward = int(total["POSIX_CONSEC_READS"])
    first = min(reads - onward, int(total["POSIX_OPENS"]))
    opens = [int(count) for count in files["POSIX_OPENS"]]
    distinct = sum(count > 0 for count in opens)
    return {
        "by": "darshan",
        "ranks": processes,
        "workers": 0,
        "threads": processes,
        "seconds": seconds,
        "observed_fraction": 1.0,
        "operations": {name: _operation(name, total) for name, counter in COUNTS.items() if total[counter]},
        "io_s": io_s,
        "metadata_fraction": meta_s / io_s if io_s else None,
        "read_sizes": _sizes(total),
        "order": {"first": first, "onward": onward, "elsewhere": reads - onward - first},
        "sequential_fraction": onward / (reads - first) if reads > first else None,
        "files": {
            "listed": len(files),
            "followed": len(files),
            "distinct": distinct,
            "opens": sum(opens),
            "opens_per_file": sum(opens) / distinct if distinct else None,
            "most_opens": max(opens),
            "reads_per_file": reads / distinct if distinct else None,
            "bytes_per_size": None,
        },
        "counters": None,
        "counters_of": None,
        "bytes": {"delivered": None, "seen": int(total["POSIX_BYTES_READ"]), "only_counted": None, "mapped": None},
        "seen_fraction": None,
    }


def _operation(name: str, total: Mapping[str, float]) -> dict[str, Any]:
    """An operation's counters; Darshan times reads, writes, and all metadata together."""
    timed = {"read": "READ", "write": "WRITE"}.get(name)
    moved = {"read": "POSIX_BYTES_READ", "write": "POSIX_BYTES_WRITTEN"}.get(name)
    return {
        "count": int(total[COUNTS[name]]),
        "errors": 0,
        "bytes": int(total[moved]) if moved else 0,
        "seconds": total[f"POSIX_F_{timed}_TIME"] if timed else None,
        "max_s": total[f"POSIX_F_MAX_{timed}_TIME"] if timed else None,
        **dict.fromkeys(("p50_s", "p95_s", "p99_s")),
        "latencies": {},
    }


def _sizes(total: Mapping[str, float]) -> dict[str, int]:
    """Reads by Darshan's own ranges of sizes."""
    return {
        f"{found[1]} to {found[2]} B".replace("to PLUS B", "B and more"): int(value)
        for name, value in total.items()
        if (found := SIZES.fullmatch(name)) and value
    }
