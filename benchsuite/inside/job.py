"""`benchsuite run` within a process of someone else's training: what is replaced in torch, and what is written.

It fails open: an error of ours is one line, and then nothing is measured any more. It writes into the run's folder,
and nowhere else.
"""

import atexit
import functools
import inspect
import os
import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from multiprocessing import util
from pathlib import Path
from typing import Any

from .collectives import exchanges, wrap_waits
from .guard import Guard
from .inherited import LOOKS_FOLDER, Inherited
from .instruments import FIRST_STEPS, UNKNOWN_QUEUE, Instruments
from .looks import Looker
from .loop import Loop, RowCounter, kinds_of_steps
from .node_log import NodeLog
from .rank_file import MOST_APART_S, Reporter
from .timestamps import stamps_for
from .training import Training
from .workers import Inside, LookInside, TimedCollate

ITERATORS = {
    "torch.utils.data.dataloader": ("_BaseDataLoaderIter",),
    "nvidia.dali.plugin.pytorch": ("DALIGenericIterator", "DALIRaggedIterator"),
}
"""Classes whose `__next__` gives a batch, by their modules: of torch 2.6 to 2.13 (torchdata's call it) and DALI 2.4."""
LOADERS = {
    "torch.utils.data.dataloader": "DataLoader",
    "torchdata.stateful_dataloader.stateful_dataloader": "StatefulDataLoader",
}
"""Classes whose `__iter__` begins a pass, by their modules; torchdata's does not call torch's."""
CALLS = {
    "torch": {"save": "checkpoints"},
    "torch.distributed.checkpoint": {"save": "checkpoints", "async_save": "checkpoints"},
    "safetensors.torch": {"save_file": "checkpoints", "save_model": "checkpoints"},
    "torch.utils.tensorboard.writer": {
        "SummaryWriter.add_scalar": "logging",
        "SummaryWriter.add_scalars": "logging",
        "SummaryWriter.add_image": "logging",
        "SummaryWriter.add_images": "logging",
        "SummaryWriter.add_histogram": "logging",
        "SummaryWriter.flush": "logging",
    },
    "wandb.sdk.wandb_run": {"Run.log": "logging"},
    "mlflow": {"log_metric": "logging", "log_metrics": "logging"},
}
"""Calls that save or log, by their modules, with the part of the wall time that they are."""


class Job:
    """The measuring of this process."""

    def __init__(self, run: Inherited) -> None:
        self.run, self.guard = run, Guard("benchsuite run: this process is no longer measured")
        self.seen_modules = set[str]()
        """Of loaders, whose classes tell this job of their batches."""
        self.collate_s: dict[Hashable, list[float]] = {}
        """CPU seconds that each loader's own process took to collate."""
        self.training = Training(self.begin)
        self.reporter: Reporter | None = None
        self.exchanges = False
        """Whether this process was one of several ranks when its loop began a pass."""

    def begin_anew(self) -> None:
        """Know of no training: one may begin."""
        self.training.begin_anew()
        self.reporter = None

    def open(self, loader: Any) -> None:
        """Note that a pass over a loader begins."""
        self.exchanges = exchanges()
        self.training.open(key_of(loader))

    def begin(self, iterator: Any) -> Instruments:
        """The instruments of a loop whose first batch to be trained on came from this iterator."""
        self.exchanges = exchanges()
        workers, prefetch = getattr(iterator, "_num_workers", None), getattr(iterator, "_prefetch_factor", None)
        queue = None if workers is None else workers * (prefetch or 0)
        beside = (UNKNOWN_QUEUE if queue is None else queue) if self.run.replays else None
        kinds = kinds_of_steps(FIRST_STEPS + (queue + 1 if queue else 0), beside)
        rows = RowCounter(getattr(iterator, "_index_sampler", None), None)
        loop = Loop(kinds, lambda: stamps_for(None), rows, self.run.replays)
        loop.spent = self.guard.spent
        collate_s = self.collate_s.get(key_of(iterator)) if not workers else None
        instruments = Instruments(
            loop,
            queue,
            getattr(iterator, "_persistent_workers", False),
            Inside(str(self.run.folder / LOOKS_FOLDER)),
            None if collate_s is None else TimedCollate(len, collate_s),
        )
        loader = (None if iterator is None else type(iterator).__name__, workers)
        script = Path(sys.argv[0] or "python").name
        self.reporter = Reporter(self.run.folder, self.run.parent, script, instruments, loader, self.training.wall)
        _time_calls(self)
        self.reporter.most_apart_s = min(MOST_APART_S, self.run.every_s)
        loop.note_step = self.reporter.note_step
        write = self.guard(self.reporter.write, is_timed=False)
        loop.looker = Looker(loop.phase, loop.reading, write, node=NodeLog(loop.device))
        return instruments

    def end(self) -> None:
        """Write the last report, with why the process ends."""
        instruments = self.training.instruments
        if instruments is not None and self.reporter is not None:
            instruments.loop.finish()
            failed: type | None = getattr(sys, "last_type", None)
            self.reporter.end(failed.__name__ if failed else "end")


def key_of(loader: Any) -> Hashable:
    """What a DataLoader, its iterators and one that is made like it for the next pass have in common."""
    dataset = getattr(loader, "dataset", None)
    dataset = getattr(loader, "_dataset", None) if dataset is None else dataset
    if dataset is None:
        return id(loader)
    batches = getattr(loader, "_index_sampler", None)
    return id(dataset), type(getattr(batches, "sampler", batches)).__name__, getattr(batches, "batch_size", None)


_job: Job | None = None


def arm() -> None:
    """Begin to measure this process, which is about to train; later on: see the loaders that it has imported since."""
    global _job
    if _job is None:
        run = Inherited.here()
        if run is None:
            return
        _job = Job(run)
        _time_collations(_job)
        _replace_steps(_job)
        _begin_anew_in_children(_job)
        atexit.register(_end)
    _replace_loaders(_job)


def _end() -> None:
    if _job is not None:
        _job.guard(_job.end)()


def _begin_anew_in_children(job: Job) -> None:
    """A child that this process forks is another process: it may train, too."""

    os.register_at_fork(after_in_child=job.guard(job.begin_anew))
    util.register_after_fork(job, lambda job: util.Finalize(None, _end, exitpriority=100))  # they end without atexit


def _replace_loaders(job: Job) -> None:
    """See passes begin and batches come, of all that this process has imported by now."""
    ask = job.guard(functools.partial(job.training.ask, key_of=key_of), (False, None))
    receive, run_out, begin_pass = (job.guard(each) for each in (job.training.receive, job.training.run_out, job.open))
    for module in sorted({*ITERATORS, *LOADERS} & sys.modules.keys() - job.seen_modules):
        job.seen_modules.add(module)
        kinds = vars(sys.modules[module])
        for name in ITERATORS.get(module, ()):
            if name in kinds:
                _replace_next(kinds[name], ask, receive, run_out)
        if LOADERS.get(module) in kinds:
            _replace_iter(kinds[LOADERS[module]], begin_pass)


def _replace_iter(kind: Any, begin_pass: Callable[[Any], None]) -> None:
    """See the passes over a kind of loader begin."""
    iterate = kind.__iter__

    @functools.wraps(iterate)
    def __iter__(self: Any) -> Any:
        begin_pass(self)
        return iterate(self)

    kind.__iter__ = __iter__


def _replace_next(
    kind: Any,
    ask: Callable[[Any], tuple[bool, Any]],
    receive: Callable[[Any, Any], None],
    run_out: Callable[[Any], None],
) -> None:
    """See the batches of a kind of iterator come."""
    following = kind.__next__

    @functools.wraps(following)
    def __next__(self: Any) -> Any:
        again, batch = ask(self)
        if not again:
            try:
                batch = following(self)
            except BaseException:
                run_out(self)
                raise
        receive(self, batch)
        return batch

    kind.__next__ = __next__


def _time_collations(job: Job) -> None:
    """Time what a DataLoader collates in the process that trains."""
    torch_data: Any = sys.modules["torch.utils.data.dataloader"]
    make = torch_data._SingleProcessDataLoaderIter.__init__

    @functools.wraps(make)
    def __init__(self: Any, loader: Any) -> None:
        make(self, loader)
        job.guard(_time_collate)(job, self)

    torch_data._SingleProcessDataLoaderIter.__init__ = __init__


def _time_collate(job: Job, iterator: Any) -> None:
    fetcher = iterator._dataset_fetcher
    spent_s = job.collate_s.setdefault(key_of(iterator), [0.0])
    fetcher.collate_fn = TimedCollate(fetcher.collate_fn, spent_s)


def _time_calls(job: Job) -> None:
    """Time the calls that save and log, of all that this process has imported by now."""
    for module in sorted({*CALLS} & sys.modules.keys() - job.seen_modules):
        job.seen_modules.add(module)
        for path, part in CALLS[module].items():
            *outer, name = path.split(".")
            owner: Any = functools.reduce(getattr, outer, sys.modules[module])
            if hasattr(owner, name):
                setattr(owner, name, _timed_call(job, getattr(owner, name), part))


def _timed_call(job: Job, function: Callable[..., Any], part: str) -> Callable[..., Any]:
    begin, end = job.guard(job.training.begin_call), job.guard(job.training.end_call)

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        before = begin(part)
        try:
            return function(*arguments, **options)
        finally:
            end(before)

    return call


def _replace_steps(job: Job) -> None:
    """See backward passes, optimizers' steps and blocking exchanges."""
    autograd: Any = sys.modules["torch.autograd"]
    optimizers: Any = sys.modules["torch.optim.optimizer"]
    begin, end = job.guard(job.training.begin_part), job.guard(job.training.end_part)

    def timed(part: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def call(*arguments: Any, **options: Any) -> Any:
                begin(part)
                try:
                    return function(*arguments, **options)
                finally:
                    end(part)

            return call

        return wrap

    # What `Tensor.backward` and `torch.autograd.grad` both call, which torch.compile does not trace.
    name = "_engine_run_backward" if hasattr(autograd, "_engine_run_backward") else "backward"
    timed_backward, note_computed = (
        timed("backward")(getattr(autograd, name)),
        job.guard(job.training.note_computed),
    )

    @functools.wraps(timed_backward)
    def backward(outputs: Any, *arguments: Any, **options: Any) -> Any:
        if not job.exchanges:
            return timed_backward(outputs, *arguments, **options)
        with _told_when_computed(outputs, note_computed):
            return timed_backward(outputs, *arguments, **options)

    setattr(autograd, name, backward)
    optimizers.register_optimizer_step_pre_hook(lambda optimizer, *_: begin("optimizer", id(optimizer)))
    optimizers.register_optimizer_step_post_hook(lambda optimizer, *_: end("optimizer", id(optimizer)))
    dist: Any = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available():
        wrap_waits(timed("communication"))


@contextmanager
def _told_when_computed(outputs: Any, note: Callable[[], None]) -> Iterator[None]:
    """Within a backward pass: call `note` when it has computed, before the engine waits for DDP's exchange.

    Engine callbacks run in the order of queueing; this one is queued when the pass begins, DDP's later.
    """
    engine: Any = sys.modules["torch.autograd"].Variable._execution_engine
    first = outputs[0] if isinstance(outputs, tuple) and outputs else outputs
    handle = None
    if getattr(first, "requires_grad", False):
        handle = first.register_hook(lambda _gradient: engine.queue_callback(note))
    try:
        yield
    finally:
        if handle is not None:
            handle.remove()


def enter_worker(loop: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Look inside a DataLoader's worker from now on; the arguments of its loop, with a collation that is timed."""
    run = Inherited.here()
    if run is None:
        return arguments
    names = list(inspect.signature(loop).parameters)
    found, place = list(arguments), names.index("collate_fn")
    LookInside(str(run.folder / LOOKS_FOLDER), MOST_APART_S)(0)
    if place < len(found):
        found[place] = TimedCollate(found[place])
    return tuple(found)
