"""What can be asked of an engine, and why it cannot train something (no torch)."""

import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchsuite.workloads import load
from benchsuite.workloads.facts import Facts
from benchsuite.workloads.layout import Layout
from benchsuite.workloads.spec import ComputeSpec

ENGINE_ONLY = (
    "reduce_bucket_size",
    "prefetch_bucket_size",
    "param_persistence_threshold",
    "contiguous_gradients",
    "overlap_comm",
    "fusion_threshold_mb",
)
"""Settings that only some engines have."""
WITH_NCCL = "build it with HOROVOD_GPU_OPERATIONS=NCCL"
GROUP = "benchsuite.engines"
"""The entry point of other packages' engines: each names an `Engine`."""


@dataclass(frozen=True)
class Engine:
    """One engine, by what a plan must know of it.

    `train` is "module:function": it is given a model, its `Recipe` and the global batch size, and returns a `Training`.
    """

    name: str
    train: str
    package: str | None = None
    """The module that must be installed; None: it needs nothing but torch."""
    install: str = ""
    """What installs it."""
    zero: tuple[int, ...] = (0,)
    """Stages of ZeRO that it has."""
    options: Mapping[str, int] = field(default_factory=dict)
    """Fields of `ComputeSpec` that it takes, of those that some modes or engines have alone; from which stage on."""
    allowed: Mapping[str, tuple[object, ...]] = field(default_factory=lambda: {"precision": ("fp32", "tf32", "bf16")})
    """Values that it takes of other fields."""
    has_servers: bool = False
    """Whether it starts processes besides the ranks."""
    build: str | None = None
    """A module that is run once, before ranks start: it compiles what they would else compile."""


ENGINES: Mapping[str, Engine] = {
    "deepspeed": Engine(
        "deepspeed",
        "benchsuite.workloads.engines.deepspeed:train",
        package="deepspeed",
        install="pip install 'benchsuite[deepspeed]'",
        zero=(0, 1, 2, 3),
        options={
            "cpu_offload": 1,
            "reduce_bucket_size": 1,
            "contiguous_gradients": 1,
            "overlap_comm": 1,
            "prefetch_bucket_size": 3,
            "param_persistence_threshold": 3,
        },
        build="benchsuite.workloads.engines.deepspeed",
    ),
    "horovod": Engine(
        "horovod",
        "benchsuite.workloads.engines.horovod:train",
        package="horovod",
        install="make horovod (it has no package for today's PyTorch)",
        options={"comm_hook": 0, "fusion_threshold_mb": 0},
        allowed={"precision": ("fp32", "tf32", "bf16"), "comm_hook": (None, "fp16")},
    ),
    "parameter_server": Engine(
        "parameter_server", "benchsuite.workloads.engines.parameter_server:train", has_servers=True
    ),
    "broadcast": Engine("broadcast", "benchsuite.workloads.engines.broadcast:train"),
}


def names() -> list[str]:
    """The names of all engines, PyTorch's own modes first."""
    return ["torch", *ENGINES, *sorted(entry.name for entry in entry_points(group=GROUP))]


def engine_of(name: str) -> Engine:
    """An engine by its name.

    Raises:
        KeyError: there is none.
        WorkloadError: another package's cannot be imported.
    """
    found: Engine = load(ENGINES, name, GROUP)
    return found


def train_of(name: str) -> Any:
    """The function by which an engine trains."""
    return pkgutil.resolve_name(engine_of(name).train)


def problems(facts: Facts, layout: Layout, compute: ComputeSpec, device: str) -> Iterator[str]:
    """Every reason why an engine cannot train so: what it lacks, and whether it is installed."""
    if layout.engine == "torch":
        return
    engine = engine_of(layout.engine)
    who = f"engine {engine.name}"
    if engine.package is not None and not is_installed(engine.package):
        yield f"{who}: {engine.package} is not installed here; install it with: {engine.install}"
    for degree in ("tp", "pp", "cp", "ep", "dp_replicate"):
        if getattr(layout, degree) > 1:
            split = f"{degree} {getattr(layout, degree)}"
            yield f"{who} with {split}: only PyTorch's own modes (engine torch) split the model"
    if layout.zero not in engine.zero:
        yield f"{who} with zero {layout.zero}: allowed: zero {', '.join(map(str, engine.zero))}"
    for name, values in engine.allowed.items():
        if getattr(compute, name) not in values:
            known = ", ".join(str(value) for value in values if value is not None)
            yield f"{who} with {name} {getattr(compute, name)}: allowed: {known}"
    for name, stage in engine.options.items():
        if layout.zero < stage and getattr(compute, name) != ComputeSpec.model_fields[name].default:
            yield f"{name} is an option of {who} from zero {stage} on, zero is {layout.zero}"
    if engine.name == "horovod" and device == "cuda" and horovod_has_nccl() is False:
        yield f"{who} on cuda: Horovod here is built without NCCL, and would exchange through the host; {WITH_NCCL}"
    if engine.name == "deepspeed" and compute.precision == "bf16" and not layout.zero:
        yield f"{who} with zero 0 and bf16: DeepSpeed keeps no masters of 32 bits there; take zero 1 or more"
    if layout.max_staleness is not None and facts.has_targets:
        yield f"max_staleness with {facts.name}: it takes means over all targets, for which workers meet in each step"
    if compute.compile:
        yield f"{who} with compile: blocks are compiled under PyTorch's own modes alone"
    if layout.zero and compute.optimizer == "adafactor":
        yield f"{who} with zero {layout.zero} and adafactor: it flattens the matrices whose norms adafactor takes"


def is_installed(package: str) -> bool:
    """Whether a package can be imported here."""
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # of a package within one that is not there
        return False


@cache
def horovod_has_nccl() -> bool | None:
    """Whether the Horovod that is installed here was built with NCCL's operations; None where it cannot be found.

    Its library names the function that it calls. To load the library takes torch, and a CUDA driver.
    """
    try:
        found = find_spec("horovod")
    except (ImportError, ValueError):
        return None
    folders = found.submodule_search_locations if found else None
    libraries = [library for folder in folders or () for library in Path(folder, "torch").glob("mpi_lib_v2*.so")]
    return any(b"ncclAllReduce" in library.read_bytes() for library in libraries) if libraries else None
