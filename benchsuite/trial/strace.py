"""The I/O trace of a rank and its workers by strace: it sees all calls, also those within libraries, at a price.

Every traced call stops the process twice, tens of microseconds: what is timed meanwhile is the tracer. So a trial under
strace has no AU, and the price, measured on the spot, stands in its profile.
"""

import ctypes
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchsuite.contract.errors import UserError
from benchsuite.inside.files import text_of
from benchsuite.inside.processes import process_io, processes_io
from benchsuite.storage import format_of
from benchsuite.storage.dataset.manifest import Dataset
from benchsuite.storage.observe.io_slots import latency_bucket

CALLS = {
    "open": "open",
    "openat": "open",
    "openat2": "open",
    "stat": "stat",
    "fstat": "stat",
    "lstat": "stat",
    "newfstatat": "stat",
    "statx": "stat",
    "read": "read",
    "pread64": "read",
    "readv": "read",
    "preadv": "read",
    "preadv2": "read",
    "lseek": "seek",
    "close": "close",
    "mmap": "mmap",
    "fadvise64": "advise",
}
"""System calls that are traced, and the operations that they are."""
ATTACH_TIMEOUT_S = 10.0
PRICED_CALLS = 500
PR_SET_PTRACER = 0x59616D61
ANYONE = ctypes.c_ulong(-1)
_LINE = re.compile(r"^(\w+)\((.*)\)\s+= (-?\d+|0x[0-9a-f]+)(?:<[^>]*>)?(.*?) <(\d+\.\d+)>$")
_FILE = re.compile(r'(?:^|, )(-?\d+|AT_FDCWD)(?:<([^>]*)>)?|"([^"]*)"')
_NUMBER = re.compile(r"(?:^|, )(\d+)(?=$|, )")


def check_installed() -> None:
    """Refuse where there is no strace.

    Raises:
        UserError: with what to install.
    """
    if shutil.which("strace") is None:
        raise UserError("--profile strace: strace is not installed: apt-get install strace; --profile io needs none")


class Strace:
    """strace attached to this process and, through forks, to its workers, from `start` to `finish`."""

    def __init__(self, dataset: Dataset) -> None:
        form = format_of(dataset.manifest.format)
        self._dataset, self._maps = dataset, form.reads == "mapped"
        self._logs = tempfile.TemporaryDirectory(prefix="benchsuite-strace-", ignore_cleanup_errors=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s, self._before, self._cost_s = 0.0, process_io(os.getpid()), 0.0

    def start(self) -> "Strace":
        """Attach.

        Raises:
            UserError: strace is missing, or may not.
        """
        check_installed()
        plain_s = _call_s()
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_PTRACER, ANYONE, 0, 0, 0)  # Yama lets only ancestors trace, unless told otherwise
        asked = ["-ff", "-T", "-y", "-s", "0", "-e", f"trace={','.join(CALLS)}", "-e", "signal=none"]
        self._process = subprocess.Popen(
            ["strace", *asked, "-o", f"{self._logs.name}/thread", "-p", str(os.getpid())],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        deadline = time.monotonic() + ATTACH_TIMEOUT_S
        while not _all_traced():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                said = self._process.stderr.read().decode(errors="replace") if self._process.stderr else ""
                raise UserError(f"--profile strace: cannot attach: {' '.join(said.split()) or 'no reason given'}")
            time.sleep(0.01)
        self._cost_s = max(0.0, _call_s() - plain_s)
        self._started_s, self._before = time.perf_counter(), process_io(os.getpid())
        return self

    def stop(self) -> None:
        """Detach."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(ATTACH_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def finish(self, delivered_bytes: int) -> dict[str, Any]:
        """Detach and tell what was seen, in the form of `benchsuite.storage.observe.io_trace.Tracer.finish`."""
        seconds, own = time.perf_counter() - self._started_s, process_io(os.getpid())
        self.stop()
        logs = sorted(Path(self._logs.name).iterdir())
        folder = os.path.realpath(self._dataset.folder)
        seen = Seen(folder + os.sep, {os.path.realpath(path) for path in self._dataset.data_files()})
        touched = [int(log.suffix[1:]) for log in logs if seen.add(log.read_text(errors="replace").splitlines())]
        workers = sorted({_process_of(thread) for thread in touched} - {os.getpid()})
        found = {
            "by": "strace",
            "seconds": seconds,
            "threads": len(touched),
            "workers": len(workers),
            **seen.totals(),
            "counters": {
                "workers": asdict(whole) if (whole := processes_io(workers)) else None,
                "rank": asdict(own.grown(self._before)) if own and self._before else None,
            },
            "delivered_bytes": delivered_bytes,
            "mapped": self._maps,
            "cost_s_per_call": self._cost_s,
        }
        self._logs.cleanup()
        return found


def _call_s() -> float:
    """Seconds of the cheapest call that is traced."""
    started = time.perf_counter()
    with open(os.devnull, encoding="utf-8") as file:
        for _ in range(PRICED_CALLS):
            os.fstat(file.fileno())
    return (time.perf_counter() - started) / PRICED_CALLS


def _process_of(thread: int) -> int:
    """The process of a thread; itself where it has ended."""
    told = [
        line.split()[1] for line in text_of(Path(f"/proc/{thread}/status")).splitlines() if line.startswith("Tgid:")
    ]
    return int(told[0]) if told else thread


def _all_traced() -> bool:
    """Whether a tracer is attached to every thread of this process."""
    texts = [(task / "status").read_text() for task in Path("/proc/self/task").iterdir()]
    return all("TracerPid:\t0\n" not in text for text in texts)


@dataclass
class Seen:
    """What the logs of threads say about files below a folder."""

    prefix: str
    listed: set[str]
    operations: dict[str, dict[str, Any]] = field(default_factory=dict)
    sizes: Counter[int] = field(default_factory=Counter)
    order: list[int] = field(default_factory=lambda: [0, 0, 0])
    opens: Counter[str] = field(default_factory=Counter)
    reads: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)

    def add(self, lines: Iterable[str]) -> bool:
        """The log of a thread; whether it touched a file."""
        ends: dict[str, int] = {}
        places: dict[str, int] = {}
        touched = False
        for name, path, key, arguments, result, took_ns in _calls(lines, self.prefix):
            touched = True
            kind = CALLS[name]
            self._note(kind, took_ns, result, arguments)
            if kind == "open" and result >= 0:
                self.opens[path] += 1
            elif kind == "close":
                ends.pop(key, None), places.pop(key, None)
            elif kind == "seek":
                places[key] = result
            elif kind == "read" and result >= 0:
                at = _offset(name, arguments) if name.startswith("pread") else places.get(key, 0)
                if not name.startswith("pread"):
                    places[key] = at + result
                self._read(path, at, result, ends.get(key))
                ends[key] = at + result
        return touched

    def _note(self, kind: str, took_ns: int, result: int, arguments: str) -> None:
        found = self.operations.setdefault(
            kind, {"count": 0, "errors": 0, "bytes": 0, "ns": 0, "max_ns": 0, "latencies": {}}
        )
        moved = {"read": max(result, 0), "mmap": int((_NUMBER.findall(arguments) or ["0"])[0])}.get(kind, 0)
        found["count"] += 1
        found["errors"] += result < 0
        found["bytes"] += moved
        found["ns"] += took_ns
        found["max_ns"] = max(found["max_ns"], took_ns)
        bucket = str(latency_bucket(took_ns))
        found["latencies"][bucket] = found["latencies"].get(bucket, 0) + 1

    def _read(self, path: str, at: int, num_bytes: int, end: int | None) -> None:
        self.order[0 if end is None else 1 if end == at else 2] += 1
        self.sizes[num_bytes.bit_length()] += 1
        self.reads[path] += 1
        self.bytes[path] += num_bytes

    def totals(self) -> dict[str, Any]:
        """Operations, sizes and order of reads, and use of files."""
        names = sorted(self.listed)
        used = {*self.opens, *self.reads}
        bits = "".join("1" if name in used else "0" for name in names)
        padded = bits.ljust(-(-len(bits) // 8) * 8, "0")
        known = [name for name in names if name in used]
        return {
            "operations": self.operations,
            "sizes": {str(bucket): count for bucket, count in self.sizes.items()},
            "order": self.order,
            "files": {
                "listed": len(names),
                "followed": len(names),
                "touched": f"{int(padded, 2):0{len(padded) // 4}x}" if padded else "",
                "opens": sum(self.opens.values()),
                "most_opens": max(self.opens.values(), default=0),
                "reads": sum(self.reads.values()),
                "bytes": sum(self.bytes[name] for name in known),
                "size_bytes": sum(os.stat(name).st_size for name in known),
            },
        }


def _offset(name: str, arguments: str) -> int:
    """Where a read that names its place begins: its last argument, but for the flags that preadv2 has behind it."""
    return int(_NUMBER.findall(arguments.rpartition(", ")[0] if name == "preadv2" else arguments)[-1])


def _calls(lines: Iterable[str], prefix: str) -> Iterator[tuple[str, str, str, str, int, int]]:
    """Name, path, descriptor with path, arguments, result and nanoseconds of each call about a file below `prefix`.

    Left out are reads that were to find what is in memory, and found nothing (RWF_NOWAIT): nothing failed.
    """
    for line in lines:
        if prefix not in line:
            continue
        match = _LINE.match(line.rstrip("\n"))
        if match is None or match[1] not in CALLS or " EAGAIN " in match[4]:
            continue
        named = ((number, path or text) for number, path, text in _FILE.findall(match[2]))
        found = next((pair for pair in named if pair[1].startswith(prefix)), None)
        if found is not None:
            number, path = found
            yield match[1], path, f"{number}:{path}", match[2], int(match[3], 0), round(float(match[5]) * 1e9)
