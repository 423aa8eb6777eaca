"""Workload: everything a trial needs to know of a model; adding one is one file with one such constant."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from benchsuite.workloads.facts import FACTS, Facts
from benchsuite.workloads.spec import Variant

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle

Batch = dict[str, Tensor]
Stage = tuple[nn.Module, Callable[[nn.Module, Any, Batch], Any]]
"""A piece of a model, and how it is called: with what the piece before returned (None for the first) and the batch."""
Plan = Mapping[str, "ParallelStyle"]
"""Styles by the name of a module within the model, as `parallelize_module` takes them."""


_PARAMETERS: dict[tuple[int, str], int] = {}


@dataclass(frozen=True)
class TensorParallel:
    """How a model is split within its layers.

    `plan(model, sequence_parallel, loss_parallel)` gives the styles; `divisible(variant)` gives what must be multiples
    of the degree, by name (such as heads).
    """

    plan: Callable[[nn.Module, bool, bool], Plan]
    divisible: Callable[[Variant], Mapping[str, int]]


@dataclass(frozen=True)
class Pipeline:
    """How a model is cut into stages: pieces that in sequence are the model, and the loss of what the last returns."""

    stages: Callable[[nn.Module], Sequence[Stage]]
    criterion: Callable[[Any, Batch], Tensor]


@dataclass(frozen=True)
class ContextParallel:
    """How a causal model is split along its sequences.

    `attentions(model)` are the modules whose attribute `attend(query, key, value)`, causal attention over (N, heads,
    length, head_dim), is replaced; keys and values may have fewer heads than queries. `cut(batch, positions)` gives the
    batch with what is at some positions of each sequence; `positions(length, device)` are those of this rank, which the
    model must be told as well. `divisible` is as in `TensorParallel`: heads and seq_len.
    """

    attentions: Callable[[nn.Module], Sequence[nn.Module]]
    cut: Callable[[Batch, Callable[[int, torch.device], Tensor]], Batch]
    divisible: Callable[[Variant], Mapping[str, int]]


@dataclass(frozen=True)
class Workload:
    """A model to train.

    `kind` names the sample kind it takes; `build(variant)` makes the model on the default device; `loss(model, batch)`
    is a scalar, a mean over the batch; `synthetic(variant, batch_size, device)` makes a batch on the device like the
    loader's; `optimizer(parameters)` is the one its reference trains with, `learning_rate` that at which others start.

    `arrive(batch)` makes a batch that has come to the device ready for `loss`, where that is left to do.

    What follows is needed by some modes only. `targets(batch)` counts what the loss is a mean over where batches differ
    in it: the batch then holds, under the same names, the means over all ranks and microbatches, and `loss` divides by
    those. `blocks(model)` are the units that are sharded, checkpointed and compiled, in order of use. `experts(model)`
    are the modules that hold experts to be dealt to ranks, as `moe.Experts` does.
    """

    name: str
    kind: str
    variants: Mapping[str, Variant]
    build: Callable[[Variant], nn.Module]
    loss: Callable[[nn.Module, Batch], Tensor]
    synthetic: Callable[[Variant, int, torch.device], Batch]
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    learning_rate: float = 0.01
    arrive: Callable[[Batch], Batch] | None = None
    targets: Callable[[Batch], dict[str, Tensor]] | None = None
    blocks: Callable[[nn.Module], Sequence[nn.Module]] | None = None
    tensor_parallel: TensorParallel | None = None
    pipeline: Pipeline | None = None
    context_parallel: ContextParallel | None = None
    experts: Callable[[nn.Module], Sequence[nn.Module]] | None = None
    built_whole: bool = False
    """Whether each rank must build the whole model in host memory, as its first weights cannot be drawn in parts: they
    are loaded, or worked out from one another."""

    @property
    def facts(self) -> Facts:
        """What a plan must know of it; the parameters of a workload of somebody else are counted."""
        known = FACTS.get(self.name)
        return Facts(
            self.name,
            self.kind,
            self.variants,
            self.tensor_parallel.divisible if self.tensor_parallel else None,
            self._num_pieces if self.pipeline else None,
            has_targets=self.targets is not None,
            has_experts=self.experts is not None,
            shared=self.context_parallel.divisible if self.context_parallel else None,
            parameters=known.parameters if known else self.count_parameters,
            built_whole=self.built_whole,
        )

    def count_parameters(self, variant: Variant) -> int:
        """How many parameters a variant has, by its model; 0 where that takes memory to be built."""
        key = id(self.build), repr(variant)
        if key not in _PARAMETERS:
            try:
                with torch.device("meta"):
                    _PARAMETERS[key] = sum(one.numel() for one in self.build(variant).parameters())
            except Exception:  # of any kind: somebody else's code that asks for values
                _PARAMETERS[key] = 0
        return _PARAMETERS[key]

    def _num_pieces(self, variant: Variant) -> int:
        assert self.pipeline is not None
        with torch.device("meta"):
            return len(self.pipeline.stages(self.build(variant)))
