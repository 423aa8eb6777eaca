"""Folders in the making: named after who writes them, so that what a killed writer left is known and removed."""

import os
import re
import secrets
import shutil
import socket
import stat
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from benchsuite.inside.files import refuse_foreign

_PROCESS = re.compile(r"(?P<host>[0-9a-f]{16})-(?P<pid>\d{1,9})-(?P<started>\d+)")
"""Host, process id, and when that process was started (clock ticks since boot)."""
_RANDOM = re.compile(r"[0-9a-f]{4}")
_PLACE_OF_FLAGS, _PLACE_OF_START = 6, 19
"""Places in /proc/PID/stat, counted behind the command's name: the state is the first there."""
_EXITING = 0x4
"""The kernel's flag of a process that ends. Its locks are free, and others go on, a moment before it is a zombie."""


def partial_folder(folder: Path) -> Path:
    """A name beside `folder` for what this process is going to rename to it."""
    return folder.with_name(f"{_prefix(folder)}{this_process()}-{secrets.token_hex(2)}")


def adopted_folder(folder: Path) -> Path:
    """Return `partial_folder(folder)`, taking over what this or an ended writer has left."""
    mine = partial_folder(folder)
    for left in partial_folders(folder):
        if _is_abandoned(folder, left) or this_process() in left.name:
            with suppress(OSError):  # another has it
                left.rename(mine)
                break
    return mine


def partial_folders(folder: Path) -> list[Path]:
    """Return the folders in which this user's writers of `folder` are making it, or were, by name."""
    try:
        names = [name for name in os.listdir(folder.parent) if name.startswith(_prefix(folder))]
    except OSError:
        return []
    return sorted(path for path in map(folder.with_name, names) if _is_own(path))


def _is_own(path: Path) -> bool:
    try:
        refuse_foreign(path)
    except OSError:
        return False
    return True


def remove_abandoned(folder: Path) -> None:
    """Remove what writers of `folder` left that are no more; never that of another host or of a running process."""
    for left in partial_folders(folder):
        if _is_abandoned(folder, left):
            shutil.rmtree(left, ignore_errors=True)


def _is_abandoned(folder: Path, left: Path) -> bool:
    writer, _, digits = left.name.removeprefix(_prefix(folder)).rpartition("-")
    return bool(_RANDOM.fullmatch(digits)) and has_ended(writer)


def this_process() -> str:
    """A name for this process that no other has, on any host."""
    pid = os.getpid()
    return f"{_host() or '0' * 16}-{pid}-{_facts(pid)[1]}"


def has_ended(process: str) -> bool:
    """Whether what was named so by `this_process` ran on this host and is no more.

    False of another host's, of a running one, of what is no such name, and where it cannot be told.
    """
    named = _PROCESS.fullmatch(process)
    return bool(named and named["host"] == _host() and not _is_running(int(named["pid"]), int(named["started"])))


def _prefix(folder: Path) -> str:
    return f".{folder.name}.partial-"


def _host() -> str:
    """This host since it was booted, as this process sees it: containers have process ids of their own.

    Nothing where that cannot be told.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        known = f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
    return blake2b(known.encode(), digest_size=8).hexdigest()


def _facts(pid: int) -> tuple[bool, int]:
    """Whether a process has ended or is about to, and when it was started."""
    facts = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    ends = facts[0] in ("Z", "X") or bool(int(facts[_PLACE_OF_FLAGS]) & _EXITING)
    return ends, int(facts[_PLACE_OF_START])


def _is_running(pid: int, started: int) -> bool:
    """Whether the process that was started then still runs; where that cannot be told, it does."""
    try:
        os.kill(pid, 0)
        ends, found = _facts(pid)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return found == started and not ends


def show_to_others(folder: Path) -> Path:
    """Give a folder the permissions that a new one gets here; asking for the umask would change it for a moment."""
    new = folder / ".mode"
    new.mkdir()
    folder.chmod(stat.S_IMODE(new.stat().st_mode))
    new.rmdir()
    return folder
