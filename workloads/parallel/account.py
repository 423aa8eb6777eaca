"""What one step of one rank holds in memory and sends to others, counted while the step runs.

Nothing here is timed: counting slows a step, so it is done on one that does not count.
"""

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import _resolve_process_group
from torch.utils._python_dispatch import TorchDispatchMode

from benchsuite.workloads.parallel.recipe import local
from benchsuite.workloads.parallel.step import Training
from benchsuite.workloads.parallel.waits import NoClock
from benchsuite.workloads.workload import Batch

OPERATIONS = {
    "allreduce_": "all_reduce",
    "all_reduce": "all_reduce",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "alltoall_base_": "all_to_all",
    "all_to_all_single": "all_to_all",
    "broadcast_": "broadcast",
    "broadcast": "broadcast",
    "reduce_": "reduce",
    "send": "send",
}
"""What torch's operators for collectives are called elsewhere; a receive is another rank's send."""
Sent = tuple[str, int, int]
"""A collective or message: its kind, the bytes of the whole array, and the ranks that share it."""
NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")


def wire_bytes(operation: str, num_bytes: int, ranks: int) -> float:
    """Bytes that each rank sends where the whole array has `num_bytes`, by the ring algorithm (nccl-tests, busbw)."""
    share = (ranks - 1) / ranks
    return num_bytes * {"all_reduce": 2 * share, "send": 1.0}.get(operation, share)


@dataclass(frozen=True)
class Account:
    """Bytes of one rank."""

    weights_bytes: int
    """Parameters and buffers, of sharded ones the rank's part."""
    gradients_bytes: int
    """When the optimizer is asked to step."""
    optimizer_bytes: int
    activations_bytes: int
    """Most that was kept for backward at one time."""
    wire_bytes: float
    """Sent in the step, by ring algorithms."""
    collectives: dict[str, int]
    """How many of each kind the step has."""


@dataclass
class Kept:
    """Storages that autograd and checkpoints keep, and how many bytes they have at most."""

    users: dict[int, int] = field(default_factory=dict)
    live_bytes: int = 0
    peak_bytes: int = 0

    def hold(self, tensor: Tensor) -> "_Saved":
        """Count a tensor's storage unless it is a weight's or counted already."""
        storage = local(tensor).untyped_storage()
        key = storage._cdata
        weight = isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)
        if weight:
            return _Saved(tensor, None, self)
        self._use(key, storage.nbytes())
        return _Saved(tensor, key, self)

    def hold_while_it_lives(self, tensor: Tensor) -> None:
        """Count the storage of a tensor that is kept in another way than autograd's, until it is freed."""
        storage = local(tensor).untyped_storage()
        self._use(storage._cdata, storage.nbytes())
        weakref.finalize(storage, self.release, storage._cdata, storage.nbytes())

    def _use(self, key: int, num_bytes: int) -> None:
        self.users[key] = self.users.get(key, 0) + 1
        if self.users[key] == 1:
            self.live_bytes += num_bytes
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def release(self, key: int, num_bytes: int) -> None:
        """One of its users is gone."""
        self.users[key] -= 1
        if not self.users[key]:
            self.live_bytes -= num_bytes


class _Saved:
    """A tensor that autograd keeps."""

    def __init__(self, tensor: Tensor, key: int | None, kept: Kept) -> None:
        self.tensor, self._key, self._kept = tensor, key, kept

    def __del__(self) -> None:
        if self._key is not None:
            self._kept.release(self._key, local(self.tensor).untyped_storage().nbytes())


class Collectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every collective and message that is sent."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[Sent] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from torch.distributed.tensor import DTensor

        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it calls the collectives on its local tensors itself
        name = func._schema.name
        space, _, operator = name.partition("::")
        if space in NAMESPACES and operator in OPERATIONS:
            operation, ranks = OPERATIONS[operator], _group_size(args)
            self.found.append((operation, _whole_bytes(operation, args, ranks), ranks))
        return func(*args, **(kwargs or {}))


def _group_size(arguments: Any) -> int:
    for value in arguments:
        if isinstance(value, torch.ScriptObject):
            return int(dist.ProcessGroup.unbox(value).size())
    names = [value for value in arguments if isinstance(value, str)]
    return int(_resolve_process_group(names[-1]).size())  # type: ignore[arg-type]


def _whole_bytes(operation: str, arguments: Any, ranks: int) -> int:
    """Bytes of the whole array: what all ranks have together after gathering or before scattering."""
    tensors = [*tensors_in(arguments)]
    if operation in ("all_gather", "reduce_scatter"):
        sizes = sorted(tensor.nbytes for tensor in tensors)
        return max(sizes[-1], ranks * sizes[0])
    return tensors[-1].nbytes if operation == "all_to_all" else sum(tensor.nbytes for tensor in tensors)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors among an operator's arguments or results, however deep."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_in(item)


@contextmanager
def observed(kept: Kept) -> Iterator[Collectives]:
    """Count what autograd and checkpoints keep, and which collectives are asked for."""
    _observing.append(kept)
    try:
        with torch.autograd.graph.saved_tensors_hooks(kept.hold, lambda saved: saved.tensor), Collectives() as counted:
            yield counted
    finally:
        _observing.remove(kept)


_observing: list[Kept] = []


def note_kept(outputs: Any) -> None:
    """Let those that count know what an operator has returned and a selective checkpoint keeps."""
    for kept in _observing:
        for tensor in tensors_in(outputs):
            kept.hold_while_it_lives(tensor)


def account(training: Training, batch: Batch) -> Account:
    """Run one step and count; all ranks must do so."""
    gradients: list[int] = []

    def note(*_arguments: object) -> None:
        own = [parameter for group in training.optimizer.param_groups for parameter in group["params"]]
        gradients.append(max(gradient_bytes(training.model.parameters()), gradient_bytes(own)))

    handle = training.optimizer.register_step_pre_hook(note)
    kept = Kept()
    try:
        with torch.compiler.set_stance("force_eager"), observed(kept) as counted:
            training.step(batch, NoClock())
    finally:
        handle.remove()
    return summed_up(
        training.model, max(gradients, default=0), state_bytes(training.optimizer), kept.peak_bytes, counted.found
    )


def summed_up(
    model: nn.Module, gradients_bytes: int, optimizer_bytes: int, activations_bytes: int, sent: Sequence[Sent]
) -> Account:
    """The account of what a rank holds of a model, and of what was sent."""
    held = {id(value): value for value in (*model.parameters(), *model.buffers())}
    kinds = [operation for operation, _, _ in sent]
    return Account(
        weights_bytes=sum(local(value).nbytes for value in held.values()),
        gradients_bytes=gradients_bytes,
        optimizer_bytes=optimizer_bytes,
        activations_bytes=activations_bytes,
        wire_bytes=sum(wire_bytes(*entry) for entry in sent),
        collectives={kind: kinds.count(kind) for kind in sorted(set(kinds))},
    )


def gradient_bytes(parameters: Iterable[Tensor]) -> int:
    """Bytes of the gradients that this rank holds now of some parameters."""
    return sum(local(value.grad).nbytes for value in parameters if value.grad is not None)


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of an optimizer's states on this rank."""
    own = getattr(optimizer, "optim", optimizer)  # ZeroRedundancyOptimizer steps another one
    tensors = [value for state in own.state.values() for value in state.values()]
    return sum(local(value).nbytes for value in tensors if isinstance(value, Tensor))
