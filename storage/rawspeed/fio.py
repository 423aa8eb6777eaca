"""One measurement of reads by fio, asked for what our own readers do: threads that read one block at a time each."""

import json
import os
import shutil
import subprocess
from pathlib import Path

from benchsuite.storage.errors import DatasetError
from benchsuite.storage.rawspeed.plain_reader import HUGE_BYTES, Pattern

PROGRAM = "fio"
HUGE_PAGES = "glibc.malloc.hugetlb=1"
"""Makes malloc ask for huge pages, which is where our own reader reads to."""
GRACE_S = 60.0
"""How much longer than asked for fio may take."""


def installed() -> bool:
    """Whether fio is here."""
    return shutil.which(PROGRAM) is not None


def arguments(
    name: str,
    size_bytes: int,
    pattern: Pattern,
    block_bytes: int,
    depth: int,
    seconds: float,
    direct: bool,
    again: bool,
) -> list[str]:
    """The command line of one measurement; the file's name is relative to the folder fio runs in."""
    apart = pattern == "sequential" or not again
    share = size_bytes // depth // block_bytes * block_bytes if apart else size_bytes
    return [
        PROGRAM,
        "--name=probe",
        f"--filename={name}",
        f"--rw={'read' if pattern == 'sequential' else 'randread'}",
        f"--bs={block_bytes}",
        "--ioengine=psync",
        "--thread",
        f"--numjobs={depth}",
        "--group_reporting",
        f"--size={share}",
        *([f"--offset_increment={share}"] if apart else []),
        f"--runtime={max(1, round(seconds * 1000))}ms",
        *(["--time_based"] if again else []),
        f"--direct={int(direct)}",
        "--randrepeat=0",
        f"--iomem_align={HUGE_BYTES}",
        "--readonly",
        "--output-format=json",
    ]


def read_file(
    file: Path, pattern: Pattern, block_bytes: int, depth: int, seconds: float, direct: bool, again: bool
) -> float:
    """Bytes per second.

    Raises:
        DatasetError: fio failed; with its last words.
    """
    command = arguments(file.name, file.stat().st_size, pattern, block_bytes, depth, seconds, direct, again)
    tunables = ":".join(filter(None, [os.environ.get("GLIBC_TUNABLES"), HUGE_PAGES]))
    try:
        done = subprocess.run(
            command,
            cwd=file.parent,
            env={**os.environ, "GLIBC_TUNABLES": tunables},
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=seconds + GRACE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DatasetError(f"fio did not answer: {error}; --engine own does without it") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        raise DatasetError(f"fio failed: {said[-1]}; --engine own does without it")
    return rate(done.stdout)


def rate(text: str) -> float:
    """Bytes per second in what fio printed, which may begin with notes.

    Raises:
        DatasetError: it is not what fio prints, or nothing was read.
    """
    try:
        found = json.loads(text[text.index("{") :])["jobs"][0]["read"]
        num_bytes, milliseconds = int(found["io_bytes"]), float(found["runtime"])
        bytes_per_s = float(found["bw_bytes"])
    except (ValueError, LookupError, TypeError) as error:
        raise DatasetError(f"fio's answer has no reads: {error}; --engine own does without it") from error
    if not num_bytes or not milliseconds:
        raise DatasetError("fio read nothing; --engine own does without it")
    return bytes_per_s
