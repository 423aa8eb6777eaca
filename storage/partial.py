"""Folders in the making: named after who writes them, so that what a killed writer left is known and removed."""

import os
import re
import secrets
import shutil
import socket
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

_WRITER = re.compile(r"(?P<host>[0-9a-f]{16})-(?P<pid>\d{1,9})-(?P<started>\d+)-[0-9a-f]{4}")
"""Host, process id, when that process was started (clock ticks since boot), and random digits."""
_PLACE_OF_START = 19
"""Of the start in /proc/PID/stat, counted behind the command's name; the state is the first there."""


def partial_folder(folder: Path) -> Path:
    """A name beside `folder` for what this process is going to rename to it."""
    pid = os.getpid()
    return folder.with_name(f"{_prefix(folder)}{_host() or '0' * 16}-{pid}-{_facts(pid)[1]}-{secrets.token_hex(2)}")


def remove_abandoned(folder: Path) -> None:
    """Remove what writers of `folder` left that are no more; never that of another host or of a running process."""
    host, prefix = _host(), _prefix(folder)
    with suppress(OSError):
        for found in os.listdir(folder.parent):
            writer = _WRITER.fullmatch(found, len(prefix)) if found.startswith(prefix) else None
            if writer and writer["host"] == host and not _is_running(int(writer["pid"]), int(writer["started"])):
                shutil.rmtree(folder.with_name(found), ignore_errors=True)


def _prefix(folder: Path) -> str:
    return f".{folder.name}.partial-"


def _host() -> str:
    """This host since it was booted, as this process sees it: containers have process ids of their own.

    Nothing where that cannot be told.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        known = f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
    return blake2b(known.encode(), digest_size=8).hexdigest()


def _facts(pid: int) -> tuple[str, int]:
    """State of a process, and when it was started."""
    facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return facts[0], int(facts[_PLACE_OF_START])


def _is_running(pid: int, started: int) -> bool:
    """Whether the process that was started then still runs; where that cannot be told, it does."""
    try:
        os.kill(pid, 0)
        state, found = _facts(pid)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return found == started and state not in ("Z", "X")
