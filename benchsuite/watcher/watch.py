"""`benchsuite.watch(loader)`: what holds a training loop of anyone's own back, told from inside the loop.

    for batch in benchsuite.watch(loader):
        ...

Batches pass through as they are; moments are noted, and the kernel's counters are read now and then.
"""

import errno
import os
import sys
import weakref
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Literal, Self, SupportsIndex, TypeVar

from benchsuite.analysis.record_builder import Measuring
from benchsuite.contract.errors import UserError, refuse, shown
from benchsuite.contract.session import check_session
from benchsuite.inside.instruments import FIRST_STEPS, MARKS, UNKNOWN_QUEUE, Instruments, queue_of
from benchsuite.inside.looks import Looker
from benchsuite.inside.loop import Loop, RowCounter, kinds_of_steps
from benchsuite.inside.node_log import NodeLog
from benchsuite.inside.timestamps import stamps_for
from benchsuite.inside.workers import Inside, LookInside, TimedCollate
from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import ResultsStore, StoreError
from benchsuite.watcher.answer import QUESTION, SWEEP, figures, html
from benchsuite.watcher.ending import Ending, Token, begun, begun_at, conclude, ender, heed_sigterm, say
from benchsuite.watcher.run_trainings import keep_reports

T = TypeVar("T")
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class Watched:
    """What a watched loader can do beside being iterated; passes add up until the watch is closed, or dropped."""

    _ending: Ending
    _token: Token
    _end: "weakref.finalize[Any, Any]"

    def mark(self, part: str) -> None:
        """Note that a part of the step ends here: h2d, forward, backward, communication or optimizer.

        Raises:
            UserError: there is no such part.
        """
        if part not in MARKS:
            raise refuse("mark", part, MARKS)
        loop = self._ending.loop
        loop.spent.on(loop.mark, part)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time what is inside as a part of the step; what came before it since the last mark is told apart from it."""
        loop = self._ending.loop
        loop.spent.on(loop.mark, "other")
        try:
            yield
        finally:
            self.mark(name)

    def end_pass(self) -> None:
        """End the step and the pass here: what runs until the next batch is asked for, such as validation, is neither.

        For loops that ask for no batch after the last one they want; others end their passes by asking in vain.
        """
        self._ending.loop.end_pass()

    @property
    def figures(self) -> dict[str, Any]:
        """The figures, of all ranks once the watch has ended, of this one so far; empty while no step has counted."""
        ending = self._ending
        if ending.figures is not None or not ending.loop.steps.num_steps:
            return ending.figures or {}
        return figures([ending.mine()], ending.told())

    @property
    def record(self) -> TrialRecord | None:
        """The record, on rank 0, once the watch has ended."""
        return self._ending.record

    def _repr_html_(self) -> str:
        """What a notebook shows of a watch that ends a cell."""
        return html(self._ending.begun.label, self.figures)

    def close(self) -> None:
        """End the watch: print, and store where asked. What is iterated later is not watched."""
        self._end.detach()
        conclude(self._ending)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ending.cut_short_by = kind.__name__ if kind else None
        self.close()

    def _passes(self, loader: Iterable[T]) -> Iterator[T]:
        """One pass over a loader, watched while the watch has not ended."""
        return begun(self._pass(loader))

    def _pass(self, loader: Iterable[T]) -> Generator[T, None, None]:
        ending = self._ending
        if ending.has_ended:
            yield from loader
            return
        ending.ranks.meet(ending.begun.label)
        yield from ending.loop.run(loader)


class Watch(Watched, Generic[T]):
    """An iterable that is watched while it is iterated; whatever else it has, this has too."""

    def __init__(self, loader: Iterable[T], ending: Ending) -> None:
        self.loader = loader
        self._ending, self._token = ending, Token()
        self._end = ender(self._token, ending)

    def __iter__(self) -> Iterator[T]:
        return self._passes(self.loader)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return bool(self.loader)

    def __getattr__(self, name: str) -> Any:
        """Whatever else the loader has."""
        if name.startswith("_") or name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)


def as_its_class(loader: Any, ending: Ending) -> Any:
    """A copy of PyTorch's DataLoader, or of one derived from it, whose class is derived from its own and is watched.

    Frameworks that train on several ranks look for a DataLoader and make another one of its class, with a sampler that
    gives each rank its share: what is no DataLoader they leave as it is, and every rank trains on all samples.
    """
    kind: Any = type(loader)
    token = Token()
    held = weakref.ref(token)  # a class lives on until garbage is collected, and would hold the watch open

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        made = object.__new__(cls)
        made.__dict__["_token"] = held()
        return made

    members = {
        "__new__": new,
        "__iter__": lambda self: self._passes(_Unwatched(kind, self)),
        "__doc__": kind.__doc__,
        "__module__": kind.__module__,
        "_ending": ending,
        "_end": staticmethod(ender(token, ending)),
    }
    watched: Any = type(kind.__name__, (Watched, kind), members)
    found = watched.__new__(watched)
    found.__dict__.update(vars(loader), loader=loader)
    instruments = ending.instruments
    spent_s = [0.0] if instruments.collate is None else instruments.collate.spent_s
    found.collate_fn = instruments.collate = TimedCollate(loader.collate_fn, spent_s)
    if ending.goes_on and vars(loader).get("_iterator") is None:
        instruments.workers_stay = False  # those of the loader before have ended with it
    if instruments.inside is not None:
        found.worker_init_fn = LookInside(instruments.inside.folder, of_user=loader.worker_init_fn)
    return found


class _Unwatched:
    """A pass over a watched loader by the way of its own class."""

    def __init__(self, kind: Any, loader: Any) -> None:
        self._kind, self._loader = kind, loader

    def __iter__(self) -> Iterator[Any]:
        found: Iterator[Any] = self._kind.__iter__(self._loader)
        watched = vars(self._loader)
        if watched.get("persistent_workers") and "loader" in watched:
            vars(watched["loader"])["_iterator"] = watched.get("_iterator")  # they stay for whoever iterates next
        return found


def is_dataloader(loader: object) -> bool:
    """Whether it is PyTorch's DataLoader; without torch there is none."""
    torch = sys.modules.get("torch.utils.data")
    return torch is not None and isinstance(loader, torch.DataLoader)


def watch(
    loader: Iterable[T],
    *,
    store: str | Path | None = None,
    name: str | None = None,
    session: str = "default",
    device: str | None = None,
    batch_size: int | None = None,
    data: str | Path | None = None,
    warmup_steps: int | None = None,
    ceiling: Literal["replay"] | None = None,
    quiet: bool = False,
) -> Any:
    """Watch a training loop: iterate over what is returned instead of the loader.

    When the loop has ended (or at `close()`, or when the process ends, for loops of several passes) it prints to
    stderr what a step's time went into and what holds the loop back; rank 0 speaks for all ranks.

    Args:
        loader: any iterable of batches.
        store: a results store to append a record to; `benchsuite report` shows it.
        name: of the loop in reports; by default the script's.
        session: which measuring campaign the record belongs to.
        device: cpu, cuda or cuda:N; by default the current CUDA device once CUDA is in use.
        batch_size: samples in a batch, where the first dimension of its first array is something else.
        data: where the samples lie, so that what its file system counts can be trusted.
        warmup_steps: steps that do not count; by default 5, and those that empty the loader's queue.
        ceiling: "replay" hands out the batch before again for four blocks of 10 steps, and so measures AU. It
            changes what is trained: those batches count 11 times.
        quiet: print nothing.

    Raises:
        UserError: an argument is not allowed.
        StoreError: the store cannot be written, but for a full disk: that is a warning, and tried again at the end.
    """
    _check_loader(loader)
    _check_names({"store": store, "data": data}, {"name": name, "session": session})
    _check(device, batch_size, warmup_steps, ceiling, data)
    queue = queue_of(loader)
    if warmup_steps is None:
        warmup_steps = FIRST_STEPS + (queue + 1 if queue else 0)
    opened = ResultsStore(store) if store is not None else None
    if opened is not None:
        _check_writable(opened)
    name = name or Path(sys.argv[0] or "python").name
    kind = (type(loader).__name__, getattr(loader, "num_workers", None))

    def begin() -> Ending:
        beside = (UNKNOWN_QUEUE if queue is None else queue) if ceiling else None
        kinds = kinds_of_steps(warmup_steps, beside)
        loop = _looked_at(kinds, device, RowCounter(loader, batch_size), ceiling is not None)
        return _begun(loader, loop, name, session, data, opened, quiet, warmup_steps)

    asked = (*kind, str(store), name, session, device, batch_size, str(data), warmup_steps, ceiling, quiet)
    ending = begun_at(sys._getframe(1), asked, begin)
    heed_sigterm()
    return as_its_class(loader, ending) if is_dataloader(loader) else Watch(loader, ending)


def _begun(
    loader: object,
    loop: Loop,
    name: str,
    session: str,
    data: str | Path | None,
    store: ResultsStore | None,
    quiet: bool,
    warmup_steps: int,
) -> Ending:
    """A watch that begins."""
    kind, queue = (type(loader).__name__, getattr(loader, "num_workers", None)), queue_of(loader)
    spec = {"workload": name, "data": {"loader": kind[0], "num_workers": kind[1]}}
    begun = Measuring("trial", spec, name, check_session(session), {}, sweep=SWEEP, question=QUESTION)
    stay = getattr(loader, "persistent_workers", False) is True
    inside = Inside() if is_dataloader(loader) and queue else None
    instruments = Instruments(loop, queue, stay, inside)
    ending = Ending(instruments, begun, None if data is None else Path(data), store, quiet, warmup_steps)
    ending.kept = None if store is None else keep_reports(store, begun, instruments, kind)
    return ending


def _looked_at(kinds: Iterator[str], device: str | None, rows: RowCounter, keeps_batch: bool) -> Loop:
    """A loop whose threads are looked at."""
    loop = Loop(kinds, lambda: stamps_for(device), rows, keeps_batch)
    loop.looker = Looker(loop.phase, loop.reading, node=NodeLog(loop.device))
    return loop


def _check_writable(store: ResultsStore) -> None:
    """Refuse a store that cannot be written; a disk that is full may have room again when the training ends."""
    try:
        store.check_writable()
    except StoreError as error:
        if not isinstance(error.__cause__, OSError) or error.__cause__.errno not in DISK_FULL:
            raise
        say([f"warning: benchsuite.watch: {error}; what is watched will be printed, and stored if there is room then"])


def _check(
    device: str | None,
    batch_size: int | None,
    warmup_steps: int | None,
    ceiling: str | None,
    data: str | Path | None,
) -> None:
    """Refuse arguments that mean nothing."""
    if device is not None and device.partition(":")[0] not in ("cpu", "cuda"):
        raise refuse("device", device, ("cpu", "cuda", "cuda:N"))
    if device is not None and device != "cpu":
        _check_cuda(device)
    if ceiling not in (None, "replay"):
        raise refuse("ceiling", ceiling, ("replay",))
    if data is not None and not Path(data).exists():
        raise UserError(f"data {str(data)!r}: no such file or folder; name where the samples lie, or leave it out")
    for what, value, least in (("batch_size", batch_size, 1), ("warmup_steps", warmup_steps, 0)):
        if value is not None and not _is_whole(value):
            raise UserError(f"{what} {value!r}: a {type(value).__name__}; allowed: a whole number, at least {least}")
        if value is not None and value < least:
            raise UserError(f"{what} {value}: at least {least}")


def _check_loader(loader: object) -> None:
    """Refuse what is watched already, and what cannot be iterated; nothing is iterated yet, as that starts workers."""
    if isinstance(loader, Watched):
        raise UserError("loader: it is watched already; iterate over it as it is, or watch its .loader")
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise UserError(f"loader {shown(loader)}: a {type(loader).__name__}; allowed: an iterable of batches")


def _check_names(paths: Mapping[str, object], texts: Mapping[str, object]) -> None:
    """Refuse what is no path, and what is no text; `session` has a default, the others may be None."""
    for what, value in paths.items():
        if value is not None and not isinstance(value, str | os.PathLike):
            raise UserError(f"{what} {shown(value)}: a {type(value).__name__}; allowed: one path")
    for what, value in texts.items():
        if not isinstance(value, str) and (value is not None or what == "session"):
            raise UserError(f"{what} {shown(value)}: a {type(value).__name__}; allowed: a text")


def _check_cuda(device: str) -> None:
    """Refuse a CUDA device that is not there, before the training meets it."""
    cuda: Any = None
    with suppress(ModuleNotFoundError):
        from torch import cuda
    if cuda is None or not cuda.is_available():
        raise UserError(f"device {device!r}: CUDA is not available here; allowed: cpu, or leave it out")
    number, count = device.partition(":")[2], cuda.device_count()
    if ":" in device and (not number.isdecimal() or int(number) >= count):
        raise UserError(f"device {device!r}: allowed: cpu, cuda, or cuda:N with N from 0 to {count - 1}")


def _is_whole(value: object) -> bool:
    """Whether it is a whole number, of numpy too; True and False are none."""
    return isinstance(value, SupportsIndex) and not isinstance(value, bool)
