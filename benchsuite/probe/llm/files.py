"""Which files a framework's sharded checkpoint has, and which parts of tensors each rank writes there.

All of it is computed from the shapes of the model's parameters, with AdamW in mixed precision: no device, no torch.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchsuite.contract.errors import UserError, refuse
from benchsuite.workloads.facts import GPT_NEOX, DecoderShape, gpt_neox_divisible
from benchsuite.workloads.spec import Variant

Shapes = Mapping[str, tuple[int, ...]]
"""The parameters of a model by name, in its order."""
ITEM_BYTES = {"float32": 4, "bfloat16": 2}
MOMENTS = ("exp_avg", "exp_avg_sq")
MLPERF_DEGREES = {"llama3-8b": (1, 1), "llama3-70b": (8, 1), "llama3-405b": (8, 32)}
"""Degrees of tensor and pipeline parallelism of MLPerf Storage's checkpoints (mlcommons/storage, v2.0 and v3.0)."""
COLUMNS, ROWS = ("embed", "qkv", "gate", "up", "logits"), ("out", "down")
"""Layers whose weight is dealt to tensor-parallel ranks by its first and by its second dimension (Megatron-LM)."""
SUBGROUP_ELEMENTS = 1_000_000_000
"""DeepSpeed's `sub_group_size`: elements of one of a rank's flat groups."""


@dataclass(frozen=True)
class Part:
    """A tensor, or the part of one, that a rank writes."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.elements * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class Cut:
    """How a model is spread: over how many ranks, and by which degrees of tensor and pipeline parallelism."""

    ranks: int
    tp: int = 1
    pp: int = 1

    @property
    def dp(self) -> int:
        return self.ranks // (self.tp * self.pp)

    def place(self, rank: int) -> tuple[int, int, int]:
        """A rank's number within its tensor-, data- and pipeline-parallel group; tensor parallelism is innermost."""
        return rank % self.tp, rank // self.tp % self.dp, rank // (self.tp * self.dp)


Files = Mapping[str, Sequence[Part]]
"""The files of a rank, and what stands in each."""


def chosen(name: str) -> Variant:
    """The variant of `gpt_neox` that a model's name means.

    Raises:
        UserError: there is none, or it has experts.
    """
    known = {one: variant for one, variant in GPT_NEOX.variants.items() if not variant.model["num_experts"]}
    if name not in known:
        raise refuse("--model", name, known)
    return known[name]


def cut_of(name: str, framework: str, ranks: int, tp: int | None, pp: int | None) -> Cut:
    """How a model is cut; degrees that are not given are 1, and for Megatron those of MLPerf Storage.

    Raises:
        UserError: degrees that the framework's layout has not, or that do not divide what they cut.
    """
    if framework != "megatron":
        if (tp or 1, pp or 1) != (1, 1):
            raise UserError(f"--framework {framework} shards over all ranks: --tp and --pp are for megatron")
        return Cut(ranks)
    usual = MLPERF_DEGREES.get(name, (1, 1))
    cut = Cut(ranks, tp or usual[0], pp or usual[1])
    if ranks % (cut.tp * cut.pp):
        raise UserError(f"--ranks {ranks} is not a multiple of tp {cut.tp} x pp {cut.pp} = {cut.tp * cut.pp}")
    divisible = gpt_neox_divisible(chosen(name))
    for what, size in divisible.items():
        if size % cut.tp:
            raise UserError(f"--tp {cut.tp} does not divide {what} {size} of {name}")
    layers_of_stages(DecoderShape.of(chosen(name)).num_layers, cut.pp)
    return cut


def layers_of_stages(num_layers: int, pp: int) -> list[range]:
    """The layers of each pipeline stage: as many each, or with embedding and head counting as one layer each.

    Raises:
        UserError: neither comes out even.
    """
    if num_layers % pp == 0:
        counts = [num_layers // pp] * pp
    elif (num_layers + 2) % pp == 0 and (num_layers + 2) // pp > 1:
        each = (num_layers + 2) // pp
        counts = [each - 1, *[each] * (pp - 2), each - 1]
    else:
        raise UserError(f"--pp {pp} divides neither {num_layers} layers nor, with embedding and head, {num_layers + 2}")
    starts = [sum(counts[:stage]) for stage in range(pp + 1)]
    return [range(first, last) for first, last in pairwise(starts)]


def fsdp(shapes: Shapes, cut: Cut, rank: int) -> Files:
    """FSDP2 saved by torch.distributed.checkpoint: rows of each float32 parameter and of AdamW's two moments."""
    parts = []
    for name, (first, *others) in shapes.items():
        rows = -(-first // cut.ranks)  # as torch.chunk deals them: the last ranks may get fewer, or none
        mine = max(0, min(first, (rank + 1) * rows) - rank * rows)
        if mine:
            shape = (mine, *others)
            parts.append(Part(f"model.{name}", shape, "float32"))
            parts += [Part(f"optimizer.state.{name}.{moment}", shape, "float32") for moment in MOMENTS]
    return {f"__{rank}_0.distcp": parts}


def megatron(shapes: Shapes, cut: Cut, rank: int) -> Files:
    """Megatron-LM's `torch_dist` with its distributed optimizer and fully parallel save: two files for each rank.

    The bfloat16 weights of a stage are dealt to its data-parallel ranks, the largest first to whoever has least; what
    all tensor-parallel ranks hold is written by the first. Float32 weights and moments are flat, a share for each.
    """
    tp, dp, pp = cut.place(rank)
    held = dict(_of_stage(shapes, cut, pp))
    mine = [Part(f"model.{name}", shape, "bfloat16") for name, shape in held.items() if not tp or shape != shapes[name]]
    weights = dealt(mine, cut.dp)[dp]
    share = -(-sum(math.prod(shape) for shape in held.values()) // cut.dp)
    flat = [Part(f"optimizer.{name}.{rank}", (share,), "float32") for name in ("param", *MOMENTS)]
    return {f"__{rank}_{number}.distcp": parts for number, parts in enumerate(dealt([*weights, *flat], 2))}


def _of_stage(shapes: Shapes, cut: Cut, stage: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The parameters of a pipeline stage as one of its tensor-parallel ranks holds them."""
    layers = [int(name.split(".")[1]) for name in shapes if name.startswith("layers.")]
    stages = layers_of_stages(max(layers) + 1, cut.pp)
    for name, shape in shapes.items():
        words = name.split(".")
        if words[0] == "layers":
            here = int(words[1]) in stages[stage]
        else:
            here = stage == (cut.pp - 1 if words[0] == "head" else 0)
        if here:
            yield name, _cut_by_tp(words[-2], words[-1], shape, cut.tp)


def _cut_by_tp(layer: str, kind: str, shape: tuple[int, ...], tp: int) -> tuple[int, ...]:
    if layer in COLUMNS:
        return (shape[0] // tp, *shape[1:])
    return (shape[0], shape[1] // tp) if layer in ROWS and kind == "weight" else shape


def dealt(parts: Sequence[Part], count: int) -> list[list[Part]]:
    """The largest parts first, each to whoever has the fewest bytes, as Megatron and torch deal them."""
    shares: list[list[Part]] = [[] for _ in range(count)]
    sizes = [0] * count
    for part in sorted(parts, key=lambda part: -part.num_bytes):
        least = sizes.index(min(sizes))
        shares[least].append(part)
        sizes[least] += part.num_bytes
    return shares


def deepspeed(shapes: Shapes, cut: Cut, rank: int) -> Files:
    """DeepSpeed's ZeRO-3 in bfloat16: flat float32 weights and moments; the file of the model has no weights."""
    share = sum(-(-math.prod(shape) // cut.ranks) for shape in shapes.values())
    starts = range(0, share, SUBGROUP_ELEMENTS)
    groups = [(number, min(SUBGROUP_ELEMENTS, share - start)) for number, start in enumerate(starts)]
    kinds = ("fp32_flat_groups", *MOMENTS)
    flat = [Part(f"{kind}.{number}", (size,), "float32") for kind in kinds for number, size in groups]
    return {
        f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt": [],
        f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt": flat,
    }


FRAMEWORKS: Mapping[str, Callable[[Shapes, Cut, int], Files]] = {
    "fsdp": fsdp,
    "megatron": megatron,
    "deepspeed": deepspeed,
}


def bytes_of(files: Files) -> int:
    """Bytes of the tensors in a rank's files."""
    return sum(part.num_bytes for parts in files.values() for part in parts)


def bytes_by_rank(framework: str, shapes: Shapes, cut: Cut, ranks: range) -> list[int]:
    """Bytes of the tensors that each of these ranks writes."""
    return [bytes_of(FRAMEWORKS[framework](shapes, cut, rank)) for rank in ranks]
