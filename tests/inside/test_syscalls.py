"""What threads that really wait are seen at."""

import fcntl
import os
import platform
import select
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from benchsuite.inside import syscalls
from benchsuite.inside.syscalls import at, groups

pytestmark = pytest.mark.skipif(not groups(), reason=f"no table of system calls for {platform.machine()}")
LONG_S = 60.0
LOOKS = 40


@pytest.fixture(autouse=True)
def _locks_are_looked_up_anew() -> None:
    syscalls._lock_of_others.cache_clear()  # elsewhere once a second


HOLDS = """
import sqlite3, sys
held = sqlite3.connect(sys.argv[1])
held.execute("BEGIN EXCLUSIVE")
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def stop() -> Iterator[threading.Event]:
    made = threading.Event()
    yield made
    made.set()


def seen(wait: Callable[[], Any]) -> str:
    """What a thread that waits so is mostly seen at."""
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    time.sleep(0.1)
    found = Counter[str]()
    for _ in range(LOOKS):
        each = at(os.getpid(), thread.native_id or 0)
        found[each.doing if each is not None else "unknown"] += 1
        time.sleep(0.002)
    return found.most_common(1)[0][0]


def test_sleeping():
    assert seen(lambda: time.sleep(LONG_S)) == "sleep"
    assert seen(lambda: select.select([], [], [], LONG_S)) == "sleep"


def test_sleeping_until_another_process_gives_up_a_files_lock(tmp_path: Path):
    path = tmp_path / "made.db"
    command = [sys.executable, "-c", HOLDS, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdin is not None
        other.stdout.readline()
        assert seen(lambda: sqlite3.connect(path, timeout=LONG_S).execute("BEGIN IMMEDIATE")) == "lock"
        other.stdin.close()


def test_sleeping_with_a_lock_that_is_ones_own_or_inherited(tmp_path: Path):
    with (tmp_path / "lock").open("w") as mine:
        fcntl.flock(mine, fcntl.LOCK_EX)
        assert seen(lambda: time.sleep(LONG_S)) == "sleep"
        with subprocess.Popen(["sleep", str(LONG_S)], pass_fds=[mine.fileno()]) as child:
            time.sleep(0.1)
            found = at(child.pid, child.pid)
            child.kill()
    assert found is not None and found.doing == "sleep"


def test_locks(tmp_path: Path, stop: threading.Event):
    held = threading.Lock()
    held.acquire()
    assert seen(lambda: held.acquire(timeout=LONG_S)) == "lock"
    assert seen(lambda: stop.wait(LONG_S)) == "lock"
    with (tmp_path / "lock").open("w") as mine:
        fcntl.flock(mine, fcntl.LOCK_EX)
        assert seen(lambda: fcntl.flock((tmp_path / "lock").open("w"), fcntl.LOCK_EX)) == "lock"


@pytest.mark.parametrize("how", ["recv", "select", "poll", "epoll"])
def test_sockets(how: str):
    server = socket.create_server(("127.0.0.1", 0))
    with server, socket.create_connection(server.getsockname()) as one:
        one.settimeout(LONG_S)
        poll, epoll = select.poll(), select.epoll()
        poll.register(one, select.POLLIN)
        epoll.register(one, select.EPOLLIN)
        ways: dict[str, Callable[[], Any]] = {
            "recv": lambda: one.recv(1),
            "select": lambda: select.select([one], [], [], LONG_S),
            "poll": lambda: poll.poll(LONG_S * 1e3),
            "epoll": lambda: epoll.poll(LONG_S),
        }
        assert seen(lambda: suppressed(ways[how])) == "socket"


def suppressed(wait: Callable[[], Any]) -> None:
    with suppress(OSError, ValueError):
        wait()


def test_sockets_within_this_host():
    left, right = socket.socketpair()
    with left, right:
        left.settimeout(LONG_S)
        assert seen(lambda: suppressed(lambda: left.recv(1))) == "local_socket"


def test_other_processes():
    assert seen(lambda: subprocess.run(["sleep", str(LONG_S)], check=False)) == "child_process"
    assert seen(lambda: subprocess.check_output(["sleep", str(LONG_S)])) == "pipe"


def test_a_pipe_that_is_full():
    reads, writes = os.pipe()
    assert seen(lambda: suppressed(lambda: os.write(writes, bytes(1 << 20)))) == "writes_pipe"
    os.close(reads)


def test_computing_in_python_beside_who_looks(stop: threading.Event):
    """It wants to run whenever it does not: who looks takes Python's lock for a moment."""

    def counts() -> None:
        while not stop.is_set():
            pass

    assert seen(counts) == "runs"


def test_a_child_that_sleeps_and_one_that_has_ended():
    with subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(9)"], stdout=-1) as child:
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(0.1)
        found = at(child.pid, child.pid)
        assert found is not None and found.doing == "sleep"
        child.kill()
    assert at(child.pid, child.pid) is None


def test_opening_to_write_is_writing(tmp_path: Path):
    """A pipe with a name lets nobody open it before the other side does."""
    for mode, doing in (("w", "writes"), ("r", "reads")):
        os.mkfifo(tmp_path / mode)
        assert seen(lambda mode=mode: (tmp_path / mode).open(mode)) == doing


def test_a_file_that_is_read(tmp_path: Path):
    """Reads from a pipe with a name wait as reads do, and are no file's; a plain file is told with its path."""
    big = tmp_path / "big"
    big.write_bytes(bytes(1 << 22))
    ends = time.monotonic() + 1.0
    found = set[str | None]()

    def reads() -> None:
        while time.monotonic() < ends:
            big.read_bytes()

    thread = threading.Thread(target=reads)
    thread.start()
    while thread.is_alive():
        each = at(os.getpid(), thread.native_id or 0)
        found |= {each.what} if each is not None and each.doing == "reads" else set()
    assert found <= {None, str(big)}
