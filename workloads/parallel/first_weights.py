"""First weights of a model that is built on the meta device, where it takes no memory: written down, and drawn later.

While a model is built, what its constructors would have drawn and filled is written down. When it is split over ranks
and has memory, each rank does the same to what it holds. Of a model of up to `EXACT_PARAMETERS` that gives the weights
that one process would have drawn: all of them are drawn, one after another, and parts are kept. Of a larger one each
part has a generator of its own, the same on all ranks that hold this part: weights of the same distribution.
"""

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from benchsuite.workloads.spec import Variant
from benchsuite.workloads.workload import Workload

EXACT_PARAMETERS = 1 << 30
"""Larger models are drawn by parts: in order, one core draws some 100 million numbers a second."""
BEGINNINGS = ("normal_", "uniform_", "zero_", "fill_", "exponential_", "log_normal_", "cauchy_", "random_")
"""In-place operators after which it is of no account what was there before."""
CONTINUATIONS = ("add_", "sub_", "mul_", "div_", "neg_", "pow_", "erfinv_", "clamp_", "clamp_min_", "clamp_max_")
"""In-place operators that change each element by itself."""
FACTORIES: Mapping[str, Callable[..., Any]] = {
    "zeros": lambda *_given: ("zero_", ()),
    "ones": lambda *_given: ("fill_", (1,)),
    "full": lambda _shape, value, *_given: ("fill_", (value,)),
}
"""Operators that make tensors of one value, as in-place operators."""
EMPTY = ("empty", "empty_strided", "empty_like", "new_empty")
Cut = tuple[int, int, int]
"""Of a dimension cut in so many parts, one part."""


class NotWrittenDown(Exception):
    """Why what a model's constructors did cannot be done again on parts of it."""


@dataclass(frozen=True)
class Done:
    """What was done to a whole tensor of a model under construction."""

    storage: int
    operator: Any
    """A method's name, or a function that makes the tensor."""
    given: Sequence[Any]
    named: Mapping[str, Any]
    shape: torch.Size
    dtype: torch.dtype

    @property
    def begins(self) -> bool:
        """Whether it is of no account what was there before."""
        return self.operator in BEGINNINGS or callable(self.operator)

    @property
    def draws(self) -> bool:
        """Whether it draws random numbers, so that others that follow it depend on it."""
        return self.operator in BEGINNINGS and self.operator not in ("zero_", "fill_")

    def to(self, tensor: Tensor) -> Tensor:
        """Do it again to a tensor, or make one."""
        if callable(self.operator):
            made: Tensor = self.operator(*self.given, **self.named)
            return made
        getattr(tensor, self.operator)(*self.given, **self.named)
        return tensor


class _Scribe(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down what is done to tensors that hold nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.done: list[Done] = []
        self.known: set[int] = set()
        """Storages whose values follow from what was written down."""
        self.lost: str | None = None
        """What drew random numbers and cannot be done again."""
        self._kept: dict[int, Any] = {}
        """Storages, so that no two of them have the same address."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        given = [one for one in chain(args, kwargs.values()) if isinstance(one, Tensor)]
        name = func.overloadpacket.__name__
        written = self._written_down(func, name, args, kwargs, given, result)
        if not written and torch.Tag.nondeterministic_seeded in func.tags:
            self.lost = self.lost or name
        return result

    def _written_down(
        self, func: Any, name: str, args: Any, kwargs: Mapping[str, Any], given: Sequence[Tensor], result: Any
    ) -> bool:
        """Note an operator; whether it can be done again."""
        if not isinstance(result, Tensor):
            self.lost = name if func._schema.is_mutable else self.lost
            return False
        storage = self._storage(result)
        if not given and name in FACTORIES:
            operator, given_to_it = FACTORIES[name](*args)
            return self._note(storage, operator, given_to_it, {}, result)
        if not given and name not in EMPTY and torch.Tag.nondeterministic_seeded not in func.tags:
            there = {key: value for key, value in kwargs.items() if key not in ("device", "pin_memory", "layout")}
            return self._note(storage, func, args, there, result)
        if name in (*BEGINNINGS, *CONTINUATIONS) and given[0:1] == [args[0]] and len(given) == 1 and _is_whole(args[0]):
            return self._note(storage, name, args[1:], kwargs, result)
        if func._schema.is_mutable or storage not in map(self._storage, given):  # else it is a view
            self.known.discard(storage)
        return False

    def _note(self, storage: int, operator: Any, given: Any, named: Mapping[str, Any], result: Tensor) -> bool:
        made = Done(storage, operator, given, named, result.shape, result.dtype)
        if made.begins:
            self.known.add(storage)
        self.done.append(made)
        return named.get("generator") is None

    def _storage(self, tensor: Tensor) -> int:
        address = _address(tensor)
        self._kept[address] = tensor.untyped_storage()
        return address


def _address(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _is_whole(tensor: Tensor) -> bool:
    """Whether a tensor is all that lies in its memory, in order."""
    return tensor.is_contiguous() and tensor.numel() * tensor.itemsize == tensor.untyped_storage().nbytes()


@dataclass(frozen=True)
class _Held:
    """What a rank holds of a tensor: where, and which part."""

    local: Tensor
    cuts: Sequence[Cut]


@dataclass(frozen=True)
class FirstWeights:
    """What was done to the tensors of a model under construction, and the seed."""

    done: Sequence[Done]
    names: Mapping[int, str]
    """Of the model's tensors, by their storages."""
    seed: int
    num_parameters: int

    @torch.no_grad()
    def fill(self, model: nn.Module, shares: Mapping[str, Cut]) -> None:
        """Give what this rank holds of the model its first values; what is on the meta device is another's.

        `shares`: of parameters that ranks have parts of though they are no DTensors, as of experts, which part.
        """
        every = chain(model.named_parameters(), model.named_buffers())
        held = {
            name: _Held(_local(one), (*filter(None, [shares.get(name)]), *cuts_of(one)))
            for name, one in every
            if not one.is_meta
        }
        devices = {one.local.device for one in held.values() if one.local.is_cuda}
        with torch.random.fork_rng(devices=[*devices]):
            for name, value in self._wholes(held) if self.is_exact else self._parts(held):
                held[name].local.copy_(value)

    @property
    def is_exact(self) -> bool:
        """Whether its weights are those that one process would have drawn."""
        return self.num_parameters <= EXACT_PARAMETERS

    def _wholes(self, held: Mapping[str, _Held]) -> Iterator[tuple[str, Tensor]]:
        """This rank's part of each tensor; all tensors are drawn in order, on the CPU."""
        torch.manual_seed(self.seed)
        last, first = self._ends()
        values: dict[int, Tensor] = {}
        for number, one in enumerate(self.done):
            counts = self.names.get(one.storage) in held and number >= first[one.storage]
            if not counts and not one.draws:
                continue
            value = values.get(one.storage)
            value = one.to(torch.empty(one.shape, dtype=one.dtype, device="cpu") if value is None else value)
            if counts:
                values[one.storage] = value
            if counts and number == last[one.storage]:
                name = self.names[one.storage]
                yield name, _part(values.pop(one.storage), held[name].cuts)

    def _parts(self, held: Mapping[str, _Held]) -> Iterator[tuple[str, Tensor]]:
        """This rank's part of each tensor, drawn by itself where it lies."""
        _, first = self._ends()
        chains: dict[str, list[Done]] = {}
        for number, one in enumerate(self.done):
            if self.names.get(one.storage) in held and number >= first[one.storage]:
                chains.setdefault(self.names[one.storage], []).append(one)
        for name, every in chains.items():
            cuts, local = held[name].cuts, held[name].local
            is_by_element = not any(callable(one.operator) for one in every)
            torch.manual_seed(_seed_of(self.seed, name, cuts if is_by_element else ()))
            shape, device = (local.shape, local.device) if is_by_element else (every[0].shape, torch.device("cpu"))
            value = torch.empty(shape, dtype=every[0].dtype, device=device)
            for one in every:
                value = one.to(value)
            yield name, value if is_by_element else _part(value, cuts)

    def _ends(self) -> tuple[dict[int, int], dict[int, int]]:
        """By storage the last operator, and the last one of which none before it is of account."""
        last = {one.storage: number for number, one in enumerate(self.done)}
        first = {one.storage: number for number, one in enumerate(self.done) if one.begins}
        return last, first


def cuts_of(tensor: Tensor) -> tuple[Cut, ...]:
    """How a DTensor's local part is cut out of the whole, in order; nothing of other tensors."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.placement_types import _StridedShard

    if not isinstance(tensor, DTensor):
        return ()
    place = tensor.device_mesh.get_coordinate()
    assert place is not None
    found: list[tuple[bool, Cut]] = []
    for number, placement in enumerate(tensor.placements):
        if not placement.is_replicate():
            cut = (placement.dim, tensor.device_mesh.size(number), place[number])  # type: ignore[attr-defined]
            found.append((isinstance(placement, _StridedShard), cut))
    return tuple(cut for _, cut in sorted(found, key=lambda each: each[0]))  # strided: cut after what stands behind it


def _part(value: Tensor, cuts: Sequence[Cut]) -> Tensor:
    """A part of a tensor; empty where there are fewer parts than asked for."""
    for dim, parts, part in cuts:
        pieces = value.chunk(parts, dim)
        value = pieces[part] if part < len(pieces) else value.narrow(dim, 0, 0)
    return value


def _local(tensor: Tensor) -> Tensor:
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def _seed_of(seed: int, name: str, cuts: Sequence[Cut]) -> int:
    """A seed of a part's own, whatever else is drawn: the same in each process."""
    text = f"{seed} {name} {[*cuts]}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "little")


def begun(workload: Workload, variant: Variant, seed: int) -> tuple[nn.Module, FirstWeights | None]:
    """The model, on the meta device with what gives it its first weights; or whole, in host memory, with None."""
    if not workload.facts.is_built_whole(variant):
        try:
            return built_on_meta(workload, variant, seed)
        except NotWrittenDown as reason:
            sys.stderr.write(f"workload {workload.name}: every rank builds the whole model in host memory: {reason}\n")
    torch.manual_seed(seed)
    return workload.build(variant), None


def built_on_meta(workload: Workload, variant: Variant, seed: int) -> tuple[nn.Module, FirstWeights]:
    """The model on the meta device, and what gives it the weights that `build` would draw after `manual_seed`.

    It is built of fake tensors, which say that they lie on the CPU: on the meta device some of torch's initialisers do
    nothing.

    Raises:
        NotWrittenDown: something of it cannot be done again.
    """
    scribe = _Scribe()
    try:
        with FakeTensorMode(), scribe:
            model = workload.build(variant)
    except Exception as error:  # of any kind, where it asks for values; what is wrong anyhow is wrong again
        raise NotWrittenDown(f"{type(error).__name__}: {error}") from error
    if scribe.lost:
        raise NotWrittenDown(f"{scribe.lost} changes or draws what is no whole weight")
    names: dict[int, str] = {}
    for name, one in _tensors(model):
        if not isinstance(one, FakeTensor) or one.device.type != "cpu" or not _is_whole(one):
            raise NotWrittenDown(f"{name} is no tensor of its own in host memory")
        storage = _address(one)
        if storage in names or storage not in scribe.known:
            raise NotWrittenDown(f"{name} is {'shared' if storage in names else 'not filled, or from other tensors'}")
        names[storage] = name
    return _without_memory(model), FirstWeights(
        scribe.done, names, seed, sum(one.numel() for one in model.parameters())
    )


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a model, as often as it is there."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)
    for prefix, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor):
                raise NotWrittenDown(f"{prefix}.{name} is a tensor, and neither parameter nor buffer")


def _without_memory(model: nn.Module) -> nn.Module:
    """The model with its tensors on the meta device, in place."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            empty = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
            setattr(module, name, nn.Parameter(empty, parameter.requires_grad))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.empty(buffer.shape, dtype=buffer.dtype, device="meta"))
    return model
