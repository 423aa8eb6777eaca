"""Which part of a loader or of a loop's body a thread is in, and at which line of the user's, by its Python frames."""

import gc
import linecache
import re
import sys
import sysconfig
import threading
from collections import deque
from collections.abc import Iterator
from functools import cache
from multiprocessing.synchronize import SemLock
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Literal

Role = Literal[
    "waits_for_readers",
    "hand_over",
    "collate",
    "sample",
    "shuffle",
    "fills",
    "start",
    "idle",
    "ended",
    "exchange",
    "save",
    "backward",
    "child",
]
OF_PLACES: tuple[tuple[str, frozenset[str], Role], ...] = (
    ("torch/multiprocessing/reductions.py", frozenset(), "hand_over"),
    ("multiprocessing/reduction.py", frozenset(), "hand_over"),
    ("multiprocessing/resource_sharer.py", frozenset(), "hand_over"),
    ("multiprocessing/connection.py", frozenset({"_recv", "_recv_bytes", "_send", "_send_bytes"}), "hand_over"),
    ("multiprocessing/connection.py", frozenset({"wait", "_poll", "poll"}), "waits_for_readers"),
    ("multiprocessing/process.py", frozenset({"start"}), "start"),
    ("multiprocessing/pool.py", frozenset({"next", "get", "wait"}), "waits_for_readers"),
    ("concurrent/futures/_base.py", frozenset({"result", "wait", "as_completed"}), "waits_for_readers"),
    ("/queue.py", frozenset({"get"}), "waits_for_readers"),
    ("/queue.py", frozenset({"put"}), "idle"),
    ("multiprocessing/queues.py", frozenset({"_feed"}), "idle"),
    ("utils/data/_utils/collate.py", frozenset(), "collate"),
    ("utils/data/dataloader.py", frozenset({"_try_get_data", "_get_data"}), "waits_for_readers"),
    ("storage/loaders/reader.py", frozenset({"fill"}), "sample"),
    ("storage/loaders/threads.py", frozenset({"_run", "_free_slot"}), "idle"),
    ("storage/loaders/threads.py", frozenset({"__next__"}), "waits_for_readers"),
    ("storage/loaders/dali.py", frozenset({"_next"}), "waits_for_readers"),
    ("torch/autograd/graph.py", frozenset({"_engine_run_backward"}), "backward"),
    ("/subprocess.py", frozenset(), "child"),
    ("torch/serialization.py", frozenset({"save", "_save", "_legacy_save"}), "save"),
)
"""Where a thread is, by the end of a file's name and its functions (none: all), and what that means."""
PACKAGES: tuple[tuple[str, Role], ...] = (("torch/distributed/", "exchange"), ("torch/nn/parallel/", "exchange"))
OF_LIBRARIES = tuple(
    str(Path(path)) for name in ("stdlib", "platstdlib", "purelib", "platlib") if (path := sysconfig.get_path(name))
)


def frames_of(frame: FrameType | None) -> Iterator[FrameType]:
    """A thread's frames, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def frame_of(thread: int) -> FrameType | None:
    """The innermost Python frame of a thread of this process.

    Before Python 3.12 a collection of garbage that begins while the interpreter lists its threads can block all of them
    for ever (CPython issue 106883), so that none may begin meanwhile.
    """
    collects = sys.version_info < (3, 12) and gc.isenabled()
    if collects:
        gc.disable()
    try:
        return sys._current_frames().get(thread)
    finally:
        if collects:
            gc.enable()


def role_of(frame: FrameType) -> Role | None:
    """The part of a loader or of a loop's body that a thread is in; None where that cannot be told."""
    if WRITES.search(linecache.getline(frame.f_code.co_filename, frame.f_lineno)):
        return "save"
    for each in frames_of(frame):
        if each.f_code.co_name == "_bootstrap" and each.f_code.co_filename.endswith("multiprocessing/process.py"):
            return None  # what lies below is the parent's, at the moment in which it forked
        found = _own_role(each)
        if found != "waits_for_readers":
            if found is not None:
                return found
            continue
        worker = _worker_loop(each)
        if _fills(each, worker is not None):
            return "fills"
        return found if worker is None else _of_worker(worker)
    return None


def waits_on(frame: FrameType) -> Literal["lock", "thread", "exchange"] | None:
    """What the innermost line names that a thread can wait for: a lock of Python's, what another thread does, or an
    exchange with other ranks."""
    file = frame.f_code.co_filename
    if file.endswith("/threading.py"):
        return "lock" if frame.f_code.co_name in ("acquire", "__enter__") else "thread"
    work: Any = getattr(sys.modules.get("torch.distributed"), "Work", ())
    named = [_value(frame, word) for word in re.findall(r"(?:\w+\.)?\w+", linecache.getline(file, frame.f_lineno))]
    if any(isinstance(each, work) for each in named):
        return "exchange"
    return "lock" if any(isinstance(each, LOCKS) for each in named) else None


def _value(frame: FrameType, word: str) -> object:
    """What a name, or an attribute of one, stands for in a frame."""
    name, _, attribute = word.partition(".")
    found = frame.f_locals.get(name, frame.f_globals.get(name))
    return vars(found).get(attribute) if attribute and hasattr(found, "__dict__") else found


WRITES = re.compile(r"\b(fsync|fdatasync|sync_file_range|os\.write|\w+\.write|writelines|\w+\.flush|tofile)\(")
"""Calls in the innermost line that write to files: the kernel computes for much of them, and no call is seen then."""
BUFFERS = (list, dict, set, deque)
LEAST_BUFFERED = 16
"""Smaller collections are batches, or hold settings."""
LOCKS = (type(threading.Lock()), type(threading.RLock()), SemLock)


def _is_of_user(frame: FrameType) -> bool:
    return is_users(frame.f_code.co_filename)


def _own_role(frame: FrameType) -> Role | None:
    code = frame.f_code
    place = role_of_place(code.co_filename, code.co_name, qualified_name(code))
    if place is not None:
        return place
    if code.co_name == "fetch" and code.co_filename.endswith("utils/data/_utils/fetch.py"):
        return "collate" if "collate_fn(" in linecache.getline(code.co_filename, frame.f_lineno) else "sample"
    return None


@cache
def role_of_place(file: str, function: str, qualified: str = "") -> Role | None:
    """What being in a function of a file means; None: nothing."""
    for end, functions, role in OF_PLACES:
        if file.endswith(end) and (not functions or function in functions):
            return role
    for part, role in PACKAGES:
        if part in file:
            return role
    if "collat" in function:
        return "collate"
    shuffles = any(word in (qualified or function).lower() for word in ("shuffle", "reservoir"))
    return "shuffle" if shuffles and not file.endswith("random.py") else None


def _worker_loop(frame: FrameType) -> FrameType | None:
    """The loop of a DataLoader's worker, where the frame is called by it."""
    for each in frames_of(frame):
        if each.f_code.co_name == "_worker_loop" and each.f_code.co_filename.endswith("data/_utils/worker.py"):
            return each
    return None


def _fills(waiting: FrameType, in_worker: bool) -> bool:
    """Whether a thread waits for others within a shuffle: in a worker, or in a library that reads in threads."""
    for each in frames_of(waiting):
        if each.f_code.co_filename.endswith("utils/data/dataloader.py"):
            return False  # for workers, whose own looks tell what they do
        if _own_role(each) == "shuffle" and (in_worker or not _is_of_user(each)):
            return True
    return False


def _of_worker(loop: FrameType) -> Role | None:
    """What a worker that waits for what to do next has to do: nothing more in this pass, or not yet."""
    if "index_queue" not in linecache.getline(loop.f_code.co_filename, loop.f_lineno):
        return None
    return "ended" if loop.f_locals.get("iteration_end") else "idle"


class Buffers:
    """Collections in the user's own frames, and in the objects whose methods they are, that grow from look to look."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}

    def grow(self, frame: FrameType) -> bool:
        """Whether one of those that were there at the look before has grown since."""
        named = [each.f_locals for each in frames_of(frame) if _is_of_user(each)]
        owners = [getattr(names.get("self"), "__dict__", {}) for names in named]
        held = [value for names in (*named, *owners) for value in [*names.values()] if isinstance(value, BUFFERS)]
        sizes = {id(value): len(value) for value in held if len(value) >= LEAST_BUFFERED}
        before, self._sizes = self._sizes, sizes
        return any(size > before.get(number, size) for number, size in sizes.items())


def user_line(frame: FrameType) -> str | None:
    """The innermost line of the user's own code, with what it calls: `torch.save (train.py:41)`; None where none is."""
    called: FrameType | None = None
    for each in frames_of(frame):
        if called is not None and _is_ours(called):
            return None
        if _is_of_user(each) and not _is_ours(each):
            name = qualified_name(each.f_code) if called is None else _name_of(called)
            return f"{name} ({Path(each.f_code.co_filename).name}:{each.f_lineno})"
        called = each
    return None


OWN = (f"{__package__.partition('.')[0]}.", "benchsuite.")
"""How the names of our modules begin, here and where `benchsuite run` has loaded them."""
HERE = str(Path(__file__).parent)


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith(OWN) or frame.f_code.co_filename.startswith(HERE)


def qualified_name(code: CodeType) -> str:
    """A function's name with that of its class; before Python 3.11 its name alone."""
    return str(getattr(code, "co_qualname", code.co_name))


def _name_of(frame: FrameType) -> str:
    """A function of a library as its users write it: `torch.save`."""
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return f"{package}.{frame.f_code.co_name}" if package else frame.f_code.co_name


@cache
def is_users(file: str) -> bool:
    """Whether a file is the user's own: none of Python's or of an installed package."""
    return file.startswith("/") and not file.startswith(OF_LIBRARIES)
