"""Who loads for a watched loop beside its own thread: its worker processes and threads, told from all others."""

import gc
import itertools
import os
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, GeneratorType, ModuleType
from typing import Any, NamedTuple

from .looks import looking
from .processes import children, open_files

HANDING_OVER = frozenset({"asyncio", "concurrent", "multiprocessing", "queue", "_queue", "subprocess", "threading"})
"""Packages whose objects pass things between threads or processes."""
LEAF = (type, ModuleType, CodeType, FrameType, BuiltinFunctionType, str, bytes, int, float)
MAX_LEVELS = 8
MAX_OBJECTS = 2000
"""A loader is looked into so far, once a pass."""
AT_HAND = 5
"""A thread's function, its arguments and the attributes of its object lie within so many steps of the thread."""
MAX_ITEMS = 1000
"""Longer collections hold samples, not workers."""


@dataclass(frozen=True)
class Feeders:
    """Who loads for a loop, as far as it can be seen."""

    processes: frozenset[int] = frozenset()
    threads: frozenset[int] = frozenset()
    """Loading threads of Python; threads of libraries are not told apart."""
    unseen: bool = False
    """The loader takes its batches from others, and who they are cannot be told."""
    are_workers: bool = False
    """The processes are workers of a DataLoader: one that ends before the pass does had no more to read."""
    iterators: "tuple[weakref.ReferenceType[Any], ...]" = ()
    """Those of DataLoaders whose workers they are."""

    def without_data(self) -> frozenset[int]:
        """Workers that live on and have told their DataLoader that they have no more to read in this pass."""
        of_loaders = [iterator for each in self.iterators if (iterator := each()) is not None]
        pairs = [zip(each._workers, each._workers_status, strict=False) for each in of_loaders if _has_workers(each)]
        return _ids((worker for of_loader in pairs for worker, has_more in of_loader if not has_more), "pid")

    def strangers(self) -> frozenset[int]:
        """Python's other threads, which do not load; none is known as such where feeders are unseen."""
        return frozenset() if self.unseen else _threads() - self.threads - {threading.get_native_id()}


class Living(NamedTuple):
    """The processes below this one and the threads of Python, at one moment."""

    processes: frozenset[int]
    threads: frozenset[int]

    @staticmethod
    def now() -> "Living":
        return Living(frozenset(children(os.getpid())), _threads())


class _Held(NamedTuple):
    """What a loader holds: workers of DataLoaders, other processes, threads, and whether things are handed over."""

    iterators: tuple[Any, ...]
    """Of DataLoaders."""
    workers: frozenset[int] | None
    processes: frozenset[int]
    threads: frozenset[int]
    hands_over: bool
    queues: tuple[Any, ...]
    """What others put batches into."""


def feeders(iterator: object, before: Living, known: Feeders) -> Feeders:
    """Who feeds an iterator that has given its first batch: who it holds, else who began in its calls, else who has the
    queue that it takes batches from.

    Children of this process that are neither (loggers, helpers, writers of checkpoints) do not load.

    Args:
        iterator: of this pass.
        before: who lived before it was made.
        known: who fed the passes before.
    """
    now, held = Living.now(), _held(iterator)
    begun = now.processes - before.processes - _machinery()
    filling = _filling(held.queues) if held.queues else frozenset()
    threads = (now.threads - before.threads | held.threads | known.threads | filling) & now.threads - looking()
    threads -= {threading.get_native_id()}
    if held.workers is None:
        processes = held.processes & now.processes or (begun | known.processes) & now.processes
        processes = processes or _writing(held.queues, now.processes - _machinery())
    else:
        processes = held.workers & now.processes
    unseen = not processes and (bool(begun) or (held.hands_over and not threads))
    of_loaders = tuple(weakref.ref(each) for each in held.iterators)
    return Feeders(processes, threads, unseen, held.workers is not None, of_loaders)


def _threads() -> frozenset[int]:
    return frozenset(thread.native_id for thread in threading.enumerate() if thread.native_id is not None)


def _machinery() -> set[int | None]:
    """Helpers of multiprocessing, which stay for the process's life once anyone has needed them."""
    tracker: Any = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    server: Any = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    return {getattr(tracker, "_pid", None), getattr(server, "_forkserver_pid", None)}


def _held(iterator: object) -> _Held:
    """Look into an iterator, no deeper than the first level that holds processes."""
    of_torch: Any = getattr(sys.modules.get("torch.utils.data.dataloader"), "_BaseDataLoaderIter", ())
    workers: frozenset[int] | None = None
    iterators, queues = list[Any](), list[Any]()
    processes, threads, hands_over, deepest = set[int](), set[int](), False, MAX_LEVELS
    for level, thing in _within(iterator):
        if level > deepest:
            break
        if isinstance(thing, of_torch):
            iterators.append(thing)
            workers = (workers or frozenset()) | _ids(getattr(thing, "_workers", ()), "pid")
        if _hands_over(thing):
            hands_over = True
            queues += [thing] if hasattr(thing, "put") and hasattr(thing, "get") else []
            threads |= _ids([thing], "native_id")
            if not _is_mute(thing) and (found := _ids([thing], "pid")):
                processes, deepest = processes | found, level
    return _Held(tuple(iterators), workers, frozenset(processes), frozenset(threads), hands_over, tuple(queues))


def _filling(queues: Collection[Any]) -> frozenset[int]:
    """Threads of Python that have one of these queues at hand: in what they run, its arguments, or its object."""
    found = set[int]()
    for thread in threading.enumerate():
        near = itertools.takewhile(lambda one: one[0] <= AT_HAND, _within(thread))
        if thread.native_id is not None and any(thing is queue for _, thing in near for queue in queues):
            found.add(thread.native_id)
    return frozenset(found)


def _writing(queues: Iterable[Any], children: Iterable[int]) -> frozenset[int]:
    """Children of this process that have the pipe of one of these queues open."""
    pipes = {_pipe_of(queue) for queue in queues} - {""}
    return frozenset(child for child in children if pipes and pipes & open_files(child))


def _pipe_of(queue: Any) -> str:
    """The pipe that a queue of multiprocessing is read from; empty where it has none, or is closed."""
    with suppress(AttributeError, OSError, TypeError, ValueError):
        return os.readlink(f"/proc/self/fd/{queue._reader.fileno()}")
    return ""


def _has_workers(iterator: Any) -> bool:
    return hasattr(iterator, "_workers") and hasattr(iterator, "_workers_status")


def _within(root: object) -> Iterator[tuple[int, object]]:
    """An object and those it is made of, the nearest first, each with its distance."""
    waiting, seen = deque([(0, root)]), {id(root)}
    while waiting:
        level, thing = waiting.popleft()
        yield level, thing
        for other in _made_of(thing):
            if id(other) not in seen and not isinstance(other, LEAF) and len(seen) < MAX_OBJECTS:
                seen.add(id(other))
                waiting.append((level + 1, other))


def _made_of(thing: object) -> Iterable[object]:
    """What an object refers to; of functions and generators also the globals that their code names."""
    if isinstance(thing, FunctionType):
        return [*(thing.__closure__ or ()), *_named(thing.__code__, thing.__globals__)]
    if isinstance(thing, GeneratorType) and thing.gi_frame is not None:
        return [*gc.get_referents(thing), *_named(thing.gi_code, thing.gi_frame.f_globals)]
    if isinstance(thing, list | tuple | dict | set) and len(thing) > MAX_ITEMS:
        return []
    return gc.get_referents(thing)


def _named(code: CodeType, names: dict[str, Any]) -> list[object]:
    return [names[name] for name in code.co_names if name in names]


def _hands_over(thing: object) -> bool:
    return any(str(kind.__module__).partition(".")[0] in HANDING_OVER for kind in type(thing).__mro__)


def _is_mute(thing: object) -> bool:
    """Whether it is a program whose output goes elsewhere: a server, or one that fills a pipe or memory of its own."""
    return isinstance(thing, subprocess.Popen) and thing.stdout is None


def _ids(things: Iterable[object], name: str) -> frozenset[int]:
    """The ids of processes, or of threads, among some objects."""
    found = set[int]()
    for thing in things:
        with suppress(ValueError):  # a process that was closed
            found |= {number} if isinstance(number := getattr(thing, name, None), int) else set()
    return frozenset(found)
