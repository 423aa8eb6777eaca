"""What a thread is at: running, or the system call that it waits in and on what, read from outside it.

The kernel shows this to a process of its own threads and, unless hardened, of its children (`man 5 proc`, `syscall`).
What it does not show is None: nothing follows from that. A thread that faults in a mapped page is in no system call.
"""

import os
import platform
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

from .files import text_of

Doing = Literal[
    "runs",
    "faults",
    "reads",
    "writes",
    "socket",
    "local_socket",
    "pipe",
    "writes_pipe",
    "lock",
    "child_process",
    "sleep",
    "other",
]
X86_64 = {
    "read": (0, 17, 19, 40, 78, 217, 275, 295, 326, 327),
    "write": (1, 18, 20, 26, 74, 75, 77, 162, 277, 296, 306, 328),
    "path": (4, 6, 21, 262, 269, 332, 437, 439),
    "changed_path": (76, 82, 83, 84, 86, 87, 88, 90, 258, 263, 264, 265, 266, 268, 316),
    "open": (2,),
    "openat": (257,),
    "open_file": (3, 5),
    "poll": (7, 271),
    "select": (23, 270),
    "epoll": (232, 281, 441),
    "socket": (42, 43, 44, 45, 46, 47, 288, 299, 307),
    "futex": (202,),
    "lock": (65, 73, 220),
    "control": (72,),
    "child_process": (58, 61, 247),
    "sleep": (35, 230),
}
"""Numbers of system calls by what they wait for (arch/x86/entry/syscalls/syscall_64.tbl)."""
AARCH64 = {
    "read": (61, 63, 65, 67, 69, 71, 76, 285, 286),
    "write": (46, 64, 66, 68, 70, 81, 82, 83, 84, 227, 267, 287),
    "path": (48, 79, 291, 437, 439),
    "changed_path": (34, 35, 36, 37, 38, 45, 53, 276),
    "openat": (56,),
    "open_file": (57, 80),
    "poll": (73,),
    "select": (72,),
    "epoll": (22, 441),
    "socket": (202, 203, 206, 207, 211, 212, 242, 243, 269),
    "futex": (98,),
    "lock": (32, 192, 193),
    "control": (25,),
    "child_process": (95, 260),
    "sleep": (101, 115),
}
"""The same of include/uapi/asm-generic/unistd.h."""
F_SETLKW, F_OFD_SETLKW = 7, 38
FUTEX = "futex"
"""What a lock in memory is told as: whoever holds it is another thread, which may be at work for the one that waits."""
FUTEX_COMMAND, FUTEX_WAIT_BITSET, FUTEX_CLOCK_REALTIME = 0x7F, 9, 0x100
GIL_S = 0.006
ENDED = "ZXx"
"""States of who has ended and is not yet waited for."""
STOPPED = "Tt"
"""States of who is stopped or traced."""
BLOCKED = -1
"""In place of a call's number: a thread waits outside of any call, for a page (`man 5 proc`)."""
NOBODY = -1
"""Who holds a lock that belongs to an open file, and to no process."""
ORDER = ("other", "reads", "pipe", "local_socket", "socket")
"""What an epoll waits for at a descriptor, the last first: a loop of asyncio has a local socket beside its others."""
MOST_FDS = 1024
"""A call of `select` names no larger descriptors."""


class At(NamedTuple):
    """What a thread was at when it was looked at, and on what: a path, or a name of the kernel's."""

    doing: Doing
    what: str | None = None


@cache
def groups() -> Mapping[int, str]:
    """The group of each system call that is told apart, by its number on this machine; empty for other machines."""
    tables = {"x86_64": X86_64, "aarch64": AARCH64}
    return {number: group for group, numbers in tables.get(platform.machine(), {}).items() for number in numbers}


class Task:
    """A thread of a process, whose files stay open: who reads one waits for Python's lock once, not three times."""

    def __init__(self, pid: int, thread: int) -> None:
        self._pid, self._folder = pid, f"/proc/{pid}/task/{thread}"
        self._files: dict[str, int] = {}

    def at(self) -> At | None:
        """What it is at; None where the kernel does not show it, or it has ended."""
        try:
            number, arguments = _call(self._text("syscall"))
            state = _state(self._text("stat")) if number in (None, BLOCKED) else ""
        except (OSError, ValueError, IndexError):
            return None
        if state and state in ENDED + STOPPED:
            return None
        if number is None or number == BLOCKED:
            return At("runs" if number is None else "faults")
        return _waits(self._pid, groups().get(number), arguments) if groups() else None

    def _text(self, name: str) -> str:
        if name not in self._files:
            self._files[name] = os.open(f"{self._folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(self._files[name], 1 << 16, 0).decode(errors="replace")

    def close(self) -> None:
        """Close its files; they are opened again where that is needed."""
        while self._files:
            os.close(self._files.popitem()[1])


def at(pid: int, thread: int) -> At | None:
    """Return what a thread of a process is at; None where the kernel does not show it, or it has ended."""
    task = Task(pid, thread)
    try:
        return task.at()
    finally:
        task.close()


def has_ended(pid: int) -> bool:
    """Whether a process has ended, be it that nobody has waited for it yet."""
    try:
        return _state(_text(f"/proc/{pid}/stat")) in ENDED
    except OSError:
        return True


def _call(text: str) -> tuple[int | None, list[int]]:
    """The number of the system call that a thread waits in, and its arguments; None where it runs."""
    words = text.split()
    if words[0] in ("running", str(BLOCKED)):
        return None if words[0] == "running" else BLOCKED, []
    return int(words[0]), [int(word, 16) for word in words[1:-2]]


def _waits(pid: int, group: str | None, arguments: list[int]) -> At:
    """What a system call waits for, by its group and its arguments."""
    if group in ("read", "write", "open_file"):
        return _on(pid, arguments[0], writes=group == "write")
    if group in ("open", "openat"):
        return At("writes" if arguments[1 if group == "open" else 2] & os.O_ACCMODE else "reads")
    if group in ("path", "changed_path"):
        return At("reads" if group == "path" else "writes")
    if group == "socket":
        return _on(pid, arguments[0])
    if group in ("poll", "select", "epoll"):
        descriptor = {"poll": _polled, "select": _selected, "epoll": _of_epoll}[group](pid, arguments)
        return _sleeps(pid) if descriptor is None else _on(pid, descriptor)
    if group == "futex":
        return At("runs") if _asks_for_the_gil(pid, arguments) else At("lock", FUTEX)
    if group == "control":
        return At("lock" if arguments[1] in (F_SETLKW, F_OFD_SETLKW) else "other")
    if group == "sleep":
        return _sleeps(pid)
    found: dict[str | None, Doing] = {"lock": "lock", "child_process": "child_process"}
    return At(found.get(group, "other"))


def _sleeps(pid: int) -> At:
    """What a thread that sleeps waits for: the lock of a file that its process has open, where another one holds it.

    That is how SQLite waits: it tries again and again, and sleeps between.
    """
    lock = _lock_of_others(pid, int(time.monotonic()))
    return At("sleep") if lock is None else At("lock", lock)


@lru_cache(maxsize=64)
def _lock_of_others(pid: int, _second: int) -> str | None:
    """The file that a process has open and another one has locked, looked up once a second: it takes some reading."""
    with suppress(OSError, ValueError, IndexError):
        held = _locks_of_others(pid)
        for name in os.listdir(f"/proc/{pid}/fd") if held else ():
            if _file_of(pid, name) in held and "\nlock:" not in _text(f"/proc/{pid}/fdinfo/{name}"):  # else inherited
                return os.readlink(f"/proc/{pid}/fd/{name}")
    return None


def _file_of(pid: int, descriptor: str) -> tuple[int, int, int] | None:
    """The device of an open file, and its number there."""
    with suppress(OSError):
        found = os.stat(f"/proc/{pid}/fd/{descriptor}")
        return os.major(found.st_dev), os.minor(found.st_dev), found.st_ino
    return None


def _locks_of_others(pid: int) -> set[tuple[int, int, int]]:
    """The files that other processes have locked to write, by device and number (`man 5 proc_locks`)."""
    found = set()
    for words in map(str.split, _text("/proc/locks").splitlines()):
        if words[1] != "->" and words[3] == "WRITE" and int(words[4]) not in (pid, NOBODY):
            major, minor, number = words[5].split(":")
            found.add((int(major, 16), int(minor, 16), int(number)))
    return found


def _asks_for_the_gil(pid: int, arguments: list[int]) -> bool:
    """Whether a thread wants to run Python, and looks again within some ms whether it may (`sys.getswitchinterval`)."""
    operation, until = arguments[1], arguments[3]
    found = _memory(pid, until, 16) if until and operation & FUTEX_COMMAND == FUTEX_WAIT_BITSET else None
    if found is None:
        return False
    seconds, nanoseconds = struct.unpack("<qq", found)
    now_s = time.time() if operation & FUTEX_CLOCK_REALTIME else time.monotonic()
    return bool(seconds + nanoseconds / 1e9 - now_s < GIL_S)


def _on(pid: int, descriptor: int, writes: bool = False) -> At:
    """What is waited for on an open file."""
    try:
        name = os.readlink(f"/proc/{pid}/fd/{descriptor}")
    except OSError:
        return At("other")
    if name.startswith("socket:"):
        return At("local_socket" if _is_local(name[8:-1]) else "socket", name)
    if name.startswith("pipe:"):
        return At("writes_pipe" if writes else "pipe", name)
    if not name.startswith("/") or name.startswith("/dev/"):
        return At("other", name)
    return At("writes" if writes else "reads", name)


def _polled(pid: int, arguments: list[int]) -> int | None:
    """The first descriptor of a call of poll; None where it waits for none, -1 where it is not shown."""
    address, count = arguments[:2]
    if not count:
        return None
    found = _memory(pid, address, 4)
    return -1 if found is None else int(struct.unpack("<i", found)[0])


def _selected(pid: int, arguments: list[int]) -> int | None:
    """The first descriptor of a call of select; None where it waits for none, -1 where it is not shown."""
    most = min(arguments[0], MOST_FDS)
    for address in arguments[1:4]:
        found = _memory(pid, address, (most + 63) // 64 * 8) if address and most else None
        bits = int.from_bytes(found or b"", "little") & ((1 << most) - 1)
        if bits:
            return (bits & -bits).bit_length() - 1
    return None if not most or not any(arguments[1:4]) else -1


def _of_epoll(pid: int, arguments: list[int]) -> int | None:
    """A descriptor that an epoll waits for, sockets of the network first; None where there is none."""
    with suppress(OSError, ValueError):
        lines = _text(f"/proc/{pid}/fdinfo/{arguments[0]}").splitlines()
        found = [int(line.split()[1]) for line in lines if line.startswith("tfd:")]
        return max(found, key=lambda one: ORDER.index(_on(pid, one).doing), default=None)
    return -1


@cache
def _is_local(inode: str) -> bool:
    """Whether a socket lies between processes of one host (`AF_UNIX`)."""
    with suppress(IndexError):
        return any(line.split()[6] == inode for line in text_of(Path("/proc/net/unix")).splitlines()[1:])
    return False


def _memory(pid: int, address: int, size: int) -> bytes | None:
    """Bytes of a process's memory; None where it is not shown."""
    with suppress(OSError, OverflowError), open(f"/proc/{pid}/mem", "rb", 0) as memory:
        found = os.pread(memory.fileno(), size, address)
        return found if len(found) == size else None
    return None


def _state(text: str) -> str:
    """A thread's state as the kernel letters it, by its file `stat`; D: it waits and cannot be interrupted."""
    return text.rpartition(")")[2].split()[0]


def _text(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 1 << 16).decode(errors="replace")
    finally:
        os.close(descriptor)
