"""Which workload can be parallelized how: every reason why not, with the arithmetic."""

import os
import shutil
from collections.abc import Collection, Iterator
from functools import cache

from benchsuite.workloads import engine as engines
from benchsuite.workloads.facts import Facts, shape_problem
from benchsuite.workloads.layout import Layout, reshards
from benchsuite.workloads.spec import ComputeSpec, Variant

DDP_ONLY = ("bucket_cap_mb", "comm_hook", "static_graph", "gradient_as_bucket_view")
FSDP_ONLY = ("reshard_after_forward", "prefetch_blocks", "cpu_offload")
IMAGES = ("image", "volume")
COMPILERS = ("g++", "clang++")
ZERO_BUBBLE_RESHARDS = (
    "schedule zero_bubble with weights that are resharded after forward: torch 2.13 loses gradients of its backward "
    "pass in two parts; leave reshard_after_forward out"
)
ZERO_BUBBLE_COMPILED = (
    "compile with schedule zero_bubble, which goes backward in two parts; torch 2.13: This backward function was "
    "compiled with non-empty donated buffers which requires create_graph=False and retain_graph=False"
)


@cache
def has_compiler() -> bool:
    """Whether torch.compile finds a compiler for code that runs on CPUs."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), *COMPILERS))


def problem(
    facts: Facts, variant: Variant, layout: Layout, compute: ComputeSpec, rank_batch: int, device: str
) -> str | None:
    """Why this workload cannot be trained so, or None."""
    if wrong := shape_problem(variant):
        return wrong
    every = (
        _tensor_problems(facts, variant, layout),
        _pipeline_problems(facts, variant, layout, compute, rank_batch),
        _context_problems(facts, variant, layout),
        _expert_problems(facts, variant, layout),
        _sharding_problems(layout, compute),
        _technique_problems(facts, layout, compute, rank_batch, device),
        _precision_problems(facts, layout, compute, device),
        _device_problems(layout, device),
        engines.problems(facts, layout, compute, device),
    )
    return next((reason for reasons in every for reason in reasons), None)


def _indivisible(what: str, value: int, by: str, degree: int) -> Iterator[str]:
    if value % degree:
        yield f"{what} {value} is not a multiple of {by} {degree}"


def _tensor_problems(facts: Facts, variant: Variant, layout: Layout) -> Iterator[str]:
    if layout.tp == 1:
        if layout.sequence_parallel or layout.loss_parallel:
            yield "sequence_parallel and loss_parallel split over tp, which is 1"
        return
    if facts.divisible is None:
        yield f"{facts.name} has no plan for tp {layout.tp}: its layers are not split"
        return
    needed = facts.divisible(variant)
    if not layout.loss_parallel:
        needed = {what: value for what, value in needed.items() if what != "vocab_size"}
    for what, value in needed.items():
        if what == "seq_len" and not layout.sequence_parallel:
            continue
        yield from _indivisible(what, value, "tp", layout.tp)


def _pipeline_problems(
    facts: Facts, variant: Variant, layout: Layout, compute: ComputeSpec, rank_batch: int
) -> Iterator[str]:
    if layout.pp == 1:
        return
    if facts.num_pieces is None:
        yield f"{facts.name} cannot be cut into pp {layout.pp} stages"
        return
    if facts.has_targets:
        yield f"{facts.name} takes means over targets of the whole batch, which no stage of pp {layout.pp} sees"
    if variant.model.get("tied_embeddings"):
        yield f"tied embeddings: the first and the last stage of pp {layout.pp} would hold one weight, each a copy"
    stages = layout.pp * layout.stages_per_rank
    pieces = facts.num_pieces(variant)
    if pieces < stages:
        yield f"{pieces} pieces of {facts.name} < pp {layout.pp} x {layout.stages_per_rank} stages per rank = {stages}"
    yield from _indivisible("batch_size", rank_batch, "microbatches", layout.microbatches)
    if layout.schedule == "naive" and layout.microbatches > 1:
        yield f"schedule naive has 1 microbatch, microbatches is {layout.microbatches}"
    if layout.schedule not in ("naive", "gpipe") and layout.microbatches < layout.pp:
        yield f"schedule {layout.schedule} needs microbatches >= pp {layout.pp}, got {layout.microbatches}"
    if layout.stages_per_rank > 1:
        yield from _indivisible("microbatches", layout.microbatches, "pp", layout.pp)
    if compute.grad_accum > 1:
        yield f"grad_accum {compute.grad_accum}: a pipeline accumulates over parallelism.microbatches; use those"


def _context_problems(facts: Facts, variant: Variant, layout: Layout) -> Iterator[str]:
    if layout.cp == 1:
        return
    if facts.shared is None:
        yield f"{facts.name} has no plan for cp {layout.cp}: its attention does not reach over ranks"
        return
    needed, ring = facts.shared(variant), layout.cp_attention == "ring"
    if ring:  # a part from each half of the sequence
        yield from _indivisible("seq_len", needed["seq_len"], "2 x cp", 2 * layout.cp)
    else:
        yield from _indivisible("seq_len", needed["seq_len"], "cp", layout.cp)
        yield from _indivisible("num_heads", needed["num_heads"], "cp x tp", layout.cp * layout.tp)
    if layout.sequence_parallel:
        yield from _indivisible("seq_len", needed["seq_len"], "cp x tp", layout.cp * layout.tp)


def _expert_problems(facts: Facts, variant: Variant, layout: Layout) -> Iterator[str]:
    if layout.ep == 1:
        return
    experts = variant.model.get("num_experts", 0)
    if not facts.has_experts or not isinstance(experts, int) or not experts:
        yield f"{facts.name} has no experts in this variant to deal to ep {layout.ep} ranks"
        return
    yield from _indivisible("experts", experts, "ep", layout.ep)
    if layout.tp > 1 or layout.pp > 1 or layout.cp > 1:
        others = " and ".join(f"{name} {getattr(layout, name)}" for name in ("tp", "pp", "cp"))
        yield f"ep {layout.ep} with {others}: experts are dealt over dp alone"


def _sharding_problems(layout: Layout, compute: ComputeSpec) -> Iterator[str]:
    if layout.zero and layout.ep > 1:
        yield f"zero {layout.zero} with ep {layout.ep}: what experts are dealt to is not sharded besides"
    if layout.zero > 1 and layout.pp > 1 and layout.schedule == "zero_bubble" and reshards(layout, compute):
        yield ZERO_BUBBLE_RESHARDS
    if layout.dp_replicate > 1 and layout.replicas == layout.dp_replicate:
        yield f"dp {layout.dp} / dp_replicate {layout.dp_replicate} = 1 rank to shard over: that is ddp"
    if layout.dp_replicate > 1 and layout.zero < 3:
        yield f"dp_replicate {layout.dp_replicate} replicates what zero 3 shards, zero is {layout.zero}"


def _technique_problems(
    facts: Facts, layout: Layout, compute: ComputeSpec, rank_batch: int, device: str
) -> Iterator[str]:
    yield from _indivisible("batch_size", rank_batch, "grad_accum", compute.grad_accum)
    given = compute.model_dump(exclude_defaults=True)
    by_torch = layout.engine == "torch"
    is_ddp = by_torch and layout.needs_group and layout.zero < 2 and layout.tp == layout.pp == layout.ep == 1
    taken: Collection[str] = () if by_torch else engines.engine_of(layout.engine).options
    for name in given:
        if name in DDP_ONLY and not is_ddp and name not in taken:
            yield f"{name} is an option of {_takers(name, 'ddp', 'zero1')}, parallelism is {layout.name}"
        if name in FSDP_ONLY and not (by_torch and layout.zero > 1) and name not in taken:
            yield f"{name} is an option of {_takers(name, 'zero2', 'fsdp', 'hsdp')}, parallelism is {layout.name}"
        if name in engines.ENGINE_ONLY and name not in taken:
            yield f"{name} is an option of {_takers(name)}, parallelism is {layout.name}"
    if compute.comm_hook == "powersgd" and compute.bucket_cap_mb and device == "cpu":
        yield f"bucket_cap_mb {compute.bucket_cap_mb} with comm_hook powersgd: on CPUs it needs one bucket for all"
    if compute.static_graph and compute.grad_accum > 1:
        yield f"static_graph with grad_accum {compute.grad_accum}: DDP then expects an exchange in every backward"
    if compute.channels_last and layout.pp > 1:
        yield f"channels_last with pp {layout.pp}: stages hand on tensors with channels outermost"
    if compute.channels_last and facts.kind not in IMAGES:
        yield f"channels_last is for images and volumes, {facts.name} takes {facts.kind}"
    yield from _optimizer_problems(layout, compute)
    if compute.cpu_offload and compute.precision == "fp16":
        yield "cpu_offload with fp16: gradients are scaled on the device"
    if compute.compile and device == "cpu" and not has_compiler():
        yield f"compile on a CPU needs a C++ compiler: {' or '.join(COMPILERS)} is not installed, CXX is not set"
    if compute.compile and device == "cpu" and facts.kind == "volume":
        yield f"compile of {facts.name} on a CPU: torch's compiler fails at 3D convolutions there (torch 2.13)"
    if layout.pp > 1 and layout.schedule == "zero_bubble" and compute.compile:
        yield ZERO_BUBBLE_COMPILED
    if layout.ep > 1 and compute.compile:
        yield "compile with ep: how many tokens travel differs from step to step"
    if compute.comm_hook == "powersgd" and compute.precision == "fp16":
        yield "comm_hook powersgd with fp16: what overflows once stays in its error feedback for ever"
    if layout.name == "data_parallel" and (compute.compile or compute.activation_checkpointing != "none"):
        yield "data_parallel copies modules, whose compiled or checkpointed forward stays that of the first device"


def _takers(name: str, *modes: str) -> str:
    """The modes and engines that a setting is for, in words."""
    every = [*modes, *(f"engine {one.name}" for one in engines.ENGINES.values() if name in one.options)]
    return " and ".join(filter(None, [", ".join(every[:-1]), every[-1]]))


def _optimizer_problems(layout: Layout, compute: ComputeSpec) -> Iterator[str]:
    split = layout.tp > 1 or layout.zero > 1
    if compute.optimizer == "adafactor" and (split or layout.ep > 1):
        yield f"adafactor takes norms of whole matrices, which no rank has under {layout.name}"
    if compute.fused and compute.optimizer == "adafactor":
        yield "adafactor has no fused implementation"
    if compute.fused and split and (compute.optimizer != "adamw" or layout.tp > 1):
        yield f"fused under {layout.name}: for split parameters torch has only a fused adamw, and none under tp"


def _device_problems(layout: Layout, device: str) -> Iterator[str]:
    if layout.name == "data_parallel" and device != "cuda":
        yield f"data_parallel cuts batches over the CUDA devices of one process, device is {device}"


def _precision_problems(facts: Facts, layout: Layout, compute: ComputeSpec, device: str) -> Iterator[str]:
    if compute.precision == "fp8" and device != "cuda":
        yield f"precision fp8 is a mode of CUDA devices, device is {device}"
    if compute.precision == "fp8" and facts.kind in IMAGES:
        yield f"precision fp8 is of linear layers, {facts.name} has convolutions"
    if compute.precision == "fp8" and layout.tp > 1:
        yield f"precision fp8 with tp {layout.tp}: torchao splits such layers by styles of its own, which no plan has"
    if compute.precision == "tf32" and device != "cuda":
        yield f"precision tf32 is a mode of CUDA devices, device is {device}"
    if compute.cudnn_benchmark and device != "cuda":
        yield f"cudnn_benchmark times the convolutions of CUDA devices, device is {device}"
    if compute.precision == "fp16" and (layout.zero > 1 or layout.tp > 1 or layout.pp > 1 or layout.ep > 1):
        yield f"precision fp16 scales whole gradients, which no rank has under {layout.name}: use bf16"
