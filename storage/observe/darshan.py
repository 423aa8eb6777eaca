"""Darshan's logs: the POSIX counters of a run, in the form of an I/O profile.

Read by Darshan's own `darshan-parser` where it is on the PATH, else by PyDarshan (extra `darshan`).
"""

import importlib
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchsuite.storage.errors import DatasetError

HINT = "put Darshan's darshan-parser on the PATH, or pip install 'benchsuite[darshan]'"
COUNTS = {"open": "POSIX_OPENS", "stat": "POSIX_STATS", "read": "POSIX_READS", "write": "POSIX_WRITES"}
COUNTS |= {"seek": "POSIX_SEEKS", "mmap": "POSIX_MMAPS"}
SIZES = re.compile(r"POSIX_SIZE_READ_(\w+)_(\w+|PLUS)")
Counters = Mapping[str, float]
"""Counters of a file, by Darshan's names."""


def profile_of_log(log: Path, under: Path = Path("/")) -> dict[str, Any]:
    """The profile of the files below a folder, all processes of the log together.

    Darshan keeps sums and not single durations: percentiles are null, and metadata has one time for all its operations.

    Raises:
        DatasetError: no such log, nothing to read it with, or a log without POSIX counters.
    """
    if not log.is_file():
        raise DatasetError(f"{log}: no such file")
    files, processes, seconds = _by_parser(log) if shutil.which("darshan-parser") else _by_python(log)
    within = {name: found for name, found in files.items() if Path(name).is_relative_to(under.absolute())}
    if not within:
        raise DatasetError(f"{log}: no POSIX counters of files below {under}; {len(files)} files in all")
    return _profile(within, processes, seconds)


Log = tuple[dict[str, dict[str, float]], int, float]
"""POSIX counters by file, number of processes, and seconds of the run."""


def _by_parser(log: Path) -> Log:
    done = subprocess.run(["darshan-parser", str(log)], capture_output=True, check=False)
    if done.returncode:
        said = (done.stderr.decode(errors="replace").strip() or "no reason given").splitlines()[0]
        raise DatasetError(f"{log}: darshan-parser cannot read it: {said}")
    return parsed(done.stdout.decode(errors="replace").splitlines())


def parsed(lines: Iterable[str]) -> Log:
    """What darshan-parser prints: `module rank record counter value file mount type`, between tabs."""
    files: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    processes, seconds = 1, 0.0
    for line in lines:
        if line.startswith("POSIX\t"):
            _, _, _, counter, value, name = line.split("\t")[:6]
            _add(files[name], counter, float(value))
        elif line.startswith("# nprocs:"):
            processes = int(line.partition(":")[2])
        elif line.startswith("# run time:"):
            seconds = float(line.partition(":")[2])
    return files, processes, seconds


def _add(counters: dict[str, float], name: str, value: float) -> None:
    """Of several processes: the longest of what is longest, the sum of the rest; -1 says that it was not kept."""
    counters[name] = max(counters[name], value) if "_MAX_" in name else counters[name] + max(value, 0.0)


def _by_python(log: Path) -> Log:
    try:
        library = importlib.import_module("darshan")
    except ImportError:
        raise DatasetError(f"{log}: nothing here reads Darshan's logs: {HINT}") from None
    try:
        report = library.DarshanReport(str(log), read_all=False)
        files: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        if "POSIX" in report.modules:
            report.mod_read_all_records("POSIX")
            tables = report.records["POSIX"].to_df()
            for table in (tables["counters"], tables["fcounters"]):
                for row in table.to_dict("records"):
                    name = report.name_records.get(row["id"], str(row["id"]))
                    for counter, value in row.items():
                        if str(counter).startswith("POSIX_"):
                            _add(files[name], str(counter), float(value))
    except (RuntimeError, OSError, KeyError, ValueError) as error:
        raise DatasetError(f"{log}: PyDarshan cannot read it: {error}") from error
    job = report.metadata["job"]
    return files, int(job["nprocs"]), float(job.get("run_time") or job["end_time_sec"] - job["start_time_sec"])


def _profile(files: Mapping[str, Counters], processes: int, seconds: float) -> dict[str, Any]:
    total: dict[str, float] = defaultdict(float)
    for counters in files.values():
        for name, value in counters.items():
            _add(total, name, value)
    reads, read_s, meta_s = int(total["POSIX_READS"]), total["POSIX_F_READ_TIME"], total["POSIX_F_META_TIME"]
    io_s = read_s + meta_s + total["POSIX_F_WRITE_TIME"]
    onward = int(total["POSIX_CONSEC_READS"])
    first = min(reads - onward, int(total["POSIX_OPENS"]))
    opens = [int(counters.get("POSIX_OPENS", 0)) for counters in files.values()]
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


def _operation(name: str, total: Counters) -> dict[str, Any]:
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


def _sizes(total: Counters) -> dict[str, int]:
    """Reads by Darshan's own ranges of sizes."""
    return {
        f"{found[1]} to {found[2]} B".replace("to PLUS B", "B and more"): int(value)
        for name, value in total.items()
        if (found := SIZES.fullmatch(name)) and value
    }
