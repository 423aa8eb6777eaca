"""What the operators of one step compute and move, by class, counted as PyTorch dispatches them. Nothing is timed.

The classes are those of Ivanov et al. 2021, "Data movement is all you need" (arXiv:2007.00072): tensor contractions,
statistical normalisations (reductions, and what applies their result), element-wise operators; and the rest, which
moves data: copies, gathers.

FLOPs. A contraction has 2 a multiply-add, as `benchsuite.workloads.flops` counts: attention's backward pass without
recomputation. A normalisation has 4 to 13 an element of its input (`PER_ELEMENT`), a plain reduction 1. An
element-wise operator has 1 an element of its result, whatever it computes.

Bytes are operator-level: each operator reads its inputs and writes its results once, and views move nothing. So they
are an upper bound for memory: caches and fused kernels keep part of this traffic away from it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from benchsuite.workloads.parallel.account import tensors_in
from benchsuite.workloads.parallel.step import Training
from benchsuite.workloads.parallel.waits import NoClock
from benchsuite.workloads.workload import Batch

OperatorClass = Literal["contraction", "normalisation", "element_wise", "other"]
CLASSES: tuple[OperatorClass, ...] = ("contraction", "normalisation", "element_wise", "other")
PRODUCTS = (
    *("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "matmul", "linear", "linear_backward", "mkldnn_linear"),
    *("_scaled_mm", "_grouped_mm", "einsum"),
)
"""Contractions besides convolutions and attention."""
REDUCTIONS = (
    *("sum", "mean", "max", "min", "amax", "amin", "argmax", "argmin", "prod", "std", "var", "var_mean", "logsumexp"),
    *("cumsum", "all", "any", "nansum"),
)
ELEMENT_WISE = ("native_dropout", "native_dropout_backward", "dropout", "bernoulli", "masked_scale")
"""Dropout, which PyTorch does not tag as pointwise."""
COPIES = ("clone",)
"""What PyTorch tags as pointwise though it computes nothing."""
PER_ELEMENT: Mapping[tuple[str, bool], int] = {
    ("softmax", False): 5,  # maximum, difference, exponential, sum, quotient
    ("softmax", True): 4,  # product, sum, difference, product
    ("norm", False): 7,  # sum, difference, square, sum, scale, weight, bias
    ("norm", True): 13,  # normalised input 2, gradients of weight 2 and bias 1, by the weight 1, two means 3, input 4
}
"""FLOPs an element of what is normalised, forward and backward."""
UNMOVED = ("_unsafe_view", "detach", "alias", "lift_fresh", "empty", "empty_like", "empty_strided", "new_empty", "set")
"""Operators that neither read nor write elements, though they are no views."""
OVERWRITING = ("copy", "fill", "zero", "normal", "uniform", "random", "exponential", "bernoulli")
"""In-place operators that do not read what they write to."""
GATHERING = ("embedding", "index", "index_select", "gather", "take")
"""Operators that read of their first input what they give, and no more."""


@dataclass
class Counted:
    """What the operators of a class did in a step of one rank."""

    flops: int = 0
    num_bytes: int = 0
    operators: int = 0


@cache
def class_of(name: str) -> OperatorClass:
    """The class of an operator by its name without namespace, as the dispatcher and the profiler have it: `add_`."""
    base = _base(name)
    if base in PRODUCTS or "attention" in base or ("conv" in base and "convert" not in base):
        return "contraction"
    if base in REDUCTIONS or "softmax" in base or "pool" in base or ("norm" in base and base != "normal"):
        return "normalisation"
    if base in COPIES:
        return "other"
    if base in ELEMENT_WISE or base.startswith(("_foreach_", "_fused_")) or _is_pointwise(name):
        return "element_wise"
    return "other"


def _base(name: str) -> str:
    """An operator's name without the mark of those that work in place."""
    return name.rstrip("_")


def _is_pointwise(name: str) -> bool:
    packet = getattr(torch.ops.aten, name, None)
    if packet is None or not hasattr(packet, "overloads"):
        return False
    return any(torch.Tag.pointwise in getattr(packet, overload).tags for overload in packet.overloads())


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts PyTorch's own operators (`aten`), by class."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: dict[OperatorClass, Counted] = {name: Counted() for name in CLASSES}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from torch.distributed.tensor import DTensor

        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it calls the operators on its local tensors itself
        result = func(*args, **(kwargs or {}))
        if func.namespace == "aten":
            self._count(func, args, kwargs or {}, result)
        return result

    def _count(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        name = func.overloadpacket.__name__
        own = self.found[class_of(name)]
        own.operators += 1
        if func.is_view or _base(name) in UNMOVED:
            return
        written = [*tensors_in(result)] or [*tensors_in(_changed(func, args, kwargs))]
        own.flops += _flops(func, args, kwargs, result, written)
        own.num_bytes += sum(map(_bytes, _read(func, args, kwargs, written))) + sum(map(_bytes, written))


def counted(training: Training, batch: Batch) -> dict[OperatorClass, Counted]:
    """Run one step, uncompiled, and count its operators on this rank; all ranks must do so."""
    operators = Operators()
    with torch.compiler.set_stance("force_eager"), operators:
        training.step(batch, NoClock())
    return operators.found


def _flops(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, written: Sequence[Tensor]) -> int:
    name, kind = func.overloadpacket.__name__, class_of(func.overloadpacket.__name__)
    inputs = [*tensors_in(args), *tensors_in(kwargs)]
    if kind == "contraction":
        if "attention" in name:
            return _attention_flops(inputs, "backward" in name)
        formula = flop_registry.get(func.overloadpacket)
        most = max((one.numel() for one in inputs), default=0)
        return int(formula(*args, **kwargs, out_val=result)) if formula else 2 * most
    if kind == "normalisation":
        word = "softmax" if "softmax" in name else "norm"
        each = PER_ELEMENT[word, "backward" in name] if word in name and name not in REDUCTIONS else 1
        return each * max((one.numel() for one in inputs), default=0)
    if kind == "element_wise":
        sizes = [one.numel() for one in written]
        return sum(sizes) if name.startswith(("_foreach_", "_fused_")) else max(sizes, default=0)
    return 0


def _attention_flops(inputs: Sequence[Tensor], backward: bool) -> int:
    """FLOPs of attention's two products forward, of its four backward, for (batch, heads, positions, size) tensors."""
    query, key, value = inputs[1:4] if backward else inputs[:3]
    pairs = math.prod(query.shape[:-1]) * key.shape[-2]
    return (2 if backward else 1) * 2 * pairs * (query.shape[-1] + value.shape[-1])


def _read(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], written: Sequence[Tensor]) -> list[Tensor]:
    """The tensors that an operator reads."""
    base = _base(func.overloadpacket.__name__)
    inputs = [
        one for number, value in enumerate(args) for one in tensors_in(value) if number or base not in OVERWRITING
    ]
    inputs += [one for name, value in kwargs.items() if name != "out" for one in tensors_in(value)]
    return [*written[:1], *inputs[1:]] if base in GATHERING else inputs


def _changed(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments that an operator without a result writes to."""
    named = zip(func._schema.arguments, args, strict=False)
    by_name = [(argument, kwargs[argument.name]) for argument in func._schema.arguments if argument.name in kwargs]
    given = [*named, *by_name]
    return [value for argument, value in given if argument.alias_info is not None and argument.alias_info.is_write]


def _bytes(tensor: Tensor) -> int:
    """Bytes of a tensor's elements, each once where they are repeated without being stored (`expand`)."""
    return min(tensor.nbytes, tensor.untyped_storage().nbytes())
