"""A small host for one sweep: its own shared memory and network, and a limit to its memory."""

import errno
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

CGROUPS = Path("/sys/fs/cgroup")
ENTER = """
set -e
if [ -n "$1" ]; then echo $$ > "$1"; fi
mount -t tmpfs -o size="$2" tmpfs /dev/shm
ip link set lo up
if [ -n "$3" ]; then echo "$3" > /proc/sys/net/ipv4/ip_local_port_range; fi
left="$4"; shift 4
code=0; "$@" || code=$?
ls -A /dev/shm > "$left"
cat /proc/net/tcp /proc/net/tcp6 2> /dev/null | awk '$4 == "0A" { print "port", $2 }' >> "$left"
exit $code
"""
"""Arguments: file that takes process ids of a control group, size of shared memory, ports, and where what is left of
both is noted."""


def why_not() -> str | None:
    """Why no such host can be made here."""
    if os.geteuid() != 0:
        return "needs root, for namespaces, mounts and control groups"
    missing = [name for name in ("unshare", "mount", "ip", "awk") if shutil.which(name) is None]
    if missing:
        return f"needs {', '.join(missing)}"
    tried = ["unshare", "--mount", "--net", "sh", "-c", "mount -t tmpfs tmpfs /dev/shm && ip link set lo up"]
    said = subprocess.run(tried, capture_output=True, text=True)
    return f"no namespaces here: {said.stderr.strip()}" if said.returncode else None


NEEDS_ROOT = pytest.mark.skipif(bool(why_not()), reason=why_not() or "")


@dataclass(frozen=True)
class Host:
    """How commands are started there, and where what is left of shared memory and ports is noted."""

    before: list[str]
    left: Path
    limits_memory: bool


@contextmanager
def host(folder: Path, shm: str, memory_bytes: int | None = None, ports: str = "") -> Iterator[Host]:
    """A host whose commands have so much shared memory and host memory; without a limit where none can be set."""
    left = folder / "left.txt"
    with limited(folder.name, memory_bytes) as group:
        entry = str(group / "cgroup.procs") if group else ""
        before = ["unshare", "--mount", "--net", "--", "sh", "-c", ENTER, "sh", entry, shm, ports, str(left)]
        yield Host(before, left, group is not None)


@contextmanager
def limited(name: str, memory_bytes: int | None) -> Iterator[Path | None]:
    """A control group with a memory limit, of version 1 or 2; None where the kernel gives none."""
    group = _made(f"benchsuite-{name}-{os.getpid()}", memory_bytes) if memory_bytes else None
    try:
        yield group
    finally:
        if group:
            _remove(group)


def _made(name: str, memory_bytes: int) -> Path | None:
    first = (CGROUPS / "memory" / "memory.limit_in_bytes").exists()
    group = (CGROUPS / "memory" if first else CGROUPS) / name
    try:
        if not first:
            (CGROUPS / "cgroup.subtree_control").write_text("+memory")
        group.mkdir()
        (group / ("memory.limit_in_bytes" if first else "memory.max")).write_text(str(memory_bytes))
    except OSError:
        with suppress(OSError):
            group.rmdir()
        return None
    with suppress(OSError):  # no swap, or not counted
        (group / ("memory.memsw.limit_in_bytes" if first else "memory.swap.max")).write_text(
            str(memory_bytes if first else 0)
        )
    return group


def _remove(group: Path) -> None:
    for _ in range(100):
        try:
            return group.rmdir()
        except OSError as error:
            assert error.errno == errno.EBUSY, error
            time.sleep(0.05)
    raise AssertionError(f"processes are left in {group}")
