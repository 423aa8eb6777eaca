"""What may be observed of a trial besides its steps: its I/O while it runs, and PyTorch's own profile afterwards."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch.cuda import profiler as cuda_profiler
from torch.profiler import ProfilerActivity, profile, schedule

from benchsuite.contract.rank_samples import TORCH_TRACE, RankIdentity
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.inside.samples import Block
from benchsuite.storage.dataset.manifest import Dataset
from benchsuite.storage.loaders import Batch
from benchsuite.storage.observe.io_trace import Tracer
from benchsuite.trial import kineto
from benchsuite.trial.emulated import EmulatedDevice
from benchsuite.trial.feed import Feed, Stepper
from benchsuite.trial.strace import Strace
from benchsuite.workloads.parallel import operators

WAIT_STEPS, WARMUP_STEPS, ACTIVE_STEPS = 1, 1, 3
"""Steps of a PyTorch profile, after all measured ones: not looked at, looked at and dropped, kept."""


@contextmanager
def begun(spec: TrialSpec, dataset: Dataset, me: RankIdentity) -> Iterator[Tracer | Strace | None]:
    """Begin to watch this rank's readers, where the trial asks for it; the block starts them, or all is undone."""
    observer: Tracer | Strace | None = None
    if spec.data.source == "storage" and spec.measure.profile == "io":
        observer = Tracer(dataset, max(1, spec.data.num_workers)).start()
    elif spec.data.source == "storage" and spec.measure.profile == "strace":
        observer = Strace(dataset).start()
    try:
        yield observer
    except BaseException:
        if observer:
            observer.stop()
        raise


@contextmanager
def captured(spec: TrialSpec) -> Iterator[None]:
    """Let Nsight Systems capture what is done within, where NVTX ranges are asked for (`--capture-range`)."""
    if spec.measure.profile != "nvtx":
        yield
        return
    cuda_profiler.start()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        cuda_profiler.stop()  # type: ignore[no-untyped-call]


def torch_steps(spec: TrialSpec) -> int:
    """Steps that a PyTorch profile takes besides the trial's."""
    return WAIT_STEPS + WARMUP_STEPS + ACTIVE_STEPS if spec.measure.profile == "torch" else 0


def of_operators(
    spec: TrialSpec, stepper: Stepper, feed: Feed | None, batch: Batch, me: RankIdentity
) -> dict[str, Any]:
    """When all steps are measured, PyTorch's profile of further ones, where it is asked for.

    With it, what the operators of a step compute and move, and how long they take, by class.
    """
    if not torch_steps(spec):
        return {}
    next_batch = feed if feed and spec.data.source == "storage" else lambda: batch
    profiler, times = _torch_profile(stepper, next_batch, me, spec.device == "cuda")
    told: dict[str, Any] = {}
    if spec.hides_communication:
        told["exposed_s"] = _exposed_s(times, _trace(me), spec.device == "cuda")
    if isinstance(stepper.training, EmulatedDevice):
        return told
    seconds = None if spec.compile else operator_seconds(profiler, spec.device == "cuda")
    counted = operators.counted(stepper.training, batch)
    classes = {name: asdict(one) | {"seconds": seconds and seconds[name]} for name, one in counted.items()}
    return told | {"operators": classes}


def operator_seconds(profiler: profile, on_cuda: bool) -> dict[operators.OperatorClass, float]:
    """Seconds a step of PyTorch's own operators (`aten`) by class: of their kernels on CUDA, else of the CPU.

    Each operator's own time, without that of operators within it. Kernels count for the operator that has launched
    them; those of no such operator, as NCCL's, are left out, and so is what Python does between operators.
    """
    found = dict.fromkeys(operators.CLASSES, 0.0)
    for event in profiler.key_averages():
        space, _, name = event.key.partition("::")
        if space == "aten":
            own_us = event.self_device_time_total if on_cuda else event.self_cpu_time_total
            found[operators.class_of(name)] += own_us * 1e-6 / ACTIVE_STEPS
    return found


def _exposed_s(times: Block, trace: Path, on_cuda: bool) -> float:
    """Exposed communication a step: by CUDA's kernels; on CPUs by marks, and by the trace within compiled code."""
    if on_cuda:
        return kineto.exposed_s(trace, ACTIVE_STEPS)
    marked_s = sum(times.parts.get("communication", [])[-ACTIVE_STEPS:]) / ACTIVE_STEPS
    return marked_s + kineto.waited_in_compiled_s(trace, ACTIVE_STEPS)


def _trace(me: RankIdentity) -> Path:
    return me.folder / f"{TORCH_TRACE}-{me.rank}.json.gz"


def _torch_profile(
    stepper: Stepper, next_batch: Callable[[], Batch], me: RankIdentity, on_cuda: bool
) -> tuple[profile, Block]:
    """Run steps under PyTorch's profiler, and leave its trace in the rank's folder."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]
    # The first turn comes before the first step, so that is one more not to look at.
    plan = schedule(wait=1 + WAIT_STEPS, warmup=WARMUP_STEPS, active=ACTIVE_STEPS, repeat=1)
    profiler = profile(activities=activities, schedule=plan)
    with profiler:

        def turn() -> Batch:
            profiler.step()
            return next_batch()

        # In one run: a device is not waited for in between.
        times = stepper.run(turn, WAIT_STEPS + WARMUP_STEPS + ACTIVE_STEPS)
    profiler.export_chrome_trace(str(_trace(me)))
    return profiler, times
